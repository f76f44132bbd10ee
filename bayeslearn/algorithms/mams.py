r"""Metropolis-adjusted microcanonical sampling (Robnik, Cohn-Gordon and Seljak 2025).

    u ~ uniform on the sphere,  n steps of the isokinetic dynamics without refresh
    accept with probability min(1, exp(-dE)),  dE the summed energy errors

It is MCLMC with an accept step, which removes the bias. n is L / eps, jittered so that trajectories
are not periodic, with L = `trajectory_length` (pi/2 sqrt(d) by default) in coordinates whitened by
the posterior covariance, or its diagonal, which warm-up estimates. eps is adapted by dual averaging
towards `target_acceptance`; chains continue with the median of what theirs have come to, for the 50
last steps of warm-up tell little of an acceptance of 0.9. See `microcanonical` for the equations.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.algorithms.base import hyper
from bayeslearn.algorithms.hamiltonian import (
    HamiltonianSampler,
    HamiltonianState,
    in_one_vector,
)
from bayeslearn.algorithms.microcanonical import (
    TrajectoryPoint,
    by_layer,
    integrate,
    random_direction,
)
from bayeslearn.algorithms.warmup import StepAdaptation
from bayeslearn.data.rows import Batch
from bayeslearn.errors import refuse
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree


class MAMSInfo(NamedTuple):
    """Diagnostics of a step."""

    log_density: Array
    acceptance: Array  # probability with which the proposal was accepted
    diverging: Array  # 1 if the energy error was out of bounds
    step_size: Array
    num_gradients: Array


class MAMS(HamiltonianSampler):
    """Metropolis-adjusted microcanonical sampling: no bias, long trajectories."""

    name: ClassVar[str] = "mams"
    title: ClassVar[str] = "Metropolis-adjusted microcanonical sampling"

    adaptation: ClassVar[StepAdaptation] = StepAdaptation(gamma=0.2, first_factor=2.0)

    target_acceptance: float = hyper(0.9, "target of the step size adaptation", above=0, below=1)
    trajectory_length: float | None = hyper(
        None,
        "length of a trajectory in posterior sds; None: pi/2 sqrt(d)",
        above=0,
        optional=True,
        real=True,
    )
    jitter: float = hyper(0.5, "relative jitter of the number of steps", least=0, below=1)
    max_steps: int = hyper(
        128, "maximum steps per trajectory, of two gradients each", least=1, most=2**19
    )
    max_energy_error: float = hyper(1000.0, "energy error of a divergent trajectory", above=0)

    def check(self, target: Target, params: PyTree) -> None:
        """Refuse a single parameter: a direction needs two."""
        super().check(target, params)
        if tree.size(params) < 2:
            refuse("params", tree.size(params), "hold at least two numbers for mams")

    def longest_trajectory(self, num_weights: int) -> tuple[float, str]:
        """`max_steps` steps of two gradients."""
        return 2 * self.max_steps, self.remedy("max_steps", num_weights)

    def step(
        self, key: Array, target: Target, state: HamiltonianState, batch: Batch | None
    ) -> tuple[HamiltonianState, MAMSInfo]:
        """One trajectory, accepted or rejected."""
        key_direction, key_uniform = jax.random.split(key)
        _, log_joint = in_one_vector(by_layer(target), state.position)
        value_and_grad = jax.value_and_grad(log_joint)
        uniform = jax.random.uniform(key_uniform, (2,), jnp.float64)
        vector, cov = tree.ravel(state.position), state.warmup.inverse_mass
        scale = jnp.sqrt(cov) if cov.ndim == 1 else jnp.linalg.cholesky(cov)
        length = 0.5 * jnp.pi * jnp.sqrt(1.0 * vector.size)
        if self.trajectory_length is not None:
            length = jnp.asarray(self.trajectory_length, jnp.float64)
        step_size = state.warmup.step_size
        count = length / step_size * (1.0 + self.jitter * (2.0 * uniform[0] - 1.0))
        num_steps = jnp.clip(jnp.round(count), 1, self.max_steps).astype(jnp.int32)

        def one(_: Array, carry: tuple[TrajectoryPoint, Array]) -> tuple[TrajectoryPoint, Array]:
            point, error = carry
            point, more = integrate(value_and_grad, point, step_size, scale)
            return point, error + more

        start = TrajectoryPoint(
            vector,
            random_direction(key_direction, vector.size),
            state.log_density,
            tree.ravel(state.gradient),
        )
        end, error = jax.lax.fori_loop(0, num_steps, one, (start, jnp.zeros((), jnp.float64)))
        diverging = ~(error < self.max_energy_error)  # also when it is NaN
        acceptance = jnp.where(diverging, 0.0, jnp.exp(jnp.minimum(0.0, -error)))
        new = tree.where(uniform[1] < acceptance, end, start)
        info = MAMSInfo(
            new.log_density,
            acceptance,
            diverging.astype(jnp.float64),
            step_size,
            2 * num_steps,
        )
        state = self.next_state(state, new.position, new.log_density, new.gradient, acceptance)
        return state, info

    def pooling_steps(self) -> tuple[int, ...]:
        """The ends of the windows of warm-up, and of warm-up."""
        return tuple(sorted({*super().pooling_steps(), self.num_warmup} - {0}))

    def pool(self, states: HamiltonianState) -> HamiltonianState:
        """The mean adaptation at the end of a window, the median step size at the end of all."""
        log_step = jnp.log(states.warmup.step_size)
        median = jnp.exp(jnp.broadcast_to(jnp.median(log_step), log_step.shape))
        last = states._replace(warmup=states.warmup._replace(step_size=median))
        return tree.where(states.count[0] == self.num_warmup, last, super().pool(states))
