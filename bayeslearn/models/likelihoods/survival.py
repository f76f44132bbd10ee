"""Censored observations: what is known of some rows is that they exceed a number.

y is (rows, 2): the time (or another number), and whether it was observed, 1, or censored, 0: the
true one is then greater. y as (rows,) is all observed. Predictions are of the true time, and
shaped (rows,).
"""

from __future__ import annotations

from typing import ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jax.scipy.stats import norm

from bayeslearn.errors import Shown, refuse
from bayeslearn.models.likelihoods.base import Params
from bayeslearn.models.likelihoods.checks import as_double, as_numeric, as_positive
from bayeslearn.models.likelihoods.gaussian import WithNoiseScale
from bayeslearn.models.likelihoods.shape import LOG_TINY, WithShape
from bayeslearn.tree import Array

# Of the logarithm of a Weibull shape.
SHAPE_INFORMATION = np.pi**2 / 6.0 + (1.0 - np.euler_gamma) ** 2


def as_censored(y: np.ndarray) -> np.ndarray:
    """y as (rows, 2): a number, and 1 where it was observed."""
    y = as_numeric(y)
    if y.ndim == 1 or (y.ndim == 2 and y.shape[1] == 1):
        time = y.reshape(len(y))
        return np.stack([time, np.ones(len(y))], axis=1).astype(np.float64)
    if y.ndim != 2 or y.shape[1] != 2:
        refuse("y", Shown(f"shape {y.shape}"), "be (rows, 2): the time, and 1 if it was observed")
    bad = y[(y[:, 1] != 0) & (y[:, 1] != 1), 1]
    if bad.size:
        must = "hold 1 (observed) or 0 (censored) in its second column"
        refuse("y", Shown(f"{bad[0]} there"), must)
    return y.astype(np.float64)


def is_observed(y: Array) -> Array:
    """Whether a row's number was observed; a sampled one always is."""
    return y[1] > 0 if len(y) > 1 else jnp.asarray(True)


class CensoredGaussian(WithNoiseScale):
    """Gaussian noise around the network's output, where some observations are censored.

    y is (rows, 2): the number, and 1 if it was observed or 0 if the true one is greater (a limit of
    detection, an end of follow-up). The noise scale is known or learned as for `Gaussian`.
    Predictions are of the true number. Aleatoric uncertainty is the noise variance.
    """

    def bind(self, y: np.ndarray, weight: np.ndarray | None = None) -> tuple[Self, np.ndarray]:
        """The likelihood with the scale of y, and y as (rows, 2)."""
        table = as_censored(y)
        return self.bind_scale(table[:, :1], weight, is_vector=True), table

    def check(self, y: np.ndarray) -> np.ndarray:
        """y as (rows, 2)."""
        return as_censored(y)

    def is_censored(self, y: np.ndarray) -> np.ndarray:
        """Rows whose second column is 0."""
        return y[:, 1] == 0

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        """The log-density of an observed number, log P(Y > y) of a censored one."""
        std = as_double(self.std(params, outputs.dtype))[0]
        mean, value = as_double(outputs)[0], as_double(y)[0]
        observed, censored = norm.logpdf(value, mean, std), norm.logsf(value, mean, std)
        return jnp.where(is_observed(y), observed, censored)

    def mean(self, outputs: Array, params: Params) -> Array:
        """The outputs."""
        return outputs

    def variance(self, outputs: Array, params: Params) -> Array:
        """The noise variance."""
        return self.std(params, outputs.dtype) ** 2

    def cdf(self, outputs: Array, y: Array, params: Params) -> Array:
        """Distribution function of the true number at y."""
        return norm.cdf(y[:1], outputs, self.std(params, outputs.dtype))

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        """A number that is not censored."""
        noise = jax.random.normal(key, outputs.shape, outputs.dtype)
        return outputs + self.std(params, outputs.dtype) * noise

    def information(self, outputs: Array, y: Array, params: Params) -> Array:
        """1 / variance of an observed number; of a censored one less, as its limit leaves."""
        std = as_double(self.std(params, outputs.dtype))
        z = (as_double(y)[0] - as_double(outputs)) / std
        # The density over P(Y > y) is at most z + 1 / z: by logarithms, for both vanish.
        hazard = jnp.exp(norm.logpdf(z) - norm.logsf(z))
        part = norm.cdf(z) + norm.pdf(z) * (hazard - z)
        return jnp.diag(jnp.where(is_observed(y), 1.0, part) / std**2)


class Weibull(WithShape):
    """Times to an event, some of them censored (survival).

    y is (rows, 2): the time, positive, and 1 if the event was observed or 0 if it had not happened
    by then. The network returns the logarithm of the scale; the shape is learned: above 1 the
    hazard grows with time, below 1 it falls. Predictions are of the time of the event. Aleatoric
    uncertainty is its variance.
    """

    own_name: ClassVar[str] = "log_shape"
    support: ClassVar[tuple[float, float]] = (0.0, np.inf)

    @staticmethod
    def shape_of_moments(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
        """1: a constant hazard."""
        return np.ones_like(mean)

    def bind(self, y: np.ndarray, weight: np.ndarray | None = None) -> tuple[Self, np.ndarray]:
        """The likelihood, and y as (rows, 2)."""
        center = jnp.zeros(1, jnp.float64)
        return type(self)(columns=1, center=center, is_vector=True), self.check(y)

    def check(self, y: np.ndarray) -> np.ndarray:
        """y as (rows, 2) of positive times and 0 or 1."""
        table = as_censored(y)
        as_positive(table[:, 0])
        return table

    def is_censored(self, y: np.ndarray) -> np.ndarray:
        """Rows whose second column is 0."""
        return y[:, 1] == 0

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        """The log-density of an observed event, log P(T > t) of a censored one."""
        shape, log_time = self.shape(params)[0], jnp.log(as_double(y)[0])
        log_ratio = log_time - as_double(outputs)[0]
        log_survival = -jnp.exp(shape * log_ratio)
        log_hazard = jnp.log(shape) + shape * log_ratio - log_time
        return log_survival + jnp.where(is_observed(y), log_hazard, 0.0)

    def mean(self, outputs: Array, params: Params) -> Array:
        """scale Gamma(1 + 1 / shape)."""
        return jnp.exp(outputs + gammaln(1.0 + 1.0 / self.shape(params)))

    def variance(self, outputs: Array, params: Params) -> Array:
        """scale^2 (Gamma(1 + 2 / shape) - Gamma(1 + 1 / shape)^2)."""
        inverse = 1.0 / self.shape(params)
        second, first = gammaln(1.0 + 2.0 * inverse), gammaln(1.0 + inverse)
        return jnp.exp(2.0 * (outputs + first)) * jnp.expm1(second - 2.0 * first)

    def cdf(self, outputs: Array, y: Array, params: Params) -> Array:
        """Distribution function of the time of the event at y."""
        log_ratio = jnp.log(jnp.maximum(y[:1], 0.0)) - outputs
        return -jnp.expm1(-jnp.exp(self.shape(params) * log_ratio))

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        """A time that is not censored."""
        log_ratio = jnp.log(jax.random.exponential(key, outputs.shape)) / self.shape(params)
        return jnp.exp(jnp.maximum(outputs + log_ratio, LOG_TINY))

    def information(self, outputs: Array, y: Array, params: Params) -> Array:
        """shape^2 of an observed event; of a censored one times P(T < t)."""
        part = self.cdf(as_double(outputs), as_double(y), params)
        return jnp.diag(self.shape(params) ** 2 * jnp.where(is_observed(y), 1.0, part))

    def own_information(self, outputs: Array, params: Params) -> Params:
        """Of the log-shape of an observed event, the scale being given."""
        return {self.own_name: jnp.full_like(self.shape(params), SHAPE_INFORMATION)}
