"""Independent Gaussians over every weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.models.priors.base import BoundPrior
from bayeslearn.models.priors.leaves import broadcast_like
from bayeslearn.models.protocols import Approximation, Reparametrised, WithDensity
from bayeslearn.tree import Array, Groups, PyTree

if TYPE_CHECKING:
    from bayeslearn.models.target import Target

MIN_SCALE = 1e-4  # of a learned scale
REFRESH_DRAWS = 256  # of a q that is not reparametrised


class GaussianPrior(BoundPrior):
    """Independent Gaussians over every weight: a mean and a precision for each leaf.

    Leaves are numbers or arrays that broadcast to those of the parameters. `learned` marks the
    leaves whose precision is learned (empty: none).
    """

    is_gaussian: ClassVar[bool] = True
    is_independent: ClassVar[bool] = True

    mean: PyTree
    prec: PyTree
    learned: tuple[bool, ...] = eqx.field(static=True, default=())

    def join(self, likelihood: GaussianPrior) -> GaussianPrior:
        """The prior of a whole model; only the network's scales are learned."""
        parts = {"network": self, "likelihood": likelihood}
        flags = {
            name: [name == "network" and self.refreshes] * len(jax.tree.leaves(part.mean))
            for name, part in parts.items()
        }
        learned = tuple(jax.tree.leaves(flags)) if self.refreshes else ()
        means = {name: part.mean for name, part in parts.items()}
        return GaussianPrior(means, {name: part.prec for name, part in parts.items()}, learned)

    def log_prob_terms(self, params: PyTree) -> PyTree:
        """The normalised log-density of each leaf."""

        def term(w: Array, mean: Array, prec: Array) -> Array:
            mean, prec = jnp.asarray(mean, w.dtype), jnp.asarray(prec, w.dtype)
            normaliser = jnp.broadcast_to(0.5 * jnp.log(prec / (2 * jnp.pi)), w.shape)
            return jnp.sum(normaliser - 0.5 * prec * (w - mean) ** 2, dtype=jnp.float64)

        return jax.tree.map(term, params, self.mean, self.prec)

    def broadcast(self, params: PyTree) -> tuple[PyTree, PyTree]:
        """Mean and precision with the shape and dtype of each leaf of `params`."""
        return broadcast_like(self.mean, params), broadcast_like(self.prec, params)

    def prec_blocks(self, params: PyTree, groups: Groups) -> tuple[Array, ...]:
        """The diagonal precision matrix of each group of leaves."""
        leaves = jax.tree.leaves(self.broadcast(tree.double(params))[1])
        return tuple(jnp.diag(tree.ravel([leaves[i] for i in group])) for group in groups)

    def sample(self, key: Array, params: PyTree) -> PyTree:
        """One draw, with the shapes of `params`."""
        mean, prec = self.broadcast(tree.double(params))
        noise = tree.normal_like(key, mean)
        return jax.tree.map(lambda m, p, e: m + e / jnp.sqrt(p), mean, prec, noise)

    @property
    def refreshes(self) -> bool:
        """Whether any leaf has a learned scale."""
        return any(self.learned)

    def refresh(self, target: Target, q: Approximation, key: Array) -> GaussianPrior:
        """Learned scales that maximise the lower bound, given q: s^2 = E_q[(w - mean)^2].

        The expectation is averaged over a leaf. A point mass has no std, and its optimal scale
        would be zero: the prior stays as it is.
        """
        if not isinstance(q, WithDensity):
            return self
        if isinstance(q, Reparametrised):
            second = jax.tree.map(
                lambda m, s, m0: (m - m0) ** 2 + s**2, tree.double(q.mean), q.std, self.mean
            )
        else:
            draws = tree.double(q.sample(key, REFRESH_DRAWS))
            second = jax.tree.map(lambda w, m0: jnp.mean((w - m0) ** 2, 0), draws, self.mean)
        return self._rescale(lambda prec, square: 1.0 / jnp.mean(prec * square), second)

    def by_evidence(self, q: Approximation) -> GaussianPrior:
        """MacKay's step: prec |w - mean|^2 = gamma, the number of weights the data determine.

        It has the fixed point of `refresh`, and converges faster.
        """
        squares = jax.tree.map(lambda m, m0: (m - m0) ** 2, tree.double(q.mean), self.mean)

        def factor(prec: Array, stats: tuple[Array, Array]) -> Array:
            square, std = stats
            gamma = square.size - jnp.sum(prec * std**2)
            return jnp.maximum(gamma, 1e-9) / jnp.maximum(jnp.sum(prec * square), 1e-30)

        pairs = jax.tree.map(lambda a, s: (a, s), squares, tree.double(q.std))
        return self._rescale(factor, pairs)

    def _rescale(self, factor: Callable[[Array, PyTree], Array], stats: PyTree) -> GaussianPrior:
        """Precisions of learned leaves times `factor(prec, stats)`: one number for each leaf."""
        leaves, treedef = jax.tree.flatten(self.prec)
        of_leaves = tree.flatten_up_to(self.prec, stats)
        new = [
            jnp.minimum(p * factor(p, own), MIN_SCALE**-2) if is_learned else p
            for p, own, is_learned in zip(leaves, of_leaves, self.learned, strict=True)
        ]
        return GaussianPrior(self.mean, jax.tree.unflatten(treedef, new), self.learned)
