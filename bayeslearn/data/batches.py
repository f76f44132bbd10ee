"""Minibatches of rows that are in memory."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn.data.rows import Batch, weights_of
from bayeslearn.data.sources.base import AUTO_BATCH
from bayeslearn.tree import Array, PyTree

FULL_BATCH_ROWS = 2048  # up to here "auto" uses all rows in every step


def auto_batch_size(num_rows: int) -> int:
    """All rows of a small data set, else AUTO_BATCH."""
    return num_rows if num_rows <= FULL_BATCH_ROWS else AUTO_BATCH


def permutation(key: Array, epoch: Array, num_rows: int) -> Array:
    """The order of the rows in one epoch, a function of key and epoch alone."""
    return jax.random.permutation(jax.random.fold_in(key, epoch), num_rows)


def take(data: Batch, order: Array, position: Array, batch_size: int) -> Batch:
    """Batch number `position` of an epoch; the last one may be partly padding (weight 0)."""
    num_rows = len(data.y)
    num_batches = math.ceil(num_rows / batch_size)
    padding = num_batches * batch_size - num_rows
    start = position * batch_size
    rows = jax.lax.dynamic_slice(jnp.pad(order, (0, padding)), (start,), (batch_size,))
    weight = None
    if padding:
        weight = (start + jnp.arange(batch_size) < num_rows).astype(jnp.float64)
    if data.weight is not None:
        chosen = data.weight[rows]
        weight = chosen if weight is None else chosen * weight
    x, y = jax.tree.map(lambda leaf: leaf[rows], (data.x, data.y))
    return Batch(x, y, weight)


def sample_rows(data: Batch, most: int) -> Batch:
    """At most `most` rows, evenly spaced: what the lower bound is measured on."""
    rows = len(data.y)
    if rows <= most:
        return data
    chosen = np.linspace(0, rows - 1, most).round().astype(np.int32)
    return _picked(data, chosen)


def pick(leaf: PyTree, rows: np.ndarray) -> PyTree:
    """Some rows of every array of a tree."""
    return jax.tree.map(lambda a: a[rows], leaf)


_picked = jax.jit(pick)  # one program for all arrays


@partial(jax.jit, static_argnums=1)
def first_rows(rows: PyTree, number: int) -> PyTree:
    """The first rows of every array of a tree."""
    return jax.tree.map(lambda leaf: leaf[:number], rows)


def in_chunks(data: Batch, size: int) -> Batch:
    """The rows as (chunks, size, ...), with weights; the last is padded with weight 0."""
    rows = len(data.y)
    num = -(-rows // size)
    padding = num * size - rows

    def split(leaf: Array) -> Array:
        filled = jnp.pad(leaf, [(0, padding), *[(0, 0)] * (leaf.ndim - 1)], mode="edge")
        return filled.reshape(num, size, *leaf.shape[1:])

    x, y = jax.tree.map(split, (data.x, data.y))
    weight = jnp.pad(weights_of(data).astype(jnp.float64), (0, padding))
    return Batch(x, y, weight.reshape(num, size))
