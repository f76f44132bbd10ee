"""What every prior answers: `Prior` as written by a user, `BoundPrior` over a network's weights."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar, Self

import equinox as eqx

from bayeslearn import tree
from bayeslearn.tree import Array, Groups, PyTree

if TYPE_CHECKING:
    from bayeslearn.models.priors.gaussian import GaussianPrior
    from bayeslearn.models.protocols import Approximation
    from bayeslearn.models.target import Target


class BoundPrior(eqx.Module):
    """A density over the parameters of a network or a model (abstract).

    `conditional` and `prec_blocks` are for Gaussian priors. Of a prior that is not Gaussian,
    `broadcast` returns the moments, which only set the scale that a run starts from.
    """

    is_gaussian: ClassVar[bool]
    is_independent: ClassVar[bool]  # every weight of all others

    @property
    def title(self) -> str:
        """Its name in messages."""
        return type(self).__name__.removesuffix("Prior")

    def join(self, likelihood: GaussianPrior) -> BoundPrior:
        """The prior of a whole model: this one over the network, `likelihood` over the rest."""
        raise NotImplementedError

    def log_prob_terms(self, params: PyTree) -> PyTree:
        """The normalised log-density as a sum over leaves."""
        raise NotImplementedError

    def log_prob(self, params: PyTree) -> Array:
        """The normalised log-density."""
        return tree.total(self.log_prob_terms(params))

    def broadcast(self, params: PyTree) -> tuple[PyTree, PyTree]:
        """Mean and precision (its diagonal) of each weight, with the shapes of `params`."""
        raise NotImplementedError

    def conditional(self, params: PyTree) -> tuple[PyTree, PyTree]:
        """Mean and precision of each weight given the others, as a mean-field q sees them."""
        return self.broadcast(params)

    def prec_blocks(self, params: PyTree, groups: Groups) -> tuple[Array, ...]:
        """The precision matrix of each group of leaves."""
        raise NotImplementedError

    def sample(self, key: Array, params: PyTree) -> PyTree:
        """One draw, with the shapes of `params`."""
        raise NotImplementedError

    def to_train(self) -> BoundPrior:
        """The prior whose mode is a good network, for members of an ensemble; default: itself."""
        return self

    @property
    def refreshes(self) -> bool:
        """Whether it has learned scales, which `refresh` updates."""
        return False

    def refresh(self, target: Target, q: Approximation, key: Array) -> BoundPrior:
        """The prior with its learned scales updated, given q."""
        return self

    def by_evidence(self, q: Approximation) -> BoundPrior:
        """The prior with its learned scales updated by the Laplace evidence, given q."""
        return self


class Prior(eqx.Module):
    """A prior as a user writes it (abstract)."""

    def bind(self, params: PyTree) -> BoundPrior:
        """The prior over a network's parameters."""
        raise NotImplementedError

    def restrict(self, params: PyTree, chosen: tuple[bool, ...]) -> Self:
        """The prior for the chosen leaves of `params` alone."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        trees = {
            name: tree.select(value, chosen)
            for name, value in values.items()
            if len(chosen) > 1 and tree.has_structure(value, params)
        }
        return dataclasses.replace(self, **trees)
