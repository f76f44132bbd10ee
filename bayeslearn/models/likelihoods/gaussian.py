"""Gaussian noise: one scale, known or learned, or one that depends on the input."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from bayeslearn.errors import check_positive, refuse
from bayeslearn.models.likelihoods.base import ColumnLikelihood, Params
from bayeslearn.models.likelihoods.checks import (
    as_positive,
    as_table,
    column_scale,
    rounding_error,
)
from bayeslearn.numerics import LOG_2PI
from bayeslearn.tree import Array

LOG_SCALE_BOUND = 10.0  # of a heteroscedastic scale, relative to the std of y


class WithNoiseScale(ColumnLikelihood):
    """Base of the likelihoods with one noise scale for each column, known or learned (abstract)."""

    noise_scale: ArrayLike | None = None
    noise_prior_scale: ArrayLike = 1.0
    columns: int | None = eqx.field(default=None, static=True, kw_only=True)
    center: Array | None = eqx.field(default=None, kw_only=True)  # log sd(y), if it is learned
    is_vector: bool = eqx.field(default=False, static=True, kw_only=True)

    def __check_init__(self) -> None:
        if self.noise_scale is not None:
            remedy = "Leave it out to have it learned."
            check_positive("noise_scale", self.noise_scale, remedy, array=True)
        check_positive("noise_prior_scale", self.noise_prior_scale, array=True)

    def bind_scale(self, table: np.ndarray, weight: np.ndarray | None, *, is_vector: bool) -> Self:
        """The likelihood with the scale of the columns of a table."""
        columns = table.shape[1]
        if self.noise_scale is not None and np.shape(self.noise_scale) not in ((), (columns,)):
            refuse("noise_scale", self.noise_scale, f"be one number or {columns} (columns of y)")
        center = None
        if self.noise_scale is None:
            center = jnp.asarray(np.log(column_scale(table, weight)), jnp.float64)
        return type(self)(
            self.noise_scale,
            self.noise_prior_scale,
            columns=columns,
            center=center,
            is_vector=is_vector,
        )

    def init(self) -> Params:
        """The log noise scale at log sd(y), if it is learned."""
        return {} if self.center is None else {"log_noise_scale": self.center}

    def prior(self) -> tuple[Params, Params]:
        """Normal(log sd(y), noise_prior_scale)."""
        if self.center is None:
            return {}, {}
        scale = jnp.full_like(self.center, self.noise_prior_scale)
        return {"log_noise_scale": self.center}, {"log_noise_scale": scale}

    def std(self, params: Params, dtype: DTypeLike) -> Array:
        """The noise scale of each column."""
        if "log_noise_scale" in params:
            return jnp.exp(params["log_noise_scale"])
        assert self.noise_scale is not None
        return jnp.broadcast_to(jnp.asarray(self.noise_scale, dtype), (self.num_outputs,))


class Gaussian(WithNoiseScale):
    """Gaussian noise around the network's output.

    `noise_scale` is its standard deviation if it is known (one number, or one per column of y).
    Default: its logarithm is learned along with the weights, one per column, with the prior
    Normal(log sd(y), `noise_prior_scale`). Aleatoric uncertainty is the noise variance.

    >>> learned, known = bl.likelihoods.Gaussian(), bl.likelihoods.Gaussian(noise_scale=0.3)
    """

    def bind(self, y: np.ndarray, weight: np.ndarray | None = None) -> tuple[Self, np.ndarray]:
        """The likelihood with the scale of y, and y as (rows, columns)."""
        table = as_table(y)[0]
        return self.bind_scale(table, weight, is_vector=np.ndim(y) == 1), table

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        """log N(y; outputs, std^2), summed over columns."""
        std = self.std(params, outputs.dtype)
        if self.columns == 1:  # numbers: rows of one column are not vectorised on a CPU
            outputs, y, std = (jnp.reshape(a, ()) for a in (outputs, y, std))
        z = (y - outputs) / std
        return jnp.sum(-0.5 * z**2 - jnp.log(std) - 0.5 * jnp.log(2 * jnp.pi))

    def mean(self, outputs: Array, params: Params) -> Array:
        """The outputs."""
        return outputs

    def variance(self, outputs: Array, params: Params) -> Array:
        """The noise variance of each column."""
        return self.std(params, outputs.dtype) ** 2

    def cdf(self, outputs: Array, y: Array, params: Params) -> Array:
        """Distribution function at y, by column."""
        return jax.scipy.stats.norm.cdf(y, outputs, self.std(params, outputs.dtype))

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        """outputs + std noise."""
        noise = jax.random.normal(key, outputs.shape, outputs.dtype)
        return outputs + self.std(params, outputs.dtype) * noise


class LogNormal(WithNoiseScale):
    """Positive numbers whose logarithm has Gaussian noise.

    The network returns the mean of log y for each column. `noise_scale` is the standard deviation
    of log y if it is known; default: learned, as for `Gaussian`, around that of log y. Aleatoric
    uncertainty is the variance of y, which grows as the exponential of the squared noise scale.
    """

    support: ClassVar[tuple[float, float]] = (0.0, np.inf)

    def bind(self, y: np.ndarray, weight: np.ndarray | None = None) -> tuple[Self, np.ndarray]:
        """The likelihood with the scale of log y, and y as (rows, columns)."""
        table = as_positive(y)
        return self.bind_scale(np.log(table), weight, is_vector=np.ndim(y) == 1), table

    def check(self, y: np.ndarray) -> np.ndarray:
        """y as (rows, columns) of positive numbers."""
        return as_positive(y, self.columns)

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        """log N(log y; outputs, std^2) - log y, summed over columns."""
        std, log_y = self.std(params, outputs.dtype), jnp.log(y)
        z = (log_y - outputs) / std
        return jnp.sum(-0.5 * z**2 - jnp.log(std) - 0.5 * LOG_2PI - log_y)

    def mean(self, outputs: Array, params: Params) -> Array:
        """exp(outputs + std^2 / 2)."""
        return jnp.exp(outputs + 0.5 * self.std(params, outputs.dtype) ** 2)

    def variance(self, outputs: Array, params: Params) -> Array:
        """(exp(std^2) - 1) mean^2."""
        return jnp.expm1(self.std(params, outputs.dtype) ** 2) * self.mean(outputs, params) ** 2

    def cdf(self, outputs: Array, y: Array, params: Params) -> Array:
        """Distribution function at y, by column."""
        log_y = jnp.log(jnp.maximum(y, 0.0))
        return jax.scipy.stats.norm.cdf(log_y, outputs, self.std(params, outputs.dtype))

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        """exp(outputs + std noise)."""
        noise = jax.random.normal(key, outputs.shape, outputs.dtype)
        return jnp.exp(outputs + self.std(params, outputs.dtype) * noise)


class ScaledByInput(ColumnLikelihood):
    """Base of the likelihoods whose noise scale is an output of the network (abstract).

    The network returns two outputs for each column of y: all means first, then for each column the
    logarithm a of its noise scale relative to the standard deviation of y. The noise scale is
    sd(y) exp(10 tanh(a / 10)): close to sd(y) exp(a) near zero and within exp(+-10) of sd(y), so
    that it does not overflow far from the data. `min_scale`, relative to sd(y) too, is added to it:
    noise that vanishes at some rows makes a single error there cost everything. Of a rounded y it
    is at least the rounding error, gap / sqrt(12): densities at its values have no bound otherwise,
    and pay for means that are wrong.

    Rows of large noise have small gradients of their mean, so that a plain network may never learn
    it there. `to_train` multiplies the gradient of a row by the noise scale (the beta-NLL of
    Seitzer et al. 2022 with beta = 0.5).
    """

    columns: int | None = eqx.field(default=None, static=True, kw_only=True)
    center: Array | None = eqx.field(default=None, kw_only=True)  # log sd(y)
    is_vector: bool = eqx.field(default=False, static=True, kw_only=True)
    min_scale: float | Array | None = None
    is_weighted: bool = eqx.field(default=False, static=True, kw_only=True)  # see `to_train`

    def __check_init__(self) -> None:
        if self.min_scale is not None and self.center is None:  # bound ones have one per column
            check_positive("min_scale", self.min_scale, "Leave it out to have no bound.")

    def bind(self, y: np.ndarray, weight: np.ndarray | None = None) -> tuple[Self, np.ndarray]:
        """The likelihood with the scale of y, and y as (rows, columns)."""
        table, columns = as_table(y)
        scale = column_scale(table, weight)
        least = self.min_scale
        if least is not None:
            least = np.maximum(least, rounding_error(table, weight) / scale)
            least = jnp.asarray(least, jnp.float64)
        bound = type(self)(
            least,
            columns=columns,
            center=jnp.asarray(np.log(scale), jnp.float64),
            is_vector=np.ndim(y) == 1,
        )
        return bound, table

    def to_train(self) -> Self:
        """With the gradient of each row multiplied by its noise scale."""
        return dataclasses.replace(self, is_weighted=True)

    def weighted(self, log_prob: Array, log_std: Array) -> Array:
        """`log_prob` by column as it is, with the gradient that `to_train` says."""
        if not self.is_weighted:
            return log_prob
        scaled = jax.lax.stop_gradient(jnp.exp(log_std)) * log_prob
        return scaled + jax.lax.stop_gradient(log_prob - scaled)

    @property
    def num_outputs(self) -> int:
        """A mean and a log-scale for each column."""
        return 2 * int(self.columns or 1)

    def mean(self, outputs: Array, params: Params) -> Array:
        """The first half of the outputs."""
        return outputs[: len(outputs) // 2]

    def log_std(self, outputs: Array) -> Array:
        """The log noise scale of each column, bounded."""
        return self.bounded(outputs[len(outputs) // 2 :])

    def residual(self, outputs: Array, y: Array) -> tuple[Array, Array]:
        """(y - mean) / scale and the log noise scale, by column; of one column as numbers.

        Rows of one column are not vectorised on a CPU.
        """
        half = len(outputs) // 2
        mean, raw = outputs[:half], outputs[half:]
        if half == 1:
            mean, raw, y = (jnp.reshape(a, ()) for a in (mean, raw, y))
        log_std = self.bounded(raw)
        return (y - mean) * jnp.exp(-log_std), log_std

    def bounded(self, raw: Array) -> Array:
        """The log noise scale for an output of the network."""
        assert self.center is not None
        bounded = LOG_SCALE_BOUND * jnp.tanh(raw / LOG_SCALE_BOUND)
        if self.min_scale is not None:
            bounded = jnp.logaddexp(bounded, self._log_least(raw))
        return jnp.reshape(jnp.asarray(self.center, raw.dtype), raw.shape) + bounded

    def log_std_slope(self, outputs: Array) -> Array:
        """Derivative of `log_std` with respect to the network's output, by column."""
        raw = outputs[len(outputs) // 2 :]
        bounded = jnp.tanh(raw / LOG_SCALE_BOUND)
        slope = 1.0 - bounded**2
        if self.min_scale is None:
            return slope
        return slope * jax.nn.sigmoid(LOG_SCALE_BOUND * bounded - self._log_least(raw))

    def _log_least(self, raw: Array) -> Array:
        least = jnp.log(jnp.asarray(self.min_scale, raw.dtype))
        return jnp.reshape(least, raw.shape) if least.ndim else least


class HeteroscedasticGaussian(ScaledByInput):
    """Gaussian noise whose scale depends on the input.

    The network returns a mean and a log-scale for each column of y: all means first. `min_scale` is
    added to the noise scale, relative to the standard deviation of y; default: none. Aleatoric
    uncertainty is the noise variance.
    """

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        """log N(y; mean, std^2), summed over columns."""
        z, log_std = self.residual(outputs, y)
        return jnp.sum(self.weighted(-0.5 * z**2 - log_std - 0.5 * LOG_2PI, log_std))

    def variance(self, outputs: Array, params: Params) -> Array:
        """The noise variance of each column."""
        return jnp.exp(2.0 * self.log_std(outputs))

    def cdf(self, outputs: Array, y: Array, params: Params) -> Array:
        """Distribution function at y, by column."""
        std = jnp.exp(self.log_std(outputs))
        return jax.scipy.stats.norm.cdf(y, self.mean(outputs, params), std)

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        """mean + std noise."""
        mean = self.mean(outputs, params)
        noise = jax.random.normal(key, mean.shape, mean.dtype)
        return mean + jnp.exp(self.log_std(outputs)) * noise

    def information(self, outputs: Array, y: Array, params: Params) -> Array:
        """The curvature at y is indefinite; its expectation is 1 / variance and 2 per log scale."""
        location = jnp.exp(-2.0 * self.log_std(outputs))
        log_scale = 2.0 * self.log_std_slope(outputs) ** 2
        return jnp.diag(jnp.concatenate([location, log_scale]))
