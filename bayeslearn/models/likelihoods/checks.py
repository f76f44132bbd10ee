"""Checks of observations and of a likelihood's settings."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from bayeslearn.errors import Shown, refuse
from bayeslearn.tree import Array

ROUNDED_ROWS = 20  # fewer do not show whether y is rounded
SAME_VALUE = 1e-9  # relative to the range; closer numbers differ by the arithmetic behind them


def as_numeric(y: ArrayLike) -> np.ndarray:
    """y as an array of finite numbers."""
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


def as_table(y: ArrayLike, num_columns: int | None = None) -> tuple[np.ndarray, int]:
    """y as (rows, columns), and the number of columns, which must be `num_columns` if given."""
    y = as_numeric(y)
    table = y[:, None] if y.ndim == 1 else y
    if num_columns is not None and (table.ndim != 2 or table.shape[1] != num_columns):
        refuse("y", Shown(f"shape {y.shape}"), f"have {num_columns} column(s) as in fitting")
    if table.ndim != 2 or table.shape[1] == 0:
        refuse("y", Shown(f"shape {y.shape}"), "be (rows,) or (rows, columns)")
    return table, table.shape[1]


def as_positive(y: np.ndarray, columns: int | None = None) -> np.ndarray:
    """y as (rows, columns) of positive numbers."""
    table = as_table(y, columns)[0]
    bad = table[table <= 0]
    if bad.size:
        remedy = "For numbers of either sign use bl.likelihoods.Gaussian()."
        refuse("y", Shown(f"the number {bad.flat[0]}"), "hold only positive numbers", remedy)
    return table


def as_labels(y: ArrayLike, must: str, remedy: str = "") -> np.ndarray:
    """y as (rows,) of numbers; a single column counts as that."""
    y = as_numeric(y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        refuse("y", Shown(f"shape {y.shape}"), must, remedy)
    return y


def check_labels(y: np.ndarray, classes: int, allowed: str, remedy: str) -> None:
    """Refuse labels that are not whole numbers from 0 to `classes` - 1."""
    bad = y[(y < 0) | (y >= classes) | (y != np.floor(y))]
    if bad.size:
        refuse("y", Shown(f"the label {bad[0]}"), f"hold only whole labels {allowed}", remedy)


def column_scale(table: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
    """Standard deviation of each column; 1 for a constant one."""
    if weight is None:
        std = np.std(table, axis=0)
    else:
        mean = np.average(table, axis=0, weights=weight)
        std = np.sqrt(np.average((table - mean) ** 2, axis=0, weights=weight))
    return np.where(std > 0, std, 1.0)


def num_observed(table: np.ndarray, weight: np.ndarray | None = None) -> float:
    """How many observations the rows stand for: at least one each, however small its weight."""
    return float(len(table) if weight is None else max(np.sum(weight), np.sum(weight > 0)))


def rounding_error(table: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
    """Standard deviation that rounding adds to each column; 0 for one that is not rounded.

    A column is rounded if its values occur twice or more on average, to their smallest difference.
    """
    number = num_observed(table, weight)
    counted = table if weight is None else table[weight > 0]

    def one(column: np.ndarray) -> float:
        values = np.unique(column)
        if len(values) < 2 or number < max(2 * len(values), ROUNDED_ROWS):
            return 0.0
        gaps = np.diff(values)
        return float(np.min(gaps[gaps > SAME_VALUE * np.ptp(values)]) / np.sqrt(12.0))

    return np.array([one(column) for column in counted.T])


def check_spd(argument: str, value: ArrayLike, remedy: str = "") -> None:
    """Refuse what is not a symmetric positive definite matrix."""
    matrix = np.asarray(value)
    is_square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] > 0
    if not np.issubdtype(matrix.dtype, np.number) or not is_square:
        refuse(argument, value, "be a square matrix of numbers", remedy)
    if not np.all(np.isfinite(matrix)) or not np.allclose(matrix, matrix.T, rtol=1e-6, atol=0):
        refuse(argument, value, "be finite and symmetric", remedy)
    if np.linalg.eigvalsh(matrix)[0] <= 0:
        refuse(argument, value, "be positive definite", remedy)


def as_double(values: Array) -> Array:
    """In double precision, where it is enabled."""
    return jnp.asarray(values, jnp.result_type(float))
