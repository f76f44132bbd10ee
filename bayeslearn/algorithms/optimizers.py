"""Step sizes, and Optax optimisers by specification, so that they can be written as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax

from bayeslearn.errors import refuse
from bayeslearn.tree import Array

Schedule = Callable[[Array], Array]


def check_optimizer(optimizer: Any, options: Any) -> None:
    """Refuse what `make_optimizer` could not build, when the algorithm is written down."""
    if isinstance(optimizer, optax.GradientTransformation):
        return
    factory = getattr(optax, optimizer, None) if isinstance(optimizer, str) else None
    if not callable(factory):
        refuse(
            "optimizer", optimizer, 'be an Optax optimiser by name, such as "adam", or the object'
        )
    try:
        built = factory(1e-3, **dict(options))
    except TypeError as error:
        refuse("optimizer_options", dict(options), f"suit optax.{optimizer}", f"{error}.")
    if not isinstance(built, optax.GradientTransformation):
        refuse("optimizer", optimizer, 'name an Optax optimiser, such as "adam"')


def make_optimizer(
    optimizer: Any, options: Any, learning_rate: Array | float | Schedule
) -> optax.GradientTransformation:
    if isinstance(optimizer, optax.GradientTransformation):
        return optimizer
    return getattr(optax, optimizer)(learning_rate, **dict(options))


def robbins_monro(learning_rate: Any, decay_steps: Any, power: Any) -> Schedule:
    """learning_rate / (1 + t / decay_steps)^power; constant when power is 0."""
    return lambda count: learning_rate / (1.0 + count / decay_steps) ** power


def polynomial_decay(learning_rate: Any, length: Any, power: Any) -> Schedule:
    """learning_rate * (1 - t / length)^power; constant when power or length is 0."""

    def rate(count: Array) -> Array:
        last = 1.0 / jnp.maximum(length, 1.0)  # of a run of `length` steps; later ones keep it
        left = jnp.where(length > 0, jnp.maximum(1.0 - count * last, last), 1.0)
        return learning_rate * left**power

    return rate
