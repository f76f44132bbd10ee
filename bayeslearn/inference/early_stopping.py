"""The best iterate so far, and when to stop waiting for a better one. Knows numbers only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from bayeslearn.models.target import Target
from bayeslearn.numerics import mean_and_error
from bayeslearn.tree import PyTree

WINDOW = 10  # evaluations in the moving average
TIE_STANDARD_ERRORS = 3.0  # by which the best of many averages may be too good


class EarlyStopping:
    """Keeps the best iterate by a moving average of the objective.

    `patience` is the number of evaluations without a new best before `update` says to stop; None:
    never. An objective that is measured by draws comes with its Monte-Carlo error, and ties within
    it go to the later iterate. Held-out scores come row by row: an iterate is a new best where its
    average beats the best by one standard error of the difference over rows, so that the luckiest
    of many evaluations does not win; ties go to the later iterate here too.
    """

    def __init__(self, patience: int | None):
        self.patience = patience
        self.min_gain = 0.0  # by which the objective has to rise to count as a new best
        self.keeps_last = False  # the last iterate is the result, and `update` only counts
        self.state: PyTree = None
        self.target: Target | None = None
        self.step = 0
        self.values: list[float] = []
        self.best, self.tie_margin = -math.inf, 0.0
        self.num_since_best = 0
        self.scores: list[np.ndarray] = []  # of held-out rows, at the last evaluations
        self.best_scores: np.ndarray | None = None

    def update(
        self,
        objective: float,
        error: float,
        state: PyTree,
        target: Target,
        step: int,
        scores: np.ndarray | None = None,
        weight: np.ndarray | None = None,
    ) -> bool:
        """Whether to go on; `error` is the Monte-Carlo error of one objective.

        `scores` are those of held-out rows, and `weight` says how often each counts.
        """
        self.num_since_best += 1
        self.values.append(objective if scores is not None else objective - error)
        if scores is None:
            is_kept = self._compare(error)
        else:
            is_kept = self._compare_rows(scores, weight)
        if is_kept or self.keeps_last or self.state is None:
            self.state, self.target, self.step = state, target, step
        is_early = len(self.values) < WINDOW + (self.patience or 0)
        return is_early or self.patience is None or self.num_since_best < self.patience

    def _compare(self, error: float) -> bool:
        """Whether the iterate is the one to return; counts it as a new best if it is."""
        # One error below the estimate, so that a lucky early evaluation of a poor q does not win.
        window = self.values[-WINDOW:]
        average = float(np.mean(window))
        is_tied = average >= self.best - self.tie_margin
        if average > self.best + self.min_gain:
            self.best = average
            self.tie_margin = TIE_STANDARD_ERRORS * error / math.sqrt(len(window))
            self.num_since_best = 0
        return is_tied

    def _compare_rows(self, scores: np.ndarray, weight: np.ndarray | None) -> bool:
        self.scores = [*self.scores, scores][-WINDOW:]
        average = np.mean(self.scores, axis=0)
        if self.best_scores is None:
            self.best_scores = average
            return True
        weight = np.ones(len(average)) if weight is None else weight
        gain, error = mean_and_error(average - self.best_scores, weight)
        if gain > error:
            self.best, self.best_scores = float(np.average(average, weights=weight)), average
            self.num_since_best = 0
        return gain >= 0

    def record(self) -> dict[str, Any]:
        """Its numbers, under the names they have in checkpoints."""
        return {
            "step": self.step,
            "values": np.asarray(self.values, np.float64),
            "best": self.best,
            "luck": self.tie_margin,
            "since": self.num_since_best,
            "scores": list(self.scores),
            "best_scores": self.best_scores,
        }

    def restore(self, record: Mapping[str, Any], state: PyTree, target: Target) -> None:
        """The inverse of `record`; the first checkpoints lack some of the names."""
        self.state, self.target, self.step = state, target, int(record["step"])
        self.values = [float(value) for value in record["values"]]
        self.best, self.num_since_best = float(record["best"]), int(record["since"])
        self.tie_margin = float(record.get("luck", 0.0))
        self.scores = [np.asarray(part) for part in record.get("scores", [])]
        self.best_scores = record.get("best_scores")
