"""What all samplers share: counts of steps, and chains that pool what they learn in warm-up."""

from __future__ import annotations

from typing import ClassVar

from bayeslearn.algorithms.base import Capabilities, hyper
from bayeslearn.algorithms.starting import ModeStart
from bayeslearn.families import Draws
from bayeslearn.models.target import Target
from bayeslearn.tree import PyTree


class Sampler(ModeStart):
    """Base of the samplers (abstract). Warm-up is part of `step`: its phase follows from the count
    in the state, so that a run can be cut anywhere."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        is_sampler=True, takes_minibatches=False, has_lower_bound=False
    )

    num_warmup: int = hyper(500, "steps that adapt and are discarded", least=0)
    num_samples: int = hyper(1000, "draws kept per chain", least=1)
    thin: int = hyper(1, "steps per kept draw", least=1)

    def pooling_steps(self) -> tuple[int, ...]:
        """Numbers of steps after which chains pool what they have learned."""
        return ()

    def pool(self, states: PyTree) -> PyTree:
        """The states of all chains, along a leading axis, after such a step."""
        return states

    def approximation(self, target: Target, state: PyTree, draws: PyTree | None = None) -> Draws:
        return Draws(draws)
