"""The temperature of class probabilities, from out-of-fold rows.

    p_t(k) = p(k)^(1/t) / sum_j p(j)^(1/t),
    t maximises  sum_i log p_t(y_i) - (log t)^2 / (2 s^2)

Averages over the weights of a network are too cautious where classes can be separated: draws
disagree on where the boundary is. The prior on log t matters where rows are few, or where all of
them are predicted well, and t would be 0.
"""

from __future__ import annotations

import numpy as np

from bayeslearn.results.calibration_maps import best_factor, tempered

PRIOR_SD = 0.2  # of log t


def best_temperature(probs: np.ndarray, labels: np.ndarray, weight: np.ndarray) -> float:
    """The temperature of these rows' probabilities (rows, classes)."""

    def objective(temperature: float) -> float:
        log_likelihood = float(weight @ log_prob_at(temperature, probs, labels))
        return log_likelihood - 0.5 * (np.log(temperature) / PRIOR_SD) ** 2

    return best_factor(objective).factor


def log_prob_at(temperature: float, probs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """log p_t(y) of each row."""
    chosen = tempered(probs, temperature)[np.arange(len(labels)), labels]
    return np.log(np.maximum(chosen, np.finfo(float).tiny))
