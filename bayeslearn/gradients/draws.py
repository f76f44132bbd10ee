"""Averages over the draws of one step: all draws at once, or one after the other.

The numbers are the same to rounding. At once, a step's small operations are shared by the draws,
and a result is stored for each; one after the other, matrix products stay plain ones and one
result is stored. What is faster turns on how much work a draw is (`is_batched`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.data.rows import Batch
from bayeslearn.models.target import Target
from bayeslearn.tree import PyTree

# Weights times rows of a draw, up to which draws are taken at once: below it a device is not full.
# On two cores the two cost the same there; at 4e5 at once takes 1.2 to 1.4 times as long.
MOST_BATCHED = {"cpu": 5e4}
DEFAULT_MOST_BATCHED = 1e10


def is_batched(num_weights: int, num_rows: int) -> bool:
    """Whether draws of a network of this size are taken at once on the default device."""
    limit = MOST_BATCHED.get(jax.default_backend(), DEFAULT_MOST_BATCHED)
    return num_weights * num_rows <= limit


def mean_over_draws(
    function: Callable[..., PyTree],
    target: Target,
    batch: Batch | None,
    params: PyTree,
    *seeds: Any,
) -> PyTree:
    """The mean of `function(*seeds[i])`, `seeds` trees with an axis of draws in front."""
    num_draws = len(jax.tree.leaves(seeds)[0])
    if num_draws == 1:  # without an axis of one, which costs copies
        return function(*jax.tree.map(lambda leaf: leaf[0], seeds))
    rows = target.data if batch is None else batch
    if is_batched(tree.size(params), 1 if rows is None else len(rows.y)):
        told = jax.vmap(function)(*seeds)
        return jax.tree.map(lambda v: jnp.mean(v, axis=0), told)

    def add(sums: PyTree, seed: tuple[Any, ...]) -> tuple[PyTree, None]:
        return jax.tree.map(jnp.add, sums, function(*seed)), None

    shapes = jax.eval_shape(function, *jax.tree.map(lambda leaf: leaf[0], seeds))
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    sums, _ = jax.lax.scan(add, zeros, seeds)
    return jax.tree.map(lambda v: v / num_draws, sums)
