"""Columns to mean 0 and standard deviation 1, and back; for x also by their ranks."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from bayeslearn.data.rows import Rows

ROUNDING = 16 * np.finfo(np.float64).eps  # a column whose std is this fraction of its size is flat
FEW_VALUES = 5  # of a column: their ranks say nothing
MAX_KNOTS = 256
ONE_SIDED = 1.645  # standard deviations, 95 % of a Gaussian
WIDE = 1e3  # standard deviations, beyond which no score matters


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


class RankScaling(NamedTuple):
    """The mean of a column's standard scores and the normal scores of its ranks.

    Skewed columns become nearly symmetric and outliers less extreme; a Gaussian column stays as it
    is. Increasing and piecewise linear, beyond the training rows too. A column of few different
    values, or one that could be Gaussian, has standard scores alone: ranks of few rows are noise. A
    constant one is 0 whatever new rows hold: nothing is known of what another value means.
    """

    mean: np.ndarray
    scale: np.ndarray
    knots: np.ndarray  # (columns, knots), increasing; the last is repeated where there are fewer
    scores: np.ndarray  # normal scores at the knots

    @classmethod
    def of(cls, table: np.ndarray, weight: np.ndarray) -> RankScaling:
        """The scaling of (rows, columns), each row counted as its weight says."""
        standard = Scaling.of(table, weight)
        columns = [
            _normal_scores(column, weight, mean, scale)
            for column, mean, scale in zip(table.T, *standard, strict=True)
        ]
        most = max(len(knots) for knots, _ in columns)
        padded = [
            [np.pad(part, (0, most - len(part)), mode="edge") for part in column]
            for column in columns
        ]
        knots, scores = (np.stack(parts) for parts in zip(*padded, strict=True))
        return cls(*standard, knots, scores)

    def apply(self, table: np.ndarray) -> np.ndarray:
        """Scaled columns."""
        ranks = [np.interp(*part) for part in zip(table.T, self.knots, self.scores, strict=True)]
        scaled = 0.5 * (Scaling(self.mean, self.scale).apply(table) + np.stack(ranks, axis=1))
        return np.where(self.knots[:, 0] == self.knots[:, -1], 0.0, scaled)

    def undo(self, table: np.ndarray) -> np.ndarray:
        """Back in the units of the data."""
        values = self.apply(self.knots.T).T
        columns = [
            np.interp(column, at, knots)
            + 2.0 * scale * (column - np.clip(column, at[0], at[-1]))  # beyond the knots
            for column, at, knots, scale in zip(
                table.T, values, self.knots, self.scale, strict=True
            )
        ]
        return np.stack(columns, axis=1)


def _normal_scores(
    column: np.ndarray, weight: np.ndarray, mean: float, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """Values of a column, and the normal scores of their ranks with mean 0 and deviation 1."""
    values, place = np.unique(column, return_inverse=True)
    if np.ptp(values) <= ROUNDING * np.max(np.abs(values)):
        return values[:1], np.zeros(1)
    if len(values) <= FEW_VALUES:
        return values, (values - mean) / scale
    mass = np.bincount(place, weight)
    total = np.sum(mass)
    scores = ndtri((np.cumsum(mass) - 0.5 * mass) / total)
    scores = Scaling.of(scores, mass).apply(scores)
    standard = (values - mean) / scale
    if _could_be_gaussian(float(mass @ (scores * standard) / total), int(np.count_nonzero(weight))):
        wide = np.array([-WIDE, WIDE])
        return mean + scale * wide, wide
    if len(values) > MAX_KNOTS:
        kept = np.unique(np.linspace(0, len(values) - 1, MAX_KNOTS).round().astype(int))
        values, scores = values[kept], scores[kept]
    return values, scores


def _could_be_gaussian(correlation: float, number: int) -> bool:
    """Shapiro and Francia's test at 5 %, as approximated by Royston (1993).

    `correlation` is that of a column with its normal scores.
    """
    u = np.log(number)
    v = np.log(u)
    center, std = 1.0521 * (v - u) - 1.2725, 1.0308 - 0.26758 * (v + 2.0 / u)
    return bool(np.log(max(1.0 - correlation**2, 1e-300)) < center + ONE_SIDED * std)


class TableScaling(NamedTuple):
    """Of x, and of y where it is numeric."""

    x: Scaling | RankScaling
    y: Scaling | None = None

    def apply(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows in the units that the network takes."""
        return self.x.apply(x), y if self.y is None else self.y.apply(y)

    def applied_to(self, rows: Rows) -> Rows:
        """The same for rows with weights."""
        return Rows(*self.apply(rows.x, rows.y), rows.weight)

    def to_list(self) -> list[dict[str, np.ndarray] | None]:
        """For a file."""
        return [None if part is None else part._asdict() for part in self]

    @classmethod
    def from_list(cls, stored: list[dict[str, Any] | None]) -> TableScaling:
        """The inverse of `to_list`."""
        x, y = stored
        assert x is not None
        kind = RankScaling if "knots" in x else Scaling
        return cls(kind(**x), None if y is None else Scaling(**y))
