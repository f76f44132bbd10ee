"""The base of HMC and NUTS: the leapfrog integrator, the metric, and warm-up."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.algorithms import warmup as warming
from bayeslearn.algorithms.base import InfoFields, hyper
from bayeslearn.algorithms.sampler import Sampler
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

DENSE_LIMIT = 100  # weights up to which the mass matrix is dense by default

Phase = tuple[PyTree, PyTree, Array, PyTree]  # position, momentum, log-density, gradient


class HamiltonianState(NamedTuple):
    """The position of a chain, and its warm-up."""

    position: PyTree
    log_density: Array
    gradient: PyTree
    count: Array  # type: ignore[assignment]
    warmup: warming.Warmup


def in_one_vector(
    target: Target, position: PyTree
) -> tuple[Callable[[Array], PyTree], Callable[[Array], Array]]:
    """For all weights in one vector: the inverse, to a tree like `position`, and the log-joint.

    A trajectory then has few large operations instead of many small ones.
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
) -> Phase:
    """`num_leapfrog` steps along the Hamiltonian flow; one gradient each.

    The two half kicks between steps are one full kick; half of the last one is undone.
    """

    def kick(momentum: PyTree, gradient: PyTree, fraction: float = 1.0) -> PyTree:
        return jax.tree.map(lambda r, g: r + fraction * step_size * g, momentum, gradient)

    def one(_: Array, carry: Phase) -> Phase:
        position, momentum, _, _ = carry
        position = jax.tree.map(lambda q, v: q + step_size * v, position, velocity(momentum))
        log_density, gradient = value_and_grad(position)
        return position, kick(momentum, gradient), log_density, gradient

    start = (position, kick(momentum, gradient, 0.5), log_density, gradient)
    position, momentum, log_density, gradient = jax.lax.fori_loop(0, num_leapfrog, one, start)
    return position, kick(momentum, gradient, -0.5), log_density, gradient


def metric(
    inverse_mass: Array,
) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
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
    """rho^T M^-1 rho / 2."""
    return 0.5 * tree.total(jax.tree.map(jnp.multiply, momentum, velocity))


class HamiltonianSampler(Sampler):
    """Base of HMC and NUTS (abstract)."""

    info_fields: ClassVar[InfoFields] = InfoFields(
        progress=("acceptance", "diverging"), counts=("diverging", "num_gradients")
    )

    adaptation: ClassVar[warming.StepAdaptation] = warming.StepAdaptation()

    step_size: float = hyper(0.1, "initial leapfrog step size; warm-up adapts it", above=0)
    mass_matrix: str = hyper(
        "auto",
        f"mass matrix from warm-up; auto: dense up to {DENSE_LIMIT} weights, else diagonal",
        choices=("auto", "identity", "diagonal", "dense"),
    )
    target_acceptance: float = hyper(0.8, "target of the step size adaptation", above=0, below=1)

    def metric_of(self, num_weights: int) -> str:
        """The kind of mass matrix for so many weights."""
        if self.mass_matrix != "auto":
            return self.mass_matrix
        return "dense" if num_weights <= DENSE_LIMIT else "diagonal"

    def remedy(self, field: str, num_weights: int) -> str:
        """What helps where trajectories are cut at the longest that `field` allows."""
        is_dense = self.metric_of(num_weights) == "dense"
        dense = "" if is_dense else 'write mass_matrix="dense", '
        return f"{dense}raise `{field}`, or choose parameters of like scale with less correlation"

    def check(self, target: Target, params: PyTree) -> None:
        """Refuse a dense mass matrix that would not fit in memory."""
        if self.mass_matrix == "dense":
            tree.check_dense(tree.size(params), 'mass_matrix="diagonal"')

    def init(self, key: Array, target: Target, params: PyTree) -> HamiltonianState:
        """A dispersed position around `params`."""
        position, warmup = warming.start(
            key,
            target,
            params,
            mass_matrix=self.metric_of(tree.size(params)),
            step_size=self.step_size,
        )
        log_density, gradient = jax.value_and_grad(target.log_joint)(position)
        return HamiltonianState(position, log_density, gradient, jnp.zeros((), jnp.int32), warmup)

    def next_state(
        self,
        state: HamiltonianState,
        position: Array,
        log_density: Array,
        gradient: Array,
        acceptance: Array,
    ) -> HamiltonianState:
        """The state at a new position (as a vector), with warm-up updated."""
        warmup = warming.update(
            state.warmup,
            state.count,
            position,
            acceptance,
            num_warmup=self.num_warmup,
            mass_matrix=self.metric_of(position.size),
            target_acceptance=self.target_acceptance,
            adaptation=self.adaptation,
        )
        unravel = tree.unraveler(state.position)
        return HamiltonianState(
            unravel(position), log_density, unravel(gradient), state.count + 1, warmup
        )

    def pooling_steps(self) -> tuple[int, ...]:
        """The ends of the windows of warm-up."""
        return () if self.mass_matrix == "identity" else warming.pooling_steps(self.num_warmup)

    def pool(self, states: HamiltonianState) -> HamiltonianState:
        """All chains with the mean of their adaptation."""
        size = warming.window_size(self.num_warmup, states.count[0])
        return states._replace(warmup=warming.pooled(states.warmup, size))
