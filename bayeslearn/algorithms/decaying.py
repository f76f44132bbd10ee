"""Methods whose step size decays to zero over the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from bayeslearn.algorithms.base import hyper
from bayeslearn.algorithms.optimizers import (
    Schedule,
    ScheduledRate,
    polynomial_decay,
    robbins_monro,
    warmup_cosine,
)
from bayeslearn.algorithms.sized import DECAY_DOC, DECAYS, RunLengthStep
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
    length: float = hyper(0.0, "T; 0: the number of steps of the run", least=0, keyword=True)
    decay: str = hyper("auto", DECAY_DOC, choices=DECAYS)

    sized_defaults: ClassVar[Mapping[str, tuple[Any, Any]]] = {"decay": ("power", "cosine")}

    @property
    def has_decaying_rate(self) -> bool:
        """Whether the step size decays to zero over the run."""
        if self.has_own_schedule:
            return False
        is_power = self.decay_steps is None and self.power != 0
        return is_power or self.setting("decay") == "cosine"

    def schedule(self, shrinkage: float = 1.0) -> Schedule:
        """The step size at each count, times `shrinkage`; a fixed decay is slower by as much."""
        rate = shrinkage * self.setting("learning_rate")
        if isinstance(rate, ScheduledRate):
            return rate
        if self.setting("decay") == "cosine":
            return warmup_cosine(rate, self.length)
        if self.decay_steps is None:
            return polynomial_decay(rate, self.length, self.power)
        return robbins_monro(rate, self.decay_steps / shrinkage, self.power)
