"""The clock of `method="auto"`: what trials cost, and how long a fit within a budget may be.

Nothing here decides anything without a budget. Seconds of a trial are taken between the first and
the last event of each of its phases, where nothing is compiled.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from bayeslearn.inference.chains import num_cores
from bayeslearn.inference.context import MAIN
from bayeslearn.inference.options import FitEvent
from bayeslearn.tabular.candidates import (
    ENSEMBLE,
    MAX_STEPS,
    MILE_NAME,
    MIN_TRIAL_STEPS,
    PLAIN,
    USUAL_SECONDS,
    Method,
    method_for,
)

Callback = Callable[[FitEvent], object]
SELECTION_SHARE = 0.4  # of a budget
MEMBERS_SHARE = 0.5  # of what is left, where chains follow
MIN_SHARE = 0.1  # of a budget that the fit has, however long the selection took
GRADIENTS = 2  # of a step of a chain


class Costs(NamedTuple):
    """What a trial of two members cost."""

    rate: float  # rows times weights that chains get through in a second
    member: float = 0.0  # seconds of training
    compiling: float = 0.0  # seconds of everything else


class Stopwatch:
    """A callback that notes when each phase was heard first and last."""

    def __init__(self, callback: Callback | None):
        self._callback = callback
        self._began = time.perf_counter()
        self._first: dict[str, tuple[int, float]] = {}
        self._last: dict[str, tuple[int, float]] = {}

    def __call__(self, event: FitEvent) -> bool:
        self._last[event.phase] = heard = (event.step, time.perf_counter())
        self._first.setdefault(event.phase, heard)
        return self._callback is not None and bool(self._callback(event))

    def costs(self, work: float, num_chains: int) -> Costs:
        """Of a run of chains on that work, which ends now."""
        spans = {
            phase: (self._last[phase][0] - first, self._last[phase][1] - began)
            for phase, (first, began) in self._first.items()
        }
        steps, seconds = spans.pop(MAIN, (0, 0.0))
        member = max([0.0, *(span for _, span in spans.values())])
        rate = GRADIENTS * num_chains * work * steps / max(seconds, 1e-3)
        whole = time.perf_counter() - self._began
        return Costs(rate, member, max(0.0, whole - member - seconds))


def within_budget(
    name: str, work: float, num_weights: float, costs: Costs, share: float, left: float
) -> Method:
    """The longest fit of a method that takes so many seconds.

    `share` is that of the trial's rows in all rows.
    """
    left = max(left - costs.compiling, 0.0)
    training = MEMBERS_SHARE * left if name == MILE_NAME else left
    method = method_for(name, work, left / USUAL_SECONDS, num_weights)
    if name not in (MILE_NAME, ENSEMBLE):
        return method
    member = costs.member / share / num_cores()
    number = next((n for n in (8, 4) if n <= method.num_members and n * member <= training), 2)
    if name != MILE_NAME:
        return method._replace(num_members=number)
    sampling = left - min(number * member, training)
    steps = int(costs.rate * sampling / (GRADIENTS * number * work))
    if steps < MIN_TRIAL_STEPS:
        return Method(ENSEMBLE, number, 0)
    most = int(MAX_STEPS * max(1.0, left / USUAL_SECONDS))
    return method._replace(num_members=number, num_steps=min(steps, most))


class Deadline:
    """A callback that ends the phases of the chosen fit in time.

    Members have equal parts of the time for training, so that none is left untrained; chains may
    use all of it.
    """

    def __init__(self, method: Method, seconds: float, at_once: int, callback: Callback | None):
        share = MEMBERS_SHARE if method.name == MILE_NAME else 1.0
        members = 1 if method.name == PLAIN else method.num_members
        self._round = share * seconds / -(-members // at_once)
        self._seconds, self._at_once, self._callback = seconds, at_once, callback
        self._began = time.perf_counter()

    def __call__(self, event: FitEvent) -> bool:
        stops = self._callback is not None and bool(self._callback(event))
        _, is_member, number = event.phase.partition("/member ")
        end = self._seconds
        if is_member:
            end = self._round * (int(number.split("/")[0]) // self._at_once + 1)
        return stops or time.perf_counter() - self._began > end
