"""Hamiltonian Monte Carlo (survey section 2).

    V(theta) = -log p(D, theta),   rho ~ N(0, M),   H = V + rho^T M^-1 rho / 2
    leapfrog, L times:  rho   <- rho + (eps/2) grad log p(D, theta)
                        theta <- theta + eps M^-1 rho
                        rho   <- rho + (eps/2) grad log p(D, theta)
    accept (theta*, rho*) with probability min(1, exp(H - H*))

M^-1 is the posterior covariance estimated in warm-up (identity, diagonal or dense), eps
(`step_size`) is adapted by dual averaging towards `target_acceptance`, and both eps and L are
jittered so that trajectories are not periodic. Momentum is resampled at every step. A trajectory
whose energy error exceeds `max_energy_error`, or is not finite, is rejected and counted as
divergent.

Differs from the survey: the mass matrix is the inverse of the covariance (errata 23), signs of
the position update and of the acceptance ratio (errata 24 to 26).
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
    kinetic_energy,
    leapfrog,
    metric,
)
from bayeslearn.data.rows import Batch
from bayeslearn.errors import refuse
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

MAX_LEAPFROG = 2**20  # a trajectory cannot be interrupted


class HMCInfo(NamedTuple):
    """Diagnostics of a step."""

    log_density: Array
    acceptance: Array  # probability with which the proposal was accepted
    diverging: Array  # 1 if the energy error was out of bounds
    step_size: Array
    num_gradients: Array
    energy: Array  # H of the state with its new momentum, for E-BFMI


class HMC(HamiltonianSampler):
    """Hamiltonian Monte Carlo with adapted step size and mass matrix.

    >>> algorithm = bl.HMC(num_warmup=100, num_samples=50)
    >>> posterior = bl.fit(model, algorithm, (x, y), seed=0, num_chains=2)
    >>> posterior.family.num_chains, posterior.family.num_draws
    (2, 100)
    """

    name: ClassVar[str] = "hmc"
    title: ClassVar[str] = "Hamiltonian Monte Carlo"

    path_length: float = hyper(1.5, "length of a trajectory in posterior sds", above=0)
    num_leapfrog: int | None = hyper(
        None,
        "leapfrog steps per trajectory, instead of path_length",
        least=1,
        most=MAX_LEAPFROG,
        optional=True,
    )
    max_leapfrog: int = hyper(
        128, "maximum number of leapfrog steps per trajectory", least=1, most=MAX_LEAPFROG
    )
    jitter: float = hyper(0.2, "relative jitter of step size and path", least=0, below=1)
    max_energy_error: float = hyper(1000.0, "energy error of a divergent trajectory", above=0)

    def check(self, target: Target, params: PyTree) -> None:
        """Refuse more steps than are allowed, which would be cut in silence."""
        super().check(target, params)
        if self.num_leapfrog is not None and self.num_leapfrog > self.max_leapfrog:
            remedy = f"Or write max_leapfrog={self.num_leapfrog}."
            refuse("num_leapfrog", self.num_leapfrog, f"be at most {self.max_leapfrog}", remedy)

    def longest_trajectory(self, num_weights: int) -> tuple[float, str]:
        """`max_leapfrog` gradients, unless the number of steps is given."""
        if self.num_leapfrog is not None:
            return super().longest_trajectory(num_weights)
        return self.max_leapfrog, self.remedy("max_leapfrog", num_weights)

    def step(
        self, key: Array, target: Target, state: HamiltonianState, batch: Batch | None
    ) -> tuple[HamiltonianState, HMCInfo]:
        """One trajectory, accepted or rejected."""
        key_momentum, key_uniform = jax.random.split(key)
        velocity, draw_momentum = metric(state.warmup.inverse_mass)
        uniform = jax.random.uniform(key_uniform, (3,), jnp.float64)
        stretch = 1.0 + self.jitter * (2.0 * uniform[:2] - 1.0)
        step_size = state.warmup.step_size * stretch[0]
        if self.num_leapfrog is None:
            length = self.path_length * stretch[1] / step_size
        else:
            length = self.num_leapfrog * stretch[1]
        num_leapfrog = jnp.clip(jnp.round(length), 1, self.max_leapfrog).astype(jnp.int32)

        _, log_joint = in_one_vector(target, state.position)
        start = (tree.ravel(state.position), state.log_density, tree.ravel(state.gradient))
        momentum = draw_momentum(key_momentum)
        position, end_momentum, log_density, gradient = leapfrog(
            jax.value_and_grad(log_joint),
            velocity,
            start[0],
            momentum,
            start[1],
            start[2],
            step_size,
            num_leapfrog,
        )
        energy = kinetic_energy(momentum, velocity(momentum)) - state.log_density
        end_energy = kinetic_energy(end_momentum, velocity(end_momentum)) - log_density
        error = end_energy - energy
        diverging = ~(error < self.max_energy_error)  # also when it is NaN
        acceptance = jnp.where(diverging, 0.0, jnp.exp(jnp.minimum(0.0, -error)))
        position, log_density, gradient = tree.where(
            uniform[2] < acceptance, (position, log_density, gradient), start
        )
        is_diverging = diverging.astype(jnp.float64)
        info = HMCInfo(log_density, acceptance, is_diverging, step_size, num_leapfrog, energy)
        return self.next_state(state, position, log_density, gradient, acceptance), info
