"""Predictives after calibration: the interface of the model's own, with what it learned applied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Generic, TypeVar

import jax
import numpy as np
from numpy.typing import ArrayLike

from bayeslearn.errors import DataWarning, NotAvailableError, warn
from bayeslearn.predictive_base import PredictiveBase
from bayeslearn.results.calibration_maps import (
    ROUNDING,
    SMALLEST,
    ConformalMap,
    FactorMap,
    PITMap,
    ProbabilityMap,
)
from bayeslearn.tree import Array

GRID = 257  # points of a row at which an isotonic distribution function is tabulated
TAIL = 1e-4  # probability that the table leaves out on either side
MapT = TypeVar("MapT", ConformalMap, FactorMap, ProbabilityMap, PITMap)


class CalibratedPredictive(PredictiveBase, Generic[MapT]):
    """A predictive `inner`, and a map for each group of its rows (abstract).

    `group` is the index of each row's map; None: all rows have the first. What a subclass does not
    define is the model's own.
    """

    def __init__(
        self, inner: PredictiveBase, maps: Sequence[MapT], group: np.ndarray | None = None
    ):
        self._inner = inner
        self._maps: tuple[MapT, ...] = tuple(maps)
        self._group = np.zeros(inner.num_rows, int) if group is None else group
        self.num_rows, self.num_samples = inner.num_rows, inner.num_samples
        self.kind, self.is_discrete, self.support = inner.kind, inner.is_discrete, inner.support

    @property
    def mean(self) -> np.ndarray:
        """Predictive mean, or class probabilities."""
        return self._inner.mean

    @property
    def epistemic(self) -> np.ndarray:
        """Epistemic uncertainty."""
        return self._inner.epistemic

    @property
    def aleatoric(self) -> np.ndarray:
        """Aleatoric uncertainty."""
        return self._inner.aleatoric

    @property
    def probs(self) -> np.ndarray:
        """Class probabilities (rows, classes)."""
        return self._inner.probs

    def covariance(self) -> np.ndarray:
        """Covariance of a new observation's columns."""
        return self._inner.covariance()

    def align_y(self, y: ArrayLike) -> np.ndarray:
        """Observations checked and shaped as the predictions are."""
        return self._inner.align_y(y)

    def is_censored(self, y: ArrayLike) -> np.ndarray:
        """Of which rows of y only a bound is known, as of survival times."""
        return self._inner.is_censored(y)

    def log_prob(self, y: ArrayLike) -> np.ndarray:
        """log p(y) of each row."""
        return self._inner.log_prob(y)

    def log_prob_by_draw(self, y: ArrayLike) -> np.ndarray:
        """log p(y) of each row under each draw of the weights: (draws, rows)."""
        return self._inner.log_prob_by_draw(y)

    def quantiles(self, qs: Sequence[float]) -> list[np.ndarray]:
        """Several quantiles of a new observation."""
        return self._inner.quantiles(qs)

    def cdfs(self, points: Sequence[ArrayLike]) -> list[np.ndarray]:
        """Distribution function at several y of each row."""
        return self._inner.cdfs(points)

    def sample(self, key: Array | int, num: int = 1) -> np.ndarray:
        """New observations (num, rows, ...)."""
        return self._inner.sample(key, num)

    def _by_group(
        self, function: Callable[[MapT, np.ndarray], np.ndarray], table: np.ndarray
    ) -> np.ndarray:
        """function(map, rows of the table) for the rows of each group, put together again."""
        found: np.ndarray | None = None
        for index, own in enumerate(self._maps):
            rows = self._group == index
            if not np.any(rows):
                continue
            values: np.ndarray = function(own, table[rows])
            if found is None:
                found = np.empty((len(table), *values.shape[1:]))
            found[rows] = values
        assert found is not None
        return found


def no_draws() -> NotAvailableError:
    """The error of a log-probability by draw."""
    return NotAvailableError(
        "Calibration acts on the average over draws, which has no log-probability by draw;"
        " use `posterior.uncalibrated()`."
    )


def uniform_of(key: Array | int, shape: tuple[int, ...]) -> np.ndarray:
    """Random numbers between 0 and 1 that follow from a key."""
    key = jax.random.key(key) if isinstance(key, int | np.integer) else key
    rng = np.random.default_rng(np.asarray(jax.random.bits(key, (4,), "uint32")))
    return rng.uniform(size=shape)


def warn_too_few(level: float, maps: Sequence[ConformalMap], what: str, result: str) -> None:
    """Say that calibration rows are too few for a level."""
    needed = int(np.ceil(level / (1.0 - level) - ROUNDING))
    totals = [float(own.weight[-1, 0]) for own in maps]
    where = " of a group" if len(totals) > 1 else ""
    warn(
        f"A conformal {what} of level {level:g} needs at least {needed} calibration rows{where};"
        f" with {min(totals):g} it is {result}.",
        DataWarning,
    )


def _as_table(values: np.ndarray) -> np.ndarray:
    return values[:, None] if values.ndim == 1 else values


class ConformalPredictive(CalibratedPredictive[ConformalMap]):
    """Quantiles and distribution function from conformal scores |y - mean| / std."""

    def quantiles(self, qs: Sequence[float]) -> list[np.ndarray]:
        """Ends of conformal intervals: those of level 2 q - 1 above the mean, and below it."""
        return [self._end(2.0 * q - 1.0) for q in qs]

    def tails(self, tail: float) -> tuple[np.ndarray, np.ndarray]:
        """The ends of the widest finite interval, or of that of level 1 - 2 tail."""
        level = min(1.0 - 2.0 * tail, *(own.highest_level for own in self._maps))
        return self._end(-level), self._end(level)

    def _end(self, signed_level: float) -> np.ndarray:
        level = abs(signed_level)
        center = _as_table(self._inner.mean)
        quantile = self._by_group(lambda own, rows: own.quantile(level) + 0.0 * rows, center)
        if not np.all(np.isfinite(quantile)):
            warn_too_few(level, self._maps, "interval", "infinite")
        value = center + np.sign(signed_level) * quantile * _as_table(self._inner.std)
        if self.is_discrete:  # the same whole numbers are inside
            value = np.ceil(value) if signed_level < 0 else np.floor(value)
        return np.clip(value, *self.support).reshape(self._inner.mean.shape)

    def cdfs(self, points: Sequence[ArrayLike]) -> list[np.ndarray]:
        """Distribution function at several y of each row: the inverse of the quantiles."""
        mean, std = (_as_table(part) for part in (self._inner.mean, self._inner.std))
        found = []
        for y in points:
            z = (_as_table(np.asarray(self.align_y(y), np.float64)) - mean) / std
            level = self._by_group(lambda own, rows: own.level(rows), np.abs(z))
            found.append((0.5 + 0.5 * np.sign(z) * level).reshape(self._inner.mean.shape))
        return found

    def sample(self, key: Array | int, num: int = 1) -> np.ndarray:
        """The scores of calibration rows, drawn at random, on either side of the mean."""
        mean, std = (_as_table(part) for part in (self._inner.mean, self._inner.std))
        signed = np.moveaxis(2.0 * uniform_of(key, (num, *mean.shape)) - 1.0, 0, -1)

        def scores(own: ConformalMap, rows: np.ndarray) -> np.ndarray:
            levels = np.abs(rows) * own.highest_level * (own.weight[-1, 0] + 1.0)
            found = np.empty_like(levels)
            for j, (score, weight) in enumerate(zip(own.scores.T, own.weight.T, strict=True)):
                place = np.searchsorted(weight, levels[:, j])
                found[:, j] = score[np.minimum(place, len(score) - 1)]
            return found

        values = np.moveaxis(np.sign(signed) * self._by_group(scores, signed), -1, 0)
        values = mean + std * values
        values = np.clip(np.round(values) if self.is_discrete else values, *self.support)
        return values.reshape(num, *self._inner.mean.shape)


class RescaledPredictive(CalibratedPredictive[FactorMap]):
    """The distribution of mean + factor (y - mean), given that of y."""

    @cached_property
    def _factor(self) -> np.ndarray:
        factor = np.array([own.factor for own in self._maps])[self._group]
        return factor.reshape(-1, *[1] * (self._inner.mean.ndim - 1))

    @property
    def epistemic(self) -> np.ndarray:
        """Variance of the mean, times the squared factor."""
        return self._inner.epistemic * self._factor**2

    @property
    def aleatoric(self) -> np.ndarray:
        """Noise variance, times the squared factor."""
        return self._inner.aleatoric * self._factor**2

    def covariance(self) -> np.ndarray:
        """Covariance of a new observation's columns, times the squared factor."""
        return self._inner.covariance() * self._factor.reshape(-1, 1, 1) ** 2

    def _before(self, y: ArrayLike) -> np.ndarray:
        """The observation that the model would have to have made."""
        return self.mean + (self.align_y(y) - self.mean) / self._factor

    @property
    def _log_unit(self) -> np.ndarray:
        return np.log(self._factor.reshape(-1)) * _as_table(self.mean).shape[1]

    def log_prob(self, y: ArrayLike) -> np.ndarray:
        """log p(y) of each row."""
        return self._inner.log_prob(self._before(y)) - self._log_unit

    def log_prob_by_draw(self, y: ArrayLike) -> np.ndarray:
        """log p(y) of each row under each draw: (draws, rows)."""
        return self._inner.log_prob_by_draw(self._before(y)) - self._log_unit

    def quantiles(self, qs: Sequence[float]) -> list[np.ndarray]:
        """Several quantiles of a new observation."""
        return [self.mean + self._factor * (v - self.mean) for v in self._inner.quantiles(qs)]

    def cdfs(self, points: Sequence[ArrayLike]) -> list[np.ndarray]:
        """Distribution function at several y of each row."""
        return self._inner.cdfs([self._before(y) for y in points])

    def sample(self, key: Array | int, num: int = 1) -> np.ndarray:
        """New observations (num, rows, ...)."""
        return self.mean + self._factor * (self._inner.sample(key, num) - self.mean)


class IsotonicPredictive(CalibratedPredictive[PITMap]):
    """A distribution function that is an increasing function of the model's.

    Moments and samples are computed from a table of it at 257 points of each row. Epistemic and
    aleatoric uncertainty keep the model's proportion.
    """

    @cached_property
    def _table(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Points, and both distribution functions there: (points, rows, columns) each."""
        low, high = (_as_table(end) for end in self.quantiles([TAIL, 1.0 - TAIL]))
        steps = np.linspace(0.0, 1.0, GRID)[:, None, None]
        points = low + steps * (high - low)
        if self.is_discrete:
            longest = int(np.max(high - low)) + 1
            stride = -(-longest // GRID)
            points = low + np.arange(0, longest + stride, stride)[:, None, None]
        shape = self._inner.mean.shape
        values = self._inner.cdfs([point.reshape(shape) for point in points])
        before, after = (
            np.stack([_as_table(v) for v in parts])
            for parts in (values, [self._applied(v) for v in values])
        )
        return points, before, after

    @cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance, by parts: E[Y] is the integral of 1 - F."""
        points, _, after = self._table
        away, rest = points - points[0], 1.0 - after
        if self.is_discrete:
            stride = points[1] - points[0]
            mean = np.sum(rest, axis=0) * stride
            square = np.sum((2.0 * away + stride) * rest, axis=0) * stride
        else:
            mean = np.trapezoid(rest, points, axis=0)
            square = np.trapezoid(2.0 * away * rest, points, axis=0)
        shape = self._inner.mean.shape
        return (points[0] + mean).reshape(shape), (square - mean**2).reshape(shape)

    @property
    def mean(self) -> np.ndarray:
        """Predictive mean."""
        return self._moments[0]

    @property
    def _factor(self) -> np.ndarray:
        """Of variances."""
        return self._moments[1] / self._inner.variance

    @property
    def epistemic(self) -> np.ndarray:
        """The model's share of the calibrated variance."""
        return self._inner.epistemic * self._factor

    @property
    def aleatoric(self) -> np.ndarray:
        """The model's share of the calibrated variance."""
        return self._inner.aleatoric * self._factor

    def covariance(self) -> np.ndarray:
        """The model's correlations with the calibrated variances."""
        factor = np.sqrt(_as_table(self._factor))
        return self._inner.covariance() * factor[:, :, None] * factor[:, None, :]

    def quantiles(self, qs: Sequence[float]) -> list[np.ndarray]:
        """Several quantiles of a new observation."""
        columns = len(self._maps[0].before)
        levels = np.broadcast_to(np.asarray(qs, np.float64)[:, None], (len(qs), columns))
        before = np.stack([own.inverse(levels) for own in self._maps])  # (maps, qs, columns)
        needed, where = np.unique(np.clip(before, SMALLEST, 1.0 - SMALLEST), return_inverse=True)
        values = np.stack([_as_table(v) for v in self._inner.quantiles(needed.tolist())])
        where = where.reshape(before.shape)
        rows, column = np.arange(self.num_rows)[:, None], np.arange(columns)
        found = [values[where[self._group, i], rows, column] for i in range(len(qs))]
        return [part.reshape(self._inner.mean.shape) for part in found]

    def cdfs(self, points: Sequence[ArrayLike]) -> list[np.ndarray]:
        """Distribution function at several y of each row."""
        return [self._applied(values) for values in self._inner.cdfs(points)]

    def _applied(self, values: np.ndarray) -> np.ndarray:
        found = self._by_group(lambda own, rows: own.apply(rows), _as_table(values))
        return found.reshape(values.shape)

    def log_prob(self, y: ArrayLike) -> np.ndarray:
        """log p(y) of each row; of a single column."""
        if len(self._maps[0].before) > 1:
            raise NotAvailableError(
                "The log-density after isotonic calibration is known for one column of y alone;"
                ' use method="scale".'
            )
        y = np.asarray(self.align_y(y))
        if self.is_discrete:
            upper, lower = self._inner.cdfs([y, np.maximum(y - 1, self.support[0])])
            lower = np.where(y > self.support[0], self._applied(lower), 0.0)
            mass = self._applied(upper) - lower
            with np.errstate(divide="ignore"):
                return np.log(mass).reshape(-1)
        (cdf,) = self._inner.cdfs([y])
        log_slope = self._by_group(lambda own, rows: own.log_slope(rows), _as_table(cdf))
        return self._inner.log_prob(y) + log_slope[:, 0]

    def log_prob_by_draw(self, y: ArrayLike) -> np.ndarray:
        """Not available: calibration acts on the average over draws."""
        raise no_draws()

    def sample(self, key: Array | int, num: int = 1) -> np.ndarray:
        """New observations (num, rows, ...): samples of the model, moved to their new quantile."""
        points, before, after = self._table
        samples = self._inner.sample(key, num).reshape(num, *points.shape[1:])
        uniform = uniform_of(key, samples.shape) if self.is_discrete else samples
        found = np.empty(samples.shape)
        for row, column in np.ndindex(*points.shape[1:]):
            at, old, new = (part[:, row, column] for part in (points, before, after))
            if self.is_discrete:
                place = np.searchsorted(new, uniform[:, row, column])
                found[:, row, column] = at[np.minimum(place, len(at) - 1)]
            else:
                level = np.interp(samples[:, row, column], at, old)
                found[:, row, column] = np.interp(level, new, at)
        return found.reshape(num, *self._inner.mean.shape)
