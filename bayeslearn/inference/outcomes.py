"""What a phase and a loop come to."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bayeslearn.families.base import Family
from bayeslearn.models.target import Target
from bayeslearn.tree import PyTree


class StartingPoint(NamedTuple):
    """What a phase leaves to the one after it."""

    q: Family
    target: Target  # with what was refreshed on the way
    compile_time: float = 0.0
    state: PyTree = None  # of the method itself, to go on from
    steps_done: int = 0  # of the method itself, that led there


class RunOutcome(NamedTuple):
    """What a loop comes to."""

    state: PyTree
    target: Target  # with what was refreshed on the way
    draws: PyTree | None
    trace: dict[str, np.ndarray]
    elbo: float | None
    stop_reason: str
    notes: list[str]
    compile_time: float
