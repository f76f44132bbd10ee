"""Scores of a predictive on held-out rows, for comparisons and the report."""

from __future__ import annotations

import numpy as np

from bayeslearn.predictive_base import PredictiveBase
from bayeslearn.results import metrics

LEVEL = 0.9  # of the interval whose coverage is a score


def score(predictive: PredictiveBase, y: np.ndarray, *, with_crps: bool = True) -> dict[str, float]:
    """The scores by name, in units of y; `y` as `estimator.observed` returns it.

    RMSE, log-likelihood, coverage of 90 % intervals and, of a single column, CRPS; of classes
    accuracy, log-likelihood, ECE and Brier score.
    """
    log_likelihood = metrics.log_likelihood(predictive, y)
    if predictive.kind == "classification":
        return {
            "accuracy": metrics.accuracy(predictive, y),
            "log_likelihood": log_likelihood,
            "ece": metrics.ece(predictive, y),
            "brier": metrics.brier(predictive, y),
        }
    scores = {
        "rmse": metrics.rmse(predictive, y),
        "log_likelihood": log_likelihood,
        "coverage90": float(np.mean(is_covered(predictive, y))),
    }
    if with_crps and y.ndim == 1:  # of several columns the units differ
        scores["crps"] = metrics.crps(predictive, y)
    return scores


def is_covered(predictive: PredictiveBase, y: np.ndarray) -> np.ndarray:
    """Whether each observation is in its central 90 % interval."""
    return np.abs(predictive.cdf(y) - 0.5) <= LEVEL / 2
