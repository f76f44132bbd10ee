"""Columns to mean 0 and standard deviation 1, and back."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

ROUNDING = 16 * np.finfo(np.float64).eps  # a column whose spread is this share of its size is one


class Scaling(NamedTuple):
    """Columns to mean 0 and spread 1, and back; a constant column is only shifted."""

    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, table: np.ndarray, weight: np.ndarray) -> Scaling:
        largest = np.max(np.abs(table), axis=0)
        unit = np.where(largest > 0, largest, 1.0)  # squares of huge or tiny numbers stay finite
        share = weight / np.sum(weight)
        mean = share @ (table / unit)
        spread = np.sqrt(share @ (table / unit - mean) ** 2)
        return cls(mean * unit, np.where(spread > ROUNDING, spread * unit, 1.0))

    def apply(self, table: np.ndarray) -> np.ndarray:
        return (table - self.mean) / self.scale

    def undo(self, table: np.ndarray) -> np.ndarray:
        return table * self.scale + self.mean
