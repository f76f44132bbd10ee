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


class Warmup(NamedTuple):
    """Step size and inverse mass matrix, and the states of their adaptation."""

    step_size: Array
    inverse_mass: Array  # (k,) or (k, k): the current estimate of the posterior covariance
    averaging: PyTree  # dual averaging of the log step size
    moments: PyTree  # running covariance of the current window


def windows(num_warmup: int) -> tuple[Array, Array]:
    """For each warm-up step: whether it updates the covariance, and whether it ends a window."""
    from blackjax.adaptation.window_adaptation import build_schedule

    with jax.ensure_compile_time_eval():
        schedule = np.asarray(build_schedule(num_warmup), dtype=np.int32).reshape(-1, 2)
    return jnp.asarray(schedule[:, 0] == 1), jnp.asarray(schedule[:, 1] == 1)


def pooling_steps(num_warmup: int) -> tuple[int, ...]:
    """Numbers of steps after which chains pool their adaptation."""
    if num_warmup == 0:
        return ()
    return tuple(int(end) + 1 for end in np.flatnonzero(np.asarray(windows(num_warmup)[1])))


def pooled(warmup: Warmup) -> Warmup:
    """The mean adaptation of chains along a leading axis, at the end of a window.

    It is the mean of log step sizes, and of the covariances within each chain: the distance
    between chains measures how well they have mixed, not how large a step may be.
    """

    def mean(leaf: Array) -> Array:
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            return leaf
        return jnp.broadcast_to(jnp.mean(leaf, axis=0), leaf.shape)

    new = jax.tree.map(mean, warmup)
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
    variance = 1.0 / tree.ravel(tree.double(starting_prec(key_prec, target, params, target.data)))
    params = tree.double(params)
    noise = jax.random.normal(key_noise, variance.shape, jnp.float64)
    position = tree.unraveler(params)(tree.ravel(params) + jnp.sqrt(variance) * noise)

    if mass_matrix == "identity":
        variance = jnp.ones_like(variance)
    seed = jnp.diag(variance) if mass_matrix == "dense" else variance
    moments = mass_matrix_adaptation(mass_matrix != "dense")[0](variance.size, seed)
    averaging = dual_averaging_adaptation(0.8)[0](jnp.asarray(step_size, jnp.float64))
    averaging = jax.tree.map(jnp.asarray, averaging)
    first = jnp.asarray(step_size, jnp.float64)
    return position, jax.tree.map(jnp.asarray, Warmup(first, seed, averaging, moments))


def update(
    warmup: Warmup,
    count: Array,
    position: PyTree,
    acceptance: Array,
    *,
    num_warmup: int,
    mass_matrix: str,
    target_acceptance: Array | float,
) -> Warmup:
    """The warm-up after step number `count` (from 0); unchanged once warm-up is over."""
    from blackjax.adaptation.mass_matrix import mass_matrix_adaptation
    from blackjax.adaptation.step_size import dual_averaging_adaptation

    if num_warmup == 0:
        return warmup
    restart, average, settle = dual_averaging_adaptation(target_acceptance)
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
        averaging = restart(settle(old.averaging))
        averaging = jax.tree.map(lambda a, b: jnp.asarray(a, b.dtype), averaging, old.averaging)
        step_size = jnp.exp(averaging.log_step_size)
        return Warmup(step_size, moments.inverse_mass_matrix, averaging, moments)

    return jax.lax.cond(count < num_warmup, adapt, lambda w: w, warmup)
