r"""Microcanonical Langevin Monte Carlo, unadjusted (Robnik et al. 2023).

    (x, u) <- one minimal-norm step of length eps        two gradients; see `microcanonical`
    u      <- (u + nu z) / |u + nu z|,  z ~ N(0, I),  nu = sqrt((exp(2 eps / L) - 1) / d)

There is no accept step: draws have a bias that grows with the energy error of a step.
`energy_error` is the target of its mean square per dimension; the documentation has a table of the
resulting bias of variances on Gaussians. `MAMS` is unbiased.

Warm-up maintains a running estimate of E[dE^2] / (d eps^6), in its last quarter the mean over all
of it, and sets eps so that the error is `first_energy_error` at the beginning and decays
geometrically to `energy_error`: the large first steps move chains from the mode to the bulk. Chains
draw with one step size, from the mean of their errors. The
scales s are the standard deviations of the positions in the third quarter of warm-up
(`preconditioning="diagonal"`), or one. A step that is not finite, or whose error exceeds
`max_energy_error`, is rejected: u is reversed, and the step size is limited in later steps.

L (`trajectory_length`) is sqrt(d) by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import tree
from bayeslearn.algorithms.base import InfoFields, hyper
from bayeslearn.algorithms.hamiltonian import in_one_vector
from bayeslearn.algorithms.microcanonical import (
    TrajectoryPoint,
    by_layer,
    integrate,
    random_direction,
    refresh,
)
from bayeslearn.algorithms.sampler import Sampler
from bayeslearn.data.rows import Batch
from bayeslearn.errors import refuse
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

MEMORY = 100.0  # steps over which errors are averaged in the first three quarters of warm-up
MAX_CHANGE = 1.1  # of the step size from one step to the next
SHRINK = 0.8  # of the step size after a rejected step
LIMIT_GROWTH = 1.01  # of the limit that a rejected step sets
MAX_EXCESS = 3.0  # of the mean energy error over its target, without a note


class MCLMCState(NamedTuple):
    """The position and direction of a chain, and its warm-up."""

    position: PyTree
    direction: Array
    log_density: Array
    gradient: Array
    count: Array  # type: ignore[assignment]
    step_size: Array
    error_rate: Array  # running mean of dE^2 / (d eps^6), and its weight
    error_weight: Array
    step_limit: Array
    scale: Array
    moments: tuple[Array, Array, Array]  # number, mean and sum of squares of the positions


class MCLMCInfo(NamedTuple):
    """Diagnostics of a step."""

    log_density: Array
    energy_error: Array  # squared, per dimension
    diverging: Array  # 1 if the step was rejected
    step_size: Array
    num_gradients: Array


def _step_for(aim: Array | float, rate: Array, weight: Array) -> Array:
    """The step size with such a mean squared energy error per dimension."""
    return (aim * weight / jnp.maximum(rate, 1e-300)) ** (1.0 / 6.0)


class MCLMC(Sampler):
    """Microcanonical Langevin Monte Carlo: fast, with a small bias and no accept step."""

    name: ClassVar[str] = "mclmc"
    title: ClassVar[str] = "microcanonical Langevin Monte Carlo, unadjusted"
    info_fields: ClassVar[InfoFields] = InfoFields(
        progress=("energy_error", "diverging"), counts=("diverging", "num_gradients")
    )

    num_warmup: int = hyper(5000, "steps that adapt and are discarded", least=0)
    num_samples: int = hyper(500, "saved draws per chain", least=1)
    thin: int = hyper(10, "steps per saved draw", least=1, most=10**6)
    step_size: float = hyper(0.1, "initial step size; warm-up adapts it", above=0)
    energy_error: float = hyper(
        1e-3, "target of the mean squared energy error per dimension", above=0
    )
    first_energy_error: float = hyper(0.1, "the same at the beginning of warm-up", above=0)
    trajectory_length: float | None = hyper(
        None,
        "decorrelation length of the direction; None: sqrt(d)",
        above=0,
        optional=True,
        real=True,
    )
    preconditioning: str = hyper(
        "none", "scales of the weights, from warm-up", choices=("none", "diagonal")
    )
    max_energy_error: float = hyper(1000.0, "energy error of a rejected step", above=0)

    def remedy_for_divergences(self) -> str:
        """A smaller target of the step size adaptation."""
        return "lower `energy_error`"

    def trace_note(self, trace: Mapping[str, np.ndarray]) -> str:
        """Errors above the target, as where the density changes its width from place to place.

        Warm-up has then not seen the rare steps that make their mean.
        """
        found = float(np.mean(trace["energy_error"]))
        if found <= MAX_EXCESS * self.energy_error:
            return ""
        return (
            f"The mean squared energy error of {self.name} per dimension was {found:.2g}, above"
            f" its target of {float(self.energy_error):g}: variances may be off by more than its"
            " table says. Raise `num_warmup`, lower `energy_error`, or use mams."
        )

    def check(self, target: Target, params: PyTree) -> None:
        """Refuse a single parameter: a direction needs two."""
        if tree.size(params) < 2:
            refuse("params", tree.size(params), "hold at least two numbers for mclmc")

    def init(self, key: Array, target: Target, params: PyTree) -> MCLMCState:
        """At `params`, in a random direction."""
        position = tree.double(params)
        vector = tree.ravel(position)
        _, log_joint = in_one_vector(by_layer(target), position)
        log_density, gradient = jax.value_and_grad(log_joint)(vector)
        zero = jnp.zeros((), jnp.float64)
        return MCLMCState(
            position,
            random_direction(key, vector.size),
            log_density,
            gradient,
            jnp.zeros((), jnp.int32),
            jnp.asarray(self.step_size, jnp.float64),
            zero,
            zero,
            jnp.asarray(jnp.inf, jnp.float64),
            jnp.ones_like(vector),
            (zero, jnp.zeros_like(vector), jnp.zeros_like(vector)),
        )

    def step(
        self, key: Array, target: Target, state: MCLMCState, batch: Batch | None
    ) -> tuple[MCLMCState, MCLMCInfo]:
        """One step of the integrator, and a partial refresh of the direction."""
        unravel, log_joint = in_one_vector(by_layer(target), state.position)
        vector = tree.ravel(state.position)
        old = TrajectoryPoint(vector, state.direction, state.log_density, state.gradient)
        new, error = integrate(jax.value_and_grad(log_joint), old, state.step_size, state.scale)
        is_good = (jnp.abs(error) < self.max_energy_error) & tree.all_finite(new)
        length = jnp.sqrt(1.0 * vector.size)
        if self.trajectory_length is not None:
            length = jnp.asarray(self.trajectory_length, jnp.float64)
        turned = refresh(key, new.direction, state.step_size, length)
        point = tree.where(
            is_good,
            new._replace(direction=turned),
            old._replace(direction=-old.direction),
        )
        square = jnp.where(is_good, error**2 / vector.size, 0.0)
        state = state._replace(
            position=unravel(point.position),
            direction=point.direction,
            log_density=point.log_density,
            gradient=point.gradient,
            count=state.count + 1,
        )
        info = MCLMCInfo(
            point.log_density,
            square,
            (~is_good).astype(jnp.float64),
            state.step_size,
            jnp.asarray(2, jnp.int32),
        )
        if self.num_warmup > 0:
            state = jax.lax.cond(
                state.count <= self.num_warmup,
                lambda s: self._adapt(s, point.position, square, is_good),
                lambda s: s,
                state,
            )
        return state, info

    def _adapt(
        self, state: MCLMCState, position: Array, square: Array, is_good: Array
    ) -> MCLMCState:
        """Step size and scales after a step of warm-up."""
        done = state.count / self.num_warmup
        ratio = self.energy_error / self.first_energy_error
        aim = self.first_energy_error * ratio**done
        # The last quarter counts in full: the mean of the errors is made by few large ones.
        memory = MEMORY + jnp.maximum(state.count - 3 * self.num_warmup // 4, 0)
        eps, keep = state.step_size, 1.0 - 1.0 / memory
        rate = keep * state.error_rate + (1.0 - keep) * square / eps**6
        weight = keep * state.error_weight + (1.0 - keep)
        rate, weight = tree.where(is_good, (rate, weight), (state.error_rate, state.error_weight))
        proposed = _step_for(aim, rate, weight)
        limit = jnp.where(
            is_good, LIMIT_GROWTH * state.step_limit, SHRINK * jnp.minimum(state.step_limit, eps)
        )
        longer = jnp.minimum(jnp.clip(proposed, eps / MAX_CHANGE, eps * MAX_CHANGE), limit)
        state = state._replace(
            step_size=jnp.where(is_good, longer, SHRINK * eps),
            error_rate=rate,
            error_weight=weight,
            step_limit=limit,
        )
        if self.preconditioning == "none":
            return state
        return self._rescaled(state, position)

    def pooling_steps(self) -> tuple[int, ...]:
        """The end of warm-up."""
        return (self.num_warmup,) if self.num_warmup > 0 else ()

    def pool(self, states: MCLMCState) -> MCLMCState:
        """One step size, from the errors of all chains: their mean is made by few large ones."""
        rate, weight = jnp.mean(states.error_rate), jnp.mean(states.error_weight)
        step = jnp.minimum(_step_for(self.energy_error, rate, weight), jnp.min(states.step_limit))
        return states._replace(step_size=jnp.where(rate > 0.0, step, states.step_size))

    def _rescaled(self, state: MCLMCState, position: Array) -> MCLMCState:
        """Scales from the positions of the third quarter of warm-up, used from then on."""
        begin, end = self.num_warmup // 2, 3 * self.num_warmup // 4
        number, mean, squares = state.moments
        number = number + 1.0
        away = position - mean
        new_mean = mean + away / number
        grown = (number, new_mean, squares + away * (position - new_mean))
        is_seen = (state.count > begin) & (state.count <= end)
        moments = tree.where(is_seen, grown, state.moments)
        std = jnp.sqrt(moments[2] / jnp.maximum(moments[0] - 1.0, 1.0))
        relative = std / jnp.sqrt(jnp.mean(std**2) + 1e-300)  # the step size keeps its meaning
        is_end = state.count == end
        scale = jnp.where(is_end & (moments[0] > 1), jnp.maximum(relative, 1e-3), state.scale)
        # Errors under the old scales do not predict those under the new ones.
        rate, weight = tree.where(
            is_end, (jnp.zeros(()), jnp.zeros(())), (state.error_rate, state.error_weight)
        )
        return state._replace(moments=moments, scale=scale, error_rate=rate, error_weight=weight)
