"""How many steps each phase gets. `num_steps` is the total over all of them."""

from __future__ import annotations

from typing import NamedTuple

from bayeslearn.algorithms.base import Algorithm
from bayeslearn.errors import refuse
from bayeslearn.tree import LARGE_NETWORK

EARLIER_FRACTION = 3  # of a given total, a warm start gets one part in this many


class StepPlan(NamedTuple):
    """Steps of a method itself, and of all phases of its warm start (None: their defaults)."""

    own: int
    warm_start: int | None


def plan_steps(
    algorithm: Algorithm,
    num_steps: int | None,
    warm_start: int | None = None,
    num_weights: int = 0,
) -> StepPlan:
    """Divide a total among a method and its warm start.

    Without a total (None) each method has its default; without `warm_start` (None) a method that
    has one gives it a third of the total, and nothing if it has a step size for large networks and
    the network is large: it then starts from the network's initialisation.
    """
    before = algorithm.warm_start()
    is_made_for_large = "learning_rate" in algorithm.sized_defaults
    if warm_start is None and is_made_for_large and num_weights > LARGE_NETWORK:
        warm_start = 0
    if before is None:
        return StepPlan(algorithm.auto_steps if num_steps is None else num_steps, 0)
    if num_steps is None:
        return StepPlan(algorithm.auto_steps, warm_start)
    if algorithm.auto_steps == 1:  # a closed form at the warm start's result
        return StepPlan(1, num_steps - 1)
    if warm_start is None:
        warm_start = min(num_steps // EARLIER_FRACTION, default_steps(before))
    if warm_start >= num_steps:
        refuse("warm_start", warm_start, f"be below the total of {num_steps} steps")
    return StepPlan(num_steps - warm_start, warm_start)


def training_steps(num_steps: int) -> int:
    """Of a given total, those that train leaves without a posterior, on which accuracy depends."""
    return num_steps - num_steps // EARLIER_FRACTION


def default_steps(algorithm: Algorithm) -> int:
    """What num_steps="auto" means: the steps of a method and of its warm starts."""
    before = algorithm.warm_start()
    return algorithm.auto_steps + (0 if before is None else default_steps(before))


def plan_as_before(algorithm: Algorithm, num_steps: int | None) -> StepPlan:
    """The rule of runs begun by version 0.1: `num_steps` did not count the warm start."""
    return StepPlan(algorithm.auto_steps if num_steps is None else num_steps, None)
