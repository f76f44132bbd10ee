"""Joint training: the leaves without a posterior are trained along with the q of the others.

    q      <- a step of the method, given the frozen leaves
    frozen <- a step of Adam on E_q[log p(D | w, frozen)] + log p(frozen), one draw of q per step

which is stochastic variational EM: both maximise the same lower bound. It wraps any method that
maximises a lower bound step by step; `fit` does so for `bl.Model(..., frozen="joint")`.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import optax

from bayeslearn import tree
from bayeslearn.algorithms.base import Algorithm
from bayeslearn.data.rows import Batch
from bayeslearn.errors import refuse
from bayeslearn.families.base import Family
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

POINT_RATE = 1e-3  # of Adam on the frozen leaves, which start at a trained network


class JointState(NamedTuple):
    """The state of the method, the frozen leaves, and Adam's state."""

    inner: PyTree
    frozen: PyTree
    optimizer_state: PyTree


class Joint(Algorithm):
    """A method, and Adam for the leaves without a posterior."""

    name: ClassVar[str] = "joint"
    title: ClassVar[str] = "any lower-bound method with frozen leaves trained along"

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
                "frozen",
                "joint",
                f'be "train" or "given" for {inner.name}, which maximises no lower bound by steps',
                "Or use a variational method, such as bl.BayesByBackprop().",
            )

    @property
    def has_decaying_rate(self) -> bool:
        """Whether the method's step size decays to zero over the run."""
        return self.inner.has_decaying_rate

    def with_run_length(self, num_steps: int) -> Self:
        """With the method for a run of so many steps."""
        return dataclasses.replace(self, inner=self.inner.with_run_length(num_steps))

    @property
    def can_shorten_steps(self) -> bool:
        """Whether the method can."""
        return self.inner.can_shorten_steps

    def with_shorter_steps(self, scale: float) -> Self:
        """With the method's learning rate times `scale`."""
        return dataclasses.replace(self, inner=self.inner.with_shorter_steps(scale))

    def training_target(self, target: Target, count: Array | None) -> Target:
        """That of the method."""
        return self.inner.training_target(target, count)

    @property
    def kl_weight(self) -> Array | float:
        """That of the method."""
        return self.inner.kl_weight

    def warm_start(self) -> Algorithm | None:
        """That of the method."""
        return self.inner.warm_start()

    def init(self, key: Array, target: Target, params: PyTree) -> JointState:
        """The method's first state, and the frozen leaves of the target."""
        return self._begin(target, self.inner.init(key, target, params))

    def init_from(self, key: Array, target: Target, q: Family) -> JointState:
        """The method's first state at q, and the frozen leaves of the target."""
        return self._begin(target, self.inner.init_from(key, target, q))

    def _begin(self, target: Target, inner: PyTree) -> JointState:
        """The first state."""
        return JointState(inner, target.frozen, optax.adam(self.point_rate).init(target.frozen))

    def step(
        self, key: Array, target: Target, state: JointState, batch: Batch | None
    ) -> tuple[JointState, PyTree]:
        """A step of the method, then one of Adam."""
        key_inner, key_draw = jax.random.split(key)
        target, prior = self.bind_state(target, state), target.frozen_prior
        assert prior is not None
        inner, info = self.inner.step(key_inner, target, state.inner, batch)
        q = self.inner.approximation(target, inner)
        draw = jax.tree.map(lambda w: w[0], q.sample(key_draw, 1))

        def loss(frozen: PyTree) -> Array:
            moved = dataclasses.replace(target, frozen=frozen)
            log_joint = moved.scaled_log_likelihood(draw, batch)
            log_joint += tree.total(prior.log_prob_terms(frozen))
            return -log_joint / target.num_data

        gradient = jax.grad(loss)(state.frozen)
        optimizer = optax.adam(self.point_rate)
        updates, optimizer_state = optimizer.update(gradient, state.optimizer_state, state.frozen)
        frozen = optax.apply_updates(state.frozen, updates)
        return JointState(inner, frozen, optimizer_state), info

    def gradients_per_step(self, target: Target, state: JointState) -> int:
        """Those of the method, and one for the frozen leaves."""
        return self.inner.gradients_per_step(target, state.inner) + 1

    def run_notes(self, target: Target, params: PyTree) -> list[str]:
        """Those of the method."""
        return self.inner.run_notes(target, params)

    def bind_state(self, target: Target, state: JointState) -> Target:
        """The target with the frozen leaves of the state."""
        return dataclasses.replace(target, frozen=state.frozen)

    def approximation(
        self, target: Target, state: JointState, draws: PyTree | None = None
    ) -> Family:
        """The method's q."""
        return self.inner.approximation(target, state.inner, draws)
