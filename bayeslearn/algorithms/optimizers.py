"""Step size schedules, and Optax optimisers by name and options, which can be stored as JSON."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from bayeslearn.errors import Shown, refuse
from bayeslearn.tree import Array, PyTree

WARMUP_FRACTION = 0.05  # of a run, in which the step size of a cosine rises from zero

Schedule = Callable[[Array], Array]
Number = Array | float
Optimizer: TypeAlias = "str | optax.GradientTransformation"
Options = Mapping[str, PyTree] | tuple[tuple[str, PyTree], ...]  # an optimiser's arguments


def check_optimizer(optimizer: Optimizer, options: Options) -> None:
    """Refuse what `make_optimizer` could not build, when the algorithm is made."""
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
    optimizer: Optimizer, options: Options, learning_rate: Number | Schedule
) -> optax.GradientTransformation:
    """The optimiser; a learning rate is not used by one that is an Optax object."""
    if isinstance(optimizer, optax.GradientTransformation):
        return optimizer
    return getattr(optax, optimizer)(learning_rate, **dict(options))


@functools.lru_cache(maxsize=64)  # the same object for the same scale, and so one compilation
def scaled_updates(
    optimizer: optax.GradientTransformation, scale: float
) -> optax.GradientTransformation:
    """The optimiser with all its updates times `scale`; its state is the same."""

    def update(*arguments: PyTree, **options: PyTree) -> tuple[PyTree, PyTree]:
        updates, state = optimizer.update(*arguments, **options)
        return jax.tree.map(lambda u: (scale * u).astype(u.dtype), updates), state

    return optimizer._replace(update=update)


class ScheduledRate(eqx.Module):
    """A step size that is a function of the step's number, such as an Optax schedule."""

    function: Schedule = eqx.field(static=True)
    scale: Number = 1.0

    def __call__(self, count: Array) -> Array:
        """The step size at this count."""
        return self.scale * self.function(count)

    def __mul__(self, scale: Number) -> ScheduledRate:
        """The same schedule, times a number."""
        return ScheduledRate(self.function, self.scale * scale)

    __rmul__ = __mul__


def as_rate(value: object) -> object:
    """A step size: a function of the step's number as a `ScheduledRate`."""
    if callable(value) and not isinstance(value, ScheduledRate):
        found = jax.eval_shape(value, jnp.zeros((), jnp.int32))
        if getattr(found, "shape", None) != ():
            shown = Shown("a function that returns no number")
            refuse("learning_rate", shown, "be a step size, or a function that returns one")
        return ScheduledRate(value)
    return value.item() if isinstance(value, np.generic) else value


def robbins_monro(learning_rate: Number, decay_steps: Number, power: Number) -> Schedule:
    """learning_rate / (1 + t / decay_steps)^power; constant when power is 0."""
    return lambda count: learning_rate / (1.0 + count / decay_steps) ** power


def polynomial_decay(learning_rate: Number, length: Number, power: Number) -> Schedule:
    """learning_rate * (1 - t / length)^power; constant when power or length is 0."""

    def rate(count: Array) -> Array:
        last = 1.0 / jnp.maximum(length, 1.0)  # at the last of `length` steps, and after it
        remaining = jnp.where(length > 0, jnp.maximum(1.0 - count * last, last), 1.0)
        return learning_rate * remaining**power

    return rate


def warmup_cosine(learning_rate: Number, length: Number) -> Schedule:
    """From 0 to `learning_rate` in a twentieth of the run, then by a cosine to 0 at its last step.

    Constant when length is 0.
    """

    def rate(count: Array) -> Array:
        done = (count + 1.0) / jnp.maximum(length, 1.0)
        rising = jnp.minimum(done / WARMUP_FRACTION, 1.0)
        angle = jnp.clip((done - WARMUP_FRACTION) / (1.0 - WARMUP_FRACTION), 0.0, 1.0)
        factor = rising * 0.5 * (1.0 + jnp.cos(jnp.pi * angle))
        return learning_rate * jnp.where(length > 0, factor, 1.0)

    return rate


def cosine_to_constant(learning_rate: Number, last: Number, length: Number) -> Schedule:
    """From 0 to `learning_rate` in a twentieth of `length` steps, by a cosine to `last`, constant.

    Constant at `learning_rate` when length is 0.
    """

    def rate(count: Array) -> Array:
        done = (count + 1.0) / jnp.maximum(length, 1.0)
        rising = jnp.minimum(done / WARMUP_FRACTION, 1.0)
        falling = 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.minimum(done, 1.0)))
        value = rising * (last + (learning_rate - last) * falling)
        return jnp.where(length > 0, value, learning_rate)

    return rate
