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
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp

from bayeslearn import precision, tree
from bayeslearn.data.rows import Batch, weights_of
from bayeslearn.gradients import per_example
from bayeslearn.models.target import Target
from bayeslearn.numerics import FLAT, make_positive, make_positive_definite
from bayeslearn.tree import Array, Groups, PyTree

MAX_ROWS = 1024  # rows of the curvature at a start
MAX_EXACT = 512  # weights up to which a bare density's Hessian diagonal is computed exactly
JACOBIAN_ROWS = 64  # rows whose Jacobians are computed in one batch
# Weights times rows of data times rows of the Hessian that are computed in one batch. On two cores
# a single batch takes 2 to 2.5 times as long.
MAX_BATCH = {"cpu": 10_000_000}
DEFAULT_MAX_BATCH = 10_000_000_000

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
    groups: Groups,
    kind: str,
) -> tuple[Array, ...]:
    """The diagonal blocks of the curvature of -log p(D, params), one for each group of leaves."""
    leaves, treedef = jax.tree.flatten(params)
    rows = target.data if batch is None else batch
    num_rows = 1 if rows is None else len(rows.y)

    def block(group: tuple[int, ...]) -> Array:
        unravel = tree.unraveler([leaves[i] for i in group])
        vector = tree.ravel([leaves[i] for i in group]).astype(jnp.float64)

        def with_group(v: Array) -> PyTree:
            filled = list(leaves)
            for i, leaf in zip(group, unravel(v), strict=True):
                filled[i] = leaf
            return jax.tree.unflatten(treedef, filled)

        if kind == "hessian":
            return _hessian(lambda v: -target.log_joint(with_group(v), batch), vector, num_rows)
        matrix = _gauss_newton(target, with_group, vector, batch)
        if target.prior is None:
            return matrix
        return matrix + target.prior.prec_blocks(params, (group,))[0]

    return tuple(0.5 * (matrix + matrix.T) for matrix in map(block, groups))


def _hessian(function: Callable[[Array], Array], vector: Array, num_rows: int) -> Array:
    """The Hessian by rows, in batches that fit in the device's cache."""
    gradient, size = jax.grad(function), len(vector)
    most = MAX_BATCH.get(jax.default_backend(), DEFAULT_MAX_BATCH)
    return jax.lax.map(
        lambda direction: jax.jvp(gradient, (vector,), (direction,))[1],
        jnp.eye(size, dtype=vector.dtype),
        batch_size=min(size, max(1, most // (size * num_rows))),
    )


def output_factor(target: Target, outputs: Array, own: PyTree, y: Array) -> Array:
    """A square root of Lambda, the likelihood's information about one row's outputs: (o, o).

    Directions in which a custom likelihood has negative curvature at y are dropped.
    """
    matrix = target.likelihood.information(outputs, y, own)
    values, vectors = jnp.linalg.eigh(0.5 * (matrix + matrix.T))
    return vectors * jnp.sqrt(jnp.maximum(values, 0.0))


def _gauss_newton(
    target: Target, rebuild: Callable[[Array], PyTree], vector: Array, batch: Batch | None
) -> Array:
    """sum_i J_i^T Lambda_i J_i, with the Fisher information of the likelihood's own parameters."""
    batch = target.data if batch is None else batch
    assert batch is not None

    def one_row(row: tuple[PyTree, Array]) -> Array:
        x, y = row
        x = jax.tree.map(lambda leaf: leaf[None], x)
        params = rebuild(vector)
        outputs = target.outputs(params, x)[0].astype(jnp.float64)
        jacobian = jax.jacrev(lambda v: target.outputs(rebuild(v), x)[0].astype(jnp.float64))(
            vector
        )
        factor = output_factor(target, outputs, params["likelihood"], y)
        own = jax.jacrev(lambda v: own_information(target, rebuild(v), outputs))(vector)
        return jnp.concatenate([factor.T @ jacobian, own])

    rows = jax.lax.map(one_row, (batch.x, batch.y), batch_size=min(JACOBIAN_ROWS, len(batch.y)))
    if batch.weight is not None:
        rows = rows * jnp.sqrt(batch.weight)[:, None, None]
    stacked = rows.reshape(-1, rows.shape[-1])
    return stacked.T @ stacked * target.scale(batch)


def own_information(target: Target, params: PyTree, outputs: Array) -> Array:
    """A function whose squared Jacobian is one row's information about the likelihood's own leaves.

    It is taken leaf by leaf, and as 0 jointly with the outputs, which is exact for a noise scale.
    """
    information = target.likelihood.own_information(outputs, params["likelihood"])
    scaled = jax.tree.map(
        lambda i, leaf: jax.lax.stop_gradient(jnp.sqrt(i)) * leaf.astype(jnp.float64),
        information,
        params["likelihood"],
    )
    return jnp.concatenate([jnp.zeros(1, jnp.float64), *map(jnp.ravel, jax.tree.leaves(scaled))])


def gauss_newton_diagonal(target: Target, params: PyTree, batch: Batch) -> PyTree:
    """Diagonal of sum_i J_i^T Lambda_i J_i: one backward pass for each output."""
    outputs, pull = _outputs_and_pull(target, params, batch.x)
    factors = jax.vmap(lambda f, y: output_factor(target, f, params["likelihood"], y))(
        outputs, batch.y
    )
    columns = jnp.moveaxis(factors, 2, 0)

    def add(sums: PyTree, column: Array) -> tuple[PyTree, None]:
        return jax.tree.map(jnp.add, sums, pull(column, batch.weight)[1]), None

    network, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params["network"]), columns)
    information = jax.vmap(target.likelihood.own_information, (0, None))(
        outputs, params["likelihood"]
    )
    own = jax.tree.map(lambda part: jnp.tensordot(weights_of(batch), part, 1), information)
    return _scaled(target, batch, tree.cast_like({"network": network, "likelihood": own}, params))


def fisher_diagonal(key: Array, target: Target, params: PyTree, batch: Batch) -> PyTree:
    """Unbiased diagonal of the Gauss-Newton matrix, by one sampled label per row."""
    outputs, pull = _outputs_and_pull(target, params, batch.x)
    keys = jax.random.split(key, len(batch.y))
    labels = jax.vmap(target.likelihood.sample, (0, 0, None))(keys, outputs, params["likelihood"])
    sampled = Batch(batch.x, labels.astype(batch.y.dtype), batch.weight)
    return _scaled(target, sampled, _moments(target, params, sampled, outputs, pull)[2])


def squared_gradients(target: Target, params: PyTree, batch: Batch) -> PyTree:
    """sum_i (d log p(y_i | x_i, params) / d params)^2 over the rows of the batch."""
    return moments(target, params, batch)[2]


def moments(target: Target, params: PyTree, batch: Batch) -> tuple[Array, PyTree, PyTree]:
    """Sums over the rows of log p, of its gradient and of the gradient's square, in one pass."""

    def of(rows: Batch) -> tuple[Array, PyTree, PyTree]:
        return _moments(target, params, rows, *_outputs_and_pull(target, params, rows.x))

    split = tree.microbatches(batch, target.microbatch)
    if split is None:
        return of(batch)
    shapes = jax.eval_shape(of, jax.tree.map(lambda leaf: leaf[0], split))
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return jax.lax.scan(
        lambda sums, rows: (jax.tree.map(jnp.add, sums, of(rows)), None), zeros, split
    )[0]


def fallbacks(target: Target, params: PyTree) -> list[str]:
    """Names of the leaves whose squares need a gradient of each example."""
    assert target.data is not None
    with precision.network_precision(target.dtype):
        function, weights = row_function(target, params)
        return per_example.fallbacks(function, weights, target.data.x)


def row_function(
    target: Target, params: PyTree, key: Array | None = None
) -> tuple[Callable[..., Array], PyTree]:
    """The network on one row as a function of the Bayesian weights, and those weights."""
    has_posterior = jax.tree.map(
        lambda leaf: leaf is not None, params["network"], is_leaf=lambda leaf: leaf is None
    )
    weights, frozen = eqx.partition(target.weights(params), has_posterior)
    return lambda w, row: target.row_outputs(eqx.combine(w, frozen), row, key), weights


def _outputs_and_pull(
    target: Target, params: PyTree, x: PyTree
) -> tuple[Array, Callable[..., tuple[PyTree, PyTree]]]:
    """Outputs, and `pull(d, scale)`: the sums of J_i^T d_i and of scale_i (J_i^T d_i)^2."""
    with precision.network_precision(target.dtype):
        function, weights = row_function(target, params)
        outputs, network_pull = per_example.outputs_and_pull(function, weights, x)

    def pull(d: Array, scale: Array | None = None) -> tuple[PyTree, PyTree]:
        with precision.network_precision(target.dtype):
            found = network_pull(d.astype(outputs.dtype), scale)
        gradient, squares = (tree.cast_like(part, params["network"]) for part in found)
        return gradient, squares

    return outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32)), pull


def _moments(
    target: Target,
    params: PyTree,
    batch: Batch,
    outputs: Array,
    pull: Callable[..., tuple[PyTree, PyTree]],
) -> tuple[Array, PyTree, PyTree]:
    """`moments`, from outputs and `pull`."""
    values, (d, own) = jax.vmap(
        jax.value_and_grad(target.likelihood.log_prob, argnums=(0, 2)), (0, 0, None)
    )(outputs, batch.y, params["likelihood"])
    values, scale = values.astype(jnp.float64), None
    own_squares = jax.tree.map(jnp.square, own)
    if batch.weight is not None:
        weight, counts = batch.weight, batch.weight > 0
        values = weight * jnp.where(counts, values, 0.0)
        d = (weight[:, None] * jnp.where(counts[:, None], d, 0.0)).astype(d.dtype)
        scale = jnp.where(counts, 1.0 / jnp.where(counts, weight, 1.0), 0.0)

        def weighted(g: Array) -> Array:
            column = weight.reshape(-1, *[1] * (g.ndim - 1))
            return (column * jnp.where(column > 0, g, 0.0)).astype(g.dtype)

        own, own_squares = jax.tree.map(weighted, (own, own_squares))
    own, own_squares = jax.tree.map(lambda g: jnp.sum(g, axis=0), (own, own_squares))
    gradient, squares = pull(d, scale)
    return (
        jnp.sum(values),
        tree.cast_like({"network": gradient, "likelihood": own}, params),
        tree.cast_like({"network": squares, "likelihood": own_squares}, params),
    )


def _scaled(target: Target, batch: Batch, summed: PyTree) -> PyTree:
    """Sums over a batch as estimates for the whole data set."""
    scale = target.scale(batch)
    return jax.tree.map(lambda leaf: leaf * scale.astype(leaf.dtype), summed)


def _plus_prior(target: Target, params: PyTree, curvature: PyTree) -> PyTree:
    """The curvature plus the prior's precision."""
    if target.prior is None:
        return curvature
    return jax.tree.map(jnp.add, target.prior.broadcast(params)[1], curvature)


def hessian_diagonal(function: Callable[[PyTree], Array], params: PyTree) -> PyTree:
    """Exact diagonal of the Hessian, one Hessian-vector product per weight."""
    unravel = tree.unraveler(params)
    vector = tree.ravel(params)
    gradient = jax.grad(lambda v: function(unravel(v)))

    def entry(i: Array) -> Array:
        direction = jnp.zeros_like(vector).at[i].set(1.0)
        return jax.jvp(gradient, (vector,), (direction,))[1][i]

    return unravel(jax.lax.map(entry, jnp.arange(vector.size)))


def hutchinson_diagonal(
    key: Array, function: Callable[[PyTree], Array], params: PyTree, num: int = 64
) -> PyTree:
    """Diagonal of the Hessian by random signs: E[z * (H z)]."""
    gradient = jax.grad(function)
    unravel = tree.unraveler(params)
    dtype = jnp.result_type(*jax.tree.leaves(params))

    def one(k: Array) -> PyTree:
        z = unravel(jax.random.rademacher(k, (tree.size(params),), dtype))
        product = jax.jvp(gradient, (params,), (z,))[1]
        return jax.tree.map(jnp.multiply, z, product)

    return jax.tree.map(lambda d: jnp.mean(d, 0), jax.lax.map(one, jax.random.split(key, num)))


def starting_prec(
    key: Array, target: Target, params: PyTree, batch: Batch | None, flat: float = FLAT
) -> PyTree:
    """A positive precision for each weight at `params`: prior precision plus curvature.

    Curvatures of a bare density below `flat` become one.
    """
    if target.is_density:
        kind = "hessian" if tree.size(params) <= MAX_EXACT else "hutchinson"
        found = diagonal(key, target, params, batch, kind)
        return jax.tree.map(partial(make_positive, flat=flat), found)
    assert batch is not None
    rows = jax.tree.map(lambda leaf: leaf[:MAX_ROWS], batch)
    return diagonal(key, target, params, rows, "fisher")


def starting_blocks(
    key: Array,
    target: Target,
    params: PyTree,
    batch: Batch | None,
    groups: Groups,
) -> tuple[Array, ...]:
    """A positive definite precision of each block at `params`: the Laplace approximation."""
    if target.is_density:
        found = blocks(key, target, params, batch, groups, "hessian")
        return tuple(make_positive_definite(matrix)[0] for matrix in found)
    assert batch is not None
    rows = jax.tree.map(lambda leaf: leaf[:MAX_ROWS], batch)
    return blocks(key, target, params, rows, groups, "gauss-newton")
