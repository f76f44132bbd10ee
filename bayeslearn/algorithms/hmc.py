"""Hamiltonian Monte Carlo (survey section 2).

    V(theta) = -log p(D, theta),   rho ~ N(0, M),   H = V + rho^T M^-1 rho / 2
    leapfrog, L times:  rho   <- rho + (eps/2) grad log p(D, theta)
                        theta <- theta + eps M^-1 rho
                        rho   <- rho + (eps/2) grad log p(D, theta)
    accept (theta*, rho*) with probability min(1, exp(H - H*))

M^-1 is the posterior covariance estimated in warm-up (identity, diagonal or dense), eps
(`step_size`) is dual-averaged towards `target_acceptance`, and both eps and L are jittered so
that no trajectory closes on itself. Momentum is drawn anew at every step. A trajectory whose
energy error is beyond `max_energy_error`, or not finite, is rejected and counted as divergent.

Differs from the survey: the mass matrix is the inverse of the covariance (errata 23), signs of
the position update and of the acceptance ratio (errata 24 to 26).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.algorithms import warmup as warming
from bayeslearn.algorithms.base import Algorithm, hyper
from bayeslearn.families import Draws
from bayeslearn.model import Batch, Target
from bayeslearn.tree import Array, PyTree


class HMCState(NamedTuple):
    position: PyTree
    log_density: Array
    gradient: PyTree
    count: Array  # type: ignore[assignment]
    warmup: warming.Warmup


class HMCInfo(NamedTuple):
    log_density: Array
    acceptance: Array  # probability with which the proposal was accepted
    diverging: Array  # 1 if the energy error was out of bounds
    step_size: Array
    num_gradients: Array


def in_one_vector(target: Target, position: PyTree) -> tuple[Callable, Callable]:
    """All weights in one vector: the way back to a tree like `position`, and the log-joint.

    A trajectory is then few large operations, not many small ones.
    """
    unravel = tree.unraveler(position)
    return unravel, lambda vector: target.log_joint(unravel(vector))


def leapfrog(
    value_and_grad: Callable[[PyTree], tuple[Array, PyTree]],
    velocity: Callable[[PyTree], PyTree],
    position: PyTree,
    momentum: PyTree,
    log_density: Array,
    gradient: PyTree,
    step_size: Array,
    num_leapfrog: Array | int,
) -> tuple[PyTree, PyTree, Array, PyTree]:
    """`num_leapfrog` steps along the Hamiltonian flow; one gradient each.

    Between two steps their half kicks are one whole kick, of which the last step takes half back.
    """

    def kick(momentum: PyTree, gradient: PyTree, share: float = 1.0) -> PyTree:
        return jax.tree.map(lambda r, g: r + share * step_size * g, momentum, gradient)

    def one(_: Array, carry: tuple[PyTree, PyTree, Array, PyTree]):
        position, momentum, _, _ = carry
        position = jax.tree.map(lambda q, v: q + step_size * v, position, velocity(momentum))
        log_density, gradient = value_and_grad(position)
        return position, kick(momentum, gradient), log_density, gradient

    start = (position, kick(momentum, gradient, 0.5), log_density, gradient)
    position, momentum, log_density, gradient = jax.lax.fori_loop(0, num_leapfrog, one, start)
    return position, kick(momentum, gradient, -0.5), log_density, gradient


def metric(inverse_mass: Array) -> tuple[Callable, Callable]:
    """velocity(rho) = M^-1 rho, and a draw of rho ~ N(0, M), for M^-1 (k,) or (k, k)."""

    def noise(key: Array) -> Array:
        return jax.random.normal(key, inverse_mass.shape[:1], inverse_mass.dtype)

    if inverse_mass.ndim == 1:
        return lambda rho: inverse_mass * rho, lambda key: noise(key) / jnp.sqrt(inverse_mass)
    cholesky = jnp.linalg.cholesky(inverse_mass)

    def draw(key: Array) -> Array:
        return jax.scipy.linalg.solve_triangular(cholesky, noise(key), trans=1, lower=True)

    return lambda rho: inverse_mass @ rho, draw


def kinetic_energy(momentum: PyTree, velocity: PyTree) -> Array:
    return 0.5 * tree.total(jax.tree.map(jnp.multiply, momentum, velocity))


class HMC(Algorithm):
    """Hamiltonian Monte Carlo with adapted step size and mass matrix."""

    name: ClassVar[str] = "hmc"
    title: ClassVar[str] = "Hamiltonian Monte Carlo"
    is_sampler: ClassVar[bool] = True
    takes_minibatches: ClassVar[bool] = False
    has_lower_bound: ClassVar[bool] = False
    shown: ClassVar[tuple[str, ...]] = ("acceptance", "diverging")

    num_warmup: int = hyper(500, "steps that adapt and are thrown away", least=0)
    num_samples: int = hyper(1000, "draws kept per chain", least=1)
    thin: int = hyper(1, "steps per kept draw", least=1)
    step_size: float = hyper(0.1, "leapfrog step, where its adaptation starts", above=0)
    path_length: float = hyper(1.5, "length of a trajectory in posterior sds", above=0)
    num_leapfrog: int | None = hyper(
        None, "leapfrog steps per trajectory, instead of path_length", least=1, optional=True
    )
    max_leapfrog: int = hyper(128, "most leapfrog steps per trajectory", least=1)
    jitter: float = hyper(0.2, "relative jitter of step size and path", least=0, below=1)
    mass_matrix: str = hyper(
        "diagonal", "mass matrix from warm-up", choices=("identity", "diagonal", "dense")
    )
    target_acceptance: float = hyper(0.8, "aim of the step size", above=0, below=1)
    max_energy_error: float = hyper(1000.0, "beyond it a trajectory diverged", above=0)

    def check(self, target: Target, params: PyTree) -> None:
        if self.mass_matrix == "dense":
            tree.check_dense(tree.size(params), 'mass_matrix="diagonal"')

    def init(self, key: Array, target: Target, params: PyTree) -> HMCState:
        position, warmup = warming.start(
            key, target, params, mass_matrix=self.mass_matrix, step_size=self.step_size
        )
        log_density, gradient = jax.value_and_grad(target.log_joint)(position)
        return HMCState(position, log_density, gradient, jnp.zeros((), jnp.int32), warmup)

    def step(
        self, key: Array, target: Target, state: HMCState, batch: Batch | None
    ) -> tuple[HMCState, HMCInfo]:
        key_momentum, key_uniform = jax.random.split(key)
        velocity, draw_momentum = metric(state.warmup.inverse_mass)
        uniform = jax.random.uniform(key_uniform, (3,), jnp.float64)
        stretch = 1.0 + self.jitter * (2.0 * uniform[:2] - 1.0)
        step_size = state.warmup.step_size * stretch[0]
        if self.num_leapfrog is None:
            wished = self.path_length * stretch[1] / step_size
        else:
            wished = self.num_leapfrog * stretch[1]
        num_leapfrog = jnp.clip(jnp.round(wished), 1, self.max_leapfrog).astype(jnp.int32)

        unravel, log_joint = in_one_vector(target, state.position)
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
        new = tree.where(uniform[2] < acceptance, (position, log_density, gradient), start)
        warmup = warming.update(
            state.warmup,
            state.count,
            new[0],
            acceptance,
            num_warmup=self.num_warmup,
            mass_matrix=self.mass_matrix,
            target_acceptance=self.target_acceptance,
        )
        info = HMCInfo(new[1], acceptance, diverging.astype(jnp.float64), step_size, num_leapfrog)
        state = HMCState(unravel(new[0]), new[1], unravel(new[2]), state.count + 1, warmup)
        return state, info

    def meetings(self) -> tuple[int, ...]:
        return () if self.mass_matrix == "identity" else warming.meetings(self.num_warmup)

    def pool(self, states: HMCState) -> HMCState:
        return states._replace(warmup=warming.pooled(states.warmup))

    def approximation(self, target: Target, state: Any, draws: PyTree | None = None) -> Draws:
        return Draws(draws)
