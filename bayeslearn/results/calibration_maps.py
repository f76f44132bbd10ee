"""What calibration learns from held-out rows: a few numbers, as pure functions of arrays.

A map belongs to all rows or to one group of them. Weights count rows: one of weight 2 is the row
twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

ROUNDING = 1e-9  # of (n + 1) level, which is a whole number for many common levels
SMALLEST = 1e-14  # distance of a level from 0 and 1
MAX_LOG_FACTOR = np.log(1e3)  # of a scale or a temperature
MIN_KNOTS, KNOTS = 8, 2.0  # knots of an isotonic map: at least, and by the cube root of the rows
MIN_GAP, FAR = 1e-6, 40.0  # of normal scores: between knots, and of the ends from the last ones
SEARCH_TOLERANCE = 1e-4
LOWEST = -1e18  # of a log-likelihood in the search, which needs finite numbers


class ConformalMap(NamedTuple):
    """Scores of held-out rows, (rows, columns), sorted, and their cumulative weights."""

    scores: np.ndarray
    weight: np.ndarray

    @classmethod
    def of(cls, scores: np.ndarray, weight: np.ndarray) -> ConformalMap:
        """From scores in any order."""
        order = np.argsort(scores, axis=0, kind="stable")
        return cls(np.take_along_axis(scores, order, axis=0), np.cumsum(weight[order], axis=0))

    def quantile(self, level: float) -> np.ndarray:
        """The ceil((n + 1) level)-th smallest score by column; infinite if there are fewer."""
        needed = level * (self.weight[-1, 0] + 1.0) - ROUNDING
        place = np.sum(self.weight < needed, axis=0)
        padded = np.concatenate([self.scores, np.full_like(self.scores[:1], np.inf)])
        return np.take_along_axis(padded, place[None], axis=0)[0]

    def level(self, scores: np.ndarray) -> np.ndarray:
        """The largest level whose quantile is not above each score: the inverse of `quantile`."""
        padded = np.concatenate([np.zeros_like(self.weight[:1]), self.weight])
        places = [
            np.searchsorted(own, column, side="right")
            for own, column in zip(self.scores.T, scores.T, strict=True)
        ]
        reached = np.take_along_axis(padded, np.stack(places, axis=1), axis=0)
        return reached / (self.weight[-1, 0] + 1.0)

    @property
    def highest_level(self) -> float:
        """Of a quantile that is finite."""
        total = float(self.weight[-1, 0])
        return total / (total + 1.0)


class FactorMap(NamedTuple):
    """One number: a factor of the standard deviation, or a temperature."""

    factor: float


class ProbabilityMap(NamedTuple):
    """An increasing, piecewise linear function of the probability of each class."""

    before: tuple[np.ndarray, ...]
    after: tuple[np.ndarray, ...]

    def apply(self, values: np.ndarray) -> np.ndarray:
        """Calibrated probabilities (rows, classes), not normalised."""
        columns = zip(values.T, self.before, self.after, strict=True)
        return np.stack([np.interp(v, x, y) for v, x, y in columns], axis=1)


class PITMap(NamedTuple):
    """An increasing function of the distribution function, for each column of y.

    It is piecewise linear between normal scores, and so linear where the model is a Gaussian of
    the wrong mean and scale.
    """

    before: tuple[np.ndarray, ...]
    after: tuple[np.ndarray, ...]

    def apply(self, values: np.ndarray) -> np.ndarray:
        """The calibrated distribution function, by column; 0 and 1 stay as they are."""
        from scipy.special import ndtr

        found = ndtr(self._interpolated(values, self.before, self.after))
        return np.where((values <= 0) | (values >= 1), values, found)

    def inverse(self, values: np.ndarray) -> np.ndarray:
        """The model's distribution function where the calibrated one is `values`, by column."""
        from scipy.special import ndtr

        return ndtr(self._interpolated(values, self.after, self.before))

    def log_slope(self, values: np.ndarray) -> np.ndarray:
        """Logarithm of the derivative of `apply`, by column."""
        scores = _normal_scores(values)
        found = np.empty_like(scores)
        for j, (x, y) in enumerate(zip(self.before, self.after, strict=True)):
            place = np.clip(np.searchsorted(x, scores[..., j], side="right") - 1, 0, len(x) - 2)
            slope = (np.diff(y) / np.diff(x))[place]
            new = np.interp(scores[..., j], x, y)
            found[..., j] = np.log(slope) + 0.5 * (scores[..., j] ** 2 - new**2)
        return found

    def _interpolated(
        self, values: np.ndarray, x: tuple[np.ndarray, ...], y: tuple[np.ndarray, ...]
    ) -> np.ndarray:
        scores = _normal_scores(values)
        columns = [np.interp(scores[..., j], x[j], y[j]) for j in range(len(x))]
        return np.stack(columns, axis=-1)


Map = ConformalMap | FactorMap | ProbabilityMap | PITMap


def isotonic_of_pit(pit: np.ndarray, weight: np.ndarray) -> PITMap:
    """The distribution function of PIT values (rows, columns), through a few of its quantiles.

    Few, about 2 n^(1/3), so that its slope, which multiplies the density, is not noise. Beyond the
    first and the last it goes on with the slope between the median and them.
    """
    total = float(np.sum(weight))
    number = int(min(len(pit), max(MIN_KNOTS, np.ceil(KNOTS * total ** (1 / 3)))))
    levels = np.arange(1, number + 1) / (number + 1)
    before, after = [], []
    for column in _normal_scores(pit).T:
        order = np.argsort(column, kind="stable")
        at = np.cumsum(weight[order]) / (total + 1.0)
        knots = np.interp(levels, at, column[order])
        old = knots + MIN_GAP * np.arange(number)  # far in a tail PIT values are all 0 or 1
        new = _normal_scores(levels)
        middle = number // 2
        for end, away in ((0, -FAR), (-1, FAR)):
            run, rise = old[end] - old[middle], new[end] - new[middle]
            slope = rise / run if run else 1.0
            place = 0 if end == 0 else len(old)
            old = np.insert(old, place, old[end] + away)
            new = np.insert(new, place, new[end] + slope * away)
            middle += end == 0
        before.append(old)
        after.append(new)
    return PITMap(tuple(before), tuple(after))


def _normal_scores(probs: np.ndarray) -> np.ndarray:
    """Quantiles of the standard normal distribution, kept finite."""
    from scipy.special import ndtri

    return ndtri(np.clip(probs, SMALLEST, 1.0 - SMALLEST))


def isotonic_of_classes(
    probs: np.ndarray, labels: np.ndarray, weight: np.ndarray
) -> ProbabilityMap:
    """Isotonic regression of each class's indicator on its probability; of two classes the last.

    Values stay 1 / (n + 2) away from 0 and 1: no class is impossible after n rows.
    """
    from scipy.optimize import isotonic_regression

    classes = [1] if probs.shape[1] == 2 else range(probs.shape[1])
    margin = 1.0 / (np.sum(weight) + 2.0)
    before, after = [], []
    for k in classes:
        at, where = np.unique(probs[:, k], return_inverse=True)
        total = np.bincount(where, weight)
        frequency = np.bincount(where, weight * (labels == k)) / total
        fitted = isotonic_regression(frequency, weights=total).x
        before.append(at)
        after.append(np.clip(fitted, margin, 1.0 - margin))
    return ProbabilityMap(tuple(before), tuple(after))


def best_factor(log_likelihood: Callable[[float], float]) -> FactorMap:
    """The factor with the highest log-likelihood, searched on a logarithmic scale."""
    from scipy.optimize import minimize_scalar

    found = minimize_scalar(
        lambda log_factor: -max(log_likelihood(float(np.exp(log_factor))), LOWEST),
        bounds=(-MAX_LOG_FACTOR, MAX_LOG_FACTOR),
        method="bounded",
        options={"xatol": SEARCH_TOLERANCE},
    )
    return FactorMap(float(np.exp(found.x)))


def tempered(probs: np.ndarray, temperature: np.ndarray | float) -> np.ndarray:
    """Class probabilities (rows, classes) whose logits are divided by the temperature."""
    with np.errstate(divide="ignore"):
        logits = np.log(probs) / temperature
    logits = logits - np.max(logits, axis=1, keepdims=True)
    powers = np.exp(logits)
    return powers / np.sum(powers, axis=1, keepdims=True)
