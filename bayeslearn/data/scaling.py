"""Columns to mean 0 and standard deviation 1, and back."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bayeslearn.data.rows import Rows

ROUNDING = 16 * np.finfo(np.float64).eps  # a column whose std is this fraction of its size is flat


class Scaling(NamedTuple):
    """Mean and scale of each column; a constant column is only shifted."""

    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, table: np.ndarray, weight: np.ndarray) -> Scaling:
        """The scaling of (rows, columns) or (rows,), each row counted as its weight says."""
        largest = np.max(np.abs(table), axis=0)
        unit = np.where(largest > 0, largest, 1.0)  # squares of huge or tiny numbers stay finite
        fraction = weight / np.sum(weight)
        mean = fraction @ (table / unit)
        std = np.sqrt(fraction @ (table / unit - mean) ** 2)
        is_flat = std <= ROUNDING
        return cls(np.where(is_flat, table[0], mean * unit), np.where(is_flat, 1.0, std * unit))

    def apply(self, table: np.ndarray) -> np.ndarray:
        """In units of the scale, around the mean."""
        return (table - self.mean) / self.scale

    def undo(self, table: np.ndarray) -> np.ndarray:
        """Back in the units of the data."""
        return table * self.scale + self.mean


class TableScaling(NamedTuple):
    """Of x, and of y where it is numeric."""

    x: Scaling
    y: Scaling | None = None

    def apply(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows in the units that the network takes."""
        return self.x.apply(x), y if self.y is None else self.y.apply(y)

    def applied_to(self, rows: Rows) -> Rows:
        """The same for rows with weights."""
        return Rows(*self.apply(rows.x, rows.y), rows.weight)
