"""How chains run: on which devices and threads, and the compiled loop of draws."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn.algorithms.sampler import Sampler
from bayeslearn.channels_last import channels_last
from bayeslearn.distributed import processes
from bayeslearn.models.target import Target
from bayeslearn.precision import inside_double_precision
from bayeslearn.tree import Array, PyTree


def num_cores() -> int:
    """Cores that this process may use."""
    try:
        return max(1, len(os.sched_getaffinity(0)))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


class ChainPlacement:
    """How chains share the machine, by a fixed rule.

    On CPUs (or several devices) each chain is a group of its own: threads call one compiled chain,
    so that chains use all cores. On a single accelerator all chains are one batched group.
    Of a run that is shared each process has some chains, and what it gathers is everyone's.
    """

    def __init__(self, num_chains: int, is_shared: bool = False):
        self.devices = jax.local_devices()
        self.num_chains = num_chains
        self.is_shared = is_shared
        self.own = list(range(num_chains))
        if is_shared:  # as many on each; the last chain fills up, and is counted once
            share = math.ceil(num_chains / jax.process_count())
            first = jax.process_index() * share
            self.own = [min(first + i, num_chains - 1) for i in range(share)]
        self.is_batched = self.devices[0].platform != "cpu" and len(self.devices) == 1
        self.num_groups = 1 if self.is_batched else len(self.own)
        self.chain_devices = [self.devices[c % len(self.devices)] for c in range(len(self.own))]
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> ChainPlacement:
        if self.num_groups > 1:
            self._pool = ThreadPoolExecutor(min(self.num_groups, num_cores()))
        return self

    def __exit__(self, *args: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def put(self, target: Target) -> list[Target]:
        """A copy of the target for each of this process's chains, on its device."""
        if len(self.devices) == 1:
            return [target] * len(self.own)
        copies = [jax.device_put(target, device) for device in self.devices]
        return [copies[chain % len(copies)] for chain in range(len(self.own))]

    def stack_states(self, states: list[PyTree]) -> list[PyTree]:
        """The states of chains by group: stacked if they are batched."""
        return [jax.tree.map(lambda *s: jnp.stack(s), *states)] if self.is_batched else states

    def restore_states(self, states: list[PyTree]) -> list[PyTree]:
        """States of all chains, read from a file: this process's, each on its device."""
        if self.is_batched:
            return [jax.tree.map(lambda s: s[np.asarray(self.own)], states[0])]
        states = [states[chain] for chain in self.own]
        return [
            jax.device_put(s, device) for s, device in zip(states, self.chain_devices, strict=True)
        ]

    def keys(self, keys: list[Array]) -> list[Array]:
        """The keys of chains by group: stacked if they are batched."""
        return [jnp.stack(keys)] if self.is_batched else keys

    def run(self, advance: Callable[..., PyTree], states: list[PyTree], *args: int) -> list[PyTree]:
        """advance(group, state, *args) of every group, in threads if there are several."""

        def one(group: int) -> PyTree:
            with inside_double_precision():  # the setting is per thread
                return jax.block_until_ready(advance(group, states[group], *args))

        if self._pool is None:
            return [one(group) for group in range(self.num_groups)]
        return list(self._pool.map(one, range(self.num_groups)))

    def pool(self, algorithm: Sampler, states: list[PyTree]) -> list[PyTree]:
        """What chains have learned in warm-up, pooled."""
        if self.num_chains == 1:
            return states
        return self.restore_states(
            self._unstack(jax.device_get(_pool(algorithm, self.collect(states))))
        )

    def gather(self, values: list[PyTree], count: int) -> PyTree:
        """Arrays with leading axes (chains, steps)."""
        if self.is_batched:
            return self._all(jax.tree.map(lambda a: np.asarray(a)[:, :count], values[0]))
        if self.num_groups == 1:  # no copy
            return self._all(jax.tree.map(lambda a: np.asarray(a)[None, :count], values[0]))
        return self._all(
            jax.tree.map(lambda *a: np.stack([np.asarray(v)[:count] for v in a]), *values)
        )

    def collect(self, states: list[PyTree]) -> PyTree:
        """The states of all chains of all processes, stacked."""
        if self.is_batched:
            return self._all(states[0])
        stacked = jax.tree.map(lambda *s: np.stack([np.asarray(v) for v in s]), *states)
        return jax.tree.map(jnp.asarray, self._all(stacked))

    def all_states(self, states: list[PyTree]) -> list[PyTree]:
        """The states of all chains in the form of this process's, for a file."""
        if not self.is_shared:
            return states
        return self._unstack(self.collect(states))

    def _unstack(self, whole: PyTree) -> list[PyTree]:
        """What `collect` has put together, in the form of a file's."""
        if self.is_batched:
            return [whole]
        return [jax.tree.map(lambda s, c=c: s[c], whole) for c in range(self.num_chains)]

    def _all(self, values: PyTree) -> PyTree:
        """Of arrays along chains: those of every process, in the order of the chains."""
        if not self.is_shared:
            return values
        return jax.tree.map(
            lambda v: v.reshape(-1, *v.shape[2:])[: self.num_chains], processes.gather(values)
        )


@partial(jax.jit, static_argnames=("length", "is_batched"))
@channels_last
def draw(
    algorithm: Sampler,
    *,
    target: Target,
    state: PyTree,
    key: Array,
    begin: Array,
    count: Array,
    inner: Array,
    length: int,
    is_batched: bool,
) -> tuple[PyTree, PyTree, PyTree]:
    """`count` draws, each after `inner` steps: new state, infos by draw, positions."""

    def chain(state: PyTree, key: Array) -> tuple[PyTree, PyTree, PyTree]:
        batch = target.data
        shapes = jax.eval_shape(algorithm.step, key, target, state, batch)[1]
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, jnp.float64), shapes)
        infos = jax.tree.map(lambda z: jnp.zeros((length, *z.shape), z.dtype), zeros)
        position = algorithm.position(state)
        kept = jax.tree.map(lambda w: jnp.zeros((length, *w.shape), w.dtype), position)

        def put(buffers: PyTree, j: Array, values: PyTree) -> PyTree:
            return jax.tree.map(lambda buffer, v: buffer.at[j].set(v), buffers, values)

        def one_step(i: Array, carry: tuple) -> tuple:
            state, sums, t = carry
            state, info = algorithm.step(jax.random.fold_in(key, t), target, state, batch)
            return state, jax.tree.map(jnp.add, sums, info), t + 1

        def one_draw(j: Array, carry: tuple) -> tuple:
            state, infos, kept = carry
            t = begin + j * inner
            state, sums, _ = jax.lax.fori_loop(0, inner, one_step, (state, zeros, t))
            infos = put(infos, j, _per_draw(algorithm, sums, inner))
            position = algorithm.position(state)
            kept = put(kept, j, position)
            return state, infos, kept

        return jax.lax.fori_loop(0, count, one_draw, (state, infos, kept))

    return jax.vmap(chain)(state, key) if is_batched else chain(state, key)


def _per_draw(algorithm: Sampler, sums: PyTree, inner: Array) -> PyTree:
    """Of infos summed over the steps of a draw: counts as they are, the others as means."""
    counts = algorithm.info_fields.counts
    means = {n: v if n in counts else v / inner for n, v in sums._asdict().items()}
    return sums._replace(**means)


@jax.jit
def _pool(algorithm: Sampler, states: PyTree) -> PyTree:
    return algorithm.pool(states)


@jax.jit
def sample_marginalized(target: Target, draws: PyTree, key: Array) -> PyTree:
    """What was integrated out, drawn for each kept draw (chains, draws)."""
    shape = jax.tree.leaves(draws)[0].shape[:2]
    flat = jax.tree.map(lambda w: w.reshape(-1, *w.shape[2:]), draws)
    keys = jax.random.split(key, math.prod(shape))
    own = jax.lax.map(
        lambda pair: target.likelihood.sample_marginalized(target, *pair), (flat, keys)
    )
    own = jax.tree.map(lambda w: w.reshape(*shape, *w.shape[1:]), own)
    return draws | {"likelihood": draws["likelihood"] | own}
