"""Rows of data: x, y and weights, checked; merged and padded, and back.

A row's weight multiplies its log-likelihood: a weight of 2 is the row twice, a weight of 0 a row
that is not there. Padding exists in this module and in compiled programs only: whatever comes after
a run gets the rows as they were given.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from typing import NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from bayeslearn import tree
from bayeslearn.errors import Shown, refuse
from bayeslearn.tree import Array, PyTree

# (x, y), or (x, y, weight)
Data = tuple[PyTree, ArrayLike] | tuple[PyTree, ArrayLike, ArrayLike | None]
Batches = Iterable[PyTree]  # of pairs (x, y)


class Batch(NamedTuple):
    """Some rows of the data. `weight` says how often each counts; None: once. Padding has 0."""

    x: PyTree
    y: Array
    weight: Array | None = None


def weights_of(rows: Batch) -> Array:
    """The weight of each row; 1 by default."""
    return jnp.ones(len(rows.y), jnp.float64) if rows.weight is None else rows.weight


def join_batches(first: Batch, second: Batch) -> Batch:
    """The rows of both; they have weights where either has."""
    if first.weight is not None or second.weight is not None:
        first, second = (rows._replace(weight=weights_of(rows)) for rows in (first, second))
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), first, second)


def check_data(data: object, name: str = "data") -> tuple[PyTree, np.ndarray, np.ndarray | None]:
    """x, y and weights as arrays with as many rows, all finite; refused otherwise.

    Weights are None where `data` is a pair (x, y).
    """
    if not isinstance(data, tuple | list) or len(data) not in (2, 3):
        refuse(name, Shown(f"a {type(data).__name__}"), "be (x, y) or (x, y, weight)")
    x = check_inputs(data[0])
    try:
        y = np.asarray(data[1])
    except ValueError:
        refuse("y", Shown("rows of unequal lengths"), "be (rows,) or (rows, columns)")
    rows = len(jax.tree.leaves(x)[0])
    if y.ndim == 0 or len(y) != rows:
        refuse(
            "y",
            Shown(f"{len(y) if y.ndim else 'a single number'}"),
            f"have as many rows as x ({rows})",
        )
    weight = data[2] if len(data) == 3 else None
    return x, y, None if weight is None else check_weight(weight, rows)


def check_weight(weight: ArrayLike, rows: int) -> np.ndarray:
    """One finite number from 0 on for each row, at least one of them positive."""
    must = f"hold one number from 0 on for each of the {rows} rows, not all of them 0"
    try:
        weight = np.asarray(weight, np.float64)
    except (TypeError, ValueError):
        refuse("weight", weight, must)
    is_good = weight.shape == (rows,) and np.all(np.isfinite(weight)) and np.all(weight >= 0)
    if not is_good or not np.any(weight > 0):
        refuse("weight", weight, must)
    return weight


def total_weight(y: np.ndarray, weight: np.ndarray | None) -> float:
    """How many observations the rows stand for."""
    return float(len(y)) if weight is None else float(np.sum(weight))


def is_arrays(data: object) -> TypeGuard[Data]:
    """Whether data are arrays (x, y) or (x, y, weight), and not an iterable of batches.

    A tuple always is; a list is where its entries are not tuples themselves.
    """
    if not isinstance(data, tuple | list) or len(data) not in (2, 3):
        return False
    return isinstance(data, tuple) or not any(isinstance(part, tuple) for part in data)


def _is_tree_of_arrays(x: list[PyTree] | tuple[PyTree, ...]) -> bool:
    """Whether a tuple is a pytree of inputs, each with rows, and not a table of numbers."""
    leaves = jax.tree.leaves(x)
    return isinstance(x, tuple) and bool(leaves) and all(np.ndim(leaf) > 0 for leaf in leaves)


def check_inputs(x: PyTree) -> PyTree:
    """Inputs as arrays with one leading axis of rows; NaN, text and ragged rows are refused."""
    if hasattr(x, "to_numpy") and not isinstance(x, np.ndarray):
        x = x.to_numpy()
        # A frame of numbers beside flags comes as objects.
        if x.dtype == object and all(isinstance(value, numbers.Real) for value in x.flat):
            x = x.astype(np.float64)
    elif isinstance(x, list | tuple) and not _is_tree_of_arrays(x):
        try:
            x = np.asarray(x)
        except ValueError:
            refuse("x", Shown("rows of unequal lengths"), "be a rectangular table")
    x = jax.tree.map(np.asarray, x)
    leaves = jax.tree.leaves(x)
    names = [f"x.{n}" if len(leaves) > 1 else "x" for n in tree.leaf_names(x)]
    if not leaves:
        refuse("x", x, "hold at least one array")
    for name, leaf in zip(names, leaves, strict=True):
        if leaf.dtype.kind not in "iufb":
            refuse(
                name,
                Shown(f"dtype {leaf.dtype}"),
                "hold numbers",
                "Encode text columns as numbers first.",
            )
        if leaf.ndim == 0 or len(leaf) == 0:
            refuse(name, Shown(f"shape {leaf.shape}"), "have at least one row")
        if len(leaf) != len(leaves[0]):
            refuse(name, Shown(f"{len(leaf)} rows"), f"have {len(leaves[0])} rows like {names[0]}")
        if not tree.is_finite(leaf):
            rows = np.unique(np.argwhere(~np.isfinite(leaf))[:, 0])
            refuse(
                name,
                Shown(f"NaN or infinity in {len(rows)} row(s), the first being row {rows[0]}"),
                "be finite",
                "Drop or fill those rows.",
            )
    return x


MAX_MERGED = 2048
PIECES = 8  # at most, of a merged row that may be held out in part
MIN_PADDED = 16  # rows are padded to multiples of this, and of about an eighth of their number


class Rows(NamedTuple):
    """Rows on the host; every row has a weight."""

    x: PyTree
    y: np.ndarray
    weight: np.ndarray

    def take(self, index: np.ndarray | slice) -> Rows:
        """Some of the rows."""
        x = jax.tree.map(lambda leaf: leaf[index], self.x)
        return Rows(x, self.y[index], self.weight[index])


def merge_rows(data: Data, seed: int) -> Rows:
    """Rows that count, equal ones merged and their weights added, in an order drawn from the seed.

    The result depends on neither the order of rows nor on whether one is repeated or weighted. More
    than MAX_MERGED rows are only put in order.

    Where x holds a few values only, the same x is found with several y. Such rows stay in up to
    PIECES parts: who holds out rows would otherwise hold out all that was seen of a y at that x.
    """
    x, y, weight = check_data(data)
    weight = np.ones(len(y)) if weight is None else weight
    rows = Rows(x, y, weight).take(weight > 0)
    order = np.random.default_rng(seed)
    if len(rows.y) > MAX_MERGED:
        return rows.take(order.permutation(len(rows.y)))
    leaves = [leaf.reshape(len(rows.y), -1) for leaf in (*jax.tree.leaves(rows.x), rows.y)]
    table = np.concatenate([leaf.astype(np.float64) for leaf in leaves], axis=1)
    _, first, where = np.unique(table, axis=0, return_index=True, return_inverse=True)
    merged = rows.take(first)
    merged = merged._replace(weight=np.bincount(where.reshape(-1), rows.weight, len(first)))
    num_inputs = sum(leaf.shape[1] for leaf in leaves[:-1])
    merged = _in_pieces(merged, table[first, :num_inputs])
    return merged.take(order.permutation(len(merged.y)))


def _in_pieces(rows: Rows, inputs: np.ndarray) -> Rows:
    """Merged rows whose inputs occur in several of them, as several rows of equal shares."""
    _, where, counts = np.unique(inputs, axis=0, return_inverse=True, return_counts=True)
    is_shared = counts[where.reshape(-1)] > 1
    copies = np.floor(np.minimum(rows.weight, 1e9)).astype(int)
    pieces = np.where(is_shared, np.clip(copies, 1, PIECES), 1)
    if np.all(pieces == 1):
        return rows
    parts = rows.take(np.repeat(np.arange(len(pieces)), pieces))
    number = np.repeat(pieces, pieces)
    place = np.arange(len(number)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    whole = np.maximum(np.repeat(copies, pieces), 1)
    share = (whole // number + (place < whole % number)) / whole
    return parts._replace(weight=np.where(number > 1, parts.weight * share, parts.weight))


def pad_rows(rows: Rows) -> Rows:
    """Rows of weight 0 at the end, up to one of few sizes, so that few programs are compiled."""
    number = len(rows.y)
    step = max(MIN_PADDED, 2 ** (max(number - 1, 1).bit_length() - 3))
    missing = -number % step

    def filled(leaf: np.ndarray) -> np.ndarray:
        return np.concatenate([leaf, np.repeat(leaf[-1:], missing, axis=0)])

    x, y = jax.tree.map(filled, (rows.x, rows.y))
    return Rows(x, y, np.concatenate([rows.weight, np.zeros(missing)]))
