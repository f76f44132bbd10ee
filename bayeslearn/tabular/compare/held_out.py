"""What a method predicts of the validation folds: by this methods are chosen."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bayeslearn.errors import BayesLearnError
from bayeslearn.predictive_base import PredictiveBase
from bayeslearn.results import metrics
from bayeslearn.tabular.scores import LEVEL, is_covered

LOG_LIKELIHOOD, CRPS = "log-likelihood", "crps"
CRITERIA = (LOG_LIKELIHOOD, CRPS)
QUANTILES = [(i + 0.5) / 50 for i in range(50)]  # of which the pinball losses add up to the CRPS


class NotFiniteError(BayesLearnError):
    """A prediction is not finite."""


class HeldOut(NamedTuple):
    """A method's predictions of validation rows, in the order of the splits."""

    log_prob: np.ndarray
    is_covered_or_correct: np.ndarray  # inside the 90 % interval, or of the predicted class
    confidence: np.ndarray | None = None  # probability of the predicted class
    crps: np.ndarray | None = None  # where it is the criterion

    @property
    def is_regression(self) -> bool:
        """Whether rows are covered by intervals, rather than classified."""
        return self.confidence is None

    def utility(self, by: str) -> np.ndarray:
        """The criterion of each row; higher is better."""
        if by == LOG_LIKELIHOOD:
            return self.log_prob
        assert self.crps is not None
        return -self.crps

    @property
    def calibration(self) -> float:
        """Coverage of 90 % intervals, or expected calibration error."""
        if self.confidence is None:
            return float(np.mean(self.is_covered_or_correct))
        return metrics.gathered(self.confidence, self.is_covered_or_correct).error

    @property
    def calibration_error(self) -> float:
        """Distance of the coverage from 90 %, or expected calibration error."""
        return abs(self.calibration - LEVEL) if self.is_regression else self.calibration


def predict_held_out(predictive: PredictiveBase, y: np.ndarray, by: str) -> HeldOut:
    """Score validation rows one by one."""
    log_prob = predictive.log_prob(y)
    if not np.all(np.isfinite(log_prob)):
        raise NotFiniteError("Its log-likelihood on the validation rows is not finite.")
    if predictive.kind == "classification":
        probs = predictive.probs
        return HeldOut(log_prob, probs.argmax(axis=1) == y, probs.max(axis=1))
    crps = crps_by_row(predictive, y) if by == CRPS else None
    return HeldOut(log_prob, is_covered(predictive, y), None, crps)


def crps_by_row(predictive: PredictiveBase, y: np.ndarray) -> np.ndarray:
    """CRPS of each row: twice the mean pinball loss of its quantiles."""
    losses = [
        (y - quantile) * (level - (y < quantile))
        for level, quantile in zip(QUANTILES, predictive.quantiles(QUANTILES), strict=True)
    ]
    return 2.0 * np.mean(losses, axis=0)


def concatenate(parts: list[HeldOut]) -> HeldOut:
    """The folds of all splits."""

    def joined(name: str) -> np.ndarray | None:
        arrays = [getattr(part, name) for part in parts]
        return None if arrays[0] is None else np.concatenate(arrays)

    return HeldOut(*map(joined, HeldOut._fields))  # type: ignore[arg-type]


def standard_error(values: np.ndarray) -> float:
    """Of the mean."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0
