"""How long each method may run."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import numbers
import os
import re
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from bayeslearn.data.batches import auto_batch_size
from bayeslearn.errors import BayesLearnError, refuse

LEAST_FOR_FITS = 0.4  # of a method's share of the budget; predictions take their part of it too
FOR_BASELINE = 0.25  # of the budget, if it needs that much
LEAST_RUNNING = 0.25  # of it for steps, however long compiling takes
OVERTIME = 1.25  # of the budget, after which a method is given up between two splits
PATIENT = 3.0  # times its time, after which a sampler still warming up is given up
GRADIENTS = {"hmc": 40, "nuts": 80, "metropolis-hastings": 1}  # of a sampler's step, about
LEAST_DRAWS = 100
COMPILING = (
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
)


class _OutOfTime(BayesLearnError):
    """A method cannot be brought inside the budget."""


def _seconds(budget: Any) -> float | None:
    if budget is None:
        return None
    value: Any = budget
    if isinstance(budget, str):
        parts = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([smh]?)\s*", budget)
        value = parts and float(parts[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[parts[2]]
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
        refuse("budget", budget, 'be a number of seconds, or such as "90s", "2m", "1h"')
    return float(value)


class _Deadline(NamedTuple):
    began: float
    seconds: float

    @property
    def left(self) -> float:
        return self.began + self.seconds - time.perf_counter()

    @property
    def is_over(self) -> bool:
        return -self.left > (OVERTIME - 1) * self.seconds


class _Clock:
    """Told of every look at a run; ends it at its time, or at the step where another one ended."""

    def __init__(self, share: float | None, splits: int, warmup: int, stop_at: int | None):
        self._share, self._splits, self._warmup = share, splits, warmup
        self._stop_at = stop_at
        self._began = time.perf_counter()
        self._compiling: list[tuple[float, float]] = []  # from when to when
        self.step, self.was_stopped = 0, False

    def listen(self, event: str, duration_secs: float, **kwargs: Any) -> None:
        if event in COMPILING:
            now = time.perf_counter()
            # Tracing nests: what lies inside this stretch was told of before.
            while self._compiling and self._compiling[-1][0] >= now - duration_secs:
                self._compiling.pop()
            self._compiling.append((now - duration_secs, now))

    @property
    def compiling(self) -> float:
        """Seconds, tracing included."""
        return sum(end - begin for begin, end in self._compiling)

    def __call__(self, told: Any) -> bool:
        self.step = told.step
        if self._stop_at is not None:
            return told.step >= self._stop_at
        if self._share is None:
            return False
        # Compiling is paid once, out of the same share; what it leaves is for all splits.
        limit = max(self._share - self.compiling, LEAST_RUNNING * self._share) / self._splits
        running = time.perf_counter() - self._began - self.compiling
        is_warming = told.step <= self._warmup
        if is_warming and running > max(PATIENT * limit, self._share):
            raise _OutOfTime(
                f"After {told.step} of {self._warmup} steps of warm-up its share of the budget,"
                f" {self._share:.3g} s, was spent."
            )
        self.was_stopped = running >= limit and not is_warming
        return self.was_stopped


@contextlib.contextmanager
def _listening(clock: _Clock) -> Iterator[None]:
    jax.monitoring.register_event_duration_secs_listener(clock.listen)
    try:
        yield
    finally:
        jax.monitoring.unregister_event_duration_listener(clock.listen)


class _Pace(NamedTuple):
    """Of the baseline, by which the length of samplers is chosen."""

    gradient: float  # seconds for all rows
    compiling: float


def _pace(times: list[float], compiling: float, steps: int, rows: int) -> _Pace:
    seconds = max(min(times[0] - compiling, *times), 1e-3)  # all but the compiling
    # The overhead of a step is worth a few small batches.
    batches = max(1.0, rows / (4 * auto_batch_size(rows)))
    return _Pace(seconds / max(steps, 1) * batches, compiling)


def _shortened(algorithm: Any, share: float, splits: int, pace: _Pace) -> Any:
    """A sampler of about that many seconds, guessed from the baseline's pace.

    What the guess leaves over is cut off, or given up, when it runs.
    """
    limit = max(share - 2 * pace.compiling, share / 4) / splits
    lanes = 4 / min(4, os.cpu_count() or 1)
    steps = algorithm.num_warmup + algorithm.num_samples * algorithm.thin
    gradients = getattr(algorithm, "num_leapfrog", None) or GRADIENTS.get(algorithm.name, 40)
    step = pace.gradient * gradients * lanes
    least = 2 * LEAST_DRAWS * step
    if least > PATIENT * limit:
        raise _OutOfTime(
            f"A fit of {LEAST_DRAWS} steps of warm-up and {LEAST_DRAWS} draws would take about"
            f" {least:.2g} s, and its share of the budget allows {limit:.2g} s."
        )
    part = limit / (step * steps)
    if part >= 1:
        return algorithm
    counts = {
        name: min(
            getattr(algorithm, name), max(LEAST_DRAWS, round(part * getattr(algorithm, name)))
        )
        for name in ("num_warmup", "num_samples")
    }
    return dataclasses.replace(algorithm, **counts)


def _lengths(algorithm: Any, clock: _Clock) -> dict[str, int]:
    if not algorithm.capabilities.is_sampler:
        return {"num_steps": clock.step} if algorithm.auto_steps > 1 else {}
    kept = (clock.step - algorithm.num_warmup) // algorithm.thin
    return {"num_warmup": algorithm.num_warmup, "num_samples": kept}
