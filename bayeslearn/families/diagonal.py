"""The mean-field Gaussian: independent weights, leaf by leaf."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.precision import double_precision
from bayeslearn.tree import Array, PyTree


class DiagonalGaussian(eqx.Module):
    """q(w) = N(mean, diag(std^2)); `mean` and `std` are pytrees like the parameters."""

    mean: PyTree
    std: PyTree

    @property
    def prec(self) -> PyTree:
        return jax.tree.map(lambda s: 1.0 / s**2, self.std)

    @double_precision
    def mean_vector(self) -> Array:
        return tree.ravel(self.mean)

    @double_precision
    def cov_matrix(self) -> Array:
        tree.check_dense(tree.size(self.mean), "`std`, which holds the same numbers")
        return jnp.diag(tree.ravel(self.std) ** 2)

    @double_precision
    def prec_matrix(self) -> Array:
        tree.check_dense(tree.size(self.mean), "`prec`, which holds the same numbers")
        return jnp.diag(tree.ravel(self.prec))

    def transform(self, noise: PyTree) -> PyTree:
        """w = mean + std * noise (the reparametrisation)."""
        return jax.tree.map(lambda m, s, e: m + s * e, self.mean, self.std, noise)

    @double_precision
    def sample(self, key: Array, num: int) -> PyTree:
        return jax.vmap(self.transform)(tree.normal_like(key, self.mean, num))

    @double_precision
    def log_prob(self, params: PyTree) -> Array:
        def term(w: Array, m: Array, s: Array) -> Array:
            return -0.5 * ((w - m) / s) ** 2 - jnp.log(s) - 0.5 * jnp.log(2 * jnp.pi)

        return tree.total(jax.tree.map(term, params, self.mean, self.std))

    @double_precision
    def entropy(self) -> Array:
        return tree.total(
            jax.tree.map(lambda s: jnp.log(s) + 0.5 * jnp.log(2 * jnp.pi * jnp.e), self.std)
        )

    @double_precision
    def kl(self, other: Any) -> Array:
        """KL(self || other) for another independent Gaussian (also a `GaussianPrior`)."""

        def term(m: Array, s: Array, m0: Array, p0: Array) -> Array:
            m0, p0 = jnp.asarray(m0, m.dtype), jnp.asarray(p0, m.dtype)
            return 0.5 * (p0 * (s**2 + (m - m0) ** 2) - 1.0 - jnp.log(p0 * s**2))

        return tree.total(jax.tree.map(term, self.mean, self.std, other.mean, other.prec))
