"""The base of the samplers: numbers of steps, and pooling of chains during warm-up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from bayeslearn.algorithms.base import Capabilities, hyper
from bayeslearn.algorithms.starting import ModeStart
from bayeslearn.families import Draws
from bayeslearn.models.target import Target
from bayeslearn.tree import PyTree


class Sampler(ModeStart):
    """Base of the samplers (abstract).

    Warm-up is part of `step`: its phase follows from the count in the state, so that a run can be
    interrupted anywhere.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        is_sampler=True, takes_minibatches=False, has_lower_bound=False
    )

    num_warmup: int = hyper(500, "steps that adapt and are discarded", least=0)
    num_samples: int = hyper(1000, "saved draws per chain", least=1)
    thin: int = hyper(1, "steps per saved draw", least=1, most=10**6)

    def longest_trajectory(self, num_weights: int) -> tuple[float, str]:
        """Gradients of the longest trajectory allowed, and what helps where many are that long."""
        return math.inf, ""

    def remedy_for_divergences(self) -> str:
        """What helps where trajectories diverge."""
        return "raise `target_acceptance` or `num_warmup`"

    def trace_note(self, trace: Mapping[str, np.ndarray]) -> str:
        """What a sampler's own Info says against the draws; empty: nothing."""
        return ""

    def pooling_steps(self) -> tuple[int, ...]:
        """Numbers of steps after which chains pool their adaptation."""
        return ()

    def pool(self, states: PyTree) -> PyTree:
        """The states of all chains, along a leading axis, with their adaptation pooled."""
        return states

    def approximation(self, target: Target, state: PyTree, draws: PyTree | None = None) -> Draws:
        """The draws."""
        return Draws(draws)
