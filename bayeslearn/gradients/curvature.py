"""Curvature of the negative log-joint: Hessian, Gauss-Newton, squared gradients.

Kinds, for `diagonal` and `blocks` (each returns curvature of the log-likelihood of the whole data
set plus the prior's precision, so that it can be compared with a precision matrix):

    hessian       exact; may be indefinite away from a mode
    hutchinson    diagonal of the Hessian by random signs, unbiased (diagonal only)
    gauss-newton  J^T Lambda J, Lambda the likelihood's Fisher information about the network's
                  outputs; never negative, equal to the Hessian where the network is linear and
                  the likelihood's curvature does not depend on y
    fisher        Gauss-Newton by labels sampled from the model, unbiased (diagonal only)
    squares       sum of squared per-example gradients, the "empirical Fisher" of VOGN; equal to
                  the Gauss-Newton in expectation only if the model is well specified (diagonal)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.model import Batch, Target
from bayeslearn.tree import Array, PyTree

MAX_ROWS = 1024  # rows that a starting estimate looks at
EXACT_LIMIT = 512  # weights up to which a bare density's Hessian diagonal is computed exactly
ROWS_AT_ONCE = 64

DIAGONAL_KINDS = ("hessian", "hutchinson", "gauss-newton", "fisher", "squares")
BLOCK_KINDS = ("hessian", "gauss-newton")


def diagonal(key: Array, target: Target, params: PyTree, batch: Batch | None, kind: str) -> PyTree:
    """Diagonal of the curvature of -log p(D, params)."""
    if kind == "hessian":
        return hessian_diagonal(lambda p: -target.log_joint(p, batch), params)
    if kind == "hutchinson":
        return hutchinson_diagonal(key, lambda p: -target.log_joint(p, batch), params)
    batch = target.data if batch is None else batch
    assert batch is not None
    if kind == "gauss-newton":
        likelihood = gauss_newton_diagonal(target, params, batch)
    elif kind == "fisher":
        likelihood = fisher_diagonal(key, target, params, batch)
    else:
        likelihood = _scaled(target, batch, squared_gradients(target, params, batch))
    return _plus_prior(target, params, likelihood)


def blocks(
    key: Array,
    target: Target,
    params: PyTree,
    batch: Batch | None,
    groups: tuple[tuple[int, ...], ...],
    kind: str,
) -> tuple[Array, ...]:
    """The diagonal blocks of the curvature of -log p(D, params), one for each group of leaves."""
    leaves, treedef = jax.tree.flatten(params)
    found = []
    for group in groups:
        unravel = tree.unraveler([leaves[i] for i in group])
        vector = tree.ravel([leaves[i] for i in group]).astype(jnp.float64)

        def rebuilt(v: Array, group: Any = group, unravel: Any = unravel) -> PyTree:
            pieces, filled = unravel(v), list(leaves)
            for i, piece in zip(group, pieces, strict=True):
                filled[i] = piece
            return jax.tree.unflatten(treedef, filled)

        if kind == "hessian":
            matrix = jax.hessian(lambda v, r=rebuilt: -target.log_joint(r(v), batch))(vector)
        else:
            matrix = _gauss_newton(target, rebuilt, vector, batch)
            if target.prior is not None:
                matrix = matrix + target.prior.prec_blocks(params, (group,))[0]
        found.append(0.5 * (matrix + matrix.T))
    return tuple(found)


def output_factor(target: Target, outputs: Array, own: PyTree, y: Array) -> Array:
    """A square root of Lambda, the likelihood's information about one row's outputs: (o, o).

    Where a likelihood of a user's has negative curvature at y, those directions are dropped.
    """
    matrix = target.likelihood.information(outputs, y, own)
    values, vectors = jnp.linalg.eigh(0.5 * (matrix + matrix.T))
    return vectors * jnp.sqrt(jnp.maximum(values, 0.0))


def _gauss_newton(
    target: Target, rebuilt: Callable[[Array], PyTree], vector: Array, batch: Batch | None
) -> Array:
    """sum_i J_i^T Lambda_i J_i, the likelihood's own parameters included by their Fisher."""
    batch = target.data if batch is None else batch
    assert batch is not None

    def one_row(row: tuple[PyTree, Array]) -> Array:
        x, y = row
        x = jax.tree.map(lambda leaf: leaf[None], x)
        params = rebuilt(vector)
        outputs = target.outputs(params, x)[0].astype(jnp.float64)
        jacobian = jax.jacrev(lambda v: target.outputs(rebuilt(v), x)[0].astype(jnp.float64))(
            vector
        )
        factor = output_factor(target, outputs, params["likelihood"], y)
        own = jax.jacrev(lambda v: own_information(target, rebuilt(v)))(vector)
        return jnp.concatenate([factor.T @ jacobian, own])

    rows = jax.lax.map(one_row, (batch.x, batch.y), batch_size=min(ROWS_AT_ONCE, len(batch.y)))
    if batch.weight is not None:
        rows = rows * jnp.sqrt(batch.weight)[:, None, None]
    stacked = rows.reshape(-1, rows.shape[-1])
    return stacked.T @ stacked * target.scale(batch)


def own_information(target: Target, params: PyTree) -> Array:
    """A function whose squared Jacobian is one row's information about the noise scale.

    Fisher information of a log scale is 2 per column; it does not mix with the outputs.
    """
    leaves = jax.tree.leaves(params["likelihood"])
    values = [jnp.sqrt(2.0) * jnp.ravel(leaf).astype(jnp.float64) for leaf in leaves]
    return jnp.concatenate([jnp.zeros(1, jnp.float64), *values])


def gauss_newton_diagonal(target: Target, params: PyTree, batch: Batch) -> PyTree:
    """Diagonal of sum_i J_i^T Lambda_i J_i, a few rows at a time."""

    def one_row(row: tuple[PyTree, Array]) -> PyTree:
        x, y = row
        x = jax.tree.map(lambda leaf: leaf[None], x)
        outputs = target.outputs(params, x)[0]
        factor = output_factor(target, outputs, params["likelihood"], y)

        def weighted(p: PyTree) -> Array:
            return factor.T.astype(outputs.dtype) @ target.outputs(p, x)[0]

        squares = jax.tree.map(lambda j: jnp.sum(j**2, axis=0), jax.jacrev(weighted)(params))
        own = jax.tree.map(lambda w: jnp.full_like(w, 2.0), params["likelihood"])
        return squares | {"likelihood": own}

    return _sum_rows(target, batch, one_row, (batch.x, batch.y))


def fisher_diagonal(key: Array, target: Target, params: PyTree, batch: Batch) -> PyTree:
    """Diagonal of the Gauss-Newton matrix by one sampled label per row: unbiased."""
    outputs = target.outputs(params, batch.x)
    keys = jax.random.split(key, len(batch.y))
    labels = jax.vmap(target.likelihood.sample, (0, 0, None))(keys, outputs, params["likelihood"])
    sampled = Batch(batch.x, labels.astype(batch.y.dtype), batch.weight)
    return _scaled(target, sampled, squared_gradients(target, params, sampled))


def squared_gradients(target: Target, params: PyTree, batch: Batch) -> PyTree:
    """sum_i (d log p(y_i | x_i, params) / d params)^2 over the rows of the batch."""

    def one_row(row: tuple[PyTree, Array]) -> PyTree:
        x, y = jax.tree.map(lambda leaf: leaf[None], row)
        gradient = jax.grad(lambda p: target.log_likelihood(p, Batch(x, y))[0])(params)
        return jax.tree.map(lambda g: g**2, gradient)

    return _sum_rows(target, batch, one_row, (batch.x, batch.y), is_scaled=False)


def _sum_rows(
    target: Target,
    batch: Batch,
    one_row: Callable[[Any], PyTree],
    rows: tuple[PyTree, Array],
    is_scaled: bool = True,
) -> PyTree:
    values = jax.lax.map(one_row, rows, batch_size=min(ROWS_AT_ONCE, len(batch.y)))
    weight = jnp.ones(len(batch.y)) if batch.weight is None else batch.weight
    summed = jax.tree.map(
        lambda leaf: jnp.tensordot(weight.astype(leaf.dtype), leaf, axes=1), values
    )
    return _scaled(target, batch, summed) if is_scaled else summed


def _scaled(target: Target, batch: Batch, summed: PyTree) -> PyTree:
    scale = target.scale(batch)
    return jax.tree.map(lambda leaf: (leaf * scale).astype(leaf.dtype), summed)


def _plus_prior(target: Target, params: PyTree, curvature: PyTree) -> PyTree:
    if target.prior is None:
        return curvature
    return jax.tree.map(jnp.add, target.prior.broadcast(params)[1], curvature)


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
    unravel = tree.unraveler(params)
    dtype = jnp.result_type(*jax.tree.leaves(params))

    def one(k: Array) -> PyTree:
        z = unravel(jax.random.rademacher(k, (tree.size(params),), dtype))
        product = jax.jvp(gradient, (params,), (z,))[1]
        return jax.tree.map(jnp.multiply, z, product)

    return jax.tree.map(lambda d: jnp.mean(d, 0), jax.lax.map(one, jax.random.split(key, num)))


def starting_prec(key: Array, target: Target, params: PyTree, batch: Batch | None) -> PyTree:
    """A positive precision for each weight at `params`: prior precision plus curvature."""
    if target.is_density:
        kind = "hessian" if tree.size(params) <= EXACT_LIMIT else "hutchinson"
        found = diagonal(key, target, params, batch, kind)
        return jax.tree.map(_positive, found)
    assert batch is not None
    rows = jax.tree.map(lambda leaf: leaf[:MAX_ROWS], batch)
    return diagonal(key, target, params, rows, "fisher")


def starting_blocks(
    key: Array,
    target: Target,
    params: PyTree,
    batch: Batch | None,
    groups: tuple[tuple[int, ...], ...],
) -> tuple[Array, ...]:
    """Positive definite precisions for each block at `params`: the Laplace approximation."""
    if target.is_density:
        found = blocks(key, target, params, batch, groups, "hessian")
        return tuple(_made_positive(matrix) for matrix in found)
    assert batch is not None
    rows = jax.tree.map(lambda leaf: leaf[:MAX_ROWS], batch)
    return blocks(key, target, params, rows, groups, "gauss-newton")


def _made_positive(matrix: Array) -> Array:
    values, vectors = jnp.linalg.eigh(matrix)
    return (vectors * _positive(values)) @ vectors.T


def _positive(curvature: Array) -> Array:
    """Where a density is all but flat a unit scale is all we can say."""
    return jnp.where(jnp.abs(curvature) > 1e-4, jnp.abs(curvature), 1.0)
