"""Fewer points and digits: what a page can show."""

from __future__ import annotations

import math

import numpy as np

from bayeslearn.tabular.json_values import JSON

TRACE_POINTS = 200  # of a line over steps or draws
SHOWN_ROWS, MIN_SHOWN, ALL_SHOWN = 200, 60, 1500  # points of one method, and of all together


def evenly_spaced(number: int, limit: int) -> np.ndarray:
    """Indices of all rows, or of that many at even distances."""
    return np.unique(np.linspace(0, number - 1, min(number, limit)).round().astype(int))


def significant(values: np.ndarray, digits: int = 7) -> list[JSON]:
    """Numbers to that many significant figures; None where one is not finite."""
    return [float(f"{v:.{digits}g}") if np.isfinite(v) else None for v in np.asarray(values)]


def rounded(values: np.ndarray, digits: int = 4) -> list[JSON]:
    """Numbers rounded to what a chart of their range can show; None where one is not finite."""
    values = np.asarray(values, np.float64)
    finite = values[np.isfinite(values)]
    width = np.ptp(finite) if finite.size else 0.0
    width = width or (np.max(np.abs(finite)) if finite.size else 0.0) or 1.0
    numbers = np.round(values, digits - 1 - math.floor(math.log10(width)))
    return [float(v) if np.isfinite(v) else None for v in numbers]


def smallest(values: np.ndarray) -> float | None:
    """To three figures."""
    values = values[np.isfinite(values)]
    return float(f"{values.min():.3g}") if len(values) else None
