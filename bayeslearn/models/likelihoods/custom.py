"""A likelihood from user-defined functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from bayeslearn.errors import Shown, check_whole, refuse
from bayeslearn.models.likelihoods.base import Likelihood, Params
from bayeslearn.models.likelihoods.checks import as_double, as_table
from bayeslearn.tree import Array

OWN_SAMPLES = 256  # per draw, for the moments of a custom likelihood that does not define them


class Custom(Likelihood):
    """A user-defined likelihood, by functions of one example.

    `log_prob(outputs, y)` is the log-probability of y given the network's `num_outputs` outputs,
    and `sample(key, outputs)` draws a y. y is one row of the observations: a number if they are
    (rows,), a vector if they are (rows, columns). `mean(outputs)` and `variance(outputs)`, each
    shaped like y, are optional; default: estimates from 256 samples. Quantiles and `cdf` are
    estimated from samples. Aleatoric uncertainty is the variance, averaged over draws. Gauss-Newton
    methods use the curvature of `log_prob` at y without its negative directions.

    Laplace noise, heavier in the tails than a Gaussian:

    >>> def log_prob(outputs, y):
    ...     return -jnp.abs(y - outputs[0]) - jnp.log(2.0)
    >>> def sample(key, outputs):
    ...     return outputs[0] + jax.random.laplace(key)
    >>> heavy = bl.likelihoods.Custom(log_prob, sample)
    """

    kind: ClassVar[str] = "regression"

    own_log_prob: Callable[..., Array] = eqx.field(static=True)
    own_sample: Callable[..., Array] = eqx.field(static=True)
    own_outputs: int = eqx.field(static=True)
    own_mean: Callable[..., Array] | None = eqx.field(static=True)
    own_variance: Callable[..., Array] | None = eqx.field(static=True)
    columns: int | None = eqx.field(static=True)
    is_vector: bool = eqx.field(static=True, default=False)

    def __init__(
        self,
        log_prob: Callable[..., Array],
        sample: Callable[..., Array],
        num_outputs: int = 1,
        *,
        mean: Callable[..., Array] | None = None,
        variance: Callable[..., Array] | None = None,
        columns: int | None = None,
        is_vector: bool = False,
    ):
        for name, value in (("log_prob", log_prob), ("sample", sample)):
            if not callable(value):
                refuse(name, value, "be a function")
        for name, optional in (("mean", mean), ("variance", variance)):
            if not (optional is None or callable(optional)):
                refuse(name, optional, "be a function of the outputs, or left out")
        check_whole("num_outputs", num_outputs, 1)
        self.own_log_prob, self.own_sample, self.own_outputs = log_prob, sample, int(num_outputs)
        self.own_mean, self.own_variance = mean, variance
        self.columns, self.is_vector = columns, is_vector

    def bind(self, y: np.ndarray, weight: np.ndarray | None = None) -> tuple[Custom, np.ndarray]:
        """The likelihood with its number of columns, and y checked; tries the functions."""
        table, columns = as_table(y)
        bound = Custom(
            self.own_log_prob,
            self.own_sample,
            self.own_outputs,
            mean=self.own_mean,
            variance=self.own_variance,
            columns=columns,
            is_vector=np.ndim(y) == 1,
        )
        bound.check_functions(jnp.asarray(table[0]))
        return bound, table

    def check_functions(self, y: Array) -> None:
        """Refuse functions that do not return what they should for one row of y."""
        outputs, row = jnp.zeros(self.own_outputs), self._row(y)
        found = jax.eval_shape(self.own_log_prob, outputs, row)
        if not _has_shape(found, ()):
            refuse("log_prob", Shown(f"a function that returns {found}"), "return one number")
        found = jax.eval_shape(self.own_sample, jax.random.key(0), outputs)
        if not _has_shape(found, row.shape):
            must = f"return one y, of shape {row.shape}"
            refuse("sample", Shown(f"a function that returns {found}"), must)

    def check(self, y: np.ndarray) -> np.ndarray:
        """y as (rows, columns), with as many columns as in fitting."""
        return as_table(y, self.columns)[0]

    @property
    def num_outputs(self) -> int:
        """Outputs that the functions take."""
        return self.own_outputs

    def _row(self, y: Array) -> Array:
        """y of one row as the user's functions take it."""
        return y[0] if self.is_vector else y

    def _columns(self, value: ArrayLike) -> Array:
        """What the user's functions return, as (columns,)."""
        return jnp.reshape(jnp.asarray(value), (int(self.columns or 1),))

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        """log p(y | outputs)."""
        return self.own_log_prob(outputs, self._row(y))

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        """One observation."""
        return self._columns(self.own_sample(key, outputs))

    def _samples(self, outputs: Array, params: Params) -> Array:
        # The same noise for every draw, so that it does not count as epistemic uncertainty.
        keys = jax.random.split(jax.random.key(0), OWN_SAMPLES)
        return as_double(jax.vmap(lambda k: self.sample(k, outputs, params))(keys))

    def mean(self, outputs: Array, params: Params) -> Array:
        """Mean of an observation, by column."""
        if self.own_mean is not None:
            return self._columns(self.own_mean(outputs))
        return jnp.mean(self._samples(outputs, params), axis=0)

    def variance(self, outputs: Array, params: Params) -> Array:
        """Variance of an observation, by column."""
        if self.own_variance is not None:
            return self._columns(self.own_variance(outputs))
        return jnp.var(self._samples(outputs, params), axis=0, ddof=1)

    def covariance(self, outputs: Array, params: Params) -> Array:
        """Diagonal if `variance` was given, otherwise that of samples."""
        if self.own_variance is not None:
            return jnp.diag(self.variance(outputs, params))
        return jnp.atleast_2d(jnp.cov(self._samples(outputs, params), rowvar=False))


def _has_shape(value: object, shape: tuple[int, ...]) -> bool:
    return isinstance(value, jax.ShapeDtypeStruct) and value.shape == shape
