"""NUTS: Hamiltonian Monte Carlo that chooses its own path length (Hoffman and Gelman 2014).

    rho ~ N(0, M);   a tree of leapfrog steps is doubled forwards or backwards, at random, until
    it turns:        r . M^-1 rho_first <= 0  or  r . M^-1 rho_last <= 0,
                     r the sum of its momenta, with half weight for its ends
    a point of it is drawn with probability ~ exp(-H), biased to the newer half (Betancourt 2017)

A half that contains a U-turn, or a divergent energy error, is not added. The criterion of a subtree
is evaluated at its last leaf, from values saved at its first leaf, so that the tree is built by a
loop that stores a point for every doubling instead of every leaf. Warm-up is that of HMC.
"""

from __future__ import annotations

from collections.abc import Callable
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
from bayeslearn.models.target import Target
from bayeslearn.tree import Array

MAX_ENERGY_ERROR = 1000.0  # of a trajectory that is not divergent


class NUTSInfo(NamedTuple):
    """Diagnostics of a step."""

    log_density: Array
    acceptance: Array  # average acceptance probability over the trajectory
    diverging: Array
    step_size: Array
    num_gradients: Array
    energy: Array  # H of the state with its new momentum, for E-BFMI


class PhasePoint(NamedTuple):
    """A point of a trajectory."""

    position: Array
    momentum: Array
    log_density: Array
    gradient: Array


class Branch(NamedTuple):
    """Consecutive leaves, and the one drawn from them."""

    drawn: tuple[Array, Array, Array]  # position, log-density, gradient
    log_weight: Array  # log sum of exp(H_0 - H)
    momentum: Array  # the sum over all leaves


class TreeStats(NamedTuple):
    """Statistics of all leaves that were evaluated."""

    num_gradients: Array
    acceptance: Array  # the sum of acceptance probabilities
    turning: Array
    diverging: Array


def is_turning(inner: Array, first: Array, last: Array) -> Array:
    """The U-turn criterion; `inner` is r, `first` and `last` are the velocities of the ends."""
    return (inner @ first <= 0) | (inner @ last <= 0)


def grow(
    advance: Callable[[PhasePoint], PhasePoint],
    velocity: Callable[[Array], Array],
    energy: Array,
    start: PhasePoint,
    num_leaves: Array,
    max_doublings: int,
    uniform: Array,
    stats: TreeStats,
) -> tuple[PhasePoint, Branch, TreeStats]:
    """`num_leaves` (a power of two) leaves after `start`, or fewer if they turn or diverge.

    One uniform number draws among all leaves: given a choice, its remainder is uniform again.
    """

    def is_growing(carry: tuple) -> Array:
        leaf, *_, stats = carry
        return (leaf < num_leaves) & ~stats.turning & ~stats.diverging

    def one(carry: tuple) -> tuple:
        leaf, point, branch, uniform, saved, stats = carry
        point = advance(point)
        speed = velocity(point.momentum)
        gain = energy - (kinetic_energy(point.momentum, speed) - point.log_density)
        is_finite = gain > -MAX_ENERGY_ERROR  # and not NaN
        gain = jnp.where(is_finite, gain, -jnp.inf)

        log_weight = jnp.logaddexp(branch.log_weight, gain)
        prob = jnp.where(is_finite, jnp.exp(gain - log_weight), 0.0)
        takes = uniform < prob
        uniform = jnp.where(takes, uniform / prob, (uniform - prob) / (1.0 - prob))
        drawn = tree.where(takes, _without_momentum(point), branch.drawn)
        momentum = branch.momentum + point.momentum
        inner = momentum - 0.5 * point.momentum

        # The first leaves of open subtrees are saved at the first indices, one for each one-bit of
        # the leaf's number; the last index is for leaves that open no subtree.
        index = jax.lax.population_count(leaf >> 1)
        num_ending = jax.lax.population_count(leaf & ~(leaf + 1))
        opened = jnp.where(num_ending == 0, index, max_doublings)
        saved = jax.lax.dynamic_update_index_in_dim(saved, jnp.stack([inner, speed]), opened, 0)

        def check(i: Array, turning: Array) -> Array:
            before, first = jax.lax.dynamic_index_in_dim(saved, i, 0, keepdims=False)
            return turning | is_turning(inner - before, first, speed)

        turning = jax.lax.fori_loop(index + 1 - num_ending, index + 1, check, jnp.asarray(False))
        acceptance = stats.acceptance + jnp.exp(jnp.minimum(gain, 0.0))
        stats = TreeStats(stats.num_gradients + 1, acceptance, turning, ~is_finite)
        return leaf + 1, point, Branch(drawn, log_weight, momentum), uniform, saved, stats

    no_weight = jnp.asarray(-jnp.inf)
    empty = Branch(_without_momentum(start), no_weight, jnp.zeros_like(start.momentum))
    saved = jnp.zeros((max_doublings + 1, 2, start.position.size))
    first = (jnp.zeros((), jnp.int32), start, empty, uniform, saved, stats)
    _, point, branch, _, _, stats = jax.lax.while_loop(is_growing, one, first)
    return point, branch, stats


def _without_momentum(point: PhasePoint) -> tuple[Array, Array, Array]:
    return point.position, point.log_density, point.gradient


class NUTS(HamiltonianSampler):
    """The no-U-turn sampler, the reference for all other methods."""

    name: ClassVar[str] = "nuts"
    title: ClassVar[str] = "no-U-turn sampler"

    num_samples: int = hyper(500, "saved draws per chain", least=1)
    max_doublings: int = hyper(
        10, "maximum doublings of a trajectory (2^n gradients)", least=1, most=20
    )

    def longest_trajectory(self, num_weights: int) -> tuple[float, str]:
        """2^max_doublings - 1 gradients."""
        return 2**self.max_doublings - 1, self.remedy("max_doublings", num_weights)

    def step(
        self, key: Array, target: Target, state: HamiltonianState, batch: Batch | None
    ) -> tuple[HamiltonianState, NUTSInfo]:
        """One trajectory, and a draw from it."""
        _, log_joint = in_one_vector(target, state.position)
        value_and_grad = jax.value_and_grad(log_joint)
        velocity, draw_momentum = metric(state.warmup.inverse_mass)
        key_momentum, key_tree = jax.random.split(key)
        momentum = draw_momentum(key_momentum)
        uniforms = jax.random.uniform(key_tree, (self.max_doublings, 3), jnp.float64)
        start = PhasePoint(
            tree.ravel(state.position), momentum, state.log_density, tree.ravel(state.gradient)
        )
        energy = kinetic_energy(momentum, velocity(momentum)) - state.log_density

        def is_growing(carry: tuple) -> Array:
            depth, *_, stats = carry
            return (depth < self.max_doublings) & ~stats.turning & ~stats.diverging

        def double(carry: tuple) -> tuple:
            depth, whole, ends, stats = carry
            forwards, within, between = uniforms[depth]
            side = (forwards < 0.5).astype(jnp.int32)
            signed = state.warmup.step_size * (2 * side - 1)

            def advance(point: PhasePoint) -> PhasePoint:
                return PhasePoint(*leapfrog(value_and_grad, velocity, *point, signed, 1))

            end, half, stats = grow(
                advance,
                velocity,
                energy,
                jax.tree.map(lambda both: both[side], ends),
                1 << depth,
                self.max_doublings,
                within,
                stats,
            )
            is_added = ~stats.turning & ~stats.diverging
            takes = is_added & (between < jnp.exp(half.log_weight - whole.log_weight))
            drawn = tree.where(takes, half.drawn, whole.drawn)
            log_weight = jnp.logaddexp(whole.log_weight, half.log_weight)
            momentum = whole.momentum + half.momentum
            ends = jax.tree.map(
                lambda both, new: jax.lax.dynamic_update_index_in_dim(both, new, side, 0), ends, end
            )
            inner = momentum - 0.5 * jnp.sum(ends.momentum, axis=0)
            turning = is_turning(inner, *map(velocity, ends.momentum))
            stats = stats._replace(turning=stats.turning | turning)
            return depth + 1, Branch(drawn, log_weight, momentum), ends, stats

        zero, no = jnp.zeros(()), jnp.asarray(False)
        whole = Branch(_without_momentum(start), zero, momentum)
        ends = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), start)  # earliest, latest
        stats = TreeStats(jnp.zeros((), jnp.int32), zero, no, no)
        first = (jnp.zeros((), jnp.int32), whole, ends, stats)
        _, whole, _, stats = jax.lax.while_loop(is_growing, double, first)
        position, log_density, gradient = whole.drawn
        acceptance = stats.acceptance / stats.num_gradients
        info = NUTSInfo(
            log_density,
            acceptance,
            stats.diverging.astype(jnp.float64),
            state.warmup.step_size,
            stats.num_gradients,
            energy,
        )
        new = self.next_state(state, position, log_density, gradient, acceptance)
        return new, info
