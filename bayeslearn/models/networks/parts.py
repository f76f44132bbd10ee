"""What several networks share: checks of arguments, dense layers, images, masked sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from bayeslearn.errors import Shown, check_positive, check_whole, refuse
from bayeslearn.models.protocols import Network
from bayeslearn.tree import Array, PyTree

Activation = str | Callable[[Array], Array]
Sizes = Sequence[int] | int
Choice = TypeVar("Choice", bound=str | None)


class NetworkWrapper(eqx.Module):
    """A network whose `apply` calls that of another one (abstract)."""

    network: Network

    def init(self, key: Array, x_example: PyTree, num_outputs: int) -> PyTree:
        """Initial parameters of the network inside."""
        return self.network.init(key, x_example, num_outputs)

    def apply(self, params: PyTree, x: PyTree, key: Array | None = None) -> Array:
        """Outputs for one example."""
        raise NotImplementedError


def check_activation(activation: Activation) -> Activation:
    """An activation by name or as a function; anything else is refused."""
    if not callable(activation) and not callable(_named(activation)):
        refuse("activation", activation, 'be a function or a name such as "tanh" or "relu"')
    return activation


def activation_function(activation: Activation) -> Callable[[Array], Array]:
    """The activation as a function."""
    return activation if callable(activation) else _named(activation)


def _named(name: Activation) -> Callable[[Array], Array]:
    """The function of this name in `jax.nn` or `jax.numpy`."""
    return getattr(jax.nn, str(name), None) or getattr(jnp, str(name), None)  # type: ignore


def check_sizes(
    argument: str, value: Sizes, must: str, count: int | None = None, least: int = 1
) -> tuple[int, ...]:
    """Whole numbers of at least `least` as a tuple; a single number is repeated `count` times."""
    is_sequence = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str)
    numbers = cast("Sequence[int]", value if is_sequence else [value] * (count or 1))
    sizes = tuple(numbers)
    if not all(_is_whole(n) and n >= least for n in sizes):
        refuse(argument, value, must)
    if count is not None and len(sizes) != count:
        refuse(argument, value, f"{must}, one for each of the {count} layers or one for all")
    return tuple(int(n) for n in sizes)


def _is_whole(n: object) -> bool:
    return isinstance(n, int | np.integer) and not isinstance(n, bool)


def check_count(argument: str, value: int) -> int:
    """A whole number of at least 1."""
    check_whole(argument, value, 1)
    return int(value)


def check_choice(argument: str, value: Choice, choices: tuple[Choice, ...]) -> Choice:
    """One of the choices."""
    if not any(value is c or (isinstance(value, str) and value == c) for c in choices):
        refuse(argument, value, "be one of " + ", ".join(map(repr, choices)))
    return value


def check_scale(argument: str, value: float) -> float:
    """A positive, finite number."""
    check_positive(argument, value)
    return float(value)


def check_flag(argument: str, value: bool) -> bool:
    """True or False."""
    if not isinstance(value, bool | np.bool):
        refuse(argument, value, "be True or False")
    return bool(value)


def dense_layers(key: Array, sizes: Sequence[int], use_bias: bool = True) -> list[eqx.nn.Linear]:
    """Dense layers from the first size to the last; initial weights scale as 1 / sqrt(inputs)."""
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        eqx.nn.Linear(n_in, n_out, use_bias=use_bias, key=k)
        for n_in, n_out, k in zip(sizes[:-1], sizes[1:], keys, strict=True)
    ]


def apply_dense(
    layers: Sequence[Callable[[Array], Array]], activation: Activation, x: Array
) -> Array:
    """The layers, with the activation between them."""
    function = activation_function(activation)
    *hidden, last = layers
    for layer in hidden:
        x = function(layer(x))
    return last(x)


def fan_in_uniform(key: Array, shape: tuple[int, ...], fan_in: int) -> Array:
    """Uniform within 1 / sqrt(fan_in), as Equinox initialises its layers."""
    bound = fan_in**-0.5
    return jax.random.uniform(key, shape, minval=-bound, maxval=bound)


def dtype_of(params: PyTree) -> np.dtype:
    """The floating-point type the network computes in."""
    kinds = [jnp.result_type(leaf) for leaf in jax.tree.leaves(params)]
    return jnp.result_type(*(kind for kind in kinds if jnp.issubdtype(kind, jnp.floating)))


def as_image(x: ArrayLike, channels: str) -> Array:
    """One example as (channels, height, width)."""
    x = jnp.asarray(x)
    if x.ndim == 2:
        return x[None]
    if x.ndim != 3 or 0 in x.shape:
        must = "be one image: (height, width), or with channels " + channels
        refuse("x", Shown(f"an example of shape {x.shape}"), must)
    return x if channels == "first" else jnp.moveaxis(x, -1, 0)


def as_sequence(x: PyTree, dtype: DTypeLike | None = None) -> tuple[Array, Array]:
    """One example as values (time, features) and mask (time,).

    Masked steps are set to zero, so that padding affects neither the outputs nor a gradient.
    """
    is_masked = isinstance(x, Mapping)
    if is_masked and set(x) != {"values", "mask"}:
        refuse("x", Shown(f"the entries {sorted(map(str, x))}"), 'hold "values" and "mask"')
    values = jnp.asarray(x["values"] if is_masked else x, dtype)
    if values.ndim != 2 or 0 in values.shape:
        remedy = "Write x[..., None] for one feature." if values.ndim == 1 else ""
        refuse("x", Shown(f"an example of shape {values.shape}"), "be (time, features)", remedy)
    if not is_masked:
        return values, jnp.ones(len(values), bool)
    mask = jnp.asarray(x["mask"])
    if mask.shape != values.shape[:1]:
        refuse("x", Shown(f"a mask of shape {mask.shape}"), f"have masks of {values.shape[:1]}")
    mask = mask > 0
    return jnp.where(mask[:, None], values, 0), mask
