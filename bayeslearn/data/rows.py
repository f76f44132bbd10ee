"""Rows of data: x, y and weights, checked."""

from __future__ import annotations

import numbers
from typing import Any, NamedTuple

import jax
import numpy as np

from bayeslearn import tree
from bayeslearn.errors import Shown, refuse
from bayeslearn.tree import Array, PyTree

Data = tuple[PyTree, Any] | tuple[PyTree, Any, Any]  # (x, y), or (x, y, weight)


class Batch(NamedTuple):
    """Some rows of the data. `weight` says how often each counts; None: once. Padding has 0."""

    x: PyTree
    y: Array
    weight: Array | None = None


def check_data(data: Any, name: str = "data") -> tuple[PyTree, np.ndarray, np.ndarray | None]:
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


def check_weight(weight: Any, rows: int) -> np.ndarray:
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


def check_inputs(x: Any) -> PyTree:
    """Inputs as arrays with one leading axis of rows; NaN, text and ragged rows are refused."""
    if hasattr(x, "to_numpy") and not isinstance(x, np.ndarray):
        x = x.to_numpy()
        # A frame of numbers beside flags comes as objects.
        if x.dtype == object and all(isinstance(value, numbers.Real) for value in x.flat):
            x = x.astype(np.float64)
    elif isinstance(x, list | tuple):
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
