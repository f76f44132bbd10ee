"""Averages over the draws of one step: batched (`vmap`), or sequential (`scan`).

The results are equal up to rounding. Batched, small operations are combined, and a result is stored
for each draw; sequentially, only one is stored. Which is faster depends on the work per draw
(`is_batched`).
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.data.rows import Batch
from bayeslearn.models.target import Target
from bayeslearn.tree import PyTree

# Weights times rows of a draw, up to which draws are batched: below it a device is not saturated.
# On two cores both cost the same there; at 4e5 batched draws take 1.2 to 1.4 times as long.
MAX_BATCHED = {"cpu": 5e4}
DEFAULT_MAX_BATCHED = 1e10


def is_batched(num_weights: int, num_rows: int) -> bool:
    """Whether draws of a network of this size are batched on the default device."""
    limit = MAX_BATCHED.get(jax.default_backend(), DEFAULT_MAX_BATCHED)
    return num_weights * num_rows <= limit


def mean_over_draws(
    function: Callable[..., PyTree],
    target: Target,
    batch: Batch | None,
    params: PyTree,
    *seeds: PyTree,
) -> PyTree:
    """The mean of `function(*seeds[i])`; `seeds` are trees with a leading axis of draws."""
    num_draws = len(jax.tree.leaves(seeds)[0])
    if num_draws == 1:  # without an axis of length one, which costs copies
        return function(*jax.tree.map(lambda leaf: leaf[0], seeds))
    rows = target.data if batch is None else batch
    if is_batched(tree.size(params), 1 if rows is None else len(rows.y)):
        values = jax.vmap(function)(*seeds)
        return jax.tree.map(lambda v: jnp.mean(v, axis=0), values)

    def add(sums: PyTree, seed: tuple[PyTree, ...]) -> tuple[PyTree, None]:
        return jax.tree.map(jnp.add, sums, function(*seed)), None

    shapes = jax.eval_shape(function, *jax.tree.map(lambda leaf: leaf[0], seeds))
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    sums, _ = jax.lax.scan(add, zeros, seeds)
    return jax.tree.map(lambda v: v / num_draws, sums)
