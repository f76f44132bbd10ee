"""A user's own network, brought into the form `init`, `apply`: one small class per framework.

A module comes with its weights, and they are the starting point. It is seen in inference mode:
dropout is off and batch statistics are held where they stand, for examples must be independent of
one another. (An Equinox module that is handed a key runs as its author set it.)

`apply` takes one example. Flax and Keras modules are written for batches, so theirs is called with
a leading axis of length one; Equinox modules and plain functions get the example itself. An input
that is a pytree goes in as one argument.

No framework is imported before an object of it is met.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

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


class NNXNetwork(eqx.Module):
    """A Flax NNX module. Its `nnx.Param`s are the weights; all its other state is held."""

    weights: PyTree
    held: PyTree
    graph: _Static = eqx.field(static=True)

    def __init__(self, module: Any):
        from flax import nnx

        parts: Any = nnx.split(module, nnx.Param, ...)
        graph, weights, held = parts
        self.weights, self.frozen = nnx.to_pure_dict(weights), nnx.to_pure_dict(held)
        self.graph = _Static(graph)

    def init(self, key: Array, x_example: PyTree, num_outputs: int) -> PyTree:
        return self.weights

    def apply(self, params: PyTree, x: PyTree, key: Array | None = None) -> Array:
        from flax import nnx

        module = nnx.merge(self.graph.value, params, self.frozen)
        module.eval()
        return module(_as_batch(x), **_inference_flags(module))[0]


class LinenNetwork(eqx.Module):
    """A Flax Linen module, alone or with the variables it was trained to."""

    weights: PyTree
    held: PyTree
    module: _Static = eqx.field(static=True)

    def __init__(self, module: Any, variables: Mapping[str, Any] | None = None):
        if variables is None and module.scope is not None:
            module, variables = module.unbind()
        if variables is None:
            self.frozen = {}
        elif isinstance(variables, Mapping) and "params" in variables:
            self.frozen = _plain(variables)
        else:
            has = sorted(variables) if isinstance(variables, Mapping) else type(variables).__name__
            refuse(
                "network",
                Shown(f"a Linen module with {has}"),
                'come with variables that have a part "params"',
                'Write (module, variables), or (module, {"params": params}).',
            )
        self.weights = self.frozen.pop("params", None)
        self.module = _Static(module)

    def init(self, key: Array, x_example: PyTree, num_outputs: int) -> PyTree:
        if self.weights is not None:
            return self.weights
        module = self.module.value
        variables = _plain(module.init(key, _as_batch(x_example), **_inference_flags(module)))
        params = variables.pop("params", {})
        if variables:
            refuse(
                "network",
                Shown(f"a Linen module with {', '.join(sorted(variables))} and no values for them"),
                "come with its state, such as batch statistics, which is not learned here",
                "Train it first and write (module, variables).",
            )
        return params

    def apply(self, params: PyTree, x: PyTree, key: Array | None = None) -> Array:
        module = self.module.value
        variables = {"params": params, **self.frozen}
        return module.apply(variables, _as_batch(x), **_inference_flags(module))[0]


def _plain(variables: Any) -> dict[str, Any]:
    """Linen variables as dictionaries of arrays, without the marks of frozen or sharded ones."""
    from flax.core import unfreeze
    from flax.linen import unbox

    return jax.tree.map(jnp.asarray, dict(unfreeze(unbox(variables))))


class KerasNetwork(eqx.Module):
    """A Keras 3 model or layer on the JAX backend, built.

    Its trainable variables are the weights, named by their paths without the model's own name;
    layers with `trainable = False` are held.
    """

    weights: dict[str, Array]
    held: list[Array]
    names: tuple[str, ...] = eqx.field(static=True)
    model: _Static = eqx.field(static=True)

    def __init__(self, model: Any):
        import keras

        if keras.backend.backend() != "jax":
            refuse(
                "network",
                Shown(f"one on the {keras.backend.backend()} backend"),
                "be a Keras model on the JAX backend",
                "Set KERAS_BACKEND=jax in the environment before Keras is imported.",
            )
        if not model.built:
            refuse(
                "network",
                Shown(f"the unbuilt model {model.name!r}"),
                "be a Keras model that has its weights",
                "Call it once, model(x[:1]), or begin it with keras.Input.",
            )
        variables = model.trainable_variables
        paths = [v.path.removeprefix(f"{model.name}/").replace("/", ".") for v in variables]
        twice = sorted({path for path in paths if paths.count(path) > 1})
        if twice:
            refuse(
                "network",
                Shown(f"{', '.join(twice)} more than once"),
                "have one name for each weight",
                "Give its layers different names.",
            )
        self.names = tuple(paths)
        self.weights = {name: v.value for name, v in zip(paths, variables, strict=True)}
        self.frozen = [v.value for v in model.non_trainable_variables]
        self.model = _Static(model)

    def init(self, key: Array, x_example: PyTree, num_outputs: int) -> PyTree:
        return self.weights

    def apply(self, params: PyTree, x: PyTree, key: Array | None = None) -> Array:
        weights = [params[name] for name in self.names]
        for ours, theirs in zip(weights, self.model.value.trainable_variables, strict=True):
            if ours.dtype != theirs.dtype:
                refuse(
                    "dtype",
                    str(ours.dtype),
                    f"be that of the Keras model ({theirs.dtype}), which casts to its own",
                    "Set keras.config.set_floatx before making the model.",
                )
        outputs, _ = self.model.value.stateless_call(
            weights, self.frozen, _as_batch(x), training=False
        )
        return outputs[0]


class FunctionNetwork(eqx.Module):
    """A function `apply(params, x, key=None)`, and what it starts from.

    That is parameters, or a function `init(key, x_example, num_outputs)` that makes them. `init`
    may take fewer arguments, from the left; `apply` may leave out `key`.
    """

    weights: PyTree
    init_function: Callable[..., PyTree] | None = eqx.field(static=True)
    apply_function: Callable[..., Array] = eqx.field(static=True)

    def __init__(self, start: PyTree, apply_function: Callable[..., Array]):
        leaves = jax.tree.leaves(start)
        has_arrays = any(eqx.is_array_like(leaf) for leaf in leaves)
        self.init_function = start if callable(start) and not has_arrays else None
        if self.init_function is None and not all(eqx.is_array_like(leaf) for leaf in leaves):
            refuse(
                "network",
                Shown("a pair with other things among its parameters"),
                "have arrays only as parameters, or a function that makes them",
                "Keep functions and settings in the function that is applied.",
            )
        self.weights = None if self.init_function else jax.tree.map(jnp.asarray, start)
        self.apply_function = apply_function

    def init(self, key: Array, x_example: PyTree, num_outputs: int) -> PyTree:
        if self.init_function is None:
            return self.weights
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
    if _is_a(network, "flax.linen", "Module"):  # first, for it has `init` and `apply` too
        return LinenNetwork(network)
    if hasattr(network, "init") and hasattr(network, "apply"):
        return network
    if isinstance(network, eqx.Module) and callable(network):
        return EquinoxNetwork(network)
    if _is_a(network, "flax.nnx", "Module"):
        return NNXNetwork(network)
    if _is_a(network, "keras", "Layer"):
        return KerasNetwork(network)
    if isinstance(network, tuple) and len(network) == 2:
        if _is_a(network[0], "flax.linen", "Module"):
            return LinenNetwork(*network)
        if callable(network[1]):
            return FunctionNetwork(*network)
    refuse(
        "network",
        Shown(f"a {type(network).__name__}"),
        "be one of bl.networks, a module of Equinox, Flax or Keras, or a pair (params, apply) or"
        " (init, apply)",
        "A function alone does not say where to start: give its parameters with it."
        if callable(network)
        else "",
    )


class _Static:
    """Something static: compared by its value if it has a hash, else by being the same object."""

    def __init__(self, value: Any):
        self.value = value
        try:
            hash(value)
            self.identity = value
        except TypeError:
            self.identity = id(value)

    def __hash__(self) -> int:
        return hash(self.identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self.identity == other.identity


def _is_a(network: Any, package: str, name: str) -> bool:
    """Whether a class of this name in this package is among the bases; nothing is imported."""
    return any(
        base.__name__ == name and f"{base.__module__}.".startswith(f"{package}.")
        for base in type(network).__mro__
    )


def _as_batch(x: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], x)


def _inference_flags(module: Any) -> dict[str, bool]:
    """The usual arguments that tell training from use, for those the module's call takes."""
    flags = {
        "train": False,
        "training": False,
        "is_training": False,
        "deterministic": True,
        "use_running_average": True,
    }
    takes = inspect.signature(module.__call__).parameters
    return {name: value for name, value in flags.items() if name in takes}


def _takes_key(function: Callable[..., Any]) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(p.name == "key" or p.kind is p.VAR_KEYWORD for p in parameters)


def _count_positional(function: Callable[..., Any]) -> int:
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 3
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds for p in parameters)
