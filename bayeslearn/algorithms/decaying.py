"""Methods whose step size decays to zero over the run."""

from __future__ import annotations

from typing import Self

import equinox as eqx
import optax

from bayeslearn.algorithms.base import hyper
from bayeslearn.algorithms.optimizers import Schedule, polynomial_decay, robbins_monro
from bayeslearn.algorithms.starting import ModeStart


class DecayingStep(ModeStart):
    """Base of the methods whose step size decays to zero over the run (abstract)."""

    learning_rate: float = hyper(0.1, "step size at the beginning", above=0)
    decay_steps: float | None = hyper(
        None,
        "steps after which the step size begins to decay as 1 / (1 + t / decay_steps)^power;"
        " None: as (1 - t / T)^power over a run of T steps",
        above=0,
        optional=True,
        real=True,
    )
    power: float = hyper(1.0, "how fast it decays; 0: not at all", least=0)
    length: float = hyper(0.0, "T; 0: the number of steps of the run", least=0)

    @property
    def has_decaying_rate(self) -> bool:
        is_made = isinstance(getattr(self, "optimizer", None), optax.GradientTransformation)
        return self.decay_steps is None and self.power != 0 and not is_made

    def with_run_length(self, num_steps: int) -> Self:
        if self.length > 0 or not self.has_decaying_rate:
            return self
        return eqx.tree_at(lambda a: a.length, self, float(num_steps))

    def schedule(self, share: float = 1.0) -> Schedule:
        """The step size at each count; a `share` shortens steps and stretches time as much."""
        rate = share * self.learning_rate
        if self.decay_steps is None:
            return polynomial_decay(rate, self.length, self.power)
        return robbins_monro(rate, self.decay_steps / share, self.power)
