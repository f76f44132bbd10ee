"""A likelihood in functions of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn.errors import Shown, refuse
from bayeslearn.models.likelihoods.base import Likelihood, Params
from bayeslearn.models.likelihoods.checks import _double, _table
from bayeslearn.tree import Array

OWN_SAMPLES = 256  # per draw, where a custom likelihood does not say its moments


class Custom(Likelihood):
    """A likelihood of your own, in functions of one example.

    `log_prob(outputs, y)` is the log-probability of y given the network's `num_outputs` outputs,
    and `sample(key, outputs)` draws a y; y is one row of what is fitted: a number where y is
    (rows,), a vector where it is (rows, columns). `mean(outputs)` and `variance(outputs)`, each
    shaped like y, are estimated from 256 samples if left out. Quantiles and `cdf` are estimated
    from samples. Aleatoric uncertainty is the variance, averaged over draws. Gauss-Newton methods
    use the curvature of `log_prob` at y, its negative directions dropped.
    """

    kind: ClassVar[str] = "regression"

    own_log_prob: Callable[..., Array] = eqx.field(static=True)
    own_sample: Callable[..., Array] = eqx.field(static=True)
    own_outputs: int = eqx.field(static=True)
    own_mean: Callable[..., Array] | None = eqx.field(static=True)
    own_variance: Callable[..., Array] | None = eqx.field(static=True)
    columns: int | None = eqx.field(static=True)
    is_vector: bool = eqx.field(static=True)

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
        is_whole = isinstance(num_outputs, int | np.integer) and not isinstance(num_outputs, bool)
        if not is_whole or num_outputs < 1:
            refuse("num_outputs", num_outputs, "be a whole number of at least 1")
        self.own_log_prob, self.own_sample, self.own_outputs = log_prob, sample, int(num_outputs)
        self.own_mean, self.own_variance = mean, variance
        self.columns, self.is_vector = columns, is_vector

    def bind(self, y: np.ndarray, weight: np.ndarray | None = None) -> tuple[Custom, np.ndarray]:
        table, columns = _table(y)
        bound = Custom(
            self.own_log_prob,
            self.own_sample,
            self.own_outputs,
            mean=self.own_mean,
            variance=self.own_variance,
            columns=columns,
            is_vector=np.ndim(y) == 1,
        )
        bound._check_functions(jnp.asarray(table[0]))
        return bound, table

    def _check_functions(self, y: Array) -> None:
        outputs = jnp.zeros(self.own_outputs)
        told = jax.eval_shape(self.own_log_prob, outputs, self._row(y))
        if getattr(told, "shape", None) != ():
            refuse("log_prob", Shown(f"a function that returns {told}"), "return one number")
        told = jax.eval_shape(self.own_sample, jax.random.key(0), outputs)
        if getattr(told, "shape", None) != self._row(y).shape:
            must = f"return one y, of shape {self._row(y).shape}"
            refuse("sample", Shown(f"a function that returns {told}"), must)

    def check(self, y: np.ndarray) -> np.ndarray:
        return _table(y, self.columns)[0]

    @property
    def num_outputs(self) -> int:
        return self.own_outputs

    def _row(self, y: Array) -> Array:
        return y[0] if self.is_vector else y

    def _columns(self, value: Any) -> Array:
        return jnp.reshape(jnp.asarray(value), (int(self.columns or 1),))

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        return self.own_log_prob(outputs, self._row(y))

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        return self._columns(self.own_sample(key, outputs))

    def _samples(self, outputs: Array, params: Params) -> Array:
        # The same noise for every draw, so that it does not pass for spread between them.
        keys = jax.random.split(jax.random.key(0), OWN_SAMPLES)
        return _double(jax.vmap(lambda k: self.sample(k, outputs, params))(keys))

    def mean(self, outputs: Array, params: Params) -> Array:
        if self.own_mean is not None:
            return self._columns(self.own_mean(outputs))
        return jnp.mean(self._samples(outputs, params), axis=0)

    def variance(self, outputs: Array, params: Params) -> Array:
        if self.own_variance is not None:
            return self._columns(self.own_variance(outputs))
        return jnp.var(self._samples(outputs, params), axis=0, ddof=1)

    def covariance(self, outputs: Array, params: Params) -> Array:
        if self.own_variance is not None:
            return jnp.diag(self.variance(outputs, params))
        return jnp.atleast_2d(jnp.cov(self._samples(outputs, params), rowvar=False))
