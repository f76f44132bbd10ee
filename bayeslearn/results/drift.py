"""Whether calibration rows drift in their order, and so are not exchangeable with later ones."""

from __future__ import annotations

import warnings

import numpy as np

from bayeslearn.errors import DataWarning

MAX_BLOCKS, MIN_BLOCK = 10, 20  # blocks of consecutive rows, and rows of a block
FALSE_ALARMS = 1e-3  # fraction of exchangeable tables that are warned about


def drift_p_value(scores: np.ndarray) -> float:
    """The Kruskal-Wallis test of blocks of consecutive rows; 1 where there are too few rows."""
    from scipy.stats import kruskal

    number = min(MAX_BLOCKS, len(scores) // MIN_BLOCK)
    if number < 2 or np.all(scores == scores[0]):
        return 1.0
    return float(kruskal(*np.array_split(scores, number)).pvalue)


def warn_of_drift(scores: np.ndarray) -> None:
    """Say that the guarantee does not hold, if scores depend on the order of their rows."""
    p_value = drift_p_value(scores)
    if p_value < FALSE_ALARMS:
        warnings.warn(
            "The conformal scores drift with the order of the calibration rows (blocks of"
            f" consecutive rows differ, p = {p_value:.1g}): if that is an order in time, later rows"
            " are not exchangeable with these, and the guarantee of coverage does not hold.",
            DataWarning,
            stacklevel=4,
        )
