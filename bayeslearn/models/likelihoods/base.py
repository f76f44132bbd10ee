"""What every likelihood answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn.models.likelihoods.checks import as_table
from bayeslearn.tree import Array, PyTree

if TYPE_CHECKING:
    from bayeslearn.models.protocols import Approximation
    from bayeslearn.models.target import Target

Params = dict[str, Array]


class Likelihood(eqx.Module):
    """The distribution of one observation given the network's outputs (abstract).

    Of kind "regression" it has `mean`, `variance` and `covariance` of an observation and, where it
    is known, the distribution function `cdf`; of kind "classification" it has `probs`.
    """

    kind: ClassVar[str]
    is_discrete: ClassVar[bool] = False  # observations are whole numbers
    support: ClassVar[tuple[float, float]] = (-np.inf, np.inf)  # of an observation (regression)

    def bind(
        self, y: np.ndarray, weight: np.ndarray | None = None
    ) -> tuple[Likelihood, np.ndarray]:
        """Check `y`; return the likelihood for it, and `y` as (rows, columns) or (rows,).

        `weight` says how often each row counts; None: once.
        """
        raise NotImplementedError

    def check(self, y: np.ndarray) -> np.ndarray:
        """Later observations (validation, `log_prob(y)`) in the form of `bind`."""
        raise NotImplementedError

    def is_censored(self, y: np.ndarray) -> np.ndarray:
        """Of which rows only a bound of the observation is known; y in the form of `bind`."""
        return np.zeros(len(y), bool)

    @property
    def num_outputs(self) -> int:
        """Outputs that the network must have."""
        raise NotImplementedError

    @property
    def is_vector(self) -> bool:
        """Whether y was (rows,), so that predictions have one axis as well."""
        return False

    # The likelihood's own parameters

    def init(self) -> Params:
        """Initial values of the likelihood's own parameters."""
        return {}

    def prior(self) -> tuple[Params, Params]:
        """Mean and standard deviation of the Gaussian prior over `init()`'s leaves."""
        return {}, {}

    # One observation

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        """log p(y | outputs)."""
        raise NotImplementedError

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        """One observation."""
        raise NotImplementedError

    def mean(self, outputs: Array, params: Params) -> Array:
        """Mean of an observation, by column (regression)."""
        raise NotImplementedError

    def variance(self, outputs: Array, params: Params) -> Array:
        """Variance of an observation, by column (regression)."""
        raise NotImplementedError

    def covariance(self, outputs: Array, params: Params) -> Array:
        """Covariance of the columns of an observation (regression); default: independent."""
        return jnp.diag(self.variance(outputs, params))

    def cdf(self, outputs: Array, y: Array, params: Params) -> Array:
        """Distribution function at y, by column (regression); see `has_cdf`."""
        raise NotImplementedError

    def for_cdf(self, params: Params) -> Params:
        """The parameters with what `cdf` computes from them alone; done once for many values."""
        return params

    @property
    def has_cdf(self) -> bool:
        """Whether `cdf` is known; otherwise it is estimated from samples."""
        return type(self).cdf is not Likelihood.cdf

    def probs(self, outputs: Array, params: Params) -> Array:
        """Probability of each class (classification)."""
        raise NotImplementedError

    def information(self, outputs: Array, y: Array, params: Params) -> Array:
        """Expected (Fisher) information about the outputs: (num_outputs, num_outputs).

        It is the curvature at y wherever that does not depend on y.
        """
        return -jax.hessian(lambda o: self.log_prob(o, y, params))(outputs)

    def own_information(self, outputs: Array, params: Params) -> Params:
        """Expected information about each of the likelihood's own parameters, taken alone.

        Default: 2, that of a log-scale of Gaussian noise.
        """
        return jax.tree.map(lambda leaf: jnp.full_like(leaf, 2.0), params)

    def to_predict(self) -> Likelihood:
        """The likelihood of new observations."""
        return self

    def to_train(self) -> Likelihood:
        """The likelihood whose gradients train a plain network; its values are those of this one.

        For one that a gradient method fits badly from a random start.
        """
        return self

    def as_prior(self, num_data: Array, own: Params) -> Likelihood:
        """The likelihood for new rows, given what `num_data` rows have taught it.

        `own` is the likelihood's part of a posterior's mean or draws.
        """
        return self

    # A latent part with a closed-form posterior, such as an unknown noise covariance

    @property
    def refreshes(self) -> bool:
        """Whether `refresh` updates a posterior of the latent part."""
        return False

    def refresh(self, target: Target, q: Approximation, key: Array) -> Likelihood:
        """The exact coordinate update of that posterior, given q."""
        return self

    def divergence(self) -> Array | float:
        """KL of that posterior from its prior, a term of the lower bound."""
        return 0.0

    @property
    def is_marginal(self) -> bool:
        """Whether the latent part is integrated out: rows are then not independent."""
        return False

    def marginal(self) -> Likelihood:
        """The likelihood that samplers use, with the latent part integrated out."""
        return self

    def conditional(self) -> Likelihood:
        """The inverse of `marginal`: the likelihood given the latent part."""
        return self

    def log_marginal(self, target: Target, params: PyTree, key: Array | None = None) -> Array:
        """log p(Y | w) of all rows, where `is_marginal`."""
        raise NotImplementedError

    def sample_marginalized(self, target: Target, params: PyTree, key: Array) -> Params:
        """The latent part, drawn given the weights, where `is_marginal`."""
        raise NotImplementedError


class ColumnLikelihood(Likelihood):
    """Base of the likelihoods of real numbers: y is (rows, columns) (abstract)."""

    kind: ClassVar[str] = "regression"

    columns: eqx.AbstractVar[int | None]
    is_vector: eqx.AbstractVar[bool]

    def check(self, y: np.ndarray) -> np.ndarray:
        """y as (rows, columns), with as many columns as in fitting."""
        return as_table(y, self.columns)[0]

    @property
    def num_outputs(self) -> int:
        """One for each column."""
        return int(self.columns or 1)
