"""Methods whose step size decays to zero over the run."""

from __future__ import annotations

from bayeslearn.algorithms.base import hyper
from bayeslearn.algorithms.optimizers import Schedule, polynomial_decay, robbins_monro
from bayeslearn.algorithms.sized import RunLengthStep
from bayeslearn.algorithms.starting import ModeStart


class DecayingStep(RunLengthStep, ModeStart):
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
        """Whether the step size decays to zero over the run."""
        return self.decay_steps is None and self.power != 0 and not self.has_own_optimizer

    def schedule(self, shrinkage: float = 1.0) -> Schedule:
        """The step size at each count, times `shrinkage`; a fixed decay is slower by as much."""
        rate = shrinkage * self.setting("learning_rate")
        if self.decay_steps is None:
            return polynomial_decay(rate, self.length, self.power)
        return robbins_monro(rate, self.decay_steps / shrinkage, self.power)
