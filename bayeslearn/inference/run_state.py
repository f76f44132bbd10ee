"""Where a run stands: what its loop changes, and what a checkpoint holds. Knows no policy."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from bayeslearn.algorithms.sampler import Sampler
from bayeslearn.distributed.mesh import gather_to_host
from bayeslearn.errors import StorageError
from bayeslearn.inference.chains import ChainPlacement
from bayeslearn.inference.early_stopping import EarlyStopping
from bayeslearn.models.target import Target
from bayeslearn.storage.records import Record, dedupe, expand, rebuild
from bayeslearn.tree import Array, PyTree

DRAW = "draw of leaf "  # in the name of what is saved beside a sampler's trace
TARGET_PARTS = ("likelihood", "prior", "num_data", "frozen", "frozen_prior")
P = ParamSpec("P")
R = TypeVar("R")


def _reads_record(function: Callable[P, R]) -> Callable[P, R]:
    """Whatever is odd about a record is a `StorageError`."""

    @functools.wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (StorageError, MemoryError):
            raise
        except Exception as error:
            first = str(error).splitlines()[0] if str(error) else ""
            raise StorageError(
                f"The checkpoint cannot be loaded: its record is invalid"
                f" ({type(error).__name__}: {first})."
            ) from error

    return inside


def _restore_counts(run: OptimizationState | SamplingState, record: Record) -> None:
    for name, stored in run.COUNTS.items():
        if stored in run.OPTIONAL and stored not in record:
            continue
        value = record[stored]
        if type(value) is not type(getattr(run, name)):
            raise TypeError(f"{stored} is a {type(value).__name__}")
        if type(value) is int and not 0 <= value < 2**53:
            raise ValueError(f"{stored} is {value}")
        if stored == "scale" and not 0.0 < value <= 1.0:
            raise ValueError(f"{stored} is {value}")
        setattr(run, name, value)


def _check_trace(segment: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    if not all(isinstance(k, str) and isinstance(v, np.ndarray) for k, v in segment.items()):
        raise TypeError("a trace holds other things than arrays by name")
    return segment


class OptimizationState:
    """Where an optimisation stands: all that is needed to go on from there."""

    # Attributes, and the names that they have in checkpoints.
    COUNTS = {  # noqa: RUF012
        "step": "step",
        "position": "at",
        "nonfinite": "bad",
        "num_skipped": "skipped",
        "rate_scale": "scale",
        "back_offs": "back_offs",
        "recent_back_offs": "recent",
        "calm_rounds": "calm",
        "start_bound": "start",
        "first_bound": "first",
        "low_evaluations": "low",
        "times_lost": "sunk",
        "stop_reason": "stopped",
        "has_ended": "ended",
        "times_rejected": "strayed",
        "length": "length",
    }
    OPTIONAL = frozenset({"start", "strayed", "length"})  # which the first checkpoints lack

    def __init__(self, state: PyTree, target: Target, patience: int | None, length: int):
        self.state = self.good = state  # now, and at the last evaluation
        self.base = self.target = target
        self.best = EarlyStopping(patience)
        self.step = self.position = 0  # steps at the last evaluation, and now
        self.length = length  # steps that it will have
        self.nonfinite = self.num_skipped = 0
        self.rate_scale = 1.0  # of the learning rate
        self.back_offs = self.recent_back_offs = self.calm_rounds = 0
        self.start_bound = -math.inf  # of the first state, where it was evaluated
        self.first_bound = -math.inf  # of evaluations after steps, the first finite one
        self.low_evaluations = self.times_lost = 0  # in a row far below it; back-offs for that
        self.times_rejected = 0  # evaluations at which the bound or q's scale made no sense
        self.stop_reason, self.has_ended = "", False
        self.infos: dict[str, list[np.ndarray]] = {}  # since the last evaluation
        self.trace: dict[str, list[ArrayLike]] = {}  # before it, since the last checkpoint

    @property
    def now(self) -> int:
        """Steps so far."""
        return self.position

    def record(self) -> Record:
        """What a checkpoint holds."""

        def changed(target: Target | None) -> Target | None:
            return None if target is self.base else target

        states = [self.state, self.good, self.best.state]
        targets = [changed(self.target), changed(self.best.target)]
        return {
            **{stored: getattr(self, name) for name, stored in self.COUNTS.items()},
            "states": dedupe(states, lambda state: jax.tree.leaves(gather_to_host(state))),
            "targets": dedupe(targets, _target_leaves),
            "best": self.best.record(),
            "hastened": self.best.patience is None,
            "infos": _arrays(self.infos),
        }

    @classmethod
    @_reads_record
    def from_record(
        cls,
        record: Record,
        like: PyTree,
        base: Target,
        patience: int | None,
        length: int,
        put: Callable[[PyTree], PyTree] | None = None,
    ) -> OptimizationState:
        """The inverse of `record`; `like` has the structure of a state."""

        def state_of(leaves: list[Array]) -> PyTree:
            state = rebuild(like, leaves)
            return state if put is None else put(state)

        state, good, best = expand(record["states"], state_of)
        if state is None or good is None or (best is None and record["step"] > 0):
            raise ValueError("a state is missing")
        self = cls(state, base, patience, length)
        self.good, self.infos = good, {k: [v] for k, v in _check_trace(record["infos"]).items()}
        _restore_counts(self, record)
        if not self.position <= self.length <= length:
            raise ValueError(f"length is {self.length}")
        if record.get("hastened", False):
            self.best.patience = None
        now, at_best = expand(record["targets"], partial(_target_from_leaves, base))
        self.target = base if now is None else now
        self.best.restore(record["best"], best, base if at_best is None else at_best)
        return self

    def segment(self) -> dict[str, np.ndarray]:
        """The trace since the last checkpoint."""
        return _arrays(self.trace)

    def mark_saved(self) -> None:
        """The segment is on disk."""
        self.trace = {}


class SamplingState:
    """Where chains stand: all that is needed to go on from there."""

    COUNTS = {  # noqa: RUF012
        "step": "step",
        "warmup_left": "warmup_left",
        "draws_left": "draws_left",
        "stop_reason": "stopped",
        "has_ended": "ended",
    }
    OPTIONAL: frozenset[str] = frozenset()

    def __init__(self, states: list[PyTree], algorithm: Sampler, placement: ChainPlacement):
        self.states, self.placement = states, placement  # of each group of chains
        self.step, self.stop_reason, self.has_ended = 0, "", False
        self.warmup_left, self.draws_left = algorithm.num_warmup, algorithm.num_samples
        self.trace: dict[str, list[np.ndarray]] = {}  # and draws, since the last checkpoint

    @property
    def now(self) -> int:
        """Steps so far."""
        return self.step

    def append_draws(self, draws: PyTree) -> None:
        """Add draws (chains, draws, ...) to the trace."""
        for number, leaf in enumerate(jax.tree.leaves(draws)):
            self.trace.setdefault(f"{DRAW}{number}", []).append(leaf)

    def record(self) -> Record:
        """What a checkpoint holds."""
        counts = {stored: getattr(self, name) for name, stored in self.COUNTS.items()}
        states = self.placement.all_states(self.states)
        return {**counts, "states": [jax.tree.leaves(state) for state in states]}

    @classmethod
    @_reads_record
    def from_record(
        cls, record: Record, like: PyTree, placement: ChainPlacement, algorithm: Sampler
    ) -> SamplingState:
        """The inverse of `record`; `like` has the structure of one chain's state."""
        if len(record["states"]) != (1 if placement.is_batched else placement.num_chains):
            raise StorageError(
                "The checkpoint was written by chains on other devices; resume where it was"
                " written."
            )
        if placement.is_batched:
            lead = (placement.num_chains,)
            like = jax.tree.map(lambda s: jax.ShapeDtypeStruct(lead + s.shape, s.dtype), like)
        states = [rebuild(like, leaves) for leaves in record["states"]]
        self = cls(placement.restore_states(states), algorithm, placement)
        _restore_counts(self, record)
        return self

    def segment(self) -> dict[str, np.ndarray]:
        """Trace and draws since the last checkpoint."""
        return _arrays(self.trace, axis=1)

    def mark_saved(self) -> None:
        """The segment is on disk."""
        self.trace = {}


def _arrays(trace: Mapping[str, Sequence[ArrayLike]], axis: int = 0) -> dict[str, np.ndarray]:
    """Each name's parts as one array; evaluations come as single numbers."""
    return {
        name: np.asarray(parts) if name.startswith("eval_") else np.concatenate(parts, axis=axis)
        for name, parts in trace.items()
    }


@_reads_record
def join_segments(segments: list[dict[str, np.ndarray]], axis: int) -> dict[str, np.ndarray]:
    """All segments of a trace, in order."""
    segments = [_check_trace(segment) for segment in segments]
    found = {}
    for name in dict.fromkeys(name for segment in segments for name in segment):
        kind = _kind(name)
        parts = [part for part in segments if any(_kind(other) == kind for other in part)]
        # A run begun by an older version may lack a metric of today: then it is dropped.
        if all(name in part for part in parts):
            found[name] = np.concatenate([part[name] for part in parts], axis=axis)
    return found


def _kind(name: str) -> str:
    """Names of one kind are in the same segments: of evaluations, warm-up, draws, or steps."""
    return next((prefix for prefix in ("eval_", "warmup_", DRAW) if name.startswith(prefix)), "")


@_reads_record
def pop_draws(arrays: dict[str, np.ndarray], like: PyTree, lead: int) -> PyTree:
    """The draws among them, which are removed; `like` is one, but for `lead` leading axes."""
    names = [name for name in arrays if name.startswith(DRAW)]
    leaves = [arrays.pop(f"{DRAW}{number}") for number in range(len(names))]
    draws = rebuild(like, [jnp.asarray(leaf) for leaf in leaves], is_exact=False)
    jax.tree.map(lambda one, leaf: _check_draws(one.shape[lead:], leaf, leaves[0]), like, draws)
    return draws


def _check_draws(shape: tuple[int, ...], leaf: np.ndarray, first: np.ndarray) -> None:
    if leaf.shape != (*first.shape[:2], *shape):
        raise ValueError(f"draws of a weight have the shape {leaf.shape}")


def _target_leaves(target: Target) -> list[Array]:
    """What steps and refreshes may change of a target."""
    return jax.tree.leaves(tuple(getattr(target, name) for name in TARGET_PARTS))


def _target_from_leaves(base: Target, leaves: list[Array]) -> Target:
    like = tuple(getattr(base, name) for name in TARGET_PARTS)
    parts = rebuild(like, leaves, is_exact=False)
    return dataclasses.replace(base, **dict(zip(TARGET_PARTS, parts, strict=True)))


def phase_record(state: PyTree, target: Target) -> Record:
    """What the later phases need of one that is finished."""
    return {"state": jax.tree.leaves(state), "target": _target_leaves(target)}


@_reads_record
def restore_phase(record: Record, like: PyTree, base: Target) -> tuple[PyTree, Target]:
    """State and target of a phase that an earlier process finished."""
    return rebuild(like, record["state"]), _target_from_leaves(base, record["target"])
