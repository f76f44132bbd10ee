"""Counts: Poisson, overdispersed (negative binomial), and with extra zeros."""

from __future__ import annotations

from typing import ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betainc, gammaln, polygamma

from bayeslearn.errors import Shown, refuse
from bayeslearn.models.likelihoods.base import ColumnLikelihood, Params
from bayeslearn.models.likelihoods.checks import as_double, as_table
from bayeslearn.models.likelihoods.shape import WithShape
from bayeslearn.tree import Array

FIRST_COUNTS = 64
MIN_SIZE, MAX_SIZE = 0.1, 100.0  # of a negative binomial, around which it is learned


def as_counts(y: np.ndarray, columns: int | None) -> np.ndarray:
    """y as (rows, columns) of counts."""
    table, _ = as_table(y, columns)
    bad = table[(table < 0) | (table != np.floor(table)) | (table > np.iinfo(np.int32).max)]
    if bad.size:
        must = "hold only whole numbers from 0 to 2**31 - 1"
        refuse("y", Shown(f"the count {bad.flat[0]}"), must)
    return table.astype(np.int32)


class Counts(ColumnLikelihood):
    """Base of the likelihoods of counts without parameters of their own (abstract)."""

    is_discrete: ClassVar[bool] = True
    support: ClassVar[tuple[float, float]] = (0.0, np.inf)

    columns: int | None = eqx.field(default=None, static=True, kw_only=True)
    is_vector: bool = eqx.field(default=False, static=True, kw_only=True)

    def bind(self, y: np.ndarray, weight: np.ndarray | None = None) -> tuple[Self, np.ndarray]:
        """The likelihood with its number of columns, and y checked."""
        columns = as_table(y)[1]
        bound = type(self)(columns=columns, is_vector=np.ndim(y) == 1)
        return bound, bound.check(y)

    def check(self, y: np.ndarray) -> np.ndarray:
        """y as (rows, columns) of counts."""
        return as_counts(y, self.columns)


class Poisson(Counts):
    """Counts 0, 1, 2, ...; the network returns the logarithm of the rate for each column of y.

    Predictions are summarized by moments. Quantiles and intervals are whole numbers; an interval
    is the smallest central one with at least its level. Aleatoric uncertainty is the mean rate.
    """

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        """log p(y | log-rates)."""
        # In double precision: large counts cancel against their rate.
        log_rate, y = as_double(outputs), as_double(y)
        return jnp.sum(y * log_rate - jnp.exp(log_rate) - gammaln(y + 1.0))

    def mean(self, outputs: Array, params: Params) -> Array:
        """The rates."""
        return jnp.exp(outputs)

    def variance(self, outputs: Array, params: Params) -> Array:
        """The rates."""
        return jnp.exp(outputs)

    def cdf(self, outputs: Array, y: Array, params: Params) -> Array:
        """Distribution function at y, by column."""
        return jax.scipy.stats.poisson.cdf(y, jnp.exp(outputs))

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        """A count for each column."""
        return jax.random.poisson(key, jnp.exp(as_double(outputs)))


class NegativeBinomial(WithShape):
    """Counts that vary more than Poisson's; the network returns the logarithm of the mean.

    The variance is mean + mean^2 / size: the larger the size, the more like Poisson. One size for
    each column is learned. Aleatoric uncertainty is the variance.
    """

    own_name: ClassVar[str] = "log_size"
    is_discrete: ClassVar[bool] = True
    support: ClassVar[tuple[float, float]] = (0.0, np.inf)

    @staticmethod
    def shape_of_moments(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
        """mean^2 / (variance - mean); large where counts do not vary more than Poisson's."""
        excess = np.maximum(variance - mean, 1e-300)
        return np.clip(mean**2 / excess, MIN_SIZE, MAX_SIZE)

    def check(self, y: np.ndarray) -> np.ndarray:
        """y as (rows, columns) of counts."""
        return as_counts(y, self.columns)

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        """log p(y | log-means), summed over columns."""
        size, log_mean, y = self.shape(params), as_double(outputs), as_double(y)
        log_total = jnp.logaddexp(jnp.log(size), log_mean)
        terms = gammaln(y + size) - gammaln(size) - gammaln(y + 1.0)
        terms += size * (jnp.log(size) - log_total) + y * (log_mean - log_total)
        return jnp.sum(terms)

    def mean(self, outputs: Array, params: Params) -> Array:
        """exp(outputs)."""
        return jnp.exp(outputs)

    def variance(self, outputs: Array, params: Params) -> Array:
        """mean + mean^2 / size."""
        mean = jnp.exp(outputs)
        return mean + mean**2 / self.shape(params)

    def cdf(self, outputs: Array, y: Array, params: Params) -> Array:
        """Distribution function at y, by column."""
        size, count = self.shape(params), jnp.floor(as_double(y))
        success = jax.nn.sigmoid(jnp.log(size) - as_double(outputs))  # size / (size + mean)
        value = betainc(size, jnp.maximum(count, 0.0) + 1.0, success)
        return jnp.where(count < 0, 0.0, value)

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        """A count for each column: Poisson's with a rate from a gamma distribution."""
        key_rate, key_count = jax.random.split(key)
        size = self.shape(params)
        rate = jax.random.gamma(key_rate, size, outputs.shape) / size * jnp.exp(as_double(outputs))
        return jax.random.poisson(key_count, rate)

    def information(self, outputs: Array, y: Array, params: Params) -> Array:
        """mean / (1 + mean / size)."""
        size = self.shape(params)
        return jnp.diag(size * jax.nn.sigmoid(as_double(outputs) - jnp.log(size)))

    def own_information(self, outputs: Array, params: Params) -> Params:
        """Of the log-size: exact for counts up to 64, and a bound beyond."""
        size, log_mean = self.shape(params), as_double(outputs)
        total = size + jnp.exp(log_mean)
        counts = jnp.arange(FIRST_COUNTS, dtype=total.dtype)[:, None]
        log_probs = gammaln(counts + size) - gammaln(size) - gammaln(counts + 1.0)
        log_probs += size * jnp.log(size / total) + counts * (log_mean - jnp.log(total))
        above = jnp.maximum(1.0 - jnp.cumsum(jnp.exp(log_probs), axis=0), 0.0)
        gap = jnp.sum(above / (size + counts) ** 2, axis=0)
        last = size + FIRST_COUNTS
        gap += above[-1] * (polygamma(1, last) - polygamma(1, jnp.maximum(total, last)))
        return {self.own_name: size**2 * jnp.maximum(gap - 1.0 / size + 1.0 / total, 0.0)}


class ZeroInflatedPoisson(Counts):
    """Counts with more zeros than Poisson's: some rows are zero whatever their rate.

    The network returns two outputs for each column of y: all log-rates first, then all log-odds of
    an extra zero. Aleatoric uncertainty is the variance.
    """

    @property
    def num_outputs(self) -> int:
        """A log-rate and a log-odds for each column."""
        return 2 * int(self.columns or 1)

    def parts(self, outputs: Array) -> tuple[Array, Array]:
        """Log-rate and log-odds of an extra zero, by column."""
        half = len(outputs) // 2
        return as_double(outputs[:half]), as_double(outputs[half:])

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        """log p(y | log-rates, log-odds), summed over columns."""
        log_rate, odds = self.parts(outputs)
        count, rate = as_double(y), jnp.exp(log_rate)
        zero = jnp.logaddexp(jax.nn.log_sigmoid(odds), jax.nn.log_sigmoid(-odds) - rate)
        other = jax.nn.log_sigmoid(-odds) + count * log_rate - rate - gammaln(count + 1.0)
        return jnp.sum(jnp.where(count == 0, zero, other))

    def mean(self, outputs: Array, params: Params) -> Array:
        """(1 - extra) rate."""
        log_rate, odds = self.parts(outputs)
        return jax.nn.sigmoid(-odds) * jnp.exp(log_rate)

    def variance(self, outputs: Array, params: Params) -> Array:
        """(1 - extra) rate (1 + extra rate)."""
        log_rate, odds = self.parts(outputs)
        rate = jnp.exp(log_rate)
        return jax.nn.sigmoid(-odds) * rate * (1.0 + jax.nn.sigmoid(odds) * rate)

    def cdf(self, outputs: Array, y: Array, params: Params) -> Array:
        """Distribution function at y, by column."""
        log_rate, odds = self.parts(outputs)
        value = jax.scipy.stats.poisson.cdf(y, jnp.exp(log_rate))
        extra = jax.nn.sigmoid(odds)
        return jnp.where(y < 0, 0.0, extra + (1.0 - extra) * value)

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        """A count for each column."""
        key_zero, key_count = jax.random.split(key)
        log_rate, odds = self.parts(outputs)
        counts = jax.random.poisson(key_count, jnp.exp(log_rate))
        is_zero = jax.random.bernoulli(key_zero, jax.nn.sigmoid(odds))
        return jnp.where(is_zero, 0, counts)

    def information(self, outputs: Array, y: Array, params: Params) -> Array:
        """The covariance of the score: of a zero, and of the other counts."""
        log_rate, odds = self.parts(outputs)
        rate, extra = jnp.exp(log_rate), jax.nn.sigmoid(odds)
        none = jnp.exp(-rate)
        zero = extra + (1.0 - extra) * none
        by_rate = -(1.0 - extra) * rate * none  # derivatives of the probability of a zero
        by_odds = extra * (1.0 - extra) * (1.0 - none)
        rates = by_rate**2 / zero + (1.0 - extra) * rate * (1.0 - rate * none)
        both = by_rate * by_odds / zero - (1.0 - extra) * extra * rate * none
        extras = by_odds**2 / zero + (1.0 - extra) * extra**2 * (1.0 - none)
        return jnp.block([[jnp.diag(rates), jnp.diag(both)], [jnp.diag(both), jnp.diag(extras)]])
