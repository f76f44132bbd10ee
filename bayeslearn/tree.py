"""Small tools on pytrees of parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.typing import DTypeLike

from bayeslearn.errors import ArgumentError

PyTree = Any  # nested containers with arrays as leaves
Array = jax.Array
Groups = tuple[tuple[int, ...], ...]  # of leaves, by position
LARGE_NETWORK = 10_000  # weights, above which defaults are those of large networks


def leaf_names(params: PyTree) -> list[str]:
    """Dotted names of the leaves in their order: `network.layers.0.weight`."""
    paths, _ = jax.tree_util.tree_flatten_with_path(params)
    return [".".join(_step_name(step) for step in path) or "params" for path, _ in paths]


def _step_name(step: object) -> str:
    """One step of a path: a key of a mapping, an index, or the name of an attribute."""
    for attribute in ("key", "idx", "name"):
        if hasattr(step, attribute):
            return str(getattr(step, attribute))
    return str(step)


def has_structure(values: PyTree, like: PyTree) -> bool:
    """Whether two trees have the same structure; their leaves may differ in shape."""
    return bool(jax.tree.structure(values) == jax.tree.structure(like))  # type: ignore[operator]


def flatten_up_to(like: PyTree, values: PyTree) -> list[PyTree]:
    """The subtrees of `values` at the leaves of `like`."""
    return jax.tree.structure(like).flatten_up_to(values)  # type: ignore[attr-defined]


def size(params: PyTree) -> int:
    """Number of weights (works on shapes, so also on tracers)."""
    return sum(math.prod(jnp.shape(leaf)) for leaf in jax.tree.leaves(params))


def cast(params: PyTree, dtype: DTypeLike) -> PyTree:
    """Leaves in the dtype."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), params)


def cast_like(params: PyTree, like: PyTree) -> PyTree:
    """Leaves in the dtypes of `like`, a tree of the same structure."""
    return jax.tree.map(lambda p, s: jnp.asarray(p, s.dtype), params, like)


def double(params: PyTree) -> PyTree:
    """Leaves in float64."""
    return cast(params, jnp.float64)


def normal_like(key: Array, params: PyTree, num: int | None = None) -> PyTree:
    """Standard normal noise of the shape and dtype of `params`, with a leading axis if `num`.

    One call for all leaves: a generator per leaf would double the time to compile.
    """
    lead = () if num is None else (num,)
    dtype = jnp.result_type(*jax.tree.leaves(params))
    noise = jax.random.normal(key, (*lead, size(params)), dtype)
    unravel = unraveler(params)
    noise = unravel(noise) if num is None else jax.vmap(unravel)(noise)
    return jax.tree.map(lambda e, w: e.astype(w.dtype), noise, params)


def total(values: PyTree) -> Array:
    """Sum of all elements of all leaves, in double precision."""
    sums = [jnp.sum(leaf, dtype=jnp.float64) for leaf in jax.tree.leaves(values)]
    return sum(sums, start=jnp.zeros((), jnp.float64))


def is_finite(values: np.ndarray) -> bool:
    """Whether an array on the host is finite; a finite sum has finite terms."""
    if values.dtype.kind not in "fc":
        return True
    with np.errstate(all="ignore"):
        # einsum's sum is three times as fast as np.sum's, which sums pairwise for accuracy.
        total = np.einsum(values, list(range(values.ndim)), [])
        return bool(np.isfinite(total) or np.all(np.isfinite(values)))


def all_finite(values: PyTree) -> Array:
    """Whether all floating-point leaves are finite."""
    checks = [
        jnp.all(jnp.isfinite(leaf))
        for leaf in jax.tree.leaves(values)
        if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
    ]
    return jnp.all(jnp.stack(checks)) if checks else jnp.asarray(True)


all_finite_compiled = jax.jit(all_finite)  # outside of compiled functions: one program for all


def where(condition: Array, new: PyTree, old: PyTree) -> PyTree:
    """`new` if the scalar condition is true, else `old`, leaf by leaf."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)


def select(params: PyTree, chosen: tuple[bool, ...]) -> PyTree:
    """The tree with the chosen leaves, and None in place of the others."""
    leaves, treedef = jax.tree.flatten(params)
    selected = [leaf if is_chosen else None for leaf, is_chosen in zip(leaves, chosen, strict=True)]
    return jax.tree.unflatten(treedef, selected)


def microbatches(rows: PyTree, size: int | None) -> PyTree | None:
    """Rows (n, ...) as (n / size, size, ...); None if they are not to be split, or cannot be.

    A microbatch has every (n / size)-th row, so that sharded rows stay on their devices.
    """
    num = len(jax.tree.leaves(rows)[0])
    if size is None or num <= size or num % size:
        return None
    return jax.tree.map(
        lambda a: jnp.moveaxis(a.reshape(size, num // size, *a.shape[1:]), 1, 0), rows
    )


def ravel(params: PyTree) -> Array:
    """All weights as one vector."""
    return ravel_pytree(params)[0]


def unraveler(params: PyTree) -> Callable[[Array], PyTree]:
    """The inverse of `ravel` for trees like `params`, in the vector's dtype."""
    leaves, treedef = jax.tree.flatten(params)
    shapes = [jnp.shape(leaf) for leaf in leaves]
    ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1].tolist()

    def unravel(vector: Array) -> PyTree:
        parts = [p.reshape(s) for p, s in zip(jnp.split(vector, ends), shapes, strict=True)]
        return jax.tree.unflatten(treedef, parts)

    return unravel


def check_dense(num_weights: int, family_that_fits: str, limit_gb: float = 4.0) -> None:
    """Refuse a k x k matrix that would not fit, before it is allocated."""
    gigabytes = 8e-9 * num_weights**2
    if gigabytes > limit_gb:
        raise ArgumentError(
            f"A {num_weights} x {num_weights} matrix takes {gigabytes:.1f} GB, more than the"
            f" {limit_gb:g} GB allowed. Use {family_that_fits} instead."
        )
