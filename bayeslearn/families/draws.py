"""Draws from a posterior: the result of a sampler."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.families.base import Family
from bayeslearn.precision import double_precision
from bayeslearn.tree import Array, PyTree


class Draws(Family):
    """Draws with leading axes (chains, draws)."""

    draws: PyTree

    @property
    def num_chains(self) -> int:
        """Number of chains."""
        return jax.tree.leaves(self.draws)[0].shape[0]

    @property
    def num_draws(self) -> int:
        """Number of draws, all chains together."""
        chains, draws = jax.tree.leaves(self.draws)[0].shape[:2]
        return chains * draws

    def flat(self) -> PyTree:
        """The draws of all chains along one leading axis."""
        return jax.tree.map(lambda w: w.reshape(-1, *w.shape[2:]), self.draws)

    @property
    @double_precision
    def mean(self) -> PyTree:
        """Mean of each weight over all draws."""
        return jax.tree.map(lambda w: jnp.mean(w, axis=(0, 1)), self.draws)

    @property
    @double_precision
    def std(self) -> PyTree:
        """Standard deviation of each weight over all draws."""
        return jax.tree.map(lambda w: jnp.std(w, axis=0, ddof=1), self.flat())

    def matrix(self) -> Array:
        """The draws as (draws, weights)."""
        return jax.vmap(tree.ravel)(self.flat())

    @double_precision
    def mean_vector(self) -> Array:
        """The mean as one vector (k,)."""
        return jnp.mean(self.matrix(), axis=0)

    @double_precision
    def cov_matrix(self) -> Array:
        """The sample covariance matrix (k, k)."""
        tree.check_dense(tree.size(self.mean), "`std`, the standard deviation of each weight")
        return jnp.atleast_2d(jnp.cov(self.matrix(), rowvar=False))

    @double_precision
    def prec_matrix(self) -> Array:
        """The inverse of the sample covariance matrix."""
        return jnp.linalg.inv(self.cov_matrix())

    @double_precision
    def sample(self, key: Array, num: int) -> PyTree:
        """`num` of the draws at random, without replacement if there are enough."""
        if num <= self.num_draws:
            chosen = jax.random.choice(key, self.num_draws, (num,), replace=False)
        else:
            chosen = jax.random.randint(key, (num,), 0, self.num_draws)
        return jax.tree.map(lambda w: w[chosen], self.flat())

    def thinned(self, num: int) -> PyTree:
        """`num` of the draws, evenly spaced over all chains and in their order."""
        chosen = jnp.linspace(0, self.num_draws - 1, num).round().astype(jnp.int32)
        return jax.tree.map(lambda w: w[chosen], self.flat())
