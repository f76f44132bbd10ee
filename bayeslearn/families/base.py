"""The interface of all families, and the further methods of Gaussian ones.

A family is the result of an algorithm: a distribution (or a point mass) over pytrees of parameters.
A `Gaussian` has its density, divergence and prior in closed form, a `ClosedForm` its predictive.
"""

# No `from __future__ import annotations`: Equinox cannot read AbstractVar from strings.
from typing import TYPE_CHECKING, ClassVar

import equinox as eqx

from bayeslearn.models.priors.base import BoundPrior
from bayeslearn.predictive_base import PredictiveBase
from bayeslearn.tree import Array, PyTree

if TYPE_CHECKING:
    from bayeslearn.families.full import FullGaussian
    from bayeslearn.models.priors.correlated import CorrelatedPrior
    from bayeslearn.models.priors.gaussian import GaussianPrior
    from bayeslearn.models.target import Target


class Family(eqx.Module):
    """A distribution over parameters (abstract)."""

    if TYPE_CHECKING:

        @property
        def mean(self) -> PyTree:
            """Mean of each weight."""

        @property
        def std(self) -> PyTree:
            """Standard deviation of each weight, a tree like `mean`."""

    else:  # fields or properties of a subclass
        mean: eqx.AbstractVar[PyTree]
        std: eqx.AbstractVar[PyTree]

    def sample(self, key: Array, num: int) -> PyTree:
        """`num` draws along a leading axis."""
        raise NotImplementedError


class Density(Family):
    """A family with a density (abstract)."""

    def log_prob(self, params: PyTree) -> Array:
        """Log-density at one set of parameters."""
        raise NotImplementedError


class ClosedForm(Family):
    """A family whose predictive distribution is known in closed form (abstract)."""

    def predictive(self, target: "Target", x: PyTree) -> PredictiveBase:
        """The exact predictive distribution at rows of x."""
        raise NotImplementedError


class Gaussian(Density):
    """A Gaussian over all parameters (abstract)."""

    is_independent: ClassVar[bool] = False  # weights are independent of each other

    def mean_vector(self) -> Array:
        """The mean as one vector (k,)."""
        raise NotImplementedError

    def cov_matrix(self) -> Array:
        """The dense covariance matrix (k, k)."""
        raise NotImplementedError

    def prec_matrix(self) -> Array:
        """The dense precision matrix (k, k)."""
        raise NotImplementedError

    def transform(self, noise: PyTree) -> PyTree:
        """The reparametrisation: a draw, as a function of standard normal noise."""
        raise NotImplementedError

    def entropy(self) -> Array:
        """Differential entropy in nats."""
        raise NotImplementedError

    def kl(self, other: "Gaussian | BoundPrior") -> Array:
        """KL(self || other) for any Gaussian: also a Gaussian prior."""
        raise NotImplementedError

    def to_full(self) -> "FullGaussian":
        """The same Gaussian with a dense factor."""
        raise NotImplementedError

    def to_prior(self) -> "GaussianPrior | CorrelatedPrior":
        """The same Gaussian as a prior, for new data."""
        raise NotImplementedError
