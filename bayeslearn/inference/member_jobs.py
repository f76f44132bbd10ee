"""Members of an ensemble in worker processes.

A worker trains one member and gives back the results of its phases, as a checkpoint would hold
them; this process then restores the member from these, as a resumed run does. So members have the
same bits wherever they were trained, and with a checkpoint each is saved when it is done.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn.algorithms.base import Algorithm
from bayeslearn.algorithms.ensemble import Composite
from bayeslearn.data.rows import Batch
from bayeslearn.errors import DivergenceError, refuse
from bayeslearn.families.base import Family
from bayeslearn.inference.context import RunContext
from bayeslearn.inference.options import FitEvent
from bayeslearn.inference.outcomes import RunOutcome
from bayeslearn.jobs import num_workers, run_tasks
from bayeslearn.models.target import Target
from bayeslearn.precision import inside_double_precision
from bayeslearn.progress import Progress
from bayeslearn.storage.checkpoints import Checkpointer
from bayeslearn.storage.records import Record
from bayeslearn.tree import PyTree

Train = Callable[[RunContext, PyTree], tuple[RunOutcome, Family]]


class Records(Checkpointer):
    """Results of finished phases, kept in memory: what a checkpoint is to a run without one."""

    chunk_limit = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self.finished: dict[str, Record] = {}

    def completed_phase(self, phase: str) -> Record | None:
        """The result of a phase, or None."""
        return self.finished.get(phase)

    def finish_phase(self, phase: str, result: Record, position: Any = None) -> None:
        """Keep a result."""
        self.finished[phase] = jax.tree.map(_to_numpy, result)

    def saved_state(self, phase: str) -> None:
        """Nothing: no phase was cut."""

    def maybe_save(self, phase: str, state: Any, position: Any = None) -> None:
        """No occasion."""


class MemberResult(NamedTuple):
    """What a worker gives back."""

    records: dict[str, Record]
    notes: list[str]
    failure: str = ""  # why the member was dropped


def uses_workers(context: RunContext, algorithm: Composite) -> bool:
    """Whether members are trained in other processes; refused where they were asked to and cannot.

    Samplers' chains stay here, in threads.
    """
    wanted = algorithm.n_jobs
    why = ""
    if algorithm.member.capabilities.is_sampler:
        why = "the members are samplers, whose chains share this process"
    elif context.layout is not None or context.stream is not None:
        why = "rows are divided among devices, or come as a stream"
    if why and wanted not in (None, 1):
        refuse("n_jobs", wanted, f"be left out: {why}")
    return not why and algorithm.num_members > 1 and num_workers(wanted) > 1


def trained_in_workers(
    context: RunContext,
    algorithm: Composite,
    starts: list[PyTree],
    make_train: Callable[..., Train],
    arguments: tuple[Any, ...],
) -> tuple[RunContext, Train]:
    """Train members in worker processes: a context that has their results, and what reads them.

    `make_train(*arguments)` is the function that trains one member; it must be importable.
    """
    phases = [context.subphase(f"member {i}").phase for i in range(len(starts))]
    if context.checkpointer is None:
        context = dataclasses.replace(context, checkpointer=Records())
    saver = context.checkpointer
    assert saver is not None
    missing = [i for i, name in enumerate(phases) if saver.completed_phase(name) is None]
    shared = (*_sendable(context), make_train, arguments)
    tasks = [(i, jax.tree.map(_to_numpy, starts[i])) for i in missing]
    results: dict[str, MemberResult] = {}
    with Progress(algorithm.name, len(starts), context.progress, unit="member") as bar:
        try:
            for number, result in run_tasks(train_member, shared, tasks, algorithm.n_jobs):
                name = phases[missing[number]]
                results[name] = result
                for phase, record in result.records.items():
                    saver.finish_phase(phase, record)
                bar.update(len(results))
                if _stops(context, algorithm.member, name):
                    break
        except KeyboardInterrupt:
            if not results or not isinstance(saver, Records):
                raise
    train = make_train(*arguments)

    def restore(here: RunContext, params: PyTree) -> tuple[RunOutcome, Family]:
        result = results.get(here.phase)
        if result is None and saver.completed_phase(here.phase) is None:
            raise DivergenceError("it was stopped before it began.")
        if result is not None and result.failure:
            raise DivergenceError(result.failure)
        outcome, family = train(here, params)
        return outcome._replace(notes=outcome.notes if result is None else result.notes), family

    return context, restore


def _stops(context: RunContext, member: Algorithm, phase: str) -> bool:
    """The callback hears of a member once, at its end."""
    if context.callback is None:
        return False
    return bool(context.callback(FitEvent(member.name, 1, 1, {}, phase)))


def _sendable(context: RunContext) -> Iterator[Any]:
    """The context as plain arrays."""
    parts = jax.tree.map(_to_numpy, (context.target, context.validation))
    key = np.asarray(jax.random.key_data(context.key))
    return iter((*parts, key, context.batch_size, context.chunk_size, context.phase))


def train_member(
    target: Target,
    validation: Batch | None,
    key: np.ndarray,
    batch_size: int,
    chunk_size: int | None,
    phase: str,
    make_train: Callable[..., Train],
    arguments: tuple[Any, ...],
    number: int,
    params: PyTree,
) -> MemberResult:
    """One member; a function of its arguments alone."""
    with inside_double_precision():
        target, validation, params = jax.tree.map(_to_jax, (target, validation, params))
        saver = Records()
        context = RunContext(
            target=target,
            stream=None,
            validation=validation,
            batch_size=batch_size,
            key=jax.random.wrap_key_data(jnp.asarray(key)),
            progress=False,
            callback=None,
            chunk_size=chunk_size,
            checkpointer=saver,
            phase=phase,
        )
        here = dataclasses.replace(context.subphase(f"member {number}"), validation=validation)
        try:
            outcome, _ = make_train(*arguments)(here, params)
        except DivergenceError as error:
            return MemberResult(saver.finished, [], str(error))
    return MemberResult(saver.finished, outcome.notes)


def _to_numpy(leaf: Any) -> Any:
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf


def _to_jax(leaf: Any) -> Any:
    return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf
