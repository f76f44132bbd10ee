"""Conformal intervals from out-of-fold predictions: CV+ and jackknife+ (Barber et al. 2021).

With R_i = |y_i - m_k(i)(x_i)| / s_k(i)(x_i), m_k and s_k being mean and std of a fit without the
fold k(i) of row i, the interval of level 1 - a at x is

    [-Q(-m_k(i)(x) + R_i s_k(i)(x)),  Q(m_k(i)(x) + R_i s_k(i)(x))]

where Q is the ceil((1 - a)(n + 1))-th smallest of the n values. It holds a new y with probability
at least 1 - 2 a (jackknife+, a fold for each row) or 1 - 2 a - sqrt(2 / n) (CV+), for exchangeable
rows, and with about 1 - a in practice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from bayeslearn.predictive_base import PredictiveBase
from bayeslearn.results.calibrated import CalibratedPredictive, uniform_of, warn_too_few
from bayeslearn.results.calibration_maps import ROUNDING, ConformalMap
from bayeslearn.tree import Array

MAX_CELLS = 2**24  # of rows times scores at once


def _columns(values: np.ndarray) -> np.ndarray:
    return values[:, None] if values.ndim == 1 else values


def scores_of(predictive: PredictiveBase, y: np.ndarray) -> np.ndarray:
    """R of each row: (rows, columns)."""
    observed = np.asarray(predictive.align_y(y))
    return _columns(np.abs(observed - predictive.mean) / predictive.std)


class CrossConformalPredictive(CalibratedPredictive[ConformalMap]):
    """Quantiles and distribution function by CV+; the rest is that of the fit to all rows.

    Args:
        inner: of the fit to all rows.
        folds: of the fit without each fold, at the same rows.
        fold: the fold of each score.
        scores: of the out-of-fold rows, (rows, columns).
        weight: how often each counts.
    """

    def __init__(
        self,
        inner: PredictiveBase,
        folds: Sequence[PredictiveBase],
        fold: np.ndarray,
        scores: np.ndarray,
        weight: np.ndarray,
    ):
        super().__init__(inner, ())
        self._fold, self._scores, self._weight = fold, scores, weight
        self._means: np.ndarray = np.stack([_columns(part.mean) for part in folds])
        self._stds: np.ndarray = np.stack([_columns(part.std) for part in folds])

    def _values(self, sign: float, rows: slice, column: int) -> np.ndarray:
        """sign m + R s: (scores, rows)."""
        mean, std = self._means[:, rows, column], self._stds[:, rows, column]
        return sign * mean[self._fold] + self._scores[:, column, None] * std[self._fold]

    def _chunks(self) -> list[slice]:
        size = max(1, MAX_CELLS // len(self._scores))
        return [slice(i, i + size) for i in range(0, self.num_rows, size)]

    def quantiles(self, qs: Sequence[float]) -> list[np.ndarray]:
        """Ends of the intervals: those of level 2 q - 1 above, and below."""
        return [self._end(2.0 * q - 1.0) for q in qs]

    def tails(self, tail: float) -> tuple[np.ndarray, np.ndarray]:
        """The ends of the widest finite interval, or of that of level 1 - 2 tail."""
        total = float(np.sum(self._weight))
        level = min(1.0 - 2.0 * tail, total / (total + 1.0))
        return self._end(-level), self._end(level)

    def _end(self, signed_level: float) -> np.ndarray:
        center = self._inner.mean
        if signed_level == 0:
            return center
        level, sign = abs(signed_level), float(np.sign(signed_level))
        needed = level * (np.sum(self._weight) + 1.0) - ROUNDING
        if needed > np.sum(self._weight):
            total = np.full((1, 1), np.sum(self._weight))
            warn_too_few(level, [ConformalMap(total, total)], "interval", "infinite")
        found: np.ndarray = np.empty(self._means[0].shape)
        for column in range(found.shape[1]):
            for rows in self._chunks():
                values = self._values(sign, rows, column)
                order = np.argsort(values, axis=0)
                place = np.sum(np.cumsum(self._weight[order], axis=0) < needed, axis=0)
                ordered = np.take_along_axis(values, order, axis=0)
                padded = np.concatenate([ordered, np.full_like(ordered[:1], np.inf)])
                found[rows, column] = np.take_along_axis(padded, place[None], axis=0)[0]
        # An end on the other side of the mean, which low levels have, would cross the other end.
        value = sign * np.maximum(found, sign * _columns(center))
        if self.is_discrete:
            value = np.ceil(value) if sign < 0 else np.floor(value)
        return np.clip(value, *self.support).reshape(center.shape)

    def cdfs(self, points: Sequence[ArrayLike]) -> list[np.ndarray]:
        """Distribution function at several y of each row: the inverse of the quantiles."""
        center = _columns(self._inner.mean)
        total = np.sum(self._weight) + 1.0
        results = []
        for point in points:
            y = _columns(np.asarray(self.align_y(point), np.float64))
            found = np.empty(y.shape)
            for column in range(y.shape[1]):
                for rows in self._chunks():
                    for sign in (1.0, -1.0):
                        is_here = sign * (y - center)[rows, column] >= 0
                        below = self._values(sign, rows, column) <= sign * y[rows, column]
                        level = 0.5 + 0.5 * sign * (self._weight @ below) / total
                        found[rows, column] = np.where(is_here, level, found[rows, column])
            found[y == center] = 0.5
            results.append(found.reshape(self._inner.mean.shape))
        return results

    def sample(self, key: Array | int, num: int = 1) -> np.ndarray:
        """Scores drawn at random, on either side of their fold's mean."""
        _, rows, columns = self._means.shape
        shape = (num, rows, columns)
        uniform = uniform_of(key, shape)
        share = np.cumsum(self._weight) / np.sum(self._weight)
        signed = 2.0 * uniform - 1.0
        place = np.minimum(np.searchsorted(share, np.abs(signed)), len(share) - 1)
        row, column = np.arange(rows)[:, None], np.arange(columns)
        mean, std = (part[self._fold[place], row, column] for part in (self._means, self._stds))
        values = mean + np.sign(signed) * self._scores[place, column] * std
        values = np.clip(np.round(values) if self.is_discrete else values, *self.support)
        return values.reshape(num, *self._inner.mean.shape)
