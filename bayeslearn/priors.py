"""Priors over the weights of a network.

A prior is written by a person (`Normal(scale=1.0)`) and bound to a network's parameters
(`bind(params)`), which gives mean and precision of every weight.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import tree
from bayeslearn.errors import Shown, refuse
from bayeslearn.tree import Array, PyTree


class GaussianPrior(eqx.Module):
    """Independent Gaussians over every weight: a mean and a precision for each leaf.

    Leaves are numbers or arrays that broadcast to the leaf they speak of.
    """

    mean: PyTree
    prec: PyTree

    def log_prob_terms(self, params: PyTree) -> PyTree:
        """The normalised log-density of each leaf."""

        def term(w: Array, mean: Array, prec: Array) -> Array:
            mean, prec = jnp.asarray(mean, w.dtype), jnp.asarray(prec, w.dtype)
            normaliser = jnp.broadcast_to(0.5 * jnp.log(prec / (2 * jnp.pi)), w.shape)
            return jnp.sum(normaliser - 0.5 * prec * (w - mean) ** 2, dtype=jnp.float64)

        return jax.tree.map(term, params, self.mean, self.prec)

    def log_prob(self, params: PyTree) -> Array:
        return tree.total(self.log_prob_terms(params))

    def broadcast(self, params: PyTree) -> tuple[PyTree, PyTree]:
        """Mean and precision with the shape and dtype of each leaf of `params`."""

        def like(values: PyTree) -> PyTree:
            return jax.tree.map(
                lambda w, v: jnp.broadcast_to(jnp.asarray(v, w.dtype), w.shape), params, values
            )

        return like(self.mean), like(self.prec)


class Normal(eqx.Module):
    """A Gaussian prior; `scale` is a standard deviation.

    Both arguments take a number (all weights alike), a mapping from name patterns to numbers
    (`{"layers.0.*": 0.5, "*.bias": 10.0, "*": 1.0}`, the first match counts), or a pytree with
    the structure of the network's parameters.
    """

    mean: Any = 0.0
    scale: Any = 1.0

    def __check_init__(self) -> None:
        for name in ("mean", "scale"):
            numbers = jax.tree.leaves(getattr(self, name))
            if not numbers:
                refuse(name, getattr(self, name), "hold at least one number")
            for number in numbers:
                if not np.issubdtype(np.asarray(number).dtype, np.number):
                    refuse(name, number, "be a number, a mapping of name patterns, or a pytree")
                if not np.all(np.isfinite(number)):
                    refuse(name, number, "be finite")
                if name == "scale" and not np.all(np.asarray(number) > 0):
                    refuse(
                        name, number, "be positive", "It is a standard deviation, e.g. scale=1.0."
                    )

    def bind(self, params: PyTree) -> GaussianPrior:
        scale = _spread(self.scale, params, "scale")
        return GaussianPrior(
            _spread(self.mean, params, "mean"), jax.tree.map(lambda s: 1.0 / s**2, scale)
        )


def _spread(value: Any, params: PyTree, argument: str) -> PyTree:
    """One number or array for each leaf of `params`."""
    leaves, treedef = jax.tree.flatten(params)
    names = tree.leaf_names(params)
    structure: Any = jax.tree.structure(value)
    if structure == jax.tree.structure(0.0):
        found = [value] * len(leaves)
    elif structure == treedef:
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


def _first_match(name: str, patterns: Mapping[str, Any], argument: str, names: list[str]) -> Any:
    for pattern, number in patterns.items():
        if fnmatch.fnmatchcase(name, pattern):
            return number
    refuse(
        argument,
        Shown(f"patterns {list(patterns)}, none of which names {name!r}"),
        "cover every leaf of the network",
        f'Add "*" as the last pattern; the leaves are {names}.',
    )
