"""Shared parts of the adapters: static values, batches of one, names, arguments for the mode."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.tree import Array, PyTree


class Static:
    """A static value, compared by value if it has a hash, else by identity."""

    def __init__(self, value: PyTree):
        self.value = value
        self.identity: object
        try:
            hash(value)
            self.identity = value
        except TypeError:
            self.identity = id(value)

    def __hash__(self) -> int:
        return hash(self.identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self.identity == other.identity


def as_batch(x: PyTree) -> PyTree:
    """One example as a batch of one."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], x)


def by_name(statistics: PyTree) -> dict[str, Array]:
    """Leaves by their dotted names."""
    leaves = jax.tree.leaves(statistics)
    return dict(zip(tree.leaf_names(statistics), leaves, strict=True)) if leaves else {}


def replace_named(values: PyTree, new: Mapping[str, Array]) -> PyTree:
    """The tree with other leaves of these names."""
    leaves, structure = jax.tree.flatten(values)
    names = tree.leaf_names(values)
    found = [new.get(name, leaf) for name, leaf in zip(names, leaves, strict=True)]
    return jax.tree.unflatten(structure, found)


def mode_flags(module: PyTree, training: bool = False) -> dict[str, bool]:
    """Those of the usual arguments for the mode that the module's call takes."""
    flags = {
        "train": training,
        "training": training,
        "is_training": training,
        "deterministic": not training,
        "use_running_average": not training,
    }
    takes = inspect.signature(module.__call__).parameters
    return {name: value for name, value in flags.items() if name in takes}
