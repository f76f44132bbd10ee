"""SkeletonMAP: gradient ascent to the mode. Copy this file, rename, and fill in your own.

    theta <- theta + (learning_rate / N) * grad log p(D, theta)

It is a complete algorithm: `bl.fit(model, SkeletonMAP(), data, seed=0)` runs it. The head of the
file states the paper's equations, and in what the code differs from them.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax

from bayeslearn.algorithms.base import Algorithm, Capabilities, InfoFields, hyper
from bayeslearn.data.rows import Batch
from bayeslearn.families import Point
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree


class SkeletonMAPState(NamedTuple):
    """What the next step needs, and nothing else."""

    position: PyTree


class SkeletonMAPInfo(NamedTuple):
    """Scalars for a person or a plot; they end up in `posterior.trace`."""

    log_joint: Array


def ascend(position: PyTree, gradient: PyTree, rate: Array) -> PyTree:
    """The update equation, a pure function of arrays that a test can feed with numbers."""
    return jax.tree.map(lambda w, g: w + (rate * g).astype(w.dtype), position, gradient)


class SkeletonMAP(Algorithm):  # `ModeStart` in its place starts from the mode
    """The mode of the posterior, by plain gradient ascent."""

    name: ClassVar[str] = "skeleton-map"  # on the command line and in `bl.ALGORITHMS`
    title: ClassVar[str] = "gradient ascent to the mode"  # one line for tables
    capabilities: ClassVar[Capabilities] = Capabilities(has_lower_bound=False)  # a point has none
    info_fields: ClassVar[InfoFields] = InfoFields(progress=("log_joint",))  # shown while it runs

    learning_rate: float = hyper(0.1, "step on the log-joint divided by the data's size", above=0)

    def init(self, key: Array, target: Target, params: PyTree) -> SkeletonMAPState:
        return SkeletonMAPState(params)

    def step(
        self, key: Array, target: Target, state: SkeletonMAPState, batch: Batch | None
    ) -> tuple[SkeletonMAPState, SkeletonMAPInfo]:
        log_joint, gradient = jax.value_and_grad(target.log_joint)(state.position, batch, key)
        rate = self.learning_rate / target.num_data
        return SkeletonMAPState(ascend(state.position, gradient, rate)), SkeletonMAPInfo(log_joint)

    def approximation(
        self, target: Target, state: SkeletonMAPState, draws: PyTree | None = None
    ) -> Point:
        return Point(state.position)
