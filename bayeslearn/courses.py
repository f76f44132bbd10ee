"""Where a run stands: what its loop changes, what a checkpoint holds, and the best iterate."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import checkpoints
from bayeslearn.chains import Lanes
from bayeslearn.distributed import home
from bayeslearn.errors import StorageError
from bayeslearn.model import Target
from bayeslearn.tree import PyTree

WINDOW = 10  # evaluations in the moving average
LUCK = 3.0  # standard errors by which the best of many averages may be too good
CALM_ROUNDS = 20  # after which earlier back-offs are forgotten
HASTE = 0.5  # of its steps so far, in which a run that rests lets its step size fall
PATIENT_BACK_OFFS = 2  # before it steps back to its best state
SUNK_LOOKS = 20  # in a row, far below the first or not finite, before it steps back too
SUNK_ERRORS = 10.0  # Monte-Carlo errors that are not far
NARROWEST, WIDEST = 1e-8, 1e4  # standard deviations of q that make sense, in the prior's
DRAW = "draw of leaf "  # in the name of what is kept beside a sampler's trace


def _read(function: Any) -> Any:
    """Whatever is odd about a record is a `StorageError`."""

    @functools.wraps(function)
    def inside(*args: Any) -> Any:
        try:
            return function(*args)
        except (StorageError, MemoryError):
            raise
        except Exception as error:
            raise StorageError(
                f"The checkpoint cannot be loaded: its record makes no sense"
                f" ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})."
            ) from error

    return inside


def _take_counts(place: Any, record: dict[str, Any]) -> None:
    for name in place.COUNTS:
        if name in place.NEWER and name not in record:
            continue
        value = record[name]
        if type(value) is not type(getattr(place, name)):
            raise TypeError(f"{name} is a {type(value).__name__}")
        if type(value) is int and not 0 <= value < 2**53:
            raise ValueError(f"{name} is {value}")
        if name == "scale" and not 0.0 < value <= 1.0:
            raise ValueError(f"{name} is {value}")
        setattr(place, name, value)


def _trace(piece: Any) -> dict[str, np.ndarray]:
    if not all(isinstance(k, str) and isinstance(v, np.ndarray) for k, v in piece.items()):
        raise TypeError("a trace holds other things than arrays by name")
    return piece


class Course:
    """Where an optimisation stands: all that is needed to go on from there."""

    COUNTS = (
        *("step", "at", "bad", "skipped", "scale", "back_offs", "recent", "calm"),
        *("first", "low", "sunk", "stopped", "ended", "strayed", "length"),
    )
    NEWER = frozenset({"strayed", "length"})  # than the first checkpoints, which lack them

    def __init__(self, state: Any, target: Target, patience: int | None, length: int):
        self.state = self.good = state  # now, and at the last look at the lower bound
        self.base = self.target = target
        self.best = Best(patience)
        self.step = self.at = 0  # steps at the last look, and now
        self.length = length  # steps that it will have
        self.bad = self.skipped = 0
        self.scale = 1.0  # of the learning rate
        self.back_offs = self.recent = self.calm = 0
        self.first = -math.inf  # the first finite bound
        self.low = self.sunk = 0  # looks in a row far below it, and back-offs for that reason
        self.strayed = 0  # looks at which q's spread made no sense
        self.stopped, self.ended = "", False
        self.infos: dict[str, list[np.ndarray]] = {}  # since the last look
        self.trace: dict[str, list[Any]] = {}  # before it, since the last checkpoint

    @property
    def now(self) -> int:
        return self.at

    def sinks(self, bound: float, error: float, num_data: float) -> bool:
        """Whether the bound has been lost for long: not finite, or a nat per row below the first.

        Steps that are too long for the noise of their gradients end here if they do not end in
        numbers that are not finite.
        """
        if math.isfinite(bound) and self.first == -math.inf:
            self.first = bound
        far = max(num_data, SUNK_ERRORS * error) if math.isfinite(error) else num_data
        is_low = not math.isfinite(bound) or bound < self.first - far
        self.low = self.low + 1 if is_low else 0
        return self.low >= SUNK_LOOKS

    def may_stray(self, bound: float, kl: float) -> bool:
        """Whether the spread of q is worth a look: nothing is computed while all is well.

        A standard deviation of WIDEST adds half its square to the divergence from the prior, and
        one that collapses takes the bound below its first.
        """
        return not math.isfinite(bound) or bound < self.first or kl >= 0.5 * WIDEST**2 - WIDEST

    def stray(self, good: Any, target: Target) -> None:
        """Back to where it stood before the round, with steps half as long."""
        self.good, self.target = good, target
        self.strayed += 1
        self.back_off()

    def back_off(self, *, is_sunk: bool = False) -> None:
        """To the last good state (the best one, if it has sunk), with steps half as long."""
        self.back_offs += 1
        self.recent, self.calm = self.recent + 1, 0
        self.scale *= 0.5
        self.low, self.sunk = 0, self.sunk + is_sunk
        if (is_sunk or self.recent > PATIENT_BACK_OFFS) and self.best.state is not None:
            # The last state was finite, but already on its way out.
            self.good, self.target = self.best.state, self.best.target
        self.state, self.at, self.bad, self.infos = self.good, self.step, 0, {}

    def go_on(self) -> None:
        """A round went well."""
        self.step, self.good, self.calm = self.at, self.state, self.calm + 1
        self.skipped, self.bad = self.skipped + self.bad, 0
        if self.calm == CALM_ROUNDS:
            self.recent = 0
        for name, values in self.infos.items():
            self.trace.setdefault(name, []).extend(values)
        self.infos = {}

    def hasten(self, eval_every: int) -> None:
        """The rest of the fall of its step size in no more steps than these; then patience ends."""
        looks = math.ceil(HASTE * self.step / eval_every)
        self.length = min(self.length, self.step + looks * eval_every)
        self.best.patience = None

    def record(self) -> dict[str, Any]:
        def changed(target: Target | None) -> Target | None:
            return None if target is self.base else target

        states = [self.state, self.good, self.best.state]
        targets = [changed(self.target), changed(self.best.target)]
        return {
            **{name: getattr(self, name) for name in self.COUNTS},
            "states": checkpoints.distinct(states, lambda state: jax.tree.leaves(home(state))),
            "targets": checkpoints.distinct(targets, _leaves_of_target),
            "best": self.best.record(),
            "hastened": self.best.patience is None,
            "infos": _arrays(self.infos),
        }

    @classmethod
    @_read
    def from_record(
        cls,
        record: dict[str, Any],
        like: Any,
        base: Target,
        patience: int | None,
        length: int,
        place: Callable[[Any], Any] | None = None,
    ) -> Course:
        def state_of(leaves: Any) -> Any:
            state = checkpoints.rebuilt(like, leaves)
            return state if place is None else place(state)

        state, good, best = checkpoints.placed(record["states"], state_of)
        if state is None or good is None or (best is None and record["step"] > 0):
            raise ValueError("a state is missing")
        self = cls(state, base, patience, length)
        self.good, self.infos = good, {k: [v] for k, v in _trace(record["infos"]).items()}
        _take_counts(self, record)
        if not self.at <= self.length <= length:
            raise ValueError(f"length is {self.length}")
        if record.get("hastened", False):
            self.best.patience = None
        now, at_best = checkpoints.placed(record["targets"], partial(_target_again, base))
        self.target = base if now is None else now
        self.best.restore(record["best"], best, base if at_best is None else at_best)
        return self

    def piece(self) -> dict[str, np.ndarray]:
        return _arrays(self.trace)

    def written(self) -> None:
        self.trace = {}


class Walk:
    """Where chains stand: all that is needed to go on from there."""

    COUNTS = ("step", "warmup_left", "draws_left", "stopped", "ended")
    NEWER: frozenset[str] = frozenset()

    def __init__(self, states: list[Any], algorithm: Any, lanes: Lanes):
        self.states, self.lanes = states, lanes  # of each lane
        self.step, self.stopped, self.ended = 0, "", False
        self.warmup_left, self.draws_left = algorithm.num_warmup, algorithm.num_samples
        self.trace: dict[str, list[np.ndarray]] = {}  # and draws, since the last checkpoint

    @property
    def now(self) -> int:
        return self.step

    def keep(self, draws: PyTree) -> None:
        for number, leaf in enumerate(jax.tree.leaves(draws)):
            self.trace.setdefault(f"{DRAW}{number}", []).append(leaf)

    def record(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in self.COUNTS}
        states = self.lanes.everyones(self.states)
        return {**counts, "states": [jax.tree.leaves(state) for state in states]}

    @classmethod
    @_read
    def from_record(cls, record: dict[str, Any], like: Any, lanes: Lanes, algorithm: Any) -> Walk:
        if len(record["states"]) != (1 if lanes.is_batched else lanes.num_chains):
            raise StorageError(
                "The checkpoint was written by chains on other devices; go on where it was written."
            )
        if lanes.is_batched:
            lead = (lanes.num_chains,)
            like = jax.tree.map(lambda s: jax.ShapeDtypeStruct(lead + s.shape, s.dtype), like)
        states = [checkpoints.rebuilt(like, leaves) for leaves in record["states"]]
        self = cls(lanes.place(states), algorithm, lanes)
        _take_counts(self, record)
        return self

    def piece(self) -> dict[str, np.ndarray]:
        return _arrays(self.trace, axis=1)

    def written(self) -> None:
        self.trace = {}


class Best:
    """The iterate with the best moving average of the objective so far."""

    def __init__(self, patience: int | None):
        self.patience = patience
        self.state: Any = None
        self.target: Any = None
        self.step = 0
        self._values: list[float] = []
        self._best, self._luck = -math.inf, 0.0
        self._since = 0

    def see(self, objective: float, error: float, state: Any, target: Target, step: int) -> bool:
        """Whether to go on; `error` is the Monte-Carlo error of one objective."""
        # One error below the estimate, so that a lucky early look at a poor q does not win.
        self._values.append(objective - error)
        window = self._values[-WINDOW:]
        average = float(np.mean(window))
        self._since += 1
        # A tie within the bound's own error goes to the later iterate: its steps were smaller.
        if average >= self._best - self._luck or self.state is None:
            self.state, self.target, self.step = state, target, step
        if average > self._best:
            self._best, self._luck = average, LUCK * error / math.sqrt(len(window))
            self._since = 0
        is_early = len(self._values) < WINDOW + (self.patience or 0)
        return is_early or self.patience is None or self._since < self.patience

    def record(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "values": np.asarray(self._values, np.float64),
            "best": self._best,
            "luck": self._luck,
            "since": self._since,
        }

    def restore(self, record: dict[str, Any], state: Any, target: Any) -> None:
        self.state, self.target, self.step = state, target, int(record["step"])
        self._values = [float(value) for value in record["values"]]
        self._best, self._since = float(record["best"]), int(record["since"])
        self._luck = float(record.get("luck", 0.0))  # the first checkpoints lack it


def _arrays(trace: dict[str, list[Any]], axis: int = 0) -> dict[str, np.ndarray]:
    """Each name's parts as one array; what is told at looks comes as single numbers."""
    return {
        name: np.asarray(parts) if name.startswith("eval_") else np.concatenate(parts, axis=axis)
        for name, parts in trace.items()
    }


@_read
def joined(pieces: list[dict[str, np.ndarray]], axis: int) -> dict[str, np.ndarray]:
    """All pieces of a trace, in order."""
    pieces = [_trace(piece) for piece in pieces]
    looks = [piece for piece in pieces if "eval_step" in piece]
    names = [
        name
        for name in dict.fromkeys(name for piece in pieces for name in piece)
        # A run begun by an older version may lack what is counted now: then it is left out.
        if not name.startswith("eval_") or all(name in piece for piece in looks)
    ]
    return {
        name: np.concatenate([piece[name] for piece in pieces if name in piece], axis=axis)
        for name in names
    }


@_read
def taken_draws(arrays: dict[str, np.ndarray], like: PyTree, lead: int) -> PyTree:
    """The draws among them, which are taken out; `like` is one, but for `lead` axes in front."""
    names = [name for name in arrays if name.startswith(DRAW)]
    leaves = [arrays.pop(f"{DRAW}{number}") for number in range(len(names))]
    draws = checkpoints.rebuilt(like, [jnp.asarray(leaf) for leaf in leaves], is_exact=False)
    jax.tree.map(lambda one, leaf: _check_draws(one.shape[lead:], leaf, leaves[0]), like, draws)
    return draws


def _check_draws(shape: tuple[int, ...], leaf: Any, first: Any) -> None:
    if leaf.shape != (*first.shape[:2], *shape):
        raise ValueError(f"draws of a weight have the shape {leaf.shape}")


def _target_parts(target: Target) -> tuple[Any, ...]:
    """What steps and refreshes may change of a target."""
    return target.likelihood, target.prior, target.num_data, target.held, target.held_prior


def _leaves_of_target(target: Target) -> list[Any]:
    return jax.tree.leaves(_target_parts(target))


def _target_again(base: Target, leaves: list[Any]) -> Target:
    parts = checkpoints.rebuilt(_target_parts(base), leaves, is_exact=False)
    names = ("likelihood", "prior", "num_data", "held", "held_prior")
    return dataclasses.replace(base, **dict(zip(names, parts, strict=True)))


def leaves_of_run(state: Any, target: Target) -> dict[str, Any]:
    return {"state": jax.tree.leaves(state), "target": _leaves_of_target(target)}


@_read
def run_again(left: dict[str, Any], like: Any, base: Target) -> tuple[Any, Target]:
    """State and target that an earlier process kept of a phase that it finished."""
    return checkpoints.rebuilt(like, left["state"]), _target_again(base, left["target"])
