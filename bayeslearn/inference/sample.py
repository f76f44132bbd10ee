"""The sampling loop: warm-up and kept draws of all chains, over cores or devices."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import tree
from bayeslearn.algorithms.sampler import Sampler
from bayeslearn.errors import DivergenceError, StoppedError
from bayeslearn.inference.chains import ChainPlacement, draw, sample_marginalized
from bayeslearn.inference.context import MAIN, RunContext, named_key
from bayeslearn.inference.kernels import init_state, init_state_from
from bayeslearn.inference.options import Phase
from bayeslearn.inference.outcomes import RunOutcome, StartingPoint
from bayeslearn.inference.run_state import SamplingState, join_segments, pop_draws
from bayeslearn.models.target import Target
from bayeslearn.progress import Progress
from bayeslearn.tree import Array, PyTree

CHUNK = 50  # draws per compiled call; of cheap densities up to ten times as many
CHEAP_COST = 1.5e6  # rows times weights
CHUNK_BYTES = 64e6
MAX_INNER = 100_000  # steps per compiled call, which cannot be stopped


def sample(
    context: RunContext,
    algorithm: Sampler,
    params: list[PyTree],
    starts: Sequence[StartingPoint | None],
    *,
    pools: bool = True,
) -> RunOutcome:
    """Run a chain from each of `params`, or from the q that a warm start has left there.

    Chains pool what they learn in warm-up; those of several modes should not (`pools=False`).
    """
    began = time.perf_counter()
    first = next((start for start in starts if start is not None), None)
    target = context.target_on_host(context.target if first is None else first.target).marginal()
    key = context.gather_to_host(context.key)
    starts = [
        None if start is None else start._replace(q=context.gather_to_host(start.q))
        for start in starts
    ]
    placement = ChainPlacement(len(params), is_shared=context.is_shared)
    chains = _Chains(context, algorithm, target, params, starts, placement, key)
    if not pools:
        chains.pooling_steps = ()
    run = chains.prepared()
    for group in range(placement.num_groups):
        jax.block_until_ready(chains.advance(group, run.states[group], 0, 0, 1))
    compile_time = time.perf_counter() - began
    total = algorithm.num_warmup + algorithm.num_samples * algorithm.thin
    with Progress(algorithm.name, total, context.progress) as bar, placement:
        while (run.warmup_left or run.draws_left) and not run.has_ended:
            context.maybe_save(run)
            metrics, was_warmup = chains.next_draws(run)
            bar.update(run.step, {"warmup": 1.0, **metrics} if run.warmup_left else metrics)
            stops = context.notify(run, algorithm.name, total, metrics)
            if stops and not was_warmup:
                run.stop_reason = f"The callback stopped it at step {run.step}."
                run.has_ended = True
            elif stops and context.phase == MAIN:  # a member's chain stops at its first draws
                give_up(context, run, algorithm)
    return chains.finished(run, began, compile_time)


def give_up(context: RunContext, run: SamplingState, algorithm: Sampler) -> NoReturn:
    """The callback has stopped a run that has no draws to return."""
    text = (
        f"The callback stopped {algorithm.name} at step {run.step} of its {algorithm.num_warmup}"
        " warm-up steps, before the first draw: there is no posterior to return."
    )
    if context.checkpointer is not None:
        context.checkpointer.save(context.phase, run)
        text += f" To go on, {context.checkpointer.resume_hint()}."
    raise StoppedError(text)


class _Chains:
    """The parts of the loop."""

    def __init__(
        self,
        context: RunContext,
        algorithm: Sampler,
        target: Target,
        params: list[PyTree],
        starts: list[StartingPoint | None],
        placement: ChainPlacement,
        key: Array,
    ):
        self.context, self.algorithm, self.target = context, algorithm, target
        self.params, self.starts, self.placement, self.key = params, starts, placement, key
        num_weights = tree.size(params[0])
        num_rows = 1 if target.data is None else len(target.data.y)
        length = CHUNK * min(10, max(1, int(CHEAP_COST / (num_weights * num_rows))))
        self.length = max(1, min(length, int(CHUNK_BYTES / (8 * num_weights))))
        self.limit = context.chunk_limit(self.length)
        self.keys = [jax.random.fold_in(named_key(key, "chain"), c) for c in placement.own]
        self.targets = placement.put(target)
        self.pooling_steps = algorithm.pooling_steps()

    def begin(self, chain: int, key: Array) -> PyTree:
        """The first state of one chain."""
        key, start = named_key(key, "init"), self.starts[chain]
        if start is None:
            return init_state(self.algorithm, key, self.target, self.params[chain])
        return init_state_from(self.algorithm, key, self.target, start.q)

    def prepared(self) -> SamplingState:
        """The state of the loop: new, or as an earlier process left it."""
        context, algorithm, placement = self.context, self.algorithm, self.placement
        checkpointer = context.checkpointer
        saved = None if checkpointer is None else checkpointer.saved_state(context.phase)
        if saved is not None:
            like = jax.eval_shape(partial(self.begin, 0), self.keys[0])
            return SamplingState.from_record(saved, like, placement, algorithm)
        states = [
            jax.device_put(self.begin(chain, key), device)
            for chain, key, device in zip(
                placement.own, self.keys, placement.chain_devices, strict=True
            )
        ]
        for state in states:
            if not bool(jnp.isfinite(state.log_density)):
                raise DivergenceError(
                    f"{algorithm.name} cannot start: the log-density at the starting point is"
                    f" {float(state.log_density)}. Start elsewhere with `init=`, or scale the data."
                )
        run = SamplingState(placement.stack_states(states), algorithm, placement)
        run.stop_reason = (
            f"All {algorithm.num_samples} draws of {placement.num_chains} chain(s) were kept."
        )
        return run

    def advance(self, group: int, state: PyTree, first: int, count: int, inner: int) -> tuple:
        """`count` draws of one group of chains, each after `inner` steps."""
        return draw(
            self.algorithm,
            target=self.targets[group],
            state=state,
            key=self.placement.keys(self.keys)[group],
            begin=first,
            count=count,
            inner=inner,
            length=self.length,
            is_batched=self.placement.is_batched,
        )

    def next_draws(self, run: SamplingState) -> tuple[dict[str, float], bool]:
        """One compiled call of every group: metrics, and whether it was warm-up."""
        algorithm, placement = self.algorithm, self.placement
        is_warmup = run.warmup_left > 0
        inner = 1 if is_warmup else algorithm.thin
        count = min(self.limit, run.warmup_left or run.draws_left, max(1, MAX_INNER // inner))
        pooling = min((step for step in self.pooling_steps if step > run.step), default=None)
        if pooling is not None:
            count = min(count, pooling - run.step)
        results = placement.run(self.advance, run.states, run.step, count, inner)
        run.states = [result[0] for result in results]
        infos = placement.gather([result[1] for result in results], count)
        for name, values in infos._asdict().items():
            run.trace.setdefault(("warmup_" if is_warmup else "") + name, []).append(values)
        run.step += count * inner
        if run.step == pooling:
            run.states = placement.pool(algorithm, run.states)
        if is_warmup:
            run.warmup_left -= count
        else:
            run.draws_left -= count
            run.append_draws(placement.gather([result[2] for result in results], count))
        fields = algorithm.info_fields.progress
        return {name: float(np.mean(getattr(infos, name))) for name in fields}, is_warmup

    def finished(self, run: SamplingState, began: float, compile_time: float) -> RunOutcome:
        """All draws, and the trace."""
        context, algorithm, placement = self.context, self.algorithm, self.placement
        segments = [run.segment()]
        if context.checkpointer is not None:
            context.checkpointer.save(context.phase, run)
            segments = [*context.checkpointer.segments(context.phase), run.segment()]
        arrays = join_segments(segments, 1)
        del segments
        position = jax.vmap(algorithm.position) if placement.is_batched else algorithm.position
        like = jax.eval_shape(position, run.states[0])
        draws = pop_draws(arrays, like, int(placement.is_batched))
        if self.target.likelihood is not None and self.target.likelihood.is_marginal:
            draws = sample_marginalized(self.target, draws, named_key(self.key, "complete"))
        gradients = [arrays[n] for n in ("num_gradients", "warmup_num_gradients") if n in arrays]
        seconds = time.perf_counter() - began
        total = int(sum(np.sum(part) for part in gradients))
        context.phases.append(
            Phase(context.phase, algorithm.name, run.step, total, seconds, None, True)
        )
        state = placement.collect(run.states)
        return RunOutcome(
            state, self.target, draws, arrays, None, run.stop_reason, [], compile_time
        )
