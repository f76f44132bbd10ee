"""Likelihoods with one learned shape for each column, beside the network's output for its mean."""

from __future__ import annotations

from typing import ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betainc, gammaln, polygamma

from bayeslearn.errors import Shown, refuse
from bayeslearn.models.likelihoods.base import ColumnLikelihood, Params
from bayeslearn.models.likelihoods.checks import as_double, as_positive, as_table
from bayeslearn.tree import Array

SHAPE_PRIOR_SCALE = 1.0  # of the logarithm of a shape
LOG_TINY = -700.0  # exp of it is still a positive number


class WithShape(ColumnLikelihood):
    """Base of the likelihoods with a shape of each column (abstract).

    Its logarithm is learned along with the weights, with the prior Normal(c, 1): c is the logarithm
    of the shape that the moments of y have, x left aside.
    """

    own_name: ClassVar[str]  # of the leaf

    columns: int | None = eqx.field(default=None, static=True, kw_only=True)
    center: Array | None = eqx.field(default=None, kw_only=True)
    is_vector: bool = eqx.field(default=False, static=True, kw_only=True)

    def bind(self, y: np.ndarray, weight: np.ndarray | None = None) -> tuple[Self, np.ndarray]:
        """The likelihood with the shape that y has, and y as (rows, columns)."""
        columns = as_table(y)[1]
        table = type(self)(columns=columns).check(y)
        numbers = np.asarray(table, np.float64)
        mean = np.average(numbers, axis=0, weights=weight)
        variance = np.average((numbers - mean) ** 2, axis=0, weights=weight)
        center = jnp.asarray(np.log(self.shape_of_moments(mean, variance)), jnp.float64)
        return type(self)(columns=columns, center=center, is_vector=np.ndim(y) == 1), table

    @staticmethod
    def shape_of_moments(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
        """The shape that gives these moments, within bounds."""
        raise NotImplementedError

    def init(self) -> Params:
        """The log-shape at its prior mean."""
        assert self.center is not None
        return {self.own_name: self.center}

    def prior(self) -> tuple[Params, Params]:
        """Normal(c, 1) for the log-shape."""
        mean = self.init()
        return mean, jax.tree.map(lambda leaf: jnp.full_like(leaf, SHAPE_PRIOR_SCALE), mean)

    def shape(self, params: Params) -> Array:
        """The shape of each column."""
        return jnp.exp(as_double(params[self.own_name]))


class Gamma(WithShape):
    """Positive numbers whose standard deviation is a fixed fraction of their mean.

    The network returns the logarithm of the mean for each column of y. The shape, 1 / fraction^2,
    is learned. Aleatoric uncertainty is the variance, mean^2 / shape.
    """

    own_name: ClassVar[str] = "log_shape"
    support: ClassVar[tuple[float, float]] = (0.0, np.inf)

    @staticmethod
    def shape_of_moments(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
        """mean^2 / variance."""
        return np.clip(mean**2 / np.maximum(variance, 1e-300), 1e-2, 1e4)

    def check(self, y: np.ndarray) -> np.ndarray:
        """y as (rows, columns) of positive numbers."""
        return as_positive(y, self.columns)

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        """The log-density, summed over columns."""
        shape, log_ratio = self.shape(params), jnp.log(as_double(y)) - as_double(outputs)
        terms = shape * (jnp.log(shape) + log_ratio - jnp.exp(log_ratio)) - gammaln(shape)
        return jnp.sum(terms - jnp.log(as_double(y)))

    def mean(self, outputs: Array, params: Params) -> Array:
        """exp(outputs)."""
        return jnp.exp(outputs)

    def variance(self, outputs: Array, params: Params) -> Array:
        """mean^2 / shape."""
        return jnp.exp(2.0 * outputs) / self.shape(params)

    def cdf(self, outputs: Array, y: Array, params: Params) -> Array:
        """Distribution function at y, by column."""
        shape = self.shape(params)
        return jax.scipy.special.gammainc(shape, shape * jnp.maximum(y, 0.0) * jnp.exp(-outputs))

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        """A positive number for each column."""
        shape = self.shape(params)
        # By its logarithm, since draws of a small shape are below the smallest number.
        log_noise = jax.random.loggamma(key, shape, outputs.shape) - jnp.log(shape)
        return jnp.exp(jnp.maximum(log_noise + outputs, LOG_TINY))

    def information(self, outputs: Array, y: Array, params: Params) -> Array:
        """The shape."""
        return jnp.diag(self.shape(params))

    def own_information(self, outputs: Array, params: Params) -> Params:
        """Of the log-shape: shape^2 times (trigamma(shape) - 1 / shape)."""
        shape = self.shape(params)
        return {self.own_name: shape**2 * polygamma(1, shape) - shape}


class Beta(WithShape):
    """Proportions between 0 and 1, both excluded.

    The network returns the log-odds of the mean for each column of y. The concentration
    (alpha + beta) is learned. Aleatoric uncertainty is the variance,
    mean (1 - mean) / (1 + concentration).
    """

    own_name: ClassVar[str] = "log_concentration"
    support: ClassVar[tuple[float, float]] = (0.0, 1.0)

    @staticmethod
    def shape_of_moments(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
        """mean (1 - mean) / variance - 1."""
        return np.clip(mean * (1.0 - mean) / np.maximum(variance, 1e-300) - 1.0, 0.1, 1e4)

    def check(self, y: np.ndarray) -> np.ndarray:
        """y as (rows, columns) of proportions."""
        table = as_table(y, self.columns)[0]
        bad = table[(table <= 0) | (table >= 1)]
        if bad.size:
            remedy = "Move 0 and 1 inside, for example by (y (n - 1) + 0.5) / n for n rows."
            shown = Shown(f"the proportion {bad.flat[0]}")
            refuse("y", shown, "hold only numbers between 0 and 1", remedy)
        return table

    def parameters(self, outputs: Array, params: Params) -> tuple[Array, Array]:
        """alpha and beta of each column."""
        concentration, outputs = self.shape(params), as_double(outputs)
        return (
            jax.nn.sigmoid(outputs) * concentration,
            jax.nn.sigmoid(-outputs) * concentration,
        )

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        """The log-density, summed over columns."""
        a, b = self.parameters(outputs, params)
        y = as_double(y)
        constant = gammaln(a + b) - gammaln(a) - gammaln(b)
        return jnp.sum(constant + (a - 1.0) * jnp.log(y) + (b - 1.0) * jnp.log1p(-y))

    def mean(self, outputs: Array, params: Params) -> Array:
        """The logistic function of the outputs."""
        return jax.nn.sigmoid(outputs)

    def variance(self, outputs: Array, params: Params) -> Array:
        """mean (1 - mean) / (1 + concentration)."""
        return jax.nn.sigmoid(outputs) * jax.nn.sigmoid(-outputs) / (1.0 + self.shape(params))

    def cdf(self, outputs: Array, y: Array, params: Params) -> Array:
        """Distribution function at y, by column."""
        return betainc(*self.parameters(outputs, params), jnp.clip(as_double(y), 0.0, 1.0))

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        """A proportion for each column."""
        values = jax.random.beta(key, *self.parameters(outputs, params))
        eps = jnp.finfo(values.dtype).eps
        return jnp.clip(values, eps, 1.0 - eps)

    def information(self, outputs: Array, y: Array, params: Params) -> Array:
        """Of the log-odds of the mean."""
        a, b = self.parameters(outputs, params)
        slope = a * b / (a + b)  # of alpha, and of -beta
        return jnp.diag(slope**2 * (polygamma(1, a) + polygamma(1, b)))

    def own_information(self, outputs: Array, params: Params) -> Params:
        """Of the log-concentration, the mean being given."""
        a, b = self.parameters(outputs, params)
        total = a + b
        parts = a**2 * polygamma(1, a) + b**2 * polygamma(1, b) - total**2 * polygamma(1, total)
        return {self.own_name: parts}
