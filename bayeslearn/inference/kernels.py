"""The compiled functions of the optimisation loop.

All steps between two evaluations run in compiled calls, data stay on the device, and step t's
randomness is a function of the key and t alone: the same seed gives the same bits at any chunk
size, with or without progress.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import tree
from bayeslearn.algorithms.base import Algorithm
from bayeslearn.channels_last import channels_last
from bayeslearn.data.batches import permutation, take
from bayeslearn.data.rows import Batch
from bayeslearn.distributed.mesh import Layout
from bayeslearn.families.base import Family
from bayeslearn.models.target import Target
from bayeslearn.tree import LARGE_NETWORK, Array, PyTree


@partial(jax.jit, static_argnames="layout")
@channels_last
def init_state(
    algorithm: Algorithm,
    key: Array,
    target: Target,
    params: PyTree,
    *,
    layout: Layout | None = None,
) -> PyTree:
    """The first state at `params`."""
    state = jax.tree.map(_as_array, algorithm.init(key, target, params))
    return state if layout is None else layout.on_state(state)


@partial(jax.jit, static_argnames="layout")
@channels_last
def init_state_from(
    algorithm: Algorithm, key: Array, target: Target, q: Family, *, layout: Layout | None = None
) -> PyTree:
    """The first state at a warm start's q."""
    state = jax.tree.map(_as_array, algorithm.init_from(key, target, q))
    return state if layout is None else layout.on_state(state)


def _as_array(leaf: Any) -> Array:
    """With a type of its own: weak ones would compile steps again once they have become strong."""
    leaf = jnp.asarray(leaf)
    return leaf.astype(leaf.dtype) if leaf.weak_type else leaf


def run_steps(algorithm: Algorithm, **arguments: Any) -> StepResults:
    """`_steps`; where one of them was not finite, again from the start and without it.

    So that steps which are all finite, as they nearly always are, need not keep the old state.
    """
    results = _run(algorithm, skips=False, **arguments)
    return _run(algorithm, skips=True, **arguments) if results.nonfinite else results


class StepResults(NamedTuple):
    """The state on the device; the rest on the host."""

    state: PyTree
    infos: dict[str, np.ndarray]
    nonfinite: int  # steps
    is_finite: bool  # the state


def _run(algorithm: Algorithm, **arguments: Any) -> StepResults:
    state, *others = _steps(algorithm, **arguments)
    infos, nonfinite, finite = jax.device_get(others)  # one transfer
    return StepResults(state, infos, int(nonfinite), bool(finite))


@partial(jax.jit, static_argnames=("length", "batch_size", "skips", "layout"))
@channels_last
def _steps(
    algorithm: Algorithm,
    *,
    target: Target,
    state: PyTree,
    key_step: Array,
    key_data: Array,
    begin: Array,
    count: Array,
    length: int,
    batch_size: int | None,
    stream: Batch | None,
    skips: bool,
    layout: Layout | None = None,
) -> tuple[PyTree, dict[str, Array], Array, Array]:
    """Steps begin, ..., begin + count - 1: new state, their infos, steps not finite, all finite.

    With `skips` a step whose info is not finite leaves the state as it was.
    """
    data = target.data
    rows = 1 if data is None else len(data.y)
    is_full = data is None or batch_size == rows
    is_independent = algorithm.capabilities.independent_batches
    num_batches = 1 if batch_size is None else math.ceil(rows / batch_size)

    def batch_of(t: Array, j: Array, order: Array) -> tuple[Batch | None, Array]:
        if stream is not None:
            return jax.tree.map(lambda leaf: leaf[j], stream), order
        if is_full:
            return data, order
        assert data is not None
        assert batch_size is not None
        if is_independent:
            key = jax.random.fold_in(key_data, t)
            chosen = jax.random.randint(key, (batch_size,), 0, rows)
            return jax.tree.map(lambda leaf: leaf[chosen], data), order
        position = t % num_batches
        order = jax.lax.cond(
            position == 0,
            lambda: permutation(key_data, t // num_batches, rows),
            lambda: order,
        )
        return take(data, order, position, batch_size), order

    def one(j: Array, carry: tuple) -> tuple:
        state, order, infos, nonfinite = carry
        t = begin + j
        batch, order = batch_of(t, j, order)
        batch = batch if layout is None else layout.on_rows(batch)
        here = algorithm.training_target(target, t)
        new, info = algorithm.step(jax.random.fold_in(key_step, t), here, state, batch)
        info = _recorded(algorithm, state, info)
        new = new if layout is None else layout.on_state(new)
        finite = tree.all_finite(info)
        state = tree.where(finite, new, state) if skips else new
        infos = jax.tree.map(lambda buffer, v: buffer.at[j].set(v), infos, info)
        return state, order, infos, nonfinite + (~finite)

    if is_full or is_independent or stream is not None:
        order = jnp.zeros((), jnp.int32)
    else:
        order = permutation(key_data, begin // num_batches, rows)
    first, _ = batch_of(jnp.asarray(begin), jnp.zeros((), jnp.int32), order)
    shapes = jax.eval_shape(algorithm.step, key_step, target, state, first)[1]
    shapes = _recorded(algorithm, state, shapes)
    infos = jax.tree.map(lambda s: jnp.zeros((length, *s.shape), s.dtype), shapes)
    carry = (state, order, infos, jnp.zeros((), jnp.int32))
    state, _, infos, nonfinite = jax.lax.fori_loop(0, count, one, carry)
    return state, infos, nonfinite, tree.all_finite(state)


def _recorded(algorithm: Algorithm, state: PyTree, info: PyTree) -> dict[str, Array]:
    """What is recorded of every step: not what would need a pass over the weights of its own."""
    skipped, small_only = algorithm.info_fields.evaluation_only, algorithm.info_fields.small_only
    if small_only and tree.size(algorithm.position(state)) > LARGE_NETWORK:
        skipped += small_only
    return {name: value for name, value in info._asdict().items() if name not in skipped}


@jax.jit
def refresh(algorithm: Algorithm, target: Target, state: PyTree, key: Array) -> Target:
    """The parts of the model that have a posterior of their own, updated given q."""
    target = algorithm.bind_state(target, state)
    new = target.refresh(algorithm.approximation(target, state), key)
    if not getattr(algorithm, "learn_noise", True):
        new = dataclasses.replace(new, likelihood=target.likelihood)
    return new


@jax.jit
def approximation(algorithm: Algorithm, target: Target, state: PyTree) -> Family:
    """The q of a state, by one program; of few weights the single operations are cheaper."""
    return algorithm.approximation(target, state)


@jax.jit
@channels_last
def log_joint(target: Target, params: PyTree) -> Array:
    """log p(D, params) over all rows of the target."""
    return target.log_joint(params)
