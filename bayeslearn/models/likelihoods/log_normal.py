"""Positive numbers with multiplicative noise whose size depends on the input."""

from __future__ import annotations

from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn.models.likelihoods.base import Params
from bayeslearn.models.likelihoods.checks import (
    as_positive,
    as_table,
    column_scale,
    num_observed,
)
from bayeslearn.models.likelihoods.gaussian import ScaledByInput
from bayeslearn.numerics import LOG_2PI
from bayeslearn.tree import Array

MAX_SCALE = 2.0  # relative to sd(log y): the mean grows with the exponential of its square


class HeteroscedasticLogNormal(ScaledByInput):
    """Numbers above `-shift`; log(y + shift) has Gaussian noise whose scale depends on the input.

    The network returns, for each column, the mean of log(y + shift) in standard deviations from
    its average over the rows, and then a log-scale, as for `HeteroscedasticGaussian`. The noise
    scale stays below twice the standard deviation of log(y + shift), so that the mean of y is
    finite far from the data too. With `shift` = mean / sd it is the likelihood of a standardised
    positive y. Aleatoric uncertainty is the variance of y.

    Rows to predict may hold what these n rows do not, such as a zero, which a log-normal density
    rules out. With probability 1 / (2 (n + 1)) (Krichevsky and Trofimov's estimate for what was not
    seen in n rows) y is below their smallest, by an exponential distance with a mean of sd(y). This
    is part of the density alone: means, intervals, draws and curvature neglect it.
    """

    shift: float | Array = 0.0
    location: Array | None = eqx.field(default=None, kw_only=True)  # mean of log(y + shift)
    smallest: Array | None = eqx.field(default=None, kw_only=True)  # y of the rows
    scale: Array | None = eqx.field(default=None, kw_only=True)  # sd(y)
    unseen: Array | None = eqx.field(default=None, kw_only=True)  # probability of a smaller y

    def bind(self, y: np.ndarray, weight: np.ndarray | None = None) -> tuple[Self, np.ndarray]:
        """The likelihood with mean and scale of log(y + shift), and y as (rows, columns)."""
        table = as_table(y)[0]
        logs = np.log(as_positive(table + np.asarray(self.shift)))
        counted = table if weight is None else table[weight > 0]
        bound = type(self)(
            self.min_scale,
            self.shift,
            columns=table.shape[1],
            center=jnp.asarray(np.log(column_scale(logs, weight)), jnp.float64),
            location=jnp.asarray(np.average(logs, axis=0, weights=weight), jnp.float64),
            smallest=jnp.asarray(counted.min(axis=0), jnp.float64),
            scale=jnp.asarray(column_scale(table, weight), jnp.float64),
            unseen=jnp.asarray(0.5 / (1.0 + num_observed(table, weight)), jnp.float64),
            is_vector=np.ndim(y) == 1,
        )
        return bound, table

    def bounded(self, raw: Array) -> Array:
        """The log noise scale for an output of the network."""
        return self._most(raw) - jnp.logaddexp(self._most(raw) - super().bounded(raw), 0.0)

    def log_std_slope(self, outputs: Array) -> Array:
        """Derivative of `log_std` with respect to the network's output, by column."""
        raw = outputs[len(outputs) // 2 :]
        room = self._most(raw) - super().bounded(raw)
        return super().log_std_slope(outputs) * jax.nn.sigmoid(room)

    def _most(self, raw: Array) -> Array:
        return jnp.reshape(jnp.asarray(self.center, raw.dtype), raw.shape) + np.log(MAX_SCALE)

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        """log N(log(y + shift); location, std^2) - log(y + shift), summed over columns.

        Below the smallest row it has a second part, which keeps it from -infinity.
        """
        half = len(outputs) // 2
        raw, scale = outputs[:half], outputs[half:]
        log_y = self._log(y, outputs)
        if half == 1:  # numbers: rows of one column are not vectorised on a CPU
            raw, scale, log_y = (jnp.reshape(a, ()) for a in (raw, scale, log_y))
        log_std = self.bounded(scale)
        z = (log_y - self._location(raw)) * jnp.exp(-log_std)
        terms = -0.5 * z**2 - log_std - 0.5 * LOG_2PI - log_y
        terms = self._with_smaller(terms, jnp.reshape(y, terms.shape))
        return jnp.sum(self.weighted(terms, log_std))

    def _with_smaller(self, terms: Array, y: Array) -> Array:
        """The log-density of the mixture from that of the log-normal, by column."""
        if self.unseen is None:  # stored by version 0.2
            return terms
        smallest, scale, unseen, shift = (
            jnp.broadcast_to(jnp.asarray(a, terms.dtype).reshape(-1), (self.columns or 1,)).reshape(
                terms.shape
            )
            for a in (self.smallest, self.scale, self.unseen, self.shift)
        )
        positive = jnp.where(y + shift > 0.0, terms, -jnp.inf) + jnp.log1p(-unseen)
        smaller = jnp.log(unseen / scale) - (smallest - y) / scale
        return jnp.where(y < smallest, jnp.logaddexp(positive, smaller), positive)

    def mean(self, outputs: Array, params: Params) -> Array:
        """exp(location + std^2 / 2) - shift."""
        return self._mean(outputs) - jnp.asarray(self.shift, outputs.dtype)

    def variance(self, outputs: Array, params: Params) -> Array:
        """(exp(std^2) - 1) (mean + shift)^2."""
        return jnp.expm1(jnp.exp(2.0 * self.log_std(outputs))) * self._mean(outputs) ** 2

    def cdf(self, outputs: Array, y: Array, params: Params) -> Array:
        """Distribution function at y, by column."""
        location = self._location(outputs[: len(outputs) // 2])
        z = (self._log(y, outputs) - location) * jnp.exp(-self.log_std(outputs))
        return jax.scipy.stats.norm.cdf(z)

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        """exp(location + std noise) - shift."""
        location = self._location(outputs[: len(outputs) // 2])
        noise = jax.random.normal(key, location.shape, location.dtype)
        return jnp.exp(location + jnp.exp(self.log_std(outputs)) * noise) - jnp.asarray(
            self.shift, outputs.dtype
        )

    def information(self, outputs: Array, y: Array, params: Params) -> Array:
        """Expected information of the standardised location, and 2 per log scale."""
        scale = jnp.exp(jnp.asarray(self.center, outputs.dtype))
        location = (scale * jnp.exp(-self.log_std(outputs))) ** 2
        log_scale = 2.0 * self.log_std_slope(outputs) ** 2
        return jnp.diag(jnp.concatenate([location, log_scale]))

    def _log(self, y: Array, outputs: Array) -> Array:
        shifted = jnp.asarray(y, outputs.dtype) + jnp.asarray(self.shift, outputs.dtype)
        return jnp.log(jnp.maximum(shifted, jnp.finfo(outputs.dtype).tiny))

    def _location(self, raw: Array) -> Array:
        center, location = (
            jnp.reshape(jnp.asarray(a, raw.dtype), raw.shape) for a in (self.center, self.location)
        )
        return location + jnp.exp(center) * raw

    def _mean(self, outputs: Array) -> Array:
        variance = jnp.exp(2.0 * self.log_std(outputs))
        return jnp.exp(self._location(outputs[: len(outputs) // 2]) + 0.5 * variance)
