"""What several networks share: checked arguments, dense layers, images, sequences with masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn.errors import Shown, refuse
from bayeslearn.tree import Array, PyTree

Activation = str | Callable[[Array], Array]
Sizes = Sequence[int] | int


def check_activation(activation: Any) -> Any:
    if not callable(activation) and not callable(_named(activation)):
        refuse("activation", activation, 'be a function or a name such as "tanh" or "relu"')
    return activation


def activation_function(activation: Activation) -> Callable[[Array], Array]:
    return activation if callable(activation) else _named(activation)


def _named(name: Any) -> Callable[[Array], Array]:
    return getattr(jax.nn, str(name), None) or getattr(jnp, str(name), None)  # type: ignore


def check_sizes(
    argument: str, value: Any, must: str, count: int | None = None, least: int = 1
) -> tuple[int, ...]:
    """Whole numbers of at least `least` as a tuple; one number stands for `count` equal ones."""
    is_sequence = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str)
    sizes = tuple(value) if is_sequence else (value,) * (count or 1)
    if not all(_is_whole(n) and n >= least for n in sizes):
        refuse(argument, value, must)
    if count is not None and len(sizes) != count:
        refuse(argument, value, f"{must}, one for each of the {count} layers or one for all")
    return tuple(int(n) for n in sizes)


def _is_whole(n: Any) -> bool:
    return isinstance(n, int | np.integer) and not isinstance(n, bool)


def check_count(argument: str, value: Any) -> int:
    if not _is_whole(value) or value < 1:
        refuse(argument, value, "be a whole number of at least 1")
    return int(value)


def check_choice(argument: str, value: Any, choices: tuple[Any, ...]) -> Any:
    if not any(value is c or (isinstance(value, str) and value == c) for c in choices):
        refuse(argument, value, "be one of " + ", ".join(map(repr, choices)))
    return value


def check_positive(argument: str, value: Any) -> float:
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not (is_number and np.isfinite(value) and value > 0):
        refuse(argument, value, "be a positive number")
    return float(value)


def check_flag(argument: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool):
        refuse(argument, value, "be True or False")
    return bool(value)


def dense_layers(key: Array, sizes: Sequence[int], use_bias: bool = True) -> list[eqx.nn.Linear]:
    """Dense layers from the first size to the last; weights scale with 1 / sqrt(inputs)."""
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        eqx.nn.Linear(n_in, n_out, use_bias=use_bias, key=k)
        for n_in, n_out, k in zip(sizes[:-1], sizes[1:], keys, strict=True)
    ]


def apply_dense(layers: Sequence[Any], activation: Activation, x: Array) -> Array:
    """Layers with the activation between them."""
    function = activation_function(activation)
    *hidden, last = layers
    for layer in hidden:
        x = function(layer(x))
    return last(x)


def fan_in_uniform(key: Array, shape: tuple[int, ...], fan_in: int) -> Array:
    """Uniform within 1 / sqrt(fan_in), as Equinox starts its layers."""
    bound = fan_in**-0.5
    return jax.random.uniform(key, shape, minval=-bound, maxval=bound)


def dtype_of(params: PyTree) -> Any:
    """The floating-point type the network computes in."""
    kinds = [jnp.result_type(leaf) for leaf in jax.tree.leaves(params)]
    return jnp.result_type(*(kind for kind in kinds if jnp.issubdtype(kind, jnp.floating)))


def as_image(x: Any, channels: str) -> Array:
    """One example as (channels, height, width), whichever of its forms it came in."""
    x = jnp.asarray(x)
    if x.ndim == 2:
        return x[None]
    if x.ndim != 3 or 0 in x.shape:
        must = "be one image: (height, width), or with channels " + channels
        refuse("x", Shown(f"an example of shape {x.shape}"), must)
    return x if channels == "first" else jnp.moveaxis(x, -1, 0)


def as_sequence(x: Any, dtype: Any = None) -> tuple[Array, Array]:
    """One example as values (time, features) and mask (time,); masked steps are set to zero.

    Zeros, so that whatever stands in the padding reaches neither the outputs nor a gradient.
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
