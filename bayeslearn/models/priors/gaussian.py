"""Independent Gaussians over every weight."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.models.priors.leaves import Groups, _like
from bayeslearn.models.protocols import Approximation, Reparametrised, WithDensity
from bayeslearn.tree import Array, PyTree

LEAST_SCALE = 1e-4  # below which a learned scale does not fall


class GaussianPrior(eqx.Module):
    """Independent Gaussians over every weight: a mean and a precision for each leaf.

    Leaves are numbers or arrays that broadcast to the leaf they speak of. `learned` says of which
    leaves the precision is learned (empty: none).
    """

    is_gaussian: ClassVar[bool] = True
    is_independent: ClassVar[bool] = True

    mean: PyTree
    prec: PyTree
    learned: tuple[bool, ...] = eqx.field(static=True, default=())

    def joined(self, likelihood: GaussianPrior) -> GaussianPrior:
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

    def log_prob(self, params: PyTree) -> Array:
        return tree.total(self.log_prob_terms(params))

    def broadcast(self, params: PyTree) -> tuple[PyTree, PyTree]:
        """Mean and precision with the shape and dtype of each leaf of `params`."""
        return _like(self.mean, params), _like(self.prec, params)

    def conditional(self, params: PyTree) -> tuple[PyTree, PyTree]:
        return self.broadcast(params)

    def prec_blocks(self, params: PyTree, groups: Groups) -> tuple[Array, ...]:
        leaves = jax.tree.leaves(self.broadcast(tree.double(params))[1])
        return tuple(jnp.diag(tree.ravel([leaves[i] for i in group])) for group in groups)

    def sample(self, key: Array, params: PyTree) -> PyTree:
        mean, prec = self.broadcast(tree.double(params))
        noise = tree.normal_like(key, mean)
        return jax.tree.map(lambda m, p, e: m + e / jnp.sqrt(p), mean, prec, noise)

    @property
    def refreshes(self) -> bool:
        return any(self.learned)

    def refresh(self, target: Any, q: Approximation, key: Array) -> GaussianPrior:
        """Learned scales at the top of the lower bound, given q: s^2 = E_q[(w - mean)^2].

        The mean is over a leaf. A point has no spread, and its best scale would be nothing: it
        leaves the prior as it is.
        """
        if not isinstance(q, WithDensity):
            return self
        if isinstance(q, Reparametrised):
            second = jax.tree.map(
                lambda m, s, m0: (m - m0) ** 2 + s**2, tree.double(q.mean), q.std, self.mean
            )
        else:
            draws = tree.double(q.sample(key, 256))
            second = jax.tree.map(lambda w, m0: jnp.mean((w - m0) ** 2, 0), draws, self.mean)
        return self._rescaled(lambda prec, square: 1.0 / jnp.mean(prec * square), second)

    def by_evidence(self, q: Approximation) -> GaussianPrior:
        """MacKay's step: prec |w - mean|^2 = gamma, the number of weights the data determine.

        It rests where `refresh` does, and gets there sooner.
        """
        away = jax.tree.map(lambda m, m0: (m - m0) ** 2, tree.double(q.mean), self.mean)

        def factor(prec: Array, squares: tuple[Array, Array]) -> Array:
            away, std = squares
            gamma = away.size - jnp.sum(prec * std**2)
            return jnp.maximum(gamma, 1e-9) / jnp.maximum(jnp.sum(prec * away), 1e-30)

        pairs = jax.tree.map(lambda a, s: (a, s), away, tree.double(q.std))
        return self._rescaled(factor, pairs)

    def _rescaled(self, factor: Any, told: PyTree) -> GaussianPrior:
        """Precisions of learned leaves times `factor(prec, told)`: one number for each leaf."""
        leaves, treedef = jax.tree.flatten(self.prec)
        facts = treedef.flatten_up_to(told)  # type: ignore[attr-defined]
        new = [
            jnp.minimum(p * factor(p, fact), LEAST_SCALE**-2) if is_learned else p
            for p, fact, is_learned in zip(leaves, facts, self.learned, strict=True)
        ]
        return GaussianPrior(self.mean, jax.tree.unflatten(treedef, new), self.learned)
