"""A point mass: the plain network."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.families.base import Family
from bayeslearn.precision import double_precision
from bayeslearn.tree import Array, PyTree


class Point(Family):
    """A point mass at one set of weights. It has no density, entropy or KL."""

    mean: PyTree

    @double_precision
    def mean_vector(self) -> Array:
        """The weights as one vector (k,)."""
        return tree.ravel(self.mean)

    @double_precision
    def sample(self, key: Array, num: int) -> PyTree:
        """`num` copies along a leading axis."""
        return jax.tree.map(lambda w: jnp.broadcast_to(w, (num, *w.shape)), self.mean)

    @property
    def std(self) -> PyTree:
        """Zero for each weight."""
        return jax.tree.map(jnp.zeros_like, self.mean)
