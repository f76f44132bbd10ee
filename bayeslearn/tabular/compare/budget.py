"""How a budget of seconds is shared among methods, and how a method is held to its share."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax

from bayeslearn.algorithms import Algorithm
from bayeslearn.algorithms.sampler import Sampler
from bayeslearn.data.batches import auto_batch_size
from bayeslearn.duration import seconds_of
from bayeslearn.errors import BayesLearnError
from bayeslearn.inference.chains import num_cores
from bayeslearn.inference.context import MAIN
from bayeslearn.inference.options import FitEvent
from bayeslearn.inference.run import NUM_CHAINS
from bayeslearn.progress import phase_label

TOLERANCE = 0.1  # of the budget, by which it may be exceeded
BASELINE_FRACTION = 0.25  # of the budget, for the baseline
COMPILE_RATIO = 2.0  # compile time of a method to the baseline's, before one was measured
SCORE_RATIO = 2.0  # likewise of the first scoring, which compiles the predictive
RUN_RATIO = 5.0  # seconds of a useful fit to the baseline's
FULL_RATIO = 20.0  # seconds of a full fit to the baseline's
MIN_RUN = 0.1  # of the compile time, for each fit of the baseline, whatever its share
WARM_START_FRACTION = 0.5  # of a fit's seconds, for the phases before its own
PATIENCE = 1.5  # times its share, beyond which a sampler in warm-up is given up
# Of a sampler's step, about.
GRADIENTS = {"hmc": 60, "nuts": 90, "mams": 60, "mclmc": 2, "metropolis-hastings": 1}
WARMUP_RATIO = 2.0  # cost of a step in warm-up, before the step size has adapted, to one after it
MIN_DRAWS = 100
COMPILE_EVENTS = (
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
)


class OutOfBudget(BayesLearnError):
    """A method cannot be finished within the budget."""


class NotTried(OutOfBudget):
    """A method was not begun: too little of the budget was left."""


def parse_budget(budget: float | str | None) -> float | None:
    """A budget in seconds; None: no limit."""
    if budget is None:
        return None
    return seconds_of("budget", budget)


def write_duration(seconds: float) -> str:
    """A duration to two figures, as `budget` takes it."""
    for unit, size in (("h", 3600.0), ("m", 60.0)):
        if seconds >= 2 * size:
            number = seconds / size
            return f"{math.ceil(number) if number >= 10 else math.ceil(10 * number) / 10:g}{unit}"
    return f"{max(1, math.ceil(seconds))}s"


class Cost(NamedTuple):
    """Seconds that a method took."""

    compiling: float
    fit: float  # of one fit, without compiling
    first_scoring: float  # which compiles the predictive
    scoring: float  # of each further split

    def total(self, splits: int) -> float:
        """All splits."""
        return self.compiling + splits * self.fit + self.first_scoring + (splits - 1) * self.scoring


class Share(NamedTuple):
    """What one method may use of the budget."""

    seconds: float
    ends: float  # on the clock of `time.perf_counter`: no method goes on beyond it
    splits: int
    expected: Cost
    is_baseline: bool = False  # which is never given up

    def fit_seconds(self, compiling: float) -> float:
        """Of each fit, given what was spent on compiling."""
        fixed = compiling + self.expected.first_scoring
        fixed += (self.splits - 1) * self.expected.scoring
        least = MIN_RUN * compiling if self.is_baseline else 0.0
        return max(least, (self.seconds - fixed) / self.splits)

    def allows(self, seconds: float) -> bool:
        """Whether so much more can be done before the budget ends."""
        return self.is_baseline or time.perf_counter() + seconds <= self.ends


class Budget:
    """Seconds for a whole comparison, shared among its methods in their order.

    A method that could not be compiled, fitted and scored in what is left is not begun, and as many
    methods share it as can be. What a method leaves goes to those after it.
    """

    def __init__(self, seconds: float, splits: int, began: float):
        self.seconds, self.splits, self._began = seconds, splits, began
        self._baseline: Cost | None = None
        self._others: list[Cost] = []

    @property
    def left(self) -> float:
        """Seconds."""
        return self._began + self.seconds - time.perf_counter()

    def record(self, cost: Cost, is_baseline: bool = False) -> None:
        """Learn from what a method took."""
        if is_baseline:
            self._baseline = cost
        else:
            self._others.append(cost)

    def expected(self, run_ratio: float = RUN_RATIO) -> Cost:
        """What the next method takes, about: `run_ratio` times as long as the baseline."""
        base = self._baseline
        if base is None:
            return Cost(0.0, 0.0, 0.0, 0.0)
        compiling = [COMPILE_RATIO * base.compiling, *(cost.compiling for cost in self._others)]
        first = [SCORE_RATIO * base.first_scoring, *(cost.first_scoring for cost in self._others)]
        scoring = [base.scoring, *(cost.scoring for cost in self._others)]
        return Cost(max(compiling), run_ratio * base.fit, max(first), max(scoring))

    def share(self, methods_left: int, is_baseline: bool = False) -> Share:
        """What the next of so many methods may use."""
        expected = self.expected()
        ends = self._began + (1 + TOLERANCE) * self.seconds
        if is_baseline:
            seconds = max(self.left / methods_left, BASELINE_FRACTION * self.seconds)
            return Share(seconds, ends, self.splits, expected, is_baseline=True)
        needed, left = expected.total(self.splits), max(0.0, self.left)
        if self.left <= 0 or not Share(0.0, ends, self.splits, expected).allows(needed):
            raise NotTried(
                f"The budget was spent before its turn: it would take about {needed:.2g} s, and"
                f" {left:.2g} s were left."
            )
        number = min(methods_left, max(1, int(left / max(needed, 1e-9))))
        return Share(left / number, ends, self.splits, expected)

    def sufficient(self, methods: int) -> float | None:
        """Seconds in which all methods would finish, from the pace so far; None: unknown."""
        if self._baseline is None:
            return None
        others = self.expected(FULL_RATIO).total(self.splits)
        return self._baseline.total(self.splits) + (methods - 1) * others


class Clock:
    """The callback of one fit: ends its phases when their time is over.

    A later split ends its phases at the steps at which those of the first ended, so that all fits
    of a method have the same length.
    """

    def __init__(
        self,
        share: Share | None,
        stop_at: dict[str, int] | None = None,
        num_warmup: int = 0,
        listener: Callable[[FitEvent], object] = lambda event: None,
        *,
        has_own_phase: bool = True,  # False: an ensemble, of which the members are all
    ):
        self._share, self._stop_at, self._num_warmup = share, stop_at, num_warmup
        self._listener = listener
        self._earlier = WARM_START_FRACTION if has_own_phase else 1.0
        self._began = time.perf_counter()
        self._compiling: list[tuple[float, float]] = []  # from when to when
        self.events: dict[str, FitEvent] = {}  # the last one of each phase
        self.stopped: dict[str, FitEvent] = {}  # of phases that were ended here

    @property
    def compiling(self) -> float:
        """Seconds in which something was compiled so far, tracing included."""
        total, end = 0.0, -math.inf
        for begin, until in sorted(self._compiling):  # tracing nests, and threads overlap
            total += max(0.0, until - max(begin, end))
            end = max(end, until)
        return total

    @property
    def running(self) -> float:
        """Seconds since the fit began, without compiling."""
        return time.perf_counter() - self._began - self.compiling

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Hear of JAX's compilations."""
        jax.monitoring.register_event_duration_secs_listener(self.hear_compilation)
        try:
            yield
        finally:
            jax.monitoring.unregister_event_duration_listener(self.hear_compilation)

    def hear_compilation(self, event: str, duration_secs: float, **details: str | int) -> None:
        """The listener of JAX's monitoring."""
        if event in COMPILE_EVENTS:
            now = time.perf_counter()
            self._compiling.append((now - duration_secs, now))

    def __call__(self, event: FitEvent) -> bool:
        self.events[event.phase] = event
        self._listener(event)
        stops = False
        if self._stop_at is not None:
            if self._share is not None and not self._share.allows(0.0):
                raise OutOfBudget("The budget ended before its last split.")
            stops = event.step >= self._stop_at.get(event.phase, math.inf)
        elif self._share is not None:
            stops = self._is_over(event, self._share)
        if stops and event.step < event.num_steps:
            self.stopped[event.phase] = event
        return stops

    def _is_over(self, event: FitEvent, share: Share) -> bool:
        """Whether the phase is to end; raises where the method cannot be finished."""
        limit, expected = share.fit_seconds(self.compiling), share.expected
        if event.phase != MAIN:
            still_to_compile = max(0.0, expected.compiling - self.compiling)
            if not share.allows(still_to_compile + expected.first_scoring):
                raise OutOfBudget(f"The budget ended in its {phase_label(event.phase)}.")
            return self.running >= self._earlier * limit
        if event.step <= self._num_warmup:
            self._check_warmup(event, share, limit)
            return False
        return self.running >= limit

    def _check_warmup(self, event: FitEvent, share: Share, limit: float) -> None:
        """A sampler cannot be stopped in its warm-up, only be given up."""
        if self.running > PATIENCE * limit or not share.allows(share.expected.first_scoring):
            raise OutOfBudget(
                f"Its share of the budget, {share.seconds:.2g} s, was spent after {event.step} of"
                f" {self._num_warmup} warm-up steps."
            )

    @property
    def cut_short(self) -> str | None:
        """Where the budget ended the fit, or the first of its phases that was ended."""
        for phase, event in sorted(self.stopped.items(), key=lambda item: item[0] != MAIN):
            name = "" if phase == MAIN else f"{phase_label(event.phase)}, "
            return f"{name}step {event.step} of {event.num_steps}"
        return None


class Deadline(Clock):
    """The callback of a fit that keeps to a budget of its own: it is only given up at the end."""

    @property
    def fit_seconds(self) -> float | None:
        """The budget of the fit."""
        return None if self._share is None else self._share.fit_seconds(0.0)

    def __call__(self, event: FitEvent) -> bool:
        self.events[event.phase] = event
        self._listener(event)
        if self._share is not None and not self._share.allows(self._share.expected.first_scoring):
            raise OutOfBudget(f"The budget ended in its {phase_label(event.phase)}.")
        return False


class Pace(NamedTuple):
    """Of the baseline, by which the length of samplers is chosen."""

    gradient: float  # seconds for all rows
    compiling: float

    @classmethod
    def of(cls, cost: Cost, steps: int, rows: int) -> Pace:
        """From the baseline's fits."""
        # The overhead of a step is worth a few small batches.
        batches = max(1.0, rows / (4 * auto_batch_size(rows)))
        return cls(max(cost.fit, 1e-3) / max(steps, 1) * batches, cost.compiling)


def shorten_sampler(algorithm: Algorithm, share: Share, pace: Pace) -> Algorithm:
    """A sampler of about the length that its share allows, guessed from the baseline's pace.

    Of an ensemble with chains from its members, the sampler is shortened; other methods are not.
    """
    if isinstance(algorithm, Sampler):
        return _shortened(algorithm, share, pace, NUM_CHAINS)
    sampler = getattr(algorithm, "sampler", None)
    if not isinstance(sampler, Sampler):
        return algorithm
    chains = getattr(algorithm, "num_members", NUM_CHAINS)
    shorter = _shortened(sampler, share, pace, chains)
    return dataclasses.replace(algorithm, sampler=shorter)  # type: ignore[call-arg]


def _shortened(sampler: Sampler, share: Share, pace: Pace, chains: int) -> Sampler:
    limit = share.fit_seconds(max(COMPILE_RATIO * pace.compiling, share.expected.compiling))
    gradients = getattr(sampler, "num_leapfrog", None) or GRADIENTS.get(sampler.name, 60)
    step = pace.gradient * gradients * chains / min(chains, num_cores())
    shortest = step * MIN_DRAWS * (WARMUP_RATIO + sampler.thin)
    if shortest > PATIENCE * limit:
        raise NotTried(
            f"A fit of {MIN_DRAWS} warm-up steps and {MIN_DRAWS} draws would take about"
            f" {shortest:.2g} s, and its share of the budget allows {limit:.2g} s."
        )
    steps = WARMUP_RATIO * sampler.num_warmup + sampler.num_samples * sampler.thin
    fraction = limit / (step * steps)
    if fraction >= 1:
        return sampler

    def shortened(number: int) -> int:
        return min(number, max(MIN_DRAWS, round(fraction * number)))

    return dataclasses.replace(
        sampler,
        num_warmup=shortened(sampler.num_warmup),
        num_samples=shortened(sampler.num_samples),
    )
