"""The one training loop: `fit(model, algorithm, data, seed=0)` gives a `Posterior`.

All steps between two looks at the lower bound run in one compiled call, data stay on the device,
and step t's randomness is a function of the seed and t alone: the same seed gives the same bits
at any chunk size, with or without progress. Variational methods and MAP take `num_steps` and
`batch_size`; samplers carry their own counts and run several chains.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import batches, tree
from bayeslearn.algorithms import ALGORITHMS, MAP, Algorithm
from bayeslearn.algorithms.joint import Joint
from bayeslearn.errors import ArgumentError, DivergenceError, Shown, check_whole, refuse
from bayeslearn.families import Point
from bayeslearn.model import Batch, Model, Target, check_data, check_like_training
from bayeslearn.posterior import Posterior
from bayeslearn.precision import double_precision, inside_double_precision, to_host
from bayeslearn.priors import check_gaussian, check_given
from bayeslearn.progress import Progress
from bayeslearn.tree import Array, PyTree

EVALUATIONS = 100  # looks at the lower bound in a full-length run
WINDOW = 10  # evaluations in the moving average
TIE = 0.25  # of the objective's Monte-Carlo error
PATIENCE = 20  # evaluations without a new best before stopping
EVAL_DRAWS = 64
EVAL_BATCH = 16  # of those at a time
FRESH_LOOKS = 4  # of EVAL_DRAWS each, for the lower bound that is reported
EVAL_ROWS = 8192
CHUNK = 100  # steps per compiled call
STREAM_CHUNK = 20
SAMPLER_CHUNK = 50
CHUNK_BYTES = 64e6
MAX_BACK_OFFS = 10  # without calm in between, before a run is given up
CALM_ROUNDS = 20
PATIENT_BACK_OFFS = 2  # before it steps back to its best state


class Progressed(NamedTuple):
    """What a callback is told."""

    algorithm: str
    step: int
    num_steps: int
    metrics: dict[str, float]


@double_precision
def fit(
    model: Model | Target,
    algorithm: Algorithm | str,
    data: Any = None,
    *,
    seed: int,
    num_steps: int | str = "auto",
    batch_size: int | str = "auto",
    num_chains: int | None = None,
    num_data: int | None = None,
    validation: tuple[Any, Any] | None = None,
    eval_every: int | None = None,
    patience: int | str | None = "auto",
    params: PyTree | None = None,
    progress: bool | None = None,
    callback: Callable[[Progressed], Any] | None = None,
    chunk_size: int | None = None,
) -> Posterior:
    """Infer the posterior over a model's weights.

    Args:
        model: a `Model`, or a `Target` (a model already bound to data, or a bare log-density).
        algorithm: an algorithm such as `bl.VOGN()`, or its name.
        data: a pair (x, y) of arrays or data frames, or an iterable of such pairs with `num_data`.
        seed: a whole number; the same seed gives the same result.
        num_steps: optimisation steps; "auto": up to 5000, fewer once the lower bound rests.
        batch_size: rows per step; "auto": all rows up to 2048, else 256.
        num_chains: chains of a sampler (4 unless said), started apart from each other.
        num_data: size of the data set behind an iterable.
        validation: (x, y) held out; its log-likelihood then decides when to stop.
        eval_every: steps between looks at the lower bound; one hundredth of the run unless said.
        patience: evaluations without a new best before stopping; None: never. "auto": 20 if
            `num_steps` is "auto", else never.
        params: where to start, instead of the network's own initialisation. A Gaussian, such as
            another posterior's `family`, is also the first q of a variational method.
        progress: show a progress bar; None: only on a terminal.
        callback: called with a `Progressed` at every evaluation; return True to stop.
        chunk_size: most steps per compiled call; changes nothing but the pace of progress.
    """
    algorithm = check_algorithm(algorithm)
    check_arguments(
        algorithm,
        seed=seed,
        num_steps=num_steps,
        batch_size=batch_size,
        num_chains=num_chains,
        num_data=num_data,
        validation=validation,
        eval_every=eval_every,
        patience=patience,
        chunk_size=chunk_size,
        callback=callback,
    )
    began = time.perf_counter()
    root = jax.random.key(int(seed))
    target, start, stream = _bind(model, data, num_data, root)
    first = None
    if params is not None and hasattr(params, "to_prior"):
        first, params = params, params.mean
    if params is not None:
        start = _check_start(params, start)
    if start is None:
        refuse("params", None, "be given to start from, for a Target that has no start of its own")
    _check_suits(algorithm, target, batch_size, stream, num_data, validation)
    held_out = None if validation is None else _held_out(target, validation)
    partly = model if isinstance(model, Model) and model.bayesian is not None else None
    if isinstance(algorithm, MAP):
        partly = None
    if partly is not None and stream is not None and not stream.restarts:
        refuse("data", Shown("an iterator"), "be readable twice, to train the other leaves first")
    algorithm.check(*((target, start) if partly is None else partly.hold(target, start)))
    rows = 1 if target.data is None else len(target.data.y)
    if batch_size == "auto":
        batch_size = batches.auto_batch_size(rows)
    elif int(batch_size) > rows:
        refuse("batch_size", batch_size, f"be at most the number of rows ({rows})")

    setting = _Setting(
        target=target,
        stream=stream,
        held_out=held_out,
        batch_size=int(batch_size),
        root=root,
        progress=progress,
        callback=callback,
        chunk_size=chunk_size,
    )
    if patience in (None, "auto"):
        patience = PATIENCE if patience == "auto" and num_steps == "auto" else None
    notes = []
    points_time = 0.0
    if partly is not None:
        setting, start, points_time = _train_points(setting, partly, start)
        if partly.points == "joint":
            algorithm = Joint(algorithm)
    warm = None
    if first is not None and algorithm.takes_q:
        warm = _Warm(first, target, 0.0)
    elif stream is None or stream.restarts:
        warm = _warm_start(setting, algorithm, start)
    elif algorithm.warm_start() is not None:
        notes.append("There was no warm start: the data iterator can be read only once.")
    if algorithm.is_sampler:
        run = _sample(setting, algorithm, start, warm, 4 if num_chains is None else int(num_chains))
    else:
        steps = algorithm.auto_steps if num_steps == "auto" else int(num_steps)
        rest = None if patience is None else int(patience)
        run = _optimise(setting, algorithm, start, warm, steps, eval_every, rest)
    family = algorithm.approximation(run.target, run.state, run.draws)
    if isinstance(algorithm, Joint):
        algorithm, run = algorithm.inner, run._replace(state=run.state.inner)
    posterior = Posterior(
        target=run.target,
        algorithm=algorithm,
        family=to_host(family),
        state=run.state,
        trace=run.trace,
        elbo=run.elbo,
        stopped=run.stopped,
        notes=(*notes, *run.notes),
        seed=int(seed),
        wall_time=time.perf_counter() - began,
        compile_time=run.compile_time + points_time + (0.0 if warm is None else warm.compile_time),
    )
    if algorithm.is_sampler:
        posterior.warn_if_not_mixed()
    return posterior


def _train_points(setting: _Setting, model: Model, start: PyTree) -> tuple[_Setting, PyTree, float]:
    """All leaves trained together, then those without a posterior held."""
    quiet = setting._replace(root=_named(setting.root, "points"), callback=None, held_out=None)
    first = MAP(learn_noise=False)
    run = _optimise(quiet, first, start, None, first.auto_steps, None, PATIENCE)
    q = first.approximation(run.target, run.state)
    target, start = model.hold(setting.target, q.mean)
    return setting._replace(target=target), start, run.compile_time


class _Warm(NamedTuple):
    """What a warm start leaves to the method after it."""

    q: Any
    target: Target  # with what was refreshed on the way
    compile_time: float


def _warm_start(setting: _Setting, algorithm: Algorithm, start: PyTree) -> _Warm | None:
    """The result of the algorithm's warm start, which may have one of its own."""
    before = algorithm.warm_start()
    if before is None:
        return None
    quiet = setting._replace(root=_named(setting.root, "warm start"), callback=None, held_out=None)
    earlier = _warm_start(quiet, before, start)
    run = _optimise(quiet, before, start, earlier, before.auto_steps, None, PATIENCE)
    q = before.approximation(run.target, run.state)
    compile_time = run.compile_time + (0.0 if earlier is None else earlier.compile_time)
    return _Warm(q, run.target, compile_time)


def _begin(target: Target, algorithm: Algorithm, start: PyTree, warm: _Warm | None, key: Array):
    """The first state: from the warm start if there was one, else from the network."""
    if warm is None:
        return _init(algorithm, key, target, start)
    return _init_from(algorithm, key, target, warm.q)


class _Setting(NamedTuple):
    """What does not change during a run."""

    target: Target
    stream: batches.Stream | None
    held_out: Batch | None
    batch_size: int
    root: Array
    progress: bool | None
    callback: Callable[[Progressed], Any] | None
    chunk_size: int | None


class _Run(NamedTuple):
    state: Any
    target: Target  # with what was refreshed on the way
    draws: PyTree | None
    trace: dict[str, np.ndarray]
    elbo: float | None
    stopped: str
    notes: list[str]
    compile_time: float


def _optimise(
    setting: _Setting,
    algorithm: Algorithm,
    start: PyTree,
    warm: _Warm | None,
    num_steps: int,
    eval_every: int | None,
    patience: int | None,
) -> _Run:
    """Steps in rounds of `eval_every`; after each the lower bound is measured."""
    target, root = setting.target if warm is None else warm.target, setting.root
    eval_every = min(num_steps, eval_every or max(1, num_steps // EVALUATIONS))
    # A fixed length, so that runs of other lengths do not compile again.
    length = STREAM_CHUNK if setting.stream is not None else CHUNK
    most = min(setting.chunk_size or length, length)
    key_step, key_data = _named(root, "step"), _named(root, "data")
    eval_data = None if target.data is None else batches.sample_rows(target.data, EVAL_ROWS)

    timer = time.perf_counter()
    state = _begin(target, algorithm, start, warm, _named(root, "init"))
    _check_finite_start(target, state, start)
    advance = partial(_advance, key_step=key_step, key_data=key_data, length=length)
    # A call of no steps compiles the loop, so that compile and run time can be told apart.
    rows = setting.batch_size if setting.stream is None else None
    if setting.stream is None:
        advance(
            algorithm, target=target, state=state, begin=0, count=0, batch_size=rows, stream=None
        )
    compile_time = time.perf_counter() - timer

    trace: dict[str, list[Any]] = {}
    best = _Best(patience)
    good, step, scale, skipped = state, 0, 1.0, 0
    back_offs = recent = calm = 0
    stopped = f"All {num_steps} steps were done."
    ended = False
    with Progress(algorithm.name, num_steps, setting.progress) as bar:
        while step < num_steps and not ended:
            goal = min(num_steps, step + eval_every)
            state, at, infos, bad, failed = good, step, [], 0, False
            while at < goal and not ended:
                count, stream = min(most, goal - at), None
                if setting.stream is not None:
                    stream, count = setting.stream.chunk(target, count, length)
                    if count == 0:
                        ended = True
                        break
                state, info, num_bad, finite = advance(
                    _shortened(algorithm, scale),
                    target=target,
                    state=state,
                    begin=at,
                    count=count,
                    batch_size=rows,
                    stream=stream,
                )
                infos.append(jax.tree.map(lambda a, n=count: np.asarray(a[:n]), info))
                at, bad = at + count, bad + int(num_bad)
                failed = not bool(finite) or bad > eval_every // 2
                if failed:
                    break
            if failed:
                back_offs += 1
                recent, calm = recent + 1, 0
                scale *= 0.5
                if recent > PATIENT_BACK_OFFS and best.state is not None:
                    # The last state was finite, but already on its way out.
                    good, target = best.state, best.target
                if recent > MAX_BACK_OFFS or not hasattr(algorithm, "learning_rate"):
                    raise DivergenceError(
                        f"{algorithm.name} met non-finite numbers after step {step} and"
                        f" {recent - 1} shorter steps did not help. Scale x and y to unit"
                        " spread, lower `learning_rate`, or check the network for divisions by"
                        " zero."
                    )
                continue
            if at == step:
                stopped = f"The data iterator ended after {step} steps."
                break
            step, good, skipped, calm = at, state, skipped + bad, calm + 1
            if calm == CALM_ROUNDS:
                recent = 0
            for info in infos:
                for name, values in info._asdict().items():
                    trace.setdefault(name, []).append(values)
            # New draws at every look: luck then averages out over the window.
            key_eval = jax.random.fold_in(_named(root, "evaluate"), step)
            if target.refreshes:
                target = _refresh(algorithm, target, state, jax.random.fold_in(key_eval, 1))
            eval_target = target.on(eval_data)
            metrics = _evaluate(algorithm, eval_target, state, key_eval, setting.held_out)
            metrics = {name: float(value) for name, value in metrics.items()}
            trace.setdefault("eval_step", []).append(step)
            for name, value in metrics.items():
                trace.setdefault("eval_" + name, []).append(value)
            bar.update(step, metrics)
            goes_on = best.see(metrics["objective"], metrics.pop("error"), state, target, step)
            if setting.callback is not None and setting.callback(
                Progressed(algorithm.name, step, num_steps, metrics)
            ):
                stopped, ended = f"The callback stopped it at step {step}.", True
            elif not goes_on:
                stopped = (
                    f"The objective's moving average had no new best for {best.patience}"
                    f" evaluations, after step {step}; the iterate of step {best.step} is returned."
                )
                ended = True
            elif ended:
                stopped = f"The data iterator ended after {step} steps."
    if step == 0:
        raise ArgumentError("`data` must give at least one batch, got an iterator that is empty.")

    notes = algorithm.remarks(best.target, start)
    if skipped:
        notes.append(f"{skipped} steps met non-finite numbers and were skipped.")
    if back_offs:
        notes.append(
            f"The step size was halved {back_offs} time(s) after non-finite numbers; the run ended"
            f" at {scale:g} of the learning rate asked for."
        )
    elbo = None
    if algorithm.has_lower_bound:
        eval_target = best.target.on(eval_data)
        fresh = [
            _evaluate(algorithm, eval_target, best.state, key, setting.held_out)["elbo"]
            for key in jax.random.split(_named(root, "fresh"), FRESH_LOOKS)
        ]
        elbo = float(np.mean(fresh))
    arrays = {
        name: np.asarray(values) if name.startswith("eval_") else np.concatenate(values)
        for name, values in trace.items()
    }
    target = algorithm.settled(best.target, best.state)
    return _Run(best.state, target, None, arrays, elbo, stopped, notes, compile_time)


def _sample(
    setting: _Setting, algorithm: Any, start: PyTree, warm: _Warm | None, num_chains: int
) -> _Run:
    """Warm-up and kept draws of all chains, spread over cores or devices."""
    target, root = (setting.target if warm is None else warm.target).marginal(), setting.root
    timer = time.perf_counter()
    bytes_per_draw = 8 * tree.size(start)
    length = max(1, min(SAMPLER_CHUNK, int(CHUNK_BYTES / bytes_per_draw)))
    most = min(setting.chunk_size or length, length)
    keys = [jax.random.fold_in(_named(root, "chain"), chain) for chain in range(num_chains)]
    lanes = _Lanes(num_chains)
    targets = lanes.put(target)

    states = [
        jax.device_put(_begin(target, algorithm, start, warm, _named(key, "init")), device)
        for key, device in zip(keys, lanes.places, strict=True)
    ]
    for state in states:
        if not bool(jnp.isfinite(state.log_density)):
            raise DivergenceError(
                f"{algorithm.name} cannot start: the log-density at the starting point is"
                f" {float(state.log_density)}. Start elsewhere with `params=`, or scale the data."
            )
    states = lanes.spread(states)

    def advance(lane: int, state: Any, first: int, count: int, inner: int) -> Any:
        return _draws(
            algorithm,
            target=targets[lane],
            state=state,
            key=lanes.keys(keys)[lane],
            begin=first,
            count=count,
            inner=inner,
            length=length,
            is_batched=lanes.is_batched,
        )

    for lane in range(lanes.num):
        jax.block_until_ready(advance(lane, states[lane], 0, 0, 1))
    compile_time = time.perf_counter() - timer

    total = algorithm.num_warmup + algorithm.num_samples * algorithm.thin
    trace: dict[str, list[np.ndarray]] = {}
    kept: list[PyTree] = []
    stopped = f"All {algorithm.num_samples} draws of {num_chains} chain(s) were kept."
    warmup_left, draws_left, step = algorithm.num_warmup, algorithm.num_samples, 0
    with Progress(algorithm.name, total, setting.progress) as bar, lanes:
        while warmup_left or draws_left:
            inner = 1 if warmup_left else algorithm.thin
            count = min(most, warmup_left or draws_left)
            results = lanes.run(advance, states, step, count, inner)
            states = [result[0] for result in results]
            infos = lanes.gather([result[1] for result in results], count)
            for name, values in infos._asdict().items():
                trace.setdefault(("" if not warmup_left else "warmup_") + name, []).append(values)
            step += count * inner
            if warmup_left:
                warmup_left -= count
            else:
                draws_left -= count
                kept.append(lanes.gather([result[2] for result in results], count))
            metrics = {n: float(np.mean(getattr(infos, n))) for n in algorithm.shown}
            bar.update(step, {"warmup": 1.0, **metrics} if warmup_left else metrics)
            told = Progressed(algorithm.name, step, total, metrics)
            if setting.callback is not None and setting.callback(told) and kept:
                stopped = f"The callback stopped it at step {step}."
                break
    draws = jax.tree.map(lambda *parts: jnp.asarray(np.concatenate(parts, axis=1)), *kept)
    if target.likelihood is not None and target.likelihood.is_marginal:
        draws = _complete(target, draws, _named(root, "complete"))
    arrays = {name: np.concatenate(parts, axis=1) for name, parts in trace.items()}
    notes = []
    diverged = int(np.sum(arrays.get("diverging", 0)))
    if diverged:
        notes.append(
            f"{diverged} of {arrays['diverging'].size} trajectories diverged; raise"
            " `target_acceptance` or `num_warmup` if there are many."
        )
    state = lanes.collect(states)
    return _Run(state, target, draws, arrays, None, stopped, notes, compile_time)


class _Lanes:
    """How chains share the machine, by a fixed rule.

    On CPUs (or several devices) each chain is a lane of its own: threads call one compiled chain,
    so that chains use all cores. On a single accelerator all chains are one batched lane.
    """

    def __init__(self, num_chains: int):
        self.devices = jax.local_devices()
        self.num_chains = num_chains
        self.is_batched = self.devices[0].platform != "cpu" and len(self.devices) == 1
        self.num = 1 if self.is_batched else num_chains
        self.places = [self.devices[c % len(self.devices)] for c in range(num_chains)]
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> _Lanes:
        if self.num > 1:
            self._pool = ThreadPoolExecutor(min(self.num, max(os.cpu_count() or 1, 1)))
        return self

    def __exit__(self, *args: Any) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def put(self, target: Target) -> list[Target]:
        if len(self.devices) == 1:
            return [target] * self.num_chains
        copies = [jax.device_put(target, device) for device in self.devices]
        return [copies[chain % len(copies)] for chain in range(self.num_chains)]

    def spread(self, states: list[Any]) -> list[Any]:
        return [jax.tree.map(lambda *s: jnp.stack(s), *states)] if self.is_batched else states

    def keys(self, keys: list[Array]) -> list[Array]:
        return [jnp.stack(keys)] if self.is_batched else keys

    def run(self, advance: Callable[..., Any], states: list[Any], *args: Any) -> list[Any]:
        def one(lane: int) -> Any:
            with inside_double_precision():  # the setting is per thread
                return jax.block_until_ready(advance(lane, states[lane], *args))

        if self._pool is None:
            return [one(lane) for lane in range(self.num)]
        return list(self._pool.map(one, range(self.num)))

    def gather(self, values: list[Any], count: int) -> Any:
        """Arrays with leading axes (chains, steps)."""
        if self.is_batched:
            return jax.tree.map(lambda a: np.asarray(a)[:, :count], values[0])
        return jax.tree.map(lambda *a: np.stack([np.asarray(v)[:count] for v in a]), *values)

    def collect(self, states: list[Any]) -> Any:
        if self.is_batched:
            return states[0]
        return jax.tree.map(lambda *s: jnp.stack([jnp.asarray(np.asarray(v)) for v in s]), *states)


class _Best:
    """The iterate with the best moving average of the objective so far."""

    def __init__(self, patience: int | None):
        self.patience = patience
        self.state: Any = None
        self.target: Any = None
        self.step = 0
        self._values: list[float] = []
        self._best = -math.inf
        self._since = 0

    def see(self, objective: float, error: float, state: Any, target: Target, step: int) -> bool:
        """Whether to go on; `error` is the Monte-Carlo error of one objective."""
        # One error below the estimate, so that a lucky early look at a poor q does not win.
        self._values.append(objective - error)
        average = float(np.mean(self._values[-WINDOW:]))
        self._since += 1
        # A tie within the bound's own error goes to the later iterate: its steps were smaller.
        if average >= self._best - TIE * error or self.state is None:
            self.state, self.target, self.step = state, target, step
        if average > self._best:
            self._best, self._since = average, 0
        is_early = len(self._values) < WINDOW + (self.patience or 0)
        return is_early or self.patience is None or self._since < self.patience


@jax.jit
def _init(algorithm: Any, key: Array, target: Target, params: PyTree) -> Any:
    return jax.tree.map(jnp.asarray, algorithm.init(key, target, params))


@jax.jit
def _init_from(algorithm: Any, key: Array, target: Target, q: Any) -> Any:
    return jax.tree.map(jnp.asarray, algorithm.init_from(key, target, q))


def _advance(algorithm: Algorithm, **arguments: Any) -> tuple[Any, Any, Array, Array]:
    """`_steps`; where one of them was not finite, again from the start and without it.

    So that steps which are all finite, as they nearly always are, need not keep the old state.
    """
    results = _steps(algorithm, skips=False, **arguments)
    return _steps(algorithm, skips=True, **arguments) if int(results[2]) else results


@partial(jax.jit, static_argnames=("length", "batch_size", "skips"))
def _steps(
    algorithm: Algorithm,
    *,
    target: Target,
    state: Any,
    key_step: Array,
    key_data: Array,
    begin: Array,
    count: Array,
    length: int,
    batch_size: int | None,
    stream: Batch | None,
    skips: bool,
) -> tuple[Any, Any, Array, Array]:
    """Steps begin, ..., begin + count - 1: new state, their infos, steps not finite, all finite.

    With `skips` a step whose info is not finite leaves the state as it was.
    """
    data = target.data
    rows = 1 if data is None else len(data.y)
    is_full = data is None or batch_size == rows
    num_batches = 1 if batch_size is None else math.ceil(rows / batch_size)

    def batch_of(t: Array, j: Array, order: Array) -> tuple[Batch | None, Array]:
        if stream is not None:
            return jax.tree.map(lambda leaf: leaf[j], stream), order
        if is_full:
            return data, order
        position = t % num_batches
        order = jax.lax.cond(
            position == 0,
            lambda: batches.permutation(key_data, t // num_batches, rows),
            lambda: order,
        )
        assert data is not None
        assert batch_size is not None
        return batches.take(data, order, position, batch_size), order

    def one(j: Array, carry: tuple) -> tuple:
        state, order, infos, bad = carry
        t = begin + j
        batch, order = batch_of(t, j, order)
        new, info = algorithm.step(jax.random.fold_in(key_step, t), target, state, batch)
        finite = tree.all_finite(info)
        state = tree.where(finite, new, state) if skips else new
        infos = jax.tree.map(lambda buffer, v: buffer.at[j].set(v), infos, info)
        return state, order, infos, bad + (~finite)

    if is_full or stream is not None:
        order = jnp.zeros((), jnp.int32)
    else:
        order = batches.permutation(key_data, begin // num_batches, rows)
    first, _ = batch_of(jnp.asarray(begin), jnp.zeros((), jnp.int32), order)
    shapes = jax.eval_shape(algorithm.step, key_step, target, state, first)[1]
    infos = jax.tree.map(lambda s: jnp.zeros((length, *s.shape), s.dtype), shapes)
    carry = (state, order, infos, jnp.zeros((), jnp.int32))
    state, _, infos, bad = jax.lax.fori_loop(0, count, one, carry)
    return state, infos, bad, tree.all_finite(state)


@partial(jax.jit, static_argnames=("length", "is_batched"))
def _draws(
    algorithm: Any,
    *,
    target: Target,
    state: Any,
    key: Array,
    begin: Array,
    count: Array,
    inner: Array,
    length: int,
    is_batched: bool,
) -> tuple[Any, Any, PyTree]:
    """`count` draws, each after `inner` steps: new state, mean infos, positions."""

    def chain(state: Any, key: Array) -> tuple[Any, Any, PyTree]:
        batch = target.data
        shapes = jax.eval_shape(algorithm.step, key, target, state, batch)[1]
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, jnp.float64), shapes)
        infos = jax.tree.map(lambda z: jnp.zeros((length, *z.shape), z.dtype), zeros)
        position = algorithm.position(state)
        kept = jax.tree.map(lambda w: jnp.zeros((length, *w.shape), w.dtype), position)

        def one_step(i: Array, carry: tuple) -> tuple:
            state, sums, t = carry
            state, info = algorithm.step(jax.random.fold_in(key, t), target, state, batch)
            return state, jax.tree.map(jnp.add, sums, info), t + 1

        def one_draw(j: Array, carry: tuple) -> tuple:
            state, infos, kept = carry
            t = begin + j * inner
            state, sums, _ = jax.lax.fori_loop(0, inner, one_step, (state, zeros, t))
            infos = jax.tree.map(lambda buffer, v: buffer.at[j].set(v / inner), infos, sums)
            position = algorithm.position(state)
            kept = jax.tree.map(lambda buffer, w: buffer.at[j].set(w), kept, position)
            return state, infos, kept

        return jax.lax.fori_loop(0, count, one_draw, (state, infos, kept))

    return jax.vmap(chain)(state, key) if is_batched else chain(state, key)


@jax.jit
def _refresh(algorithm: Algorithm, target: Target, state: Any, key: Array) -> Target:
    target = algorithm.settled(target, state)
    new = target.refresh(algorithm.approximation(target, state), key)
    if not getattr(algorithm, "learn_noise", True):
        new = dataclasses.replace(new, likelihood=target.likelihood)
    return new


@jax.jit
def _complete(target: Target, draws: PyTree, key: Array) -> PyTree:
    """What was integrated out, drawn for each kept draw (chains, draws)."""
    shape = jax.tree.leaves(draws)[0].shape[:2]
    flat = jax.tree.map(lambda w: w.reshape(-1, *w.shape[2:]), draws)
    keys = jax.random.split(key, math.prod(shape))
    own = jax.lax.map(lambda pair: target.likelihood.complete(target, *pair), (flat, keys))
    own = jax.tree.map(lambda w: w.reshape(*shape, *w.shape[1:]), own)
    return draws | {"likelihood": draws["likelihood"] | own}


@jax.jit
def _evaluate(
    algorithm: Algorithm,
    target: Target,
    state: Any,
    key: Array,
    held_out: Batch | None,
) -> dict[str, Array]:
    """The lower bound (or, for a point, the log-joint) and what it is made of."""
    target = algorithm.settled(target, state)
    q = algorithm.approximation(target, state)
    exact = algorithm.evidence(target, state)
    if exact is not None:
        told = {"elbo": exact, "objective": exact, "error": jnp.zeros((), jnp.float64)}
    elif (own := algorithm.objective(key, target, state)) is not None:
        told = own
    elif not algorithm.has_lower_bound:
        log_likelihood = target.scaled_log_likelihood(q.mean)
        log_joint = log_likelihood + target.log_prior(q.mean) - target.divergence()
        told = {"log_joint": log_joint, "nll": -log_likelihood, "objective": log_joint}
        told["error"] = jnp.zeros((), jnp.float64)
    else:
        told = lower_bound(target, q, key, EVAL_DRAWS)
        told["objective"] = told["elbo"]
    if held_out is not None:
        draws = q.sample(key, 1 if isinstance(q, Point) else EVAL_DRAWS)
        predictive = algorithm.predictive_target(target, q).to_predict()
        terms = jax.lax.map(lambda w: predictive.log_likelihood(w, held_out), draws)
        log_prob = jax.nn.logsumexp(terms, axis=0) - jnp.log(len(terms))
        told["validation"] = told["objective"] = jnp.mean(log_prob)
        told["error"] = jnp.zeros((), jnp.float64)
    return told


def lower_bound(target: Target, q: Any, key: Array, num_draws: int) -> dict[str, Array]:
    """elbo = -nll - kl on all rows of the target from draws of q, and its Monte-Carlo error.

    The elbo is the mean of h = log p(D, w) - log q(w), which does not vary at all where q is the
    posterior; kl is exact for Gaussians, and nll is what is left. A part of the model that has a
    posterior of its own adds its divergence to kl.
    """
    if hasattr(q, "transform"):
        noise = tree.normal_like(key, q.mean, num_draws)
        draws = jax.vmap(q.transform)(noise)
        squares = jax.vmap(lambda e: tree.total(jax.tree.map(jnp.square, e)))(noise)
        log_q = 0.5 * (tree.size(q.mean) - squares) - q.entropy()
    else:
        draws = q.sample(key, num_draws)
        log_q = jax.vmap(q.log_prob)(draws)
    log_likelihood = jax.lax.map(
        target.scaled_log_likelihood, draws, batch_size=min(num_draws, EVAL_BATCH)
    )
    divergence = log_q - jax.vmap(target.log_prior)(draws)
    h = log_likelihood - divergence
    has_closed_form = target.prior is not None and target.prior.is_gaussian and hasattr(q, "kl")
    kl = q.kl(target.prior) if has_closed_form else jnp.mean(divergence)
    kl = kl + target.divergence()
    elbo = jnp.mean(h) - target.divergence()
    error = jnp.std(h) / jnp.sqrt(num_draws)
    return {"elbo": elbo, "nll": -elbo - kl, "kl": kl, "error": error}


def check_algorithm(algorithm: Any, argument: str = "algorithm") -> Algorithm:
    if isinstance(algorithm, str):
        if algorithm not in ALGORITHMS:
            refuse(argument, algorithm, "be one of " + ", ".join(map(repr, ALGORITHMS)))
        return ALGORITHMS[algorithm]()
    if isinstance(algorithm, type) and issubclass(algorithm, Algorithm):
        refuse(argument, algorithm, "be an object", f"Write bl.{algorithm.__name__}().")
    if not isinstance(algorithm, Algorithm):
        refuse(argument, algorithm, 'be an algorithm, such as bl.HMC() or "hmc"')
    return algorithm


def check_arguments(algorithm: Algorithm, **given: Any) -> None:
    """Refuse what can be refused by the arguments alone."""

    check_whole("seed", given["seed"], least=0)
    if algorithm.is_sampler:
        remedies = {
            "num_steps": "Set num_warmup, num_samples and thin on the algorithm.",
            "batch_size": "Samplers need all rows in every step.",
        }
        unset = {"num_steps": "auto", "batch_size": "auto", "patience": "auto"}
        for name in ("num_steps", "batch_size", "validation", "eval_every", "patience"):
            value = given[name]
            if not (value is None or (isinstance(value, str) and value == unset.get(name))):
                shown = Shown("held-out rows") if name == "validation" else value
                must = f"be left out for the sampler {algorithm.name}"
                refuse(name, shown, must, remedies.get(name, ""))
    elif given["num_chains"] is not None:
        must = f"be left out: {algorithm.name} is not a sampler"
        refuse("num_chains", given["num_chains"], must)
    for name in ("num_steps", "batch_size", "patience"):
        if not (given[name] is None or (isinstance(given[name], str) and given[name] == "auto")):
            check_whole(name, given[name], least=1)
    for name in ("num_chains", "num_data", "eval_every", "chunk_size"):
        if given[name] is not None:
            check_whole(name, given[name], least=1)
    if given["callback"] is not None and not callable(given["callback"]):
        refuse("callback", given["callback"], "be a function")


def _bind(
    model: Any, data: Any, num_data: int | None, root: Array
) -> tuple[Target, PyTree, batches.Stream | None]:
    """The target, starting parameters, and the stream if data come as one."""
    key = _named(root, "network")
    if isinstance(model, Target):
        if data is not None:
            refuse("data", Shown("data beside a Target"), "be left out: a Target has its own")
        if model.data is not None:
            model.rows()
        return model, model.start, None
    if not isinstance(model, Model):
        refuse("model", Shown(f"a {type(model).__name__}"), "be a bl.Model or a bl.Target")
    if data is None:
        refuse("data", None, "be a pair (x, y)")
    is_pair = isinstance(data, tuple | list) and len(data) == 2 and _is_table(data[0])
    if is_pair:
        target, start = model.bind(data, key)
        return target, start, None
    if isinstance(data, tuple | np.ndarray | jax.Array) or not isinstance(data, Iterable):
        refuse(
            "data",
            Shown(f"a {type(data).__name__}"),
            "be a pair (x, y), or an iterable of such pairs with `num_data`",
        )
    if num_data is None:
        refuse("num_data", None, "be given when data is an iterable of batches")
    stream = batches.Stream(data)
    try:
        first = stream.peek()
    except StopIteration:
        refuse("data", Shown("an iterable without a batch"), "give at least one batch (x, y)")
    target, start = model.bind(first, key, num_data=int(num_data))
    return target, start, stream


def _is_table(x: Any) -> bool:
    """Whether x is the inputs themselves and not the first batch of a list of two."""
    return not (isinstance(x, tuple | list) and len(x) == 2 and hasattr(x[0], "shape"))


def _held_out(target: Target, validation: Any) -> Batch:
    x, y = check_data(validation, "validation")
    check_like_training(x, target)
    return target.batch((x, target.likelihood.check(y)))


def _check_start(params: PyTree, start: PyTree) -> PyTree:
    if start is None:
        return jax.tree.map(jnp.asarray, params)
    if str(jax.tree.structure(params)) != str(jax.tree.structure(start)):
        refuse(
            "params",
            Shown(f"the tree {jax.tree.structure(params)}"),
            f"have the structure {jax.tree.structure(start)}",
        )
    names = tree.leaf_names(start)
    for name, p, s in zip(names, jax.tree.leaves(params), jax.tree.leaves(start), strict=True):
        if jnp.shape(p) != s.shape:
            refuse(
                "params", Shown(f"shape {jnp.shape(p)} for {name}"), f"have shape {s.shape} there"
            )
    return jax.tree.map(lambda p, s: jnp.asarray(p, s.dtype), params, start)


def _check_suits(
    algorithm: Algorithm,
    target: Target,
    batch_size: Any,
    stream: Any,
    num_data: Any,
    validation: Any,
) -> None:
    if target.is_density:
        if validation is not None:
            refuse("validation", Shown("held-out rows"), "be left out for a bare log-density")
        if algorithm.needs_per_example:
            refuse(
                "algorithm",
                Shown(algorithm.name),
                "work without per-example terms on a bare log-density",
                "Use bl.Model with data, or another algorithm.",
            )
        if algorithm.needs_gaussian_prior:
            refuse(
                "algorithm",
                Shown(algorithm.name),
                "work without a Gaussian prior on a bare log-density",
                "Use bl.Model with bl.priors.Normal, or another algorithm.",
            )
        if batch_size != "auto":
            refuse("batch_size", batch_size, "be left out for a bare log-density")
    if algorithm.needs_gaussian_prior:
        check_gaussian(target.prior, algorithm.name)
    if algorithm.is_sampler:
        check_given(
            target.prior,
            f"the sampler {algorithm.name}",
            "Learn it with a variational method first, and give what it found.",
        )
    if stream is not None and batch_size != "auto":
        refuse("batch_size", batch_size, "be left out: an iterable has batches of its own")
    if stream is not None and target.likelihood.refreshes:
        refuse(
            "data",
            Shown("an iterable of batches"),
            f"be arrays (x, y): the noise of {type(target.likelihood).__name__} is inferred from"
            " all rows",
            "Give its covariance, or use Gaussian().",
        )
    if stream is not None and not algorithm.takes_minibatches:
        refuse(
            "data",
            Shown("an iterable of batches"),
            f"be arrays (x, y): {algorithm.name} needs all rows in every step",
        )
    if num_data is not None and stream is None:
        refuse("num_data", num_data, "be left out when data are arrays")


def _check_finite_start(target: Target, state: Any, start: PyTree) -> None:
    log_joint = float(_log_joint(target, start))
    if not (np.isfinite(log_joint) and bool(tree.all_finite(state))):
        raise DivergenceError(
            f"The log-density at the starting point is {log_joint}. Scale x and y to unit spread,"
            " or start elsewhere with `params=`."
        )


@jax.jit
def _log_joint(target: Target, params: PyTree) -> Array:
    return target.log_joint(params)


def _shortened(algorithm: Algorithm, scale: float) -> Algorithm:
    if scale == 1.0:
        return algorithm
    rate = algorithm.learning_rate  # type: ignore[attr-defined]
    return eqx.tree_at(lambda a: a.learning_rate, algorithm, rate * scale)


def _named(key: Array, name: str) -> Array:
    """A key of its own for each purpose."""
    return jax.random.fold_in(key, zlib.crc32(name.encode()))
