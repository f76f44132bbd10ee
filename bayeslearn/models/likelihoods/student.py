"""Student's t noise whose scale depends on the input: for heavy tails and outliers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betainc, gammaln

from bayeslearn.models.likelihoods.base import Params
from bayeslearn.models.likelihoods.gaussian import ScaledByInput
from bayeslearn.models.likelihoods.student_tails import expanded_tails, interpolated_cdf
from bayeslearn.numerics import LOG_2PI
from bayeslearn.tree import Array

MIN_DF = 2.0  # so that the variance is finite
DF_CENTER, DF_SCALE = np.log(8.0), 1.0  # prior of log(df - MIN_DF)


class StudentT(ScaledByInput):
    """Student's t noise whose scale depends on the input.

    The network returns a mean and a log-scale for each column of y, as for
    `HeteroscedasticGaussian`. The degrees of freedom are learned along with the weights, one number
    per column above 2, with the prior log(df - 2) ~ Normal(log 8, 1): large where the noise is
    Gaussian, small where it has outliers. Aleatoric uncertainty is the noise variance.
    """

    def init(self) -> Params:
        """log(df - 2) at its prior mean."""
        return {"log_df": jnp.full((int(self.columns or 1),), DF_CENTER, jnp.float64)}

    def prior(self) -> tuple[Params, Params]:
        """Normal(log 8, 1) for log(df - 2)."""
        mean = self.init()
        return mean, jax.tree.map(lambda leaf: jnp.full_like(leaf, DF_SCALE), mean)

    def df(self, params: Params, dtype: jnp.dtype) -> Array:
        """Degrees of freedom of each column."""
        return MIN_DF + jnp.exp(jnp.asarray(params["log_df"], dtype))

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        """The log-density of t, summed over columns."""
        z, log_scale = self.residual(outputs, y)
        df = jnp.reshape(self.df(params, outputs.dtype), z.shape)
        half = 0.5 * df
        normaliser = gammaln(half + 0.5) - gammaln(half) - 0.5 * jnp.log(half) - 0.5 * LOG_2PI
        terms = normaliser - log_scale - (half + 0.5) * jnp.log1p(z**2 / df)
        return jnp.sum(self.weighted(terms, log_scale))

    def variance(self, outputs: Array, params: Params) -> Array:
        """scale^2 df / (df - 2) of each column."""
        df = self.df(params, outputs.dtype)
        return jnp.exp(2.0 * self.log_std(outputs)) * df / (df - MIN_DF)

    def cdf(self, outputs: Array, y: Array, params: Params) -> Array:
        """Distribution function at y, by column."""
        z = (y - self.mean(outputs, params)) * jnp.exp(-self.log_std(outputs))
        if "tails" in params:
            return jax.vmap(interpolated_cdf)(z, params["tails"])
        df = self.df(params, outputs.dtype)
        tail = 0.5 * betainc(0.5 * df, jnp.full_like(z, 0.5), df / (df + z**2))
        return jnp.where(z > 0, 1.0 - tail, tail)

    def for_cdf(self, params: Params) -> Params:
        """With the table of each column's tail."""
        return params | {"tails": expanded_tails(self.df(params, jnp.result_type(float)))}

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        """mean + scale t."""
        mean = self.mean(outputs, params)
        noise = jax.random.t(key, self.df(params, mean.dtype), mean.shape, mean.dtype)
        return mean + jnp.exp(self.log_std(outputs)) * noise

    def information(self, outputs: Array, y: Array, params: Params) -> Array:
        """Expected information of location and log-scale; they are uncorrelated."""
        df = self.df(params, outputs.dtype)
        location = (df + 1.0) / (df + 3.0) * jnp.exp(-2.0 * self.log_std(outputs))
        log_scale = 2.0 * df / (df + 3.0) * self.log_std_slope(outputs) ** 2
        return jnp.diag(jnp.concatenate([location, log_scale]))
