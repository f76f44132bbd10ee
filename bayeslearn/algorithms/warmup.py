"""Warm-up of the samplers, one step at a time: windows, step size, mass matrix.

Stan's scheme, with functions of BlackJAX: a first phase adapts only the step size, growing windows
re-estimate the posterior covariance, a last phase adapts the final step size. The phase of a step
follows from its count, so that a run can be interrupted anywhere. At the end of a window, parallel
chains continue from the mean of their adaptations (`pooled`): a covariance from the draws of all
chains, and one step size.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import tree
from bayeslearn.gradients.curvature import starting_prec
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

MAX_TRIES = 20  # dispersed points, each half as far away, before a chain starts in the middle
# Curvature of a density that does not disperse chains: in the tail of a logarithm, as of a scale
# whose mode is zero, it would start them where nothing comes back from.
FLAT = 1e-4
FLOOR = 5e-3  # draws that the window before counts for, so that a chain that stood still has scales


class StepAdaptation(NamedTuple):
    """Of dual averaging: how calm it is, and how much longer a window's first steps may be.

    The defaults are Stan's. One rejected step divides the next step size by up to 15 with them. The
    average acceptance is on target, but at the average step size it is higher: where rejections are
    rare, as for a target of 0.9, by much.
    """

    gamma: float = 0.05
    first_factor: float = 10.0


class Warmup(NamedTuple):
    """Step size and inverse mass matrix, and the states of their adaptation."""

    step_size: Array
    inverse_mass: Array  # (k,) or (k, k): the current estimate of the posterior covariance
    averaging: PyTree  # dual averaging of the log step size
    moments: PyTree  # running covariance of the current window


def schedule(num_warmup: int) -> tuple[np.ndarray, np.ndarray]:
    """For each warm-up step: whether it updates the covariance, and whether it ends a window."""
    from blackjax.adaptation.window_adaptation import build_schedule

    with jax.ensure_compile_time_eval():
        stages = np.asarray(build_schedule(num_warmup), dtype=np.int32).reshape(-1, 2)
    return stages[:, 0] == 1, stages[:, 1] == 1


def windows(num_warmup: int) -> tuple[Array, Array]:
    """The schedule as arrays that a traced step can index."""
    feeds, ends = schedule(num_warmup)
    return jnp.asarray(feeds), jnp.asarray(ends)


def pooling_steps(num_warmup: int) -> tuple[int, ...]:
    """Numbers of steps after which chains pool their adaptation."""
    if num_warmup == 0:
        return ()
    return tuple(int(end) + 1 for end in np.flatnonzero(schedule(num_warmup)[1]))


def window_size(num_warmup: int, count: Array) -> Array:
    """Draws in the window that ended with step number `count` (from 1)."""
    feeds, ends = schedule(num_warmup)
    sizes, now = np.zeros(num_warmup), 0
    for step in range(num_warmup):
        now += feeds[step]
        sizes[step] = now
        now = 0 if ends[step] else now
    return jnp.asarray(sizes)[count - 1]


def diagonal_weight(dimension: int, num_draws: Array) -> Array:
    """By how much a covariance of so many draws is shrunk towards its diagonal.

    An error of size sqrt(d / n) does not matter, a metric without full rank does.
    """
    return dimension**2 / (dimension**2 + num_draws**2)


def pooled(warmup: Warmup, num_draws: Array) -> Warmup:
    """The mean adaptation of chains along a leading axis, at the end of a window of `num_draws`.

    It is the mean of log step sizes, and of the covariances within each chain: the distance
    between chains measures how well they have mixed, not how large a step may be. A dense one is
    shrunk less than each chain's was, for it has the draws of all.
    """

    def mean(leaf: Array) -> Array:
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            return leaf
        return jnp.broadcast_to(jnp.mean(leaf, axis=0), leaf.shape)

    new = jax.tree.map(mean, warmup)
    if warmup.inverse_mass.ndim == 3:
        num_chains, dimension = warmup.inverse_mass.shape[:2]
        kept = 1.0 - diagonal_weight(dimension, num_chains * num_draws)
        gain = kept / (1.0 - diagonal_weight(dimension, num_draws))
        is_diagonal = jnp.eye(dimension, dtype=bool)
        new = new._replace(inverse_mass=new.inverse_mass * jnp.where(is_diagonal, 1.0, gain))
    return new._replace(step_size=jnp.exp(mean(jnp.log(warmup.step_size))))


def start(
    key: Array, target: Target, params: PyTree, *, mass_matrix: str, step_size: Array | float
) -> tuple[PyTree, Warmup]:
    """A dispersed starting point around `params` in double precision, and the first metric.

    Without dispersion R-hat could not detect chains that stay in their first mode.
    """
    from blackjax.adaptation.mass_matrix import mass_matrix_adaptation
    from blackjax.adaptation.step_size import dual_averaging_adaptation

    key_prec, key_noise = jax.random.split(key)
    prec = starting_prec(key_prec, target, params, target.data, FLAT)
    variance = 1.0 / tree.ravel(tree.double(prec))
    params = tree.double(params)
    noise = jax.random.normal(key_noise, variance.shape, jnp.float64)
    unravel, center = tree.unraveler(params), tree.ravel(params)

    def at(tried: tuple[Array, Array]) -> PyTree:
        number, noise = tried
        scale = jnp.where(number < MAX_TRIES, 0.5**number, 0.0)
        return unravel(center + scale * jnp.sqrt(variance) * noise)

    def is_outside(tried: tuple[Array, Array]) -> Array:
        return ~jnp.isfinite(target.log_joint(at(tried))) & (tried[0] < MAX_TRIES)

    def again(tried: tuple[Array, Array]) -> tuple[Array, Array]:
        number, noise = tried
        key = jax.random.fold_in(key_noise, number)
        return number + 1, jax.random.normal(key, noise.shape, noise.dtype)

    # More than one try only where the density is zero close to `params`.
    first = (jnp.zeros((), jnp.int32), noise)
    position = at(jax.lax.while_loop(is_outside, again, first))

    if mass_matrix == "identity":
        variance = jnp.ones_like(variance)
    seed = jnp.diag(variance) if mass_matrix == "dense" else variance
    moments = mass_matrix_adaptation(mass_matrix != "dense")[0](variance.size, seed)
    averaging = dual_averaging_adaptation(0.8)[0](jnp.asarray(step_size, jnp.float64))
    averaging = jax.tree.map(jnp.asarray, averaging)
    initial = jnp.asarray(step_size, jnp.float64)
    return position, jax.tree.map(jnp.asarray, Warmup(initial, seed, averaging, moments))


def update(
    warmup: Warmup,
    count: Array,
    position: PyTree,
    acceptance: Array,
    *,
    num_warmup: int,
    mass_matrix: str,
    target_acceptance: Array | float,
    adaptation: StepAdaptation,
) -> Warmup:
    """The warm-up after step number `count` (from 0); unchanged once warm-up is over."""
    from blackjax.adaptation.mass_matrix import mass_matrix_adaptation
    from blackjax.adaptation.step_size import dual_averaging_adaptation

    if num_warmup == 0:
        return warmup
    restart, average, settle = dual_averaging_adaptation(target_acceptance, gamma=adaptation.gamma)
    _, observe, close = mass_matrix_adaptation(mass_matrix != "dense")
    feeds, ends = windows(num_warmup)
    now = jnp.minimum(count, num_warmup - 1)

    def adapt(old: Warmup) -> Warmup:
        averaging = average(old.averaging, acceptance)
        new = old._replace(step_size=jnp.exp(averaging.log_step_size), averaging=averaging)
        if mass_matrix != "identity":
            new = new._replace(
                moments=jax.lax.cond(
                    feeds[now], lambda m: observe(m, position), lambda m: m, old.moments
                )
            )
            new = jax.lax.cond(ends[now], new_window, lambda w: w, new)
        last = count == num_warmup - 1
        return new._replace(step_size=jnp.where(last, settle(new.averaging), new.step_size))

    def new_window(old: Warmup) -> Warmup:
        moments = close(old.moments)
        inverse_mass = moments.inverse_mass_matrix
        if mass_matrix == "dense":
            inverse_mass = _shrunk(old.moments, old.inverse_mass)
        step_size = settle(old.averaging)
        averaging = restart(step_size)
        averaging = averaging._replace(mu=jnp.log(adaptation.first_factor * step_size))
        averaging = jax.tree.map(lambda a, b: jnp.asarray(a, b.dtype), averaging, old.averaging)
        step_size = jnp.exp(averaging.log_step_size)
        return Warmup(step_size, inverse_mass, averaging, moments)

    return jax.lax.cond(count < num_warmup, adapt, lambda w: w, warmup)


def _shrunk(moments: PyTree, before: Array) -> Array:
    """The covariance of a window's draws, shrunk to its diagonal, and a little to that before."""
    from blackjax.adaptation.mass_matrix import welford_algorithm

    cov, count, _ = welford_algorithm(False)[2](moments.wc_state)
    diagonal = jnp.diag(jnp.diag(cov))
    cov = cov + diagonal_weight(len(cov), count) * (diagonal - cov)
    return (count * cov + FLOOR * jnp.diag(jnp.diag(before))) / (count + FLOOR)
