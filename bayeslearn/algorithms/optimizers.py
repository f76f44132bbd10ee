"""Step sizes, and Optax optimisers by specification, so that they can be written as JSON."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import optax

from bayeslearn.algorithms.base import Algorithm, Schedule, hyper
from bayeslearn.errors import refuse
from bayeslearn.tree import Array


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


def over_the_run(learning_rate: Any, length: Any, power: Any) -> Schedule:
    """learning_rate * (1 - t / length)^power; constant when power or length is 0."""

    def rate(count: Array) -> Array:
        last = 1.0 / jnp.maximum(length, 1.0)  # of a run of `length` steps; later ones keep it
        left = jnp.where(length > 0, jnp.maximum(1.0 - count * last, last), 1.0)
        return learning_rate * left**power

    return rate


class Falling(Algorithm):
    """Base of the methods whose step size falls to nothing over the run (abstract)."""

    learning_rate: float = hyper(0.1, "step size at the beginning", above=0)
    decay_steps: float | None = hyper(
        None,
        "steps after which the step size begins to fall as 1 / (1 + t / decay_steps)^power;"
        " None: as (1 - t / T)^power over a run of T steps",
        above=0,
        optional=True,
        real=True,
    )
    power: float = hyper(1.0, "how fast it falls; 0: not at all", least=0)
    length: float = hyper(0.0, "T, if not what `fit` says", least=0)

    @property
    def falls(self) -> bool:
        is_made = isinstance(getattr(self, "optimizer", None), optax.GradientTransformation)
        return self.decay_steps is None and self.power != 0 and not is_made

    def over(self, num_steps: int) -> Algorithm:
        if self.length > 0 or not self.falls:
            return self
        return eqx.tree_at(lambda a: a.length, self, float(num_steps))

    def schedule(self, share: float = 1.0) -> Schedule:
        """The step size at each count; a `share` shortens steps and stretches time as much."""
        rate = share * self.learning_rate
        if self.decay_steps is None:
            return over_the_run(rate, self.length, self.power)
        return robbins_monro(rate, self.decay_steps / share, self.power)
