"""A user's own network, brought into the form `init`, `apply`: one small class per framework."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx

from bayeslearn.errors import Shown, refuse
from bayeslearn.tree import Array, PyTree


class EquinoxNetwork(eqx.Module):
    """Any Equinox module that maps one example to outputs. Its weights are the starting point."""

    weights: PyTree
    rest: PyTree
    takes_key: bool = eqx.field(static=True)

    def __init__(self, module: Any):
        self.weights, rest = eqx.partition(module, eqx.is_inexact_array)
        self.rest = _Opaque(rest)
        self.takes_key = _takes_key(module.__call__)

    def init(self, key: Array, x_example: PyTree, num_outputs: int) -> PyTree:
        return self.weights

    def apply(self, params: PyTree, x: Array, key: Array | None = None) -> Array:
        module = eqx.combine(params, self.rest.value)
        if key is None:
            module = eqx.nn.inference_mode(module)  # dropout without a key would fail
        return module(x, key=key) if self.takes_key else module(x)


class _Opaque(eqx.Module):
    """What is not a weight: arrays stay leaves, functions and flags become static."""

    arrays: PyTree
    static: Any = eqx.field(static=True)

    def __init__(self, rest: PyTree):
        self.arrays, self.static = eqx.partition(rest, eqx.is_array)

    @property
    def value(self) -> PyTree:
        return eqx.combine(self.arrays, self.static)


class FunctionNetwork(eqx.Module):
    """A pair of functions: `init(key, x_example, num_outputs)` and `apply(params, x, key=None)`.

    `init` may take fewer arguments, from the left; `apply` may leave out `key`.
    """

    init_function: Callable[..., PyTree] = eqx.field(static=True)
    apply_function: Callable[..., Array] = eqx.field(static=True)

    def init(self, key: Array, x_example: PyTree, num_outputs: int) -> PyTree:
        arguments = (key, x_example, num_outputs)
        return self.init_function(*arguments[: _count_positional(self.init_function)])

    def apply(self, params: PyTree, x: Array, key: Array | None = None) -> Array:
        if _takes_key(self.apply_function):
            return self.apply_function(params, x, key=key)
        return self.apply_function(params, x)


def as_network(network: Any) -> Any:
    """The network in our form, whatever it was."""
    if isinstance(network, type):
        refuse("network", network, "be a network, not a class", f"Write {network.__name__}(...).")
    if hasattr(network, "init") and hasattr(network, "apply"):
        return network
    if isinstance(network, eqx.Module) and callable(network):
        return EquinoxNetwork(network)
    if isinstance(network, tuple) and len(network) == 2 and all(callable(f) for f in network):
        return FunctionNetwork(*network)
    refuse(
        "network",
        Shown(f"a {type(network).__name__}"),
        "be one of bl.networks, an Equinox module, or a pair of functions (init, apply)",
    )


def _takes_key(function: Callable[..., Any]) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(p.name == "key" or p.kind is p.VAR_KEYWORD for p in parameters)


def _count_positional(function: Callable[..., Any]) -> int:
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 3
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds for p in parameters)
