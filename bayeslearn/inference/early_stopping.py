"""The best iterate so far, and when to stop waiting for a better one. Knows numbers only."""

from __future__ import annotations

import math

import numpy as np

from bayeslearn.models.target import Target
from bayeslearn.tree import PyTree

WINDOW = 10  # evaluations in the moving average
TIE_STANDARD_ERRORS = 3.0  # by which the best of many averages may be too good


class EarlyStopping:
    """Keeps the iterate with the best moving average of the objective.

    `patience` is the number of evaluations without a new best before `update` says to stop; None:
    never.
    """

    def __init__(self, patience: int | None):
        self.patience = patience
        self.state: PyTree = None
        self.target: Target | None = None
        self.step = 0
        self.values: list[float] = []
        self.best, self.tie_margin = -math.inf, 0.0
        self.num_since_best = 0

    def update(
        self, objective: float, error: float, state: PyTree, target: Target, step: int
    ) -> bool:
        """Whether to go on; `error` is the standard error of one objective."""
        # One error below the estimate, so that a lucky early evaluation of a poor q does not win.
        self.values.append(objective - error)
        window = self.values[-WINDOW:]
        average = float(np.mean(window))
        self.num_since_best += 1
        # A tie within the objective's own error goes to the later iterate: its steps were smaller.
        if average >= self.best - self.tie_margin or self.state is None:
            self.state, self.target, self.step = state, target, step
        if average > self.best:
            self.best = average
            self.tie_margin = TIE_STANDARD_ERRORS * error / math.sqrt(len(window))
            self.num_since_best = 0
        is_early = len(self.values) < WINDOW + (self.patience or 0)
        return is_early or self.patience is None or self.num_since_best < self.patience

    def record(self) -> dict[str, object]:
        """Its numbers, under the names they have in checkpoints."""
        return {
            "step": self.step,
            "values": np.asarray(self.values, np.float64),
            "best": self.best,
            "luck": self.tie_margin,
            "since": self.num_since_best,
        }

    def restore(self, record: dict[str, object], state: PyTree, target: Target) -> None:
        """The inverse of `record`."""
        self.state, self.target, self.step = state, target, int(record["step"])  # type: ignore[call-overload]
        self.values = [float(value) for value in record["values"]]  # type: ignore[attr-defined]
        self.best, self.num_since_best = float(record["best"]), int(record["since"])  # type: ignore
        self.tie_margin = float(record.get("luck", 0.0))  # type: ignore[arg-type]
