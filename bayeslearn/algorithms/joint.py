"""Points trained along: the weights without a posterior move with the q of the others.

    q      <- a step of the method, given the points
    points <- a step of Adam on E_q[log p(D | w, points)] + log p(points), one draw of q per step

which is stochastic variational EM: both climb the same lower bound. It wraps any method that
climbs a lower bound step by step; `fit` does so for `bl.Model(..., points="joint")`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import optax

from bayeslearn import tree
from bayeslearn.algorithms.base import Algorithm
from bayeslearn.data.rows import Batch
from bayeslearn.errors import refuse
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

POINT_RATE = 1e-3  # of Adam on the points, which start at a trained network


class JointState(NamedTuple):
    inner: Any
    frozen: PyTree
    optimizer_state: Any


class Joint(Algorithm):
    """A method, and Adam for the weights it does not cover."""

    name: ClassVar[str] = "joint"
    title: ClassVar[str] = "any lower-bound method with points trained along"

    inner: Algorithm
    point_rate: float = eqx.field(default=POINT_RATE)

    def __check_init__(self) -> None:
        inner = self.inner
        if (
            inner.capabilities.is_sampler
            or not inner.capabilities.has_lower_bound
            or inner.auto_steps == 1
        ):
            refuse(
                "points",
                "joint",
                f'be "frozen" for {inner.name}, which climbs no lower bound step by step',
                "Or use a variational method, such as bl.BayesByBackprop().",
            )

    @property
    def learning_rate(self) -> Any:
        return self.inner.learning_rate  # type: ignore[attr-defined]

    @property
    def has_decaying_rate(self) -> bool:
        return self.inner.has_decaying_rate

    def with_run_length(self, num_steps: int) -> Algorithm:
        return dataclasses.replace(self, inner=self.inner.with_run_length(num_steps))

    def warm_start(self) -> Algorithm | None:
        return self.inner.warm_start()

    def init(self, key: Array, target: Target, params: PyTree) -> JointState:
        return self._started(target, self.inner.init(key, target, params))

    def init_from(self, key: Array, target: Target, q: Any) -> JointState:
        return self._started(target, self.inner.init_from(key, target, q))

    def _started(self, target: Target, inner: Any) -> JointState:
        return JointState(inner, target.frozen, optax.adam(self.point_rate).init(target.frozen))

    def step(
        self, key: Array, target: Target, state: JointState, batch: Batch | None
    ) -> tuple[JointState, Any]:
        key_inner, key_draw = jax.random.split(key)
        target = self.bind_state(target, state)
        inner, info = self.inner.step(key_inner, target, state.inner, batch)
        q = self.inner.approximation(target, inner)
        draw = jax.tree.map(lambda w: w[0], q.sample(key_draw, 1))

        def loss(frozen: PyTree) -> Array:
            moved = dataclasses.replace(target, frozen=frozen)
            log_joint = moved.scaled_log_likelihood(draw, batch)
            log_joint += tree.total(target.frozen_prior.log_prob_terms(frozen))
            return -log_joint / target.num_data

        gradient = jax.grad(loss)(state.frozen)
        optimizer = optax.adam(self.point_rate)
        updates, optimizer_state = optimizer.update(gradient, state.optimizer_state, state.frozen)
        frozen = optax.apply_updates(state.frozen, updates)
        return JointState(inner, frozen, optimizer_state), info

    def run_notes(self, target: Target, params: PyTree) -> list[str]:
        return self.inner.run_notes(target, params)

    def bind_state(self, target: Target, state: JointState) -> Target:
        return dataclasses.replace(target, frozen=state.frozen)

    def approximation(self, target: Target, state: JointState, draws: PyTree | None = None) -> Any:
        return self.inner.approximation(target, state.inner, draws)
