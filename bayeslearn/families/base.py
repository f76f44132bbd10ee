"""What every family answers, and what Gaussians answer beyond it.

A family is what an algorithm has learned about the parameters: a distribution (or a point) over
pytrees. `isinstance(q, Gaussian)` says whether its density, divergence and prior are in closed
form, `isinstance(q, ClosedForm)` whether its predictive is.
"""

# No `from __future__ import annotations`: Equinox cannot read AbstractVar from strings.
from typing import TYPE_CHECKING

import equinox as eqx

from bayeslearn.tree import Array, PyTree

if TYPE_CHECKING:
    from bayeslearn.families.student import StudentPredictive
    from bayeslearn.models.priors.correlated import CorrelatedPrior
    from bayeslearn.models.priors.gaussian import GaussianPrior
    from bayeslearn.models.target import Target


class Family(eqx.Module):
    """A distribution over parameters (abstract)."""

    mean: eqx.AbstractVar[PyTree]
    std: eqx.AbstractVar[PyTree]  # standard deviation of each weight, a tree like `mean`

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

    def predictive(self, target: "Target", x: PyTree) -> "StudentPredictive":
        """The exact predictive distribution at rows of x."""
        raise NotImplementedError


class Gaussian(Density):
    """A Gaussian over all parameters (abstract)."""

    def transform(self, noise: PyTree) -> PyTree:
        """The reparametrisation: a draw, as a function of standard normal noise."""
        raise NotImplementedError

    def entropy(self) -> Array:
        """Differential entropy in nats."""
        raise NotImplementedError

    def kl(self, other: PyTree) -> Array:
        """KL(self || other) for any Gaussian: also a Gaussian prior."""
        raise NotImplementedError

    def to_prior(self) -> "GaussianPrior | CorrelatedPrior":
        """The same Gaussian as the prior of the data to come."""
        raise NotImplementedError
