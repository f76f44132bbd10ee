"""The inverse-Wishart distribution IW(dof, scale), scale = root root^T."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy.special import digamma, multigammaln

from bayeslearn.numerics import log_abs_det
from bayeslearn.tree import Array


def sample_inverse_wishart(key: Array, dof: Array, scale: Array) -> Array:
    """One draw, by Bartlett's decomposition."""
    d, dtype = len(scale), scale.dtype
    key_chi, key_lower = jax.random.split(key)
    chi = jax.random.chisquare(key_chi, dof - jnp.arange(d), (d,), dtype)
    lower = jnp.tril(jax.random.normal(key_lower, (d, d), dtype), -1) + jnp.diag(jnp.sqrt(chi))
    # T T^T is Wishart; with scale = R R^T, R T^-T is a square root of the inverse-Wishart draw.
    root = jax.scipy.linalg.solve_triangular(lower, jnp.linalg.cholesky(scale).T, lower=True).T
    return root @ root.T


def expected_log_det(dof: Array, root: Array) -> Array:
    """E[log|cov|] under IW(dof, root root^T)."""
    d = len(root)
    log_det = 2.0 * jnp.sum(jnp.log(jnp.diagonal(root)))
    return log_det - d * jnp.log(2.0) - jnp.sum(digamma(0.5 * (dof - jnp.arange(d))))


def inverse_wishart_kl(dof: Array, root: Array, prior_dof: Array, prior_scale: Array) -> Array:
    """KL(IW(dof, root root^T) || IW(prior_dof, prior_scale))."""
    d = len(root)
    log_det = 2.0 * jnp.sum(jnp.log(jnp.diagonal(root)))
    more = dof - prior_dof
    ratio = jnp.trace(jax.scipy.linalg.cho_solve((root, True), prior_scale))
    return (
        0.5 * (dof * log_det - prior_dof * log_abs_det(prior_scale))
        - 0.5 * more * (d * jnp.log(2.0) + expected_log_det(dof, root))
        - multigammaln(0.5 * dof, d)
        + multigammaln(0.5 * prior_dof, d)
        - 0.5 * dof * (d - ratio)
    )
