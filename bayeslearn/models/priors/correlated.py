"""Gaussians over weights that are not independent: full, by block, of low rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import tree
from bayeslearn.models.priors.gaussian import GaussianPrior
from bayeslearn.models.priors.leaves import Groups, _like
from bayeslearn.tree import Array, PyTree

LOG_2PI = math.log(2 * math.pi)


class CorrelatedPrior(eqx.Module):
    """A Gaussian over all weights that are not independent (abstract).

    Subclasses know how to multiply by the precision matrix P, and what its diagonal is.
    """

    is_gaussian: ClassVar[bool] = True
    is_independent: ClassVar[bool] = False

    mean: eqx.AbstractVar[PyTree]
    log_det: eqx.AbstractVar[Array]  # of P

    def times(self, values: Array) -> Array:
        """P values, for a vector (k,) or columns (k, n)."""
        raise NotImplementedError

    def diagonal(self) -> Array:
        raise NotImplementedError

    def prec_blocks(self, params: PyTree, groups: Groups) -> tuple[Array, ...]:
        """P's own rows and columns of each group of leaves."""
        raise NotImplementedError

    def quadratic(self, params: PyTree) -> Array:
        """(w - mean)^T P (w - mean)."""
        away = self._away(params)
        return away @ self.times(away)

    def log_prob_terms(self, params: PyTree) -> PyTree:
        """Terms that add up to the log-density. Each holds its leaf, and others with it."""
        away = self._away(params)
        values = 0.5 * (self.log_det / len(away) - LOG_2PI - away * self.times(away))
        return jax.tree.map(jnp.sum, tree.unraveler(params)(values))

    def log_prob(self, params: PyTree) -> Array:
        return tree.total(self.log_prob_terms(params))

    def broadcast(self, params: PyTree) -> tuple[PyTree, PyTree]:
        """Mean and diagonal of the precision."""
        diagonal = tree.unraveler(params)(self.diagonal())
        return _like(self.mean, params), _like(diagonal, params)

    def conditional(self, params: PyTree) -> tuple[PyTree, PyTree]:
        """N(w_i - (P (w - mean))_i / P_ii, 1 / P_ii)."""
        diagonal = self.diagonal()
        mean = tree.ravel(tree.double(params)) - self.times(self._away(params)) / diagonal
        unravel = tree.unraveler(params)
        return _like(unravel(mean), params), _like(unravel(diagonal), params)

    def _away(self, params: PyTree) -> Array:
        return tree.ravel(tree.double(params)) - tree.ravel(tree.double(self.mean))


class BlockPrior(CorrelatedPrior):
    """Groups of leaves that are independent of each other: `precs[g]` is the g-th's precision.

    `groups[g]` are positions among the leaves; one group of all is the full Gaussian.
    """

    mean: PyTree
    precs: tuple[Array, ...]
    log_det: Array
    groups: Groups = eqx.field(static=True)

    @staticmethod
    def from_precs(mean: PyTree, precs: Sequence[Array], groups: Groups) -> BlockPrior:
        lowers = [jnp.linalg.cholesky(prec) for prec in precs]
        log_det = tree.total([2.0 * jnp.log(jnp.diagonal(lower)) for lower in lowers])
        return BlockPrior(mean=mean, precs=tuple(precs), log_det=log_det, groups=groups)

    def joined(self, likelihood: GaussianPrior) -> BlockPrior:
        means = {"network": self.mean, "likelihood": likelihood.mean}
        names = [name.split(".")[0] for name in tree.leaf_names(means)]
        first = names.index("network")  # where the network's leaves begin
        own = tuple((i,) for i, name in enumerate(names) if name != "network")
        precs = likelihood.prec_blocks(likelihood.mean, tuple((i,) for i in range(len(own))))
        groups = tuple(tuple(i + first for i in group) for group in self.groups)
        return BlockPrior.from_precs(means, (*self.precs, *precs), (*groups, *own))

    def times(self, values: Array) -> Array:
        found = jnp.zeros_like(values, jnp.float64)
        for rows, prec in zip(self._rows(self.groups), self.precs, strict=True):
            found = found.at[rows].set(prec @ values[rows])
        return found

    def diagonal(self) -> Array:
        found = jnp.zeros(tree.size(self.mean), jnp.float64)
        for rows, prec in zip(self._rows(self.groups), self.precs, strict=True):
            found = found.at[rows].set(jnp.diagonal(prec))
        return found

    def prec_blocks(self, params: PyTree, groups: Groups) -> tuple[Array, ...]:
        if groups == self.groups:
            return self.precs
        return tuple(map(self._block, self._rows(groups)))

    def _block(self, wanted: np.ndarray) -> Array:
        found = jnp.zeros((len(wanted), len(wanted)), jnp.float64)
        for rows, prec in zip(self._rows(self.groups), self.precs, strict=True):
            place = np.flatnonzero(np.isin(wanted, rows))
            order = np.argsort(rows)
            among = order[np.searchsorted(rows, wanted[place], sorter=order)]
            found = found.at[np.ix_(place, place)].set(prec[np.ix_(among, among)])
        return found

    def sample(self, key: Array, params: PyTree) -> PyTree:
        noise = jax.random.normal(key, (tree.size(params),), jnp.float64)
        found = tree.ravel(tree.double(self.mean))
        for rows, prec in zip(self._rows(self.groups), self.precs, strict=True):
            lower = jnp.linalg.cholesky(prec)
            away = jax.scipy.linalg.solve_triangular(lower, noise[rows], trans=1, lower=True)
            found = found.at[rows].add(away)
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
    """Covariance diag(variance) + factor factor^T, factor (k, r): for many correlated weights."""

    mean: PyTree
    variance: Array  # (k,)
    pulled: Array  # (k, r): P = diag(1 / variance) - pulled pulled^T
    log_det: Array

    @staticmethod
    def from_factor(mean: PyTree, variance: Array, factor: Array) -> LowRankPrior:
        """P by Woodbury: with M = I + F^T D^-1 F = L L^T, pulled = D^-1 F L^-T."""
        scaled = factor / variance[:, None]
        lower = jnp.linalg.cholesky(jnp.eye(factor.shape[1]) + factor.T @ scaled)
        pulled = jax.scipy.linalg.solve_triangular(lower, scaled.T, lower=True).T
        log_det = -jnp.sum(jnp.log(variance)) - 2.0 * jnp.sum(jnp.log(jnp.diagonal(lower)))
        return LowRankPrior(mean=mean, variance=variance, pulled=pulled, log_det=log_det)

    def times(self, values: Array) -> Array:
        variance = self.variance.reshape(-1, *[1] * (values.ndim - 1))
        return values / variance - self.pulled @ (self.pulled.T @ values)

    def diagonal(self) -> Array:
        return 1.0 / self.variance - jnp.sum(self.pulled**2, axis=1)

    def prec_blocks(self, params: PyTree, groups: Groups) -> tuple[Array, ...]:
        unravel = tree.unraveler(params)
        variances = jax.tree.leaves(unravel(self.variance))
        pulled = jax.tree.leaves(jax.vmap(unravel, 1, -1)(self.pulled))
        rank, found = self.pulled.shape[1], []
        for group in groups:
            rows = jnp.concatenate([pulled[i].reshape(-1, rank) for i in group])
            found.append(jnp.diag(1.0 / tree.ravel([variances[i] for i in group])) - rows @ rows.T)
        return tuple(found)
