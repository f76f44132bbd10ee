"""What every likelihood answers."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn.models.likelihoods.checks import _table
from bayeslearn.tree import Array

Params = dict[str, Array]


class Likelihood(eqx.Module):
    """What every likelihood answers.

    Those of kind "regression" also have `mean`, `variance` and `covariance` of one observation and,
    where it is known, its distribution function `cdf`, column by column.
    """

    kind: ClassVar[str]
    is_discrete: ClassVar[bool] = False  # observations are whole numbers
    is_marginal: ClassVar[bool] = False  # the rows are not independent given the weights
    refreshes: ClassVar[bool] = False  # `refresh` updates a posterior of its own

    def bind(
        self, y: np.ndarray, weight: np.ndarray | None = None
    ) -> tuple[Likelihood, np.ndarray]:
        """Check `y`; return the likelihood that fits it and `y` as (rows, columns) or (rows,).

        `weight` says how often each row counts; None: once.
        """
        raise NotImplementedError

    def check(self, y: np.ndarray) -> np.ndarray:
        """Bring later observations (validation, `log_prob(y)`) into the bound form."""
        raise NotImplementedError

    @property
    def num_outputs(self) -> int:
        raise NotImplementedError

    def init(self) -> Params:
        """Starting values of the likelihood's own parameters."""
        return {}

    def prior(self) -> tuple[Params, Params]:
        """Mean and standard deviation of the Gaussian prior over `init()`'s leaves."""
        return {}, {}

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        raise NotImplementedError

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        raise NotImplementedError

    def covariance(self, outputs: Array, params: Params) -> Array:
        """Between the columns of one observation; independent unless a likelihood says more."""
        return jnp.diag(self.variance(outputs, params))  # type: ignore[attr-defined]

    def information(self, outputs: Array, y: Array, params: Params) -> Array:
        """Expected (Fisher) information about the outputs: (num_outputs, num_outputs).

        It is the curvature at y wherever that does not depend on y.
        """
        return -jax.hessian(lambda o: self.log_prob(o, y, params))(outputs)

    def marginal(self) -> Likelihood:
        """The form that samplers see."""
        return self

    def to_predict(self) -> Likelihood:
        """The form that new observations follow."""
        return self

    def divergence(self) -> Array | float:
        """KL from its prior of what `refresh` updates: a part of the lower bound."""
        return 0.0

    def as_prior(self, num_data: Array, own: Params) -> Likelihood:
        """For new rows, with what `num_data` rows taught it beside its parameters.

        `own` is the likelihood's part of a posterior's mean or draws.
        """
        return self


class _Columns(Likelihood):
    """What likelihoods of a table of numbers share: y is (rows, columns)."""

    kind: ClassVar[str] = "regression"

    columns: eqx.AbstractVar[int | None]

    def check(self, y: np.ndarray) -> np.ndarray:
        return _table(y, self.columns)[0]

    @property
    def num_outputs(self) -> int:
        return int(self.columns or 1)
