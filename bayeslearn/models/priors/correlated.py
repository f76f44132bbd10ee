"""Gaussian priors with correlated weights: full, block-diagonal, low-rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import tree
from bayeslearn.models.priors.base import BoundPrior
from bayeslearn.models.priors.gaussian import GaussianPrior
from bayeslearn.models.priors.leaves import broadcast_like
from bayeslearn.numerics import LOG_2PI
from bayeslearn.tree import Array, Groups, PyTree


class CorrelatedPrior(BoundPrior):
    """A Gaussian prior with correlated weights (abstract).

    Subclasses multiply by the precision matrix P and return its diagonal.
    """

    is_gaussian: ClassVar[bool] = True
    is_independent: ClassVar[bool] = False

    mean: PyTree
    log_det: Array  # of P

    def times(self, values: Array) -> Array:
        """P values, for a vector (k,) or columns (k, n)."""
        raise NotImplementedError

    def diagonal(self) -> Array:
        """The diagonal of P."""
        raise NotImplementedError

    def quadratic(self, params: PyTree) -> Array:
        """(w - mean)^T P (w - mean)."""
        centred = self._centred(params)
        return centred @ self.times(centred)

    def log_prob_terms(self, params: PyTree) -> PyTree:
        """Terms that sum to the log-density; each depends on its own leaf and on others."""
        centred = self._centred(params)
        values = 0.5 * (self.log_det / len(centred) - LOG_2PI - centred * self.times(centred))
        return jax.tree.map(jnp.sum, tree.unraveler(params)(values))

    def broadcast(self, params: PyTree) -> tuple[PyTree, PyTree]:
        """Mean and diagonal of the precision."""
        diagonal = tree.unraveler(params)(self.diagonal())
        return broadcast_like(self.mean, params), broadcast_like(diagonal, params)

    def conditional(self, params: PyTree) -> tuple[PyTree, PyTree]:
        """N(w_i - (P (w - mean))_i / P_ii, 1 / P_ii)."""
        diagonal = self.diagonal()
        mean = tree.ravel(tree.double(params)) - self.times(self._centred(params)) / diagonal
        unravel = tree.unraveler(params)
        return broadcast_like(unravel(mean), params), broadcast_like(unravel(diagonal), params)

    def _centred(self, params: PyTree) -> Array:
        """w - mean as one vector."""
        return tree.ravel(tree.double(params)) - tree.ravel(tree.double(self.mean))


class BlockPrior(CorrelatedPrior):
    """A block-diagonal precision: `precs[g]` is the precision matrix of the g-th group of leaves.

    `groups[g]` are positions among the leaves; one group of all leaves is the full Gaussian.
    """

    mean: PyTree
    precs: tuple[Array, ...]
    log_det: Array
    groups: Groups = eqx.field(static=True)

    @staticmethod
    def from_precs(mean: PyTree, precs: Sequence[Array], groups: Groups) -> BlockPrior:
        """From the precision matrix of each group."""
        lowers = [jnp.linalg.cholesky(prec) for prec in precs]
        log_det = tree.total([2.0 * jnp.log(jnp.diagonal(lower)) for lower in lowers])
        return BlockPrior(mean=mean, precs=tuple(precs), log_det=log_det, groups=groups)

    def join(self, likelihood: GaussianPrior) -> BlockPrior:
        """The prior of a whole model: a group of its own for each leaf of the likelihood."""
        means = {"network": self.mean, "likelihood": likelihood.mean}
        names = [name.split(".")[0] for name in tree.leaf_names(means)]
        first = names.index("network")  # position of the network's first leaf
        own = tuple((i,) for i, name in enumerate(names) if name != "network")
        precs = likelihood.prec_blocks(likelihood.mean, tuple((i,) for i in range(len(own))))
        groups = tuple(tuple(i + first for i in group) for group in self.groups)
        return BlockPrior.from_precs(means, (*self.precs, *precs), (*groups, *own))

    def times(self, values: Array) -> Array:
        """P values, block by block."""
        found = jnp.zeros_like(values, jnp.float64)
        for rows, prec in zip(self._rows(self.groups), self.precs, strict=True):
            found = found.at[rows].set(prec @ values[rows])
        return found

    def diagonal(self) -> Array:
        """The diagonal of P."""
        found = jnp.zeros(tree.size(self.mean), jnp.float64)
        for rows, prec in zip(self._rows(self.groups), self.precs, strict=True):
            found = found.at[rows].set(jnp.diagonal(prec))
        return found

    def prec_blocks(self, params: PyTree, groups: Groups) -> tuple[Array, ...]:
        """The rows and columns of P of each group of leaves."""
        if groups == self.groups:
            return self.precs
        return tuple(map(self._block, self._rows(groups)))

    def _block(self, weights: np.ndarray) -> Array:
        """The rows and columns of P of these weights."""
        found = jnp.zeros((len(weights), len(weights)), jnp.float64)
        for rows, prec in zip(self._rows(self.groups), self.precs, strict=True):
            positions = np.flatnonzero(np.isin(weights, rows))
            order = np.argsort(rows)
            within = order[np.searchsorted(rows, weights[positions], sorter=order)]
            found = found.at[np.ix_(positions, positions)].set(prec[np.ix_(within, within)])
        return found

    def sample(self, key: Array, params: PyTree) -> PyTree:
        """One draw, mean + L^-T noise with P = L L^T."""
        noise = jax.random.normal(key, (tree.size(params),), jnp.float64)
        found = tree.ravel(tree.double(self.mean))
        for rows, prec in zip(self._rows(self.groups), self.precs, strict=True):
            lower = jnp.linalg.cholesky(prec)
            centred = jax.scipy.linalg.solve_triangular(lower, noise[rows], trans=1, lower=True)
            found = found.at[rows].add(centred)
        return tree.unraveler(params)(found)

    def _rows(self, groups: Groups) -> list[np.ndarray]:
        """Positions of each group's weights in the vector of all."""
        sizes = [math.prod(jnp.shape(leaf)) for leaf in jax.tree.leaves(self.mean)]
        ends = np.cumsum(sizes)
        return [
            np.concatenate([np.arange(ends[i] - sizes[i], ends[i]) for i in group])
            for group in groups
        ]


class LowRankPrior(CorrelatedPrior):
    """Covariance diag(variance) + factor factor^T with factor (k, r), for many weights."""

    mean: PyTree
    variance: Array  # (k,)
    pulled: Array  # (k, r): P = diag(1 / variance) - pulled pulled^T
    log_det: Array

    @staticmethod
    def from_factor(mean: PyTree, variance: Array, factor: Array) -> LowRankPrior:
        """P by the Woodbury identity: with M = I + F^T D^-1 F = L L^T, pulled = D^-1 F L^-T."""
        scaled = factor / variance[:, None]
        lower = jnp.linalg.cholesky(jnp.eye(factor.shape[1]) + factor.T @ scaled)
        pulled = jax.scipy.linalg.solve_triangular(lower, scaled.T, lower=True).T
        log_det = -jnp.sum(jnp.log(variance)) - 2.0 * jnp.sum(jnp.log(jnp.diagonal(lower)))
        return LowRankPrior(mean=mean, variance=variance, pulled=pulled, log_det=log_det)

    def times(self, values: Array) -> Array:
        """P values in O(k r)."""
        variance = self.variance.reshape(-1, *[1] * (values.ndim - 1))
        return values / variance - self.pulled @ (self.pulled.T @ values)

    def diagonal(self) -> Array:
        """The diagonal of P."""
        return 1.0 / self.variance - jnp.sum(self.pulled**2, axis=1)

    def prec_blocks(self, params: PyTree, groups: Groups) -> tuple[Array, ...]:
        """The rows and columns of P of each group of leaves."""
        unravel = tree.unraveler(params)
        variances = jax.tree.leaves(unravel(self.variance))
        pulled = jax.tree.leaves(jax.vmap(unravel, 1, -1)(self.pulled))
        rank, found = self.pulled.shape[1], []
        for group in groups:
            rows = jnp.concatenate([pulled[i].reshape(-1, rank) for i in group])
            found.append(jnp.diag(1.0 / tree.ravel([variances[i] for i in group])) - rows @ rows.T)
        return tuple(found)
