"""Structural types: networks, and approximations q of a posterior.

A user's own network or q need not inherit from anything, it only has these methods.
`families.base` has the base classes of our own families.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from bayeslearn.tree import Array, PyTree


class Network(Protocol):
    """A function of one example with parameters in a pytree."""

    def init(self, key: Array, x_example: PyTree, num_outputs: int) -> PyTree:
        """Initial parameters."""
        ...

    def apply(self, params: PyTree, x: PyTree, key: Array | None = None) -> Array:
        """Outputs for one example."""
        ...


@runtime_checkable
class WithRows(Protocol):
    """A network with a faster way to evaluate many examples."""

    def apply_rows(self, params: PyTree, x: Array) -> Array:
        """Outputs for all rows of x."""
        ...


class Approximation(Protocol):
    """A distribution q over parameters."""

    @property
    def mean(self) -> PyTree:
        """Mean of each weight."""
        ...

    @property
    def std(self) -> PyTree:
        """Standard deviation of each weight."""
        ...

    def sample(self, key: Array, num: int) -> PyTree:
        """`num` draws along a leading axis."""
        ...


@runtime_checkable
class WithDensity(Protocol):
    """A q with a density; a point has none."""

    def log_prob(self, params: PyTree) -> Array:
        """Log-density at one set of parameters."""
        ...


class SampledDensity(Protocol):
    """A user's own q: a pytree of trainable arrays with draws and a density."""

    def sample(self, key: Array, num: int) -> PyTree:
        """`num` draws along a leading axis, differentiable in the arrays."""
        ...

    def log_prob(self, params: PyTree) -> Array:
        """Log-density at one set of parameters."""
        ...


@runtime_checkable
class Reparametrised(Protocol):
    """A q whose draws are a function of standard normal noise."""

    def transform(self, noise: PyTree) -> PyTree:
        """The draw for this noise."""
        ...
