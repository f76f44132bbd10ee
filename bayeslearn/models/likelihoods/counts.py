"""Counts: the Poisson likelihood."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from bayeslearn.errors import Shown, refuse
from bayeslearn.models.likelihoods.base import Likelihood, Params
from bayeslearn.models.likelihoods.checks import as_double, as_table
from bayeslearn.tree import Array


class Poisson(Likelihood):
    """Counts 0, 1, 2, ...; the network returns the logarithm of the rate for each column of y.

    Predictions are summarized by moments. Quantiles and intervals are whole numbers; an interval
    is the smallest central one with at least its level. Aleatoric uncertainty is the mean rate.
    """

    kind: ClassVar[str] = "regression"
    is_discrete: ClassVar[bool] = True
    support: ClassVar[tuple[float, float]] = (0.0, np.inf)

    columns: int | None = eqx.field(default=None, static=True, kw_only=True)
    is_vector: bool = eqx.field(default=False, static=True, kw_only=True)

    def bind(self, y: np.ndarray, weight: np.ndarray | None = None) -> tuple[Poisson, np.ndarray]:
        """The likelihood with its number of columns, and y checked."""
        columns = as_table(y)[1]
        bound = Poisson(columns=columns, is_vector=np.ndim(y) == 1)
        return bound, bound.check(y)

    def check(self, y: np.ndarray) -> np.ndarray:
        """y as (rows, columns) of counts."""
        table, _ = as_table(y, self.columns)
        bad = table[(table < 0) | (table != np.floor(table)) | (table > np.iinfo(np.int32).max)]
        if bad.size:
            must = "hold only whole numbers from 0 to 2**31 - 1"
            refuse("y", Shown(f"the count {bad.flat[0]}"), must)
        return table.astype(np.int32)

    @property
    def num_outputs(self) -> int:
        """A log-rate for each column."""
        return int(self.columns or 1)

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
