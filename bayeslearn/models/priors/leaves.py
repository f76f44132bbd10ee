"""Numbers for each leaf of a network's parameters."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import tree
from bayeslearn.errors import Shown, refuse
from bayeslearn.tree import PyTree


def broadcast_like(values: PyTree, params: PyTree) -> PyTree:
    """`values` with the shape and dtype of each leaf of `params`."""
    return jax.tree.map(
        lambda w, v: jnp.broadcast_to(jnp.asarray(v, w.dtype), w.shape), params, values
    )


def per_leaf(value: PyTree, params: PyTree, argument: str) -> PyTree:
    """A number, name patterns or a pytree as one float64 array for each leaf of `params`."""
    leaves, treedef = jax.tree.flatten(params)
    names = tree.leaf_names(params)
    if tree.has_structure(value, 0.0):
        found = [value] * len(leaves)
    elif tree.has_structure(value, params):
        found = jax.tree.leaves(value)
    elif isinstance(value, Mapping) and all(isinstance(pattern, str) for pattern in value):
        found = [_first_match(name, value, argument, names) for name in names]
    else:
        refuse(
            argument,
            Shown(f"a tree {jax.tree.structure(value)}"),
            f"be a number, a mapping of name patterns, or a tree like the parameters ({treedef})",
        )
    for name, leaf, number in zip(names, leaves, found, strict=True):
        try:
            fits = np.broadcast_shapes(np.shape(number), leaf.shape) == leaf.shape
        except ValueError:
            fits = False
        if not fits:
            refuse(argument, Shown(f"shape {np.shape(number)} for {name}"), f"fit {leaf.shape}")
    return jax.tree.unflatten(treedef, [jnp.asarray(number, jnp.float64) for number in found])


def _first_match(
    name: str, patterns: Mapping[str, PyTree], argument: str, names: list[str]
) -> PyTree:
    """The value of the first pattern that matches the name."""
    for pattern, number in patterns.items():
        if fnmatch.fnmatchcase(name, pattern):
            return number
    refuse(
        argument,
        Shown(f"patterns {list(patterns)}, none of which names {name!r}"),
        "cover every leaf of the network",
        f'Add "*" as the last pattern; the leaves are {names}.',
    )
