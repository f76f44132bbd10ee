"""Methods whose step size depends on the run's length, or has defaults by the size of the network.

The table of all such defaults is in `docs/which_method.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import equinox as eqx
import jax.numpy as jnp
import optax

from bayeslearn.algorithms.base import Algorithm, hyper
from bayeslearn.algorithms.optimizers import (
    Schedule,
    ScheduledRate,
    robbins_monro,
    warmup_cosine,
)
from bayeslearn.tree import Array

DECAYS = ("auto", "power", "cosine")
DECAY_DOC = (
    "the step size over the run: a power of the step's number, or a cosine to zero after a warm-up"
    " in its first twentieth; auto: a power, and a cosine above 10,000 weights"
)

RATE_DOC = "or a function of the step's number (an Optax schedule)"
Rate = float | Callable[[Array], Array] | None
CLIP_DOC = (
    "largest natural step of a weight, before the learning rate; None: {}, and 0.001 above 10,000"
    " weights, less above 100,000"
)
CLIP, CLIPPED_WEIGHTS = 0.001, 100_000

MAX_WEIGHT = 0.5  # of one estimate in an average of curvature


def large_clip(num_weights: int) -> float:
    """The default `clip` of a large network: it falls with the root of the number of weights."""
    return CLIP * min(1.0, math.sqrt(CLIPPED_WEIGHTS / num_weights))


class RunLengthStep(Algorithm):
    """Base of the methods whose step size can decay over a run of known `length` (abstract)."""

    length: eqx.AbstractVar[float]

    @property
    def has_own_optimizer(self) -> bool:
        """Whether the optimiser is an Optax object, which has its own step size."""
        return isinstance(getattr(self, "optimizer", None), optax.GradientTransformation)

    @property
    def has_scheduled_rate(self) -> bool:
        """Whether the step size is the user's function."""
        return isinstance(getattr(self, "learning_rate", None), ScheduledRate)

    @property
    def has_own_schedule(self) -> bool:
        """Whether the step size is the user's function, or that of an Optax object."""
        return self.has_own_optimizer or self.has_scheduled_rate

    @property
    def needs_run_length(self) -> bool:
        """Whether the length of a run changes its steps."""
        return self.has_decaying_rate

    def with_run_length(self, num_steps: int) -> Self:
        """This algorithm for a run of `num_steps` steps, unless its length is set."""
        if self.length > 0 or not self.needs_run_length:
            return self
        return eqx.tree_at(lambda a: a.length, self, float(num_steps))


class SizedStep(RunLengthStep):
    """Base of the methods whose step size has defaults by the network's size (abstract)."""

    learning_rate: Rate = hyper(
        None, f"step size, {RATE_DOC}", above=0, optional=True, real=True, schedule=True
    )
    decay: str = hyper("auto", DECAY_DOC, choices=DECAYS)
    decay_steps: float = hyper(500.0, "steps after which a power starts to decay", above=0)
    power: float = hyper(1.0, "of that decay: 1 / (1 + t / decay_steps)^power", least=0)
    length: float = hyper(
        0.0, "steps of a cosine; 0: the number of steps of the run", least=0, keyword=True
    )

    @property
    def has_decaying_rate(self) -> bool:
        """Whether the step size decays to zero over the run."""
        return self.setting("decay") == "cosine" and not self.has_own_schedule

    def schedule(self) -> Schedule:
        """The step size at each count."""
        rate = self.setting("learning_rate")
        if isinstance(rate, ScheduledRate):
            return rate
        if self.setting("decay") == "cosine":
            return warmup_cosine(rate, self.length)
        return robbins_monro(rate, self.decay_steps, self.power)


class RenewedAverage(SizedStep):
    """Base of the methods whose average of curvature is renewed `renewals` times (abstract)."""

    usual_weight: ClassVar[float]  # of a new estimate where nothing is renewed

    @property
    def needs_run_length(self) -> bool:
        """Whatever the step size."""
        return True

    def renewal_weight(self) -> Array:
        """The weight of a new estimate in the average, if beta2 is None."""
        renewals, length = jnp.asarray(self.setting("renewals")), jnp.asarray(self.length)
        weight = jnp.minimum(renewals / jnp.maximum(length, 1.0), MAX_WEIGHT)
        return jnp.where((renewals > 0) & (length > 0), weight, self.usual_weight)


class TrainedNetwork(SizedStep):
    """Base of the methods that train one set of weights by an Optax optimiser (abstract)."""

    sized_defaults: ClassVar[Mapping[str, tuple[Any, Any]]] = {
        "learning_rate": (0.01, 2e-3),
        "decay": ("power", "cosine"),
    }

    learning_rate: Rate = hyper(
        None,
        "step size of the optimiser; None: 0.01, and 0.002 above 10,000 weights",
        above=0,
        optional=True,
        real=True,
        schedule=True,
    )
    power: float = hyper(0.5, "of the decay 1 / (1 + t / decay_steps)^power", least=0)
