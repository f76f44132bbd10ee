"""Scores of a predictive against what was observed."""

from __future__ import annotations

from typing import Any

import numpy as np

from bayeslearn.predictive import Predictive


def rmse(predictive: Predictive, y: Any) -> float:
    """Root mean squared error of the predictive mean."""
    return float(np.sqrt(np.mean((predictive.mean - predictive.like_mean(y)) ** 2)))


def log_likelihood(predictive: Predictive, y: Any) -> float:
    """Mean log predictive density per row (higher is better)."""
    return float(np.mean(predictive.log_prob(y)))


def coverage(predictive: Predictive, y: Any, level: float = 0.9) -> float:
    """Share of observations inside the central interval of that level."""
    lower, upper = predictive.interval(level)
    y = predictive.like_mean(y)
    return float(np.mean((lower <= y) & (y <= upper)))


def accuracy(predictive: Predictive, y: Any) -> float:
    """Share of rows whose most probable class is the observed one."""
    return float(np.mean(predictive.probs.argmax(axis=1) == predictive.like_mean(y)))
