"""Checks of observations and of a likelihood's own settings."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from bayeslearn.errors import Shown, refuse
from bayeslearn.tree import Array


def _numeric(y: Any) -> np.ndarray:
    y = np.asarray(y)
    if y.dtype.kind not in "iufb":
        refuse("y", Shown(f"dtype {y.dtype}"), "hold numbers", "Encode labels as 0, 1, ...")
    if not np.all(np.isfinite(y)):
        rows = np.unique(np.argwhere(~np.isfinite(y))[:, 0])
        refuse(
            "y",
            Shown(f"NaN or infinity in {len(rows)} row(s), the first being row {rows[0]}"),
            "be finite",
            "Drop or fill those rows.",
        )
    return y


def _table(y: Any, wanted: int | None = None) -> tuple[np.ndarray, int]:
    """y as (rows, columns), and how many columns; `wanted` of them if it is said."""
    y = _numeric(y)
    table = y[:, None] if y.ndim == 1 else y
    if wanted is not None and (table.ndim != 2 or table.shape[1] != wanted):
        refuse("y", Shown(f"shape {y.shape}"), f"have {wanted} column(s) as in fitting")
    if table.ndim != 2 or table.shape[1] == 0:
        refuse("y", Shown(f"shape {y.shape}"), "be (rows,) or (rows, columns)")
    return table, table.shape[1]


def _spread(table: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
    """Standard deviation of each column; 1 for a constant one."""
    if weight is None:
        std = np.std(table, axis=0)
    else:
        mean = np.average(table, axis=0, weights=weight)
        std = np.sqrt(np.average((table - mean) ** 2, axis=0, weights=weight))
    return np.where(std > 0, std, 1.0)


def _check_labels(y: np.ndarray, classes: int, allowed: str, remedy: str) -> None:
    bad = y[(y < 0) | (y >= classes) | (y != np.floor(y))]
    if bad.size:
        refuse("y", Shown(f"the label {bad[0]}"), f"hold only whole labels {allowed}", remedy)


def _check_positive(argument: str, value: Any, remedy: str = "") -> None:
    number = np.asarray(value)
    if not np.issubdtype(number.dtype, np.number):
        refuse(argument, value, "be a positive number", remedy)
    if not (np.all(np.isfinite(number)) and np.all(number > 0)):
        refuse(argument, value, "be positive and finite", remedy)


def _check_spd(argument: str, value: Any, remedy: str = "") -> None:
    matrix = np.asarray(value)
    is_square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] > 0
    if not np.issubdtype(matrix.dtype, np.number) or not is_square:
        refuse(argument, value, "be a square matrix of numbers", remedy)
    if not np.all(np.isfinite(matrix)) or not np.allclose(matrix, matrix.T, rtol=1e-6, atol=0):
        refuse(argument, value, "be finite and symmetric", remedy)
    if np.linalg.eigvalsh(matrix)[0] <= 0:
        refuse(argument, value, "be positive definite", remedy)


def _double(values: Array) -> Array:
    return jnp.asarray(values, jnp.result_type(float))
