"""Members of an ensemble: independent runs of one method, side by side in threads.

Each member's randomness is its own, so that the result does not depend on how they are scheduled.
With checkpoints members run one after the other, so that each can be cut anywhere.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn.algorithms.base import Algorithm
from bayeslearn.data.rows import Batch, join_batches, weights_of
from bayeslearn.errors import DivergenceError
from bayeslearn.families.base import Family
from bayeslearn.inference.chains import num_cores
from bayeslearn.inference.context import RunContext, named_key
from bayeslearn.inference.options import FitEvent
from bayeslearn.inference.outcomes import RunOutcome
from bayeslearn.models.target import Target
from bayeslearn.precision import inside_double_precision
from bayeslearn.progress import Progress
from bayeslearn.tree import Array, PyTree

RunMember = Callable[[RunContext, PyTree], tuple[RunOutcome, Family]]


class Members(NamedTuple):
    """The members that finished, in their order, and what happened to the others."""

    outcomes: list[RunOutcome]
    families: list[Family]
    notes: list[str]
    compile_time: float


def run_members(
    context: RunContext, algorithm: Algorithm, starts: list[PyTree], run: RunMember
) -> Members:
    """Run one member from each start; those that diverge are dropped and named."""
    number = len(starts)
    contexts = [context.subphase(f"member {i}") for i in range(number)]
    board = _Board(algorithm.name, number, context.progress)
    results: dict[int, tuple[RunOutcome, Family]] = {}
    failures: dict[int, str] = {}
    interrupted = False
    with board:
        try:
            if context.checkpointer is not None or number == 1 or num_cores() == 1:
                for i in range(number):
                    here = board.watched(contexts[i], i, context)
                    _collect(i, partial(run, here, starts[i]), results, failures)
            else:
                _run_in_threads(context, contexts, starts, run, board, results, failures)
        except KeyboardInterrupt:
            if not results or context.checkpointer is not None:
                raise
            interrupted = True
    if not results:
        raise DivergenceError(
            f"No member of the ensemble could be trained: {next(iter(failures.values()))}"
        )
    notes = [f"Member {i} was dropped: {reason}" for i, reason in sorted(failures.items())]
    if interrupted:
        notes.append(f"Interrupted: {len(results)} of {number} members are kept.")
    context.keep_order(contexts)
    chosen = sorted(results)
    outcomes = [results[i][0] for i in chosen]
    return Members(
        outcomes,
        [results[i][1] for i in chosen],
        [*notes, *dict.fromkeys(note for outcome in outcomes for note in outcome.notes)],
        sum(outcome.compile_time for outcome in outcomes[:1]),
    )


def _collect(
    number: int,
    call: Callable[[], tuple[RunOutcome, Family]],
    results: dict[int, tuple[RunOutcome, Family]],
    failures: dict[int, str],
) -> None:
    try:
        results[number] = call()
    except DivergenceError as error:
        failures[number] = str(error)


def _run_in_threads(
    context: RunContext,
    contexts: list[RunContext],
    starts: list[PyTree],
    run: RunMember,
    board: _Board,
    results: dict[int, tuple[RunOutcome, Family]],
    failures: dict[int, str],
) -> None:
    """The first member begins alone until its programs are compiled; then as many as cores."""

    def one(i: int) -> tuple[RunOutcome, Family]:
        with inside_double_precision():  # the setting is per thread
            return run(board.watched(contexts[i], i, context), starts[i])

    pool = ThreadPoolExecutor(min(len(starts), num_cores()))
    futures: dict[Future[tuple[RunOutcome, Family]], int] = {}
    try:
        first = pool.submit(one, 0)
        futures[first] = 0
        while not board.has_compiled and not first.done():
            wait([first], timeout=0.05)
        futures |= {pool.submit(one, i): i for i in range(1, len(starts))}
        waiting = set(futures)
        while waiting:
            done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in done:
                _collect(futures[future], future.result, results, failures)
    except KeyboardInterrupt:  # those that have finished, too, but were not collected
        for future, i in futures.items():
            if future.done() and not future.cancelled() and future.exception() is None:
                results.setdefault(i, future.result())
        raise
    finally:
        board.stop()
        pool.shutdown(cancel_futures=True)


class _Board:
    """One progress line for all members, and a way to stop them."""

    def __init__(self, name: str, number: int, progress: bool | None):
        self._bar = Progress(name, number, progress)
        self._lock = threading.Lock()
        self._number, self._done = number, 0
        self._stopped = False
        self.has_compiled = False

    def __enter__(self) -> _Board:
        self._bar.__enter__()
        return self

    def __exit__(self, *args: object) -> None:
        self._bar.__exit__(*args)

    def stop(self) -> None:
        """Members that still run end at their next evaluation."""
        self._stopped = True

    def watched(self, member: RunContext, number: int, parent: RunContext) -> RunContext:
        """A member's context, whose evaluations show on the common line."""

        def callback(event: FitEvent) -> bool:
            with self._lock:
                self.has_compiled = True
                label = f"member {number + 1} of {self._number}: {event.algorithm}"
                self._bar.update(number, event.metrics, name=label)
                event = event._replace(num_members=self._number)
                stops = parent.callback is not None and bool(parent.callback(event))
            return self._stopped or stops

        return dataclasses.replace(
            member, callback=callback, progress=False, validation=parent.validation
        )


def hold_out(target: Target, fraction: float, key: Array) -> tuple[Target, Batch | None]:
    """The target without some of its rows, and those as validation rows.

    They stay in the data with weight 0, so that runs with and without them share programs. Classes
    have the same share in both.
    """
    data = target.data
    if not fraction or data is None:
        return target, None
    weight = np.ones(len(data.y)) if data.weight is None else np.array(data.weight)
    real = np.flatnonzero(weight > 0)
    number = round(fraction * len(real))
    if not 0 < number < len(real):
        return target, None
    order = real[np.asarray(jax.random.permutation(named_key(key, "held out"), len(real)))]
    if target.likelihood is not None and target.likelihood.kind == "classification":
        order = order[np.argsort(np.asarray(data.y)[order], kind="stable")]
        order = order[np.argsort(np.arange(len(real)) * number % len(real), kind="stable")]
    held_out = np.sort(order[:number])
    num_data = target.num_data - jnp.sum(jnp.asarray(weight[held_out]))
    validation = Batch(*(jax.tree.map(lambda leaf: leaf[held_out], part) for part in data))
    weight[held_out] = 0.0
    kept = target.with_data(data._replace(weight=jnp.asarray(weight)))
    return dataclasses.replace(kept, num_data=num_data), validation


def all_rows(target: Target, validation: Batch | None) -> Target:
    """The target on its own rows and the validation rows together."""
    data = target.data
    if validation is None or data is None:
        return target
    num_data = target.num_data + jnp.sum(weights_of(validation))
    return dataclasses.replace(target.with_data(join_batches(data, validation)), num_data=num_data)
