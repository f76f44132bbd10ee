"""Curvature of the log-likelihood, and the precision a Gaussian approximation starts from."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.model import Batch, Target
from bayeslearn.tree import Array, PyTree

MAX_ROWS = 1024  # rows that a starting estimate looks at
EXACT_LIMIT = 512  # weights up to which a bare density's Hessian diagonal is computed exactly


def fisher_diagonal(key: Array, target: Target, params: PyTree, batch: Batch) -> PyTree:
    """Diagonal of the Fisher information of the whole data set, by sampled labels.

    sum_i E_{y ~ p(y|x_i, w)} (d log p(y|x_i, w) / dw)^2, one label per row: unbiased for the
    diagonal of the generalised Gauss-Newton matrix, and never negative.
    """
    outputs = target.outputs(params, batch.x)
    keys = jax.random.split(key, len(batch.y))
    labels = jax.vmap(target.likelihood.sample, (0, 0, None))(keys, outputs, params["likelihood"])

    def one_row(row: tuple[PyTree, Array]) -> PyTree:
        x, y = jax.tree.map(lambda leaf: leaf[None], row)
        gradient = jax.grad(lambda p: target.log_likelihood(p, Batch(x, y))[0])(params)
        return jax.tree.map(lambda g: g**2, gradient)

    rows = (batch.x, labels.astype(batch.y.dtype))
    squares = jax.lax.map(one_row, rows, batch_size=min(len(batch.y), 64))
    weight = jnp.ones(len(batch.y)) if batch.weight is None else (batch.weight > 0)
    scale = target.scale(batch)

    def summed(leaf: Array) -> Array:
        return (jnp.tensordot(weight.astype(leaf.dtype), leaf, axes=1) * scale).astype(leaf.dtype)

    return jax.tree.map(summed, squares)


def hessian_diagonal(function: Any, params: PyTree) -> PyTree:
    """Exact diagonal of the Hessian, one Hessian-vector product per weight."""
    unravel = tree.unraveler(params)
    vector = tree.ravel(params)
    gradient = jax.grad(lambda v: function(unravel(v)))

    def entry(i: Array) -> Array:
        direction = jnp.zeros_like(vector).at[i].set(1.0)
        return jax.jvp(gradient, (vector,), (direction,))[1][i]

    return unravel(jax.lax.map(entry, jnp.arange(vector.size)))


def hutchinson_diagonal(key: Array, function: Any, params: PyTree, num: int = 64) -> PyTree:
    """Diagonal of the Hessian by random signs: E[z * (H z)]."""
    gradient = jax.grad(function)

    def one(k: Array) -> PyTree:
        leaves, treedef = jax.tree.flatten(params)
        keys = jax.random.split(k, len(leaves))
        signs = [
            jax.random.rademacher(s, leaf.shape, leaf.dtype)
            for s, leaf in zip(keys, leaves, strict=True)
        ]
        z = jax.tree.unflatten(treedef, signs)
        product = jax.jvp(gradient, (params,), (z,))[1]
        return jax.tree.map(jnp.multiply, z, product)

    return jax.tree.map(lambda d: jnp.mean(d, 0), jax.lax.map(one, jax.random.split(key, num)))


def starting_prec(key: Array, target: Target, params: PyTree, batch: Batch | None) -> PyTree:
    """A positive precision for each weight at `params`: prior precision plus curvature."""
    if target.is_density:
        if tree.size(params) <= EXACT_LIMIT:
            curvature = hessian_diagonal(target.log_joint, params)
        else:
            curvature = hutchinson_diagonal(key, target.log_joint, params)
        # Where the density is flat or curved the wrong way a unit scale is all we can say.
        return jax.tree.map(lambda c: jnp.where(jnp.abs(c) > 1e-6, jnp.abs(c), 1.0), curvature)
    assert batch is not None
    rows = jax.tree.map(lambda leaf: leaf[:MAX_ROWS], batch)
    curvature = fisher_diagonal(key, target, params, rows)
    assert target.prior is not None
    _, prior_prec = target.prior.broadcast(params)
    return jax.tree.map(jnp.add, prior_prec, curvature)
