"""Gaussian noise: one scale, known or learned, or one that depends on the input."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn.errors import refuse
from bayeslearn.models.likelihoods.base import Params, _Columns
from bayeslearn.models.likelihoods.checks import _check_positive, _spread, _table
from bayeslearn.tree import Array

LOG_2PI = 1.8378770664093453
LARGEST = 10.0  # a heteroscedastic scale stays within this many e-folds of the spread of y


class Gaussian(_Columns):
    """Gaussian noise around the network's output.

    `noise_scale` is its standard deviation when it is known (one number, or one per column of
    y). Left out, its logarithm is learned along with the weights, one per column, with the prior
    Normal(log sd(y), `noise_prior_scale`). Aleatoric uncertainty is the noise variance.
    """

    noise_scale: Any = None
    noise_prior_scale: float = 1.0
    columns: int | None = eqx.field(default=None, static=True, kw_only=True)
    center: Any = eqx.field(default=None, kw_only=True)
    is_vector: bool = eqx.field(default=False, static=True, kw_only=True)

    def __check_init__(self) -> None:
        if self.noise_scale is not None:
            _check_positive("noise_scale", self.noise_scale, "Leave it out to have it learned.")
        _check_positive("noise_prior_scale", self.noise_prior_scale)

    def bind(self, y: np.ndarray, weight: np.ndarray | None = None) -> tuple[Gaussian, np.ndarray]:
        table, columns = _table(y)
        if self.noise_scale is not None and np.shape(self.noise_scale) not in ((), (columns,)):
            refuse("noise_scale", self.noise_scale, f"be one number or {columns} (columns of y)")
        learned = self.noise_scale is None
        bound = Gaussian(
            self.noise_scale,
            self.noise_prior_scale,
            columns=columns,
            center=jnp.asarray(np.log(_spread(table, weight)), jnp.float64) if learned else None,
            is_vector=np.ndim(y) == 1,
        )
        return bound, table

    def init(self) -> Params:
        return {} if self.center is None else {"log_noise_scale": self.center}

    def prior(self) -> tuple[Params, Params]:
        if self.center is None:
            return {}, {}
        scale = jnp.full_like(self.center, self.noise_prior_scale)
        return {"log_noise_scale": self.center}, {"log_noise_scale": scale}

    def std(self, params: Params, dtype: Any) -> Array:
        if "log_noise_scale" in params:
            return jnp.exp(params["log_noise_scale"])
        return jnp.broadcast_to(jnp.asarray(self.noise_scale, dtype), (self.num_outputs,))

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        std = self.std(params, outputs.dtype)
        if self.columns == 1:  # numbers: rows of one column are not vectorised on a CPU
            outputs, y, std = (jnp.reshape(a, ()) for a in (outputs, y, std))
        z = (y - outputs) / std
        return jnp.sum(-0.5 * z**2 - jnp.log(std) - 0.5 * jnp.log(2 * jnp.pi))

    def mean(self, outputs: Array, params: Params) -> Array:
        return outputs

    def variance(self, outputs: Array, params: Params) -> Array:
        return self.std(params, outputs.dtype) ** 2

    def cdf(self, outputs: Array, y: Array, params: Params) -> Array:
        return jax.scipy.stats.norm.cdf(y, outputs, self.std(params, outputs.dtype))

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        noise = jax.random.normal(key, outputs.shape, outputs.dtype)
        return outputs + self.std(params, outputs.dtype) * noise


class HeteroscedasticGaussian(_Columns):
    """Gaussian noise whose scale depends on the input.

    The network gives two outputs for each column of y: all means first, then for each column how
    much larger than the spread of y its noise is, as a logarithm a. The noise scale is
    sd(y) exp(10 tanh(a / 10)): a itself near zero, and never beyond exp(+-10), so that no
    input, however far, makes it overflow. Aleatoric uncertainty is the noise variance, which
    follows the input.
    """

    columns: int | None = eqx.field(default=None, static=True, kw_only=True)
    center: Any = eqx.field(default=None, kw_only=True)
    is_vector: bool = eqx.field(default=False, static=True, kw_only=True)

    def bind(
        self, y: np.ndarray, weight: np.ndarray | None = None
    ) -> tuple[HeteroscedasticGaussian, np.ndarray]:
        table, columns = _table(y)
        center = jnp.asarray(np.log(_spread(table, weight)), jnp.float64)
        vector = np.ndim(y) == 1
        return HeteroscedasticGaussian(columns=columns, center=center, is_vector=vector), table

    @property
    def num_outputs(self) -> int:
        return 2 * int(self.columns or 1)

    def log_std(self, outputs: Array) -> Array:
        raw = outputs[len(outputs) // 2 :]
        return jnp.asarray(self.center, raw.dtype) + LARGEST * jnp.tanh(raw / LARGEST)

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        log_std = self.log_std(outputs)
        z = (y - self.mean(outputs, params)) * jnp.exp(-log_std)
        return jnp.sum(-0.5 * z**2 - log_std - 0.5 * LOG_2PI)

    def mean(self, outputs: Array, params: Params) -> Array:
        return outputs[: len(outputs) // 2]

    def variance(self, outputs: Array, params: Params) -> Array:
        return jnp.exp(2.0 * self.log_std(outputs))

    def cdf(self, outputs: Array, y: Array, params: Params) -> Array:
        std = jnp.exp(self.log_std(outputs))
        return jax.scipy.stats.norm.cdf(y, self.mean(outputs, params), std)

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        mean = self.mean(outputs, params)
        noise = jax.random.normal(key, mean.shape, mean.dtype)
        return mean + jnp.exp(self.log_std(outputs)) * noise

    def information(self, outputs: Array, y: Array, params: Params) -> Array:
        """The curvature at y is indefinite; its expectation is 1 / variance and 2 per log scale."""
        raw = outputs[len(outputs) // 2 :]
        slope = 1.0 - jnp.tanh(raw / LARGEST) ** 2
        return jnp.diag(jnp.concatenate([jnp.exp(-2.0 * self.log_std(outputs)), 2.0 * slope**2]))
