"""Networks of other frameworks as `init` and `apply`: one small class per framework.

The weights of a module are the initial values. It runs in inference mode: dropout is off and batch
statistics are frozen, as examples must be independent of each other. (An Equinox module that gets
a key runs in the mode it was set to.)

`apply` takes one example. Flax and Keras modules take batches, so they are called with a leading
axis of length one; Equinox modules and plain functions get the example itself. An input that is a
pytree is passed as one argument.

An object with `init` and `apply` that is no pytree is taken as these two functions, which are the
same to compiled code only where the object is: what `apply` reads of it may not change after a fit.

A framework is imported only if an object of it is passed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

import equinox as eqx
import jax
import jax.numpy as jnp

from bayeslearn.errors import Shown, refuse
from bayeslearn.models.protocols import Network, WithRows
from bayeslearn.tree import Array, PyTree

if TYPE_CHECKING:
    import flax.linen
    import flax.nnx
    import keras


class EquinoxNetwork(eqx.Module):
    """Any Equinox module that maps one example to outputs. Its weights are the initial values."""

    weights: PyTree
    rest: _Opaque
    takes_key: bool = eqx.field(static=True)

    def __init__(self, module: PyTree):
        self.weights, rest = eqx.partition(module, eqx.is_inexact_array)
        self.rest = _Opaque(rest)
        self.takes_key = _takes_key(module.__call__)

    def init(self, key: Array, x_example: PyTree, num_outputs: int) -> PyTree:
        """The weights of the module."""
        return self.weights

    def apply(self, params: PyTree, x: Array, key: Array | None = None) -> Array:
        """Outputs for one example; without a key in inference mode."""
        module = eqx.combine(params, self.rest.value)
        if key is None:
            module = eqx.nn.inference_mode(module)  # dropout without a key would fail
        return module(x, key=key) if self.takes_key else module(x)


class _Opaque(eqx.Module):
    """What is not a weight: arrays are leaves, functions and flags are static."""

    arrays: PyTree
    static: PyTree = eqx.field(static=True)

    def __init__(self, rest: PyTree):
        self.arrays, self.static = eqx.partition(rest, eqx.is_array)

    @property
    def value(self) -> PyTree:
        """The parts combined."""
        return eqx.combine(self.arrays, self.static)


class NNXNetwork(eqx.Module):
    """A Flax NNX module. Its `nnx.Param`s are the weights; all its other state is frozen."""

    weights: PyTree
    frozen: PyTree
    graph: _Static = eqx.field(static=True)

    def __init__(self, module: flax.nnx.Module):
        from flax import nnx

        graph, weights, frozen = cast("tuple[PyTree, ...]", nnx.split(module, nnx.Param, ...))
        self.weights, self.frozen = nnx.to_pure_dict(weights), nnx.to_pure_dict(frozen)
        self.graph = _Static(graph)

    def init(self, key: Array, x_example: PyTree, num_outputs: int) -> PyTree:
        """The weights of the module."""
        return self.weights

    def apply(self, params: PyTree, x: PyTree, key: Array | None = None) -> Array:
        """Outputs for one example."""
        from flax import nnx

        module = nnx.merge(self.graph.value, params, self.frozen)
        module.eval()
        return module(_as_batch(x), **_inference_flags(module))[0]


class LinenNetwork(eqx.Module):
    """A Flax Linen module, alone or with its trained variables."""

    weights: PyTree
    frozen: dict[str, PyTree]
    module: _Static = eqx.field(static=True)

    def __init__(self, module: flax.linen.Module, variables: Mapping[str, PyTree] | None = None):
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
        """The weights given, or new ones."""
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
        """Outputs for one example."""
        module = self.module.value
        variables = {"params": params, **self.frozen}
        return module.apply(variables, _as_batch(x), **_inference_flags(module))[0]


def _plain(variables: PyTree) -> dict[str, PyTree]:
    """Linen variables as dictionaries of arrays, without boxes of frozen or sharded ones."""
    from flax.core import unfreeze
    from flax.linen import unbox

    return jax.tree.map(jnp.asarray, dict(unfreeze(unbox(variables))))


class KerasNetwork(eqx.Module):
    """A Keras 3 model or layer on the JAX backend, built.

    Its trainable variables are the weights, named by their paths without the model's own name;
    layers with `trainable = False` are frozen.
    """

    weights: dict[str, Array]
    frozen: list[Array]
    names: tuple[str, ...] = eqx.field(static=True)
    model: _Static = eqx.field(static=True)

    def __init__(self, model: keras.Model | keras.layers.Layer):
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
                "Call it once, model(x[:1]), or start it with keras.Input.",
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
        """The weights of the module."""
        return self.weights

    def apply(self, params: PyTree, x: PyTree, key: Array | None = None) -> Array:
        """Outputs for one example."""
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
    """A function `apply(params, x, key=None)` with its initial parameters.

    These are parameters, or a function `init(key, x_example, num_outputs)` that returns them.
    `init` may take fewer arguments, from the left; `apply` may omit `key`.
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
                "have arrays only as parameters, or a function that returns them",
                "Move functions and settings into the function that is applied.",
            )
        self.weights = None if self.init_function else jax.tree.map(jnp.asarray, start)
        self.apply_function = apply_function

    def init(self, key: Array, x_example: PyTree, num_outputs: int) -> PyTree:
        """The weights given, or new ones."""
        if self.init_function is None:
            return self.weights
        arguments = (key, x_example, num_outputs)
        return self.init_function(*arguments[: _count_positional(self.init_function)])

    def apply(self, params: PyTree, x: Array, key: Array | None = None) -> Array:
        """Outputs for one example."""
        if _takes_key(self.apply_function):
            return self.apply_function(params, x, key=key)
        return self.apply_function(params, x)


class FunctionNetworkWithRows(FunctionNetwork):
    """The same with a faster function of many examples, as in `protocols.WithRows`."""

    rows_function: Callable[[PyTree, Array], Array] = eqx.field(static=True)

    def __init__(
        self,
        start: PyTree,
        apply_function: Callable[..., Array],
        rows_function: Callable[[PyTree, Array], Array],
    ):
        super().__init__(start, apply_function)
        self.rows_function = rows_function

    def apply_rows(self, params: PyTree, x: Array) -> Array:
        """Outputs for all rows of x."""
        return self.rows_function(params, x)


def as_network(network: PyTree) -> Network:
    """A network with `init` and `apply`, from one of ours or of another framework."""
    if isinstance(network, type):
        refuse("network", network, "be a network, not a class", f"Write {network.__name__}(...).")
    if _is_a(network, "flax.linen", "Module"):  # first, for it has `init` and `apply` too
        return LinenNetwork(network)
    if hasattr(network, "init") and hasattr(network, "apply"):
        return _as_pytree(network)
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
        "A function alone has no initial parameters: pass them with it."
        if callable(network)
        else "",
    )


def _as_pytree(network: PyTree) -> Network:
    """A network that compiled functions take; an object that is no pytree is static to them."""
    if isinstance(network, eqx.Module) or all(map(eqx.is_array_like, jax.tree.leaves(network))):
        return network
    init, apply = network.init, network.apply
    if isinstance(network, WithRows):
        return FunctionNetworkWithRows(init, apply, network.apply_rows)
    return FunctionNetwork(init, apply)


class _Static:
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
        return isinstance(other, _Static) and self.identity == other.identity


def _is_a(network: object, package: str, name: str) -> bool:
    """Whether a class of this name in this package is a base; nothing is imported."""
    return any(
        base.__name__ == name and f"{base.__module__}.".startswith(f"{package}.")
        for base in type(network).__mro__
    )


def _as_batch(x: PyTree) -> PyTree:
    """One example as a batch of one."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], x)


def _inference_flags(module: PyTree) -> dict[str, bool]:
    """Those of the usual arguments for inference mode that the module's call takes."""
    flags = {
        "train": False,
        "training": False,
        "is_training": False,
        "deterministic": True,
        "use_running_average": True,
    }
    takes = inspect.signature(module.__call__).parameters
    return {name: value for name, value in flags.items() if name in takes}


def _takes_key(function: Callable[..., Array]) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(p.name == "key" or p.kind is p.VAR_KEYWORD for p in parameters)


def _count_positional(function: Callable[..., PyTree]) -> int:
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 3
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds for p in parameters)
