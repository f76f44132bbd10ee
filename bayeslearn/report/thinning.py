"""Fewer points, places and digits: what a page can show."""

from __future__ import annotations

from typing import Any

import numpy as np

TRACE = 200  # points of a line over steps or draws

LEVEL = 0.9
SHOWN_ROWS, LEAST_SHOWN, ALL_SHOWN = 200, 60, 1500  # points of one method, and of all together


def _figures(values: Any, digits: int = 7) -> list[Any]:
    """Numbers to that many significant figures."""
    return [float(f"{v:.{digits}g}") if np.isfinite(v) else None for v in np.asarray(values)]


def _least(values: np.ndarray) -> float | None:
    values = values[np.isfinite(values)]
    return float(f"{values.min():.3g}") if len(values) else None


def _column_names(estimator: Any) -> list[str]:
    number = estimator.n_features_in_
    names = getattr(estimator, "feature_names_in_", [f"x[{i}]" for i in range(number)])
    return [str(name) for name in names]


def _spread_out(number: int, most: int) -> np.ndarray:
    """All of the rows, or that many at even distances."""
    return np.unique(np.linspace(0, number - 1, min(number, most)).round().astype(int))
