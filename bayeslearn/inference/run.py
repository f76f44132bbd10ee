"""One run: bind, checkpoint, phases, the method itself, its result. Knows no `Posterior`."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from bayeslearn import tree
from bayeslearn.algorithms.base import Algorithm
from bayeslearn.algorithms.ensemble import Composite
from bayeslearn.algorithms.joint import Joint
from bayeslearn.algorithms.mc_dropout import MCDropout
from bayeslearn.algorithms.sampler import Sampler
from bayeslearn.data.rows import Batch
from bayeslearn.distributed.processes import is_first, map_collective_errors
from bayeslearn.errors import OutOfMemoryError
from bayeslearn.families.base import Family
from bayeslearn.inference.arguments import is_auto
from bayeslearn.inference.composite import MemberSettings, run_composite
from bayeslearn.inference.context import RunContext
from bayeslearn.inference.feature_maps import with_mapped_features
from bayeslearn.inference.features import with_features
from bayeslearn.inference.kernels import approximation
from bayeslearn.inference.multistart import MultiStart
from bayeslearn.inference.optimize import PATIENCE, optimize
from bayeslearn.inference.options import Phase
from bayeslearn.inference.outcomes import RunOutcome, StartingPoint
from bayeslearn.inference.phases import NO_MODE, WarmStart, freeze_leaves, start_chains
from bayeslearn.inference.request import Request
from bayeslearn.inference.sample import sample
from bayeslearn.inference.setup import NUM_CHAINS, Bound, bind
from bayeslearn.inference.step_plan import StepPlan, plan_as_before, plan_steps, training_steps
from bayeslearn.models.target import Target
from bayeslearn.precision import to_host
from bayeslearn.storage.checkpoints import Checkpointer
from bayeslearn.storage.fingerprints import digest, fingerprint
from bayeslearn.tree import LARGE_NETWORK, PyTree

ONE_START = (
    "Several modes were not looked for: all chains start from one point. Let `fit` initialise the"
    " network, or give a log-density `init=`, which draws a start for each chain."
)
NO_MEMORY = (  # as XLA says it, and Python where not even an exception could be made
    "RESOURCE_EXHAUSTED|[Oo]ut of memory|Cannot allocate memory|bad_alloc"
    "|error return without exception set|can't start new thread"  # which needs a stack
)


class RunResult(NamedTuple):
    """What a run has learned, and how it went; the fields of a `Posterior`."""

    target: Target
    algorithm: Algorithm
    family: Family
    state: PyTree
    trace: dict[str, np.ndarray]
    elbo: float | None
    stopped: str
    notes: tuple[str, ...]
    seed: int
    wall_time: float
    compile_time: float
    phases: tuple[Phase, ...]


def infer(request: Request) -> RunResult:
    """Do what `fit` was asked to."""
    with _named_memory_errors(request.checkpointer):
        return _infer(request)


@contextlib.contextmanager
def _named_memory_errors(checkpointer: Checkpointer | None) -> Iterator[None]:
    """An allocation that failed, in Python or in XLA, is an `OutOfMemoryError`."""
    try:
        yield
    except (MemoryError, SystemError, RuntimeError) as error:  # JAX's are RuntimeErrors
        if not isinstance(error, MemoryError) and not re.search(NO_MEMORY, str(error)):
            raise
        remedy = "Use fewer rows at a time (batch_size, microbatch) or a smaller network."
        if checkpointer is not None:
            remedy += f" The run in {checkpointer.folder} can be resumed from its last checkpoint."
        raise OutOfMemoryError(f"The run needs more memory than there is. {remedy}") from error


def _infer(request: Request) -> RunResult:
    began = time.perf_counter()
    key = jax.random.key(int(request.seed))
    bound = bind(request, key)
    checkpointer, stream, layout = request.checkpointer, bound.stream, request.layout
    target, validation, progress = bound.target, bound.validation, request.progress
    if checkpointer is not None:
        checkpointer.enter(request.stored(), _fingerprints(target, bound.starts[0], validation))
        if stream is not None:
            # Processes may have other rows when the run is resumed.
            stream.keep(target, checkpointer.position, compares=not request.is_shared)
    host_rows = target.data
    if layout is not None:
        target = layout.put(target.with_data(None)).with_data(layout.put_rows(target.data))
        validation, key = layout.put_rows(validation), layout.put(key)
        progress = False if layout.is_shared and not is_first() else progress
    context = RunContext(
        target=target,
        stream=stream,
        validation=validation,
        batch_size=bound.batch_size,
        key=key,
        progress=progress,
        callback=request.callback,
        chunk_size=request.options.chunk_size,
        checkpointer=checkpointer,
        layout=layout,
        host_rows=host_rows,
    )
    with (
        map_collective_errors(request.is_shared),
        contextlib.nullcontext() if checkpointer is None else checkpointer.listening(),
        contextlib.nullcontext() if stream is None else contextlib.closing(stream),
    ):
        return _run_phases(context, request, bound, began)


def _with_features(
    context: RunContext, algorithm: Algorithm, start: PyTree, seed: int
) -> RunContext:
    """The context on features of the frozen body, where rows are in memory and on one device."""
    is_masked = isinstance(algorithm, MCDropout)  # its masks are on the layers of the network
    if context.stream is not None or context.layout is not None or is_masked:
        return context
    found = with_features(context.target, start, context.validation)
    if found is None:
        return with_mapped_features(context, algorithm, start, seed) or context
    target, validation = found
    return dataclasses.replace(context, target=target, validation=validation, host_rows=target.data)


class _Finished(NamedTuple):
    """What the phases of a run came to."""

    outcome: RunOutcome
    family: Family
    algorithm: Algorithm
    notes: list[str]


def _run_phases(context: RunContext, request: Request, bound: Bound, began: float) -> RunResult:
    """Frozen leaves, warm start, the method itself."""
    starts = bound.starts
    compile_time, total = 0.0, bound.num_steps
    model = bound.partial_model
    if model is not None:
        is_counted = total is not None and not request.is_legacy
        steps = training_steps(total) if total is not None and is_counted else None
        target, start, compile_time = freeze_leaves(context, model, starts[0], steps)
        starts = [start, *(model.freeze(context.target, other)[1] for other in starts[1:])]
        context = dataclasses.replace(context, target=target)
        if total is not None and model.frozen != "given":
            total -= steps or 0
    algorithm = request.algorithm.for_network(tree.size(starts[0]))
    whole = context.target  # before its frozen body is replaced by its features
    if model is None or model.frozen != "joint":
        context = _with_features(context, algorithm, starts[0], int(request.seed))
    if model is not None and model.frozen == "joint":
        algorithm = Joint(algorithm)
    own = context.stream  # of the data, which is closed elsewhere, or of features
    with contextlib.nullcontext() if own is None else contextlib.closing(own):
        if isinstance(algorithm, Composite):
            done = _run_composite(context, request, algorithm, starts, total)
        else:
            done = _run_single(context, request, bound, algorithm, starts, total)
    outcome = done.outcome
    target = context.target_on_host(outcome.target)
    if context.target.network is not whole.network:
        target = dataclasses.replace(target, network=whole.network, data=whole.data)
    target = dataclasses.replace(target, microbatch=None, remat=False)
    if request.options.merge_rows and not target.is_density:
        target = target.with_data(bound.given_rows)
    checkpointer, stream = context.checkpointer, context.stream
    notes = [*done.notes, *([] if stream is None else stream.all_notes()), *outcome.notes]
    saved = [] if checkpointer is None else checkpointer.notes()
    return RunResult(
        target=target,
        algorithm=done.algorithm,
        family=to_host(done.family),
        state=outcome.state,
        trace=outcome.trace,
        elbo=outcome.elbo,
        stopped=outcome.stop_reason,
        notes=(*notes, *saved),
        seed=int(request.seed),
        wall_time=time.perf_counter() - began if checkpointer is None else checkpointer.elapsed(),
        compile_time=compile_time + outcome.compile_time,
        phases=tuple(context.phases),
    )


def _run_single(
    context: RunContext,
    request: Request,
    bound: Bound,
    algorithm: Algorithm,
    starts: list[PyTree],
    total: int | None,
) -> _Finished:
    """A method of one run, after its warm start."""
    plan = _plan(request, algorithm, total, tree.size(starts[0]))
    num_steps, multistart = plan.own, bound.multistart
    if multistart is not None and request.is_legacy:
        num_steps = _steps_with_starts(multistart, algorithm, context.target, total, num_steps)
    elif multistart is not None and total is not None:
        multistart = multistart.within(total)
    plan = plan._replace(own=num_steps)
    notes, begin = [], None
    stream = context.stream
    if bound.initial is not None and algorithm.capabilities.accepts_initial_gaussian:
        begin = StartingPoint(bound.initial, context.target)
        num_steps = num_steps if request.is_legacy or total is None else total
    elif algorithm.capabilities.is_sampler:
        return _run_sampler(context, request, cast(Sampler, algorithm), starts, plan)
    elif stream is None or stream.restarts:
        begin, has_failed = WarmStart(multistart).run_if_possible(context, algorithm, starts, plan)
        notes += [f"The run began without {NO_MODE}"] if has_failed else []
    elif algorithm.warm_start() is not None:
        notes.append("There was no warm start: the data iterator can be read only once.")
    outcome = optimize(
        context,
        algorithm,
        starts[0],
        begin,
        num_steps,
        request.options.eval_every,
        _patience(request, bound.num_steps),
        may_end=total is None,
    )
    warm = 0.0 if begin is None else begin.compile_time
    state = context.gather_to_host(outcome.state)
    target = context.target_on_host(outcome.target)
    if tree.size(starts[0]) > LARGE_NETWORK and outcome.draws is None:
        family = approximation(algorithm, target, state)
    else:
        family = algorithm.approximation(target, state, outcome.draws)
    if isinstance(algorithm, Joint):
        algorithm, state = algorithm.inner, state.inner
    outcome = outcome._replace(state=state, compile_time=outcome.compile_time + warm)
    return _Finished(outcome, family, algorithm, notes)


def _run_sampler(
    context: RunContext,
    request: Request,
    algorithm: Sampler,
    starts: list[PyTree],
    plan: StepPlan,
) -> _Finished:
    """The chains of a sampler, each from a start of its own where there are several."""
    begins, notes = start_chains(context, algorithm, starts, plan, is_legacy=request.is_legacy)
    if len(starts) == 1 and not request.is_legacy:
        notes.append(ONE_START)
    num_chains = NUM_CHAINS if request.num_chains is None else int(request.num_chains)
    if len(starts) < num_chains:
        starts, begins = starts * num_chains, begins * num_chains
    outcome = sample(context, algorithm, starts[:num_chains], begins[:num_chains])
    warm = sum(begin.compile_time for begin in begins[:1] if begin is not None)
    state = context.gather_to_host(outcome.state)
    family = algorithm.approximation(outcome.target, state, outcome.draws)
    outcome = outcome._replace(state=state, compile_time=outcome.compile_time + warm)
    return _Finished(outcome, family, algorithm, notes)


def _run_composite(
    context: RunContext,
    request: Request,
    algorithm: Composite,
    starts: list[PyTree],
    total: int | None,
) -> _Finished:
    """An ensemble, with or without a sampler after it."""
    options = request.options
    settings = MemberSettings(
        _plan(request, algorithm.member, total, tree.size(starts[0])),
        options.eval_every,
        _patience(request, total),
    )
    outcome, family = run_composite(context, algorithm, starts, settings)
    return _Finished(outcome, family, algorithm, [])


def _plan(request: Request, algorithm: Algorithm, total: int | None, num_weights: int) -> StepPlan:
    if request.is_legacy:
        return plan_as_before(algorithm, total)
    warm_start = request.options.warm_start
    own = None if is_auto(warm_start) else int(warm_start)
    return plan_steps(algorithm, total, own, num_weights)


def _steps_with_starts(
    multistart: MultiStart, algorithm: Algorithm, target: Target, total: int | None, own: int
) -> int:
    """In runs of version 0.1 the steps of several starts came before the requested ones."""
    if total is None or not algorithm.capabilities.supports_multistart:
        return own
    is_perturbed = multistart.perturbation(algorithm, target) is not None
    return own + (multistart.perturbation_steps if is_perturbed else multistart.first_steps)


def _patience(request: Request, total: int | None) -> int | None:
    patience = request.options.patience
    if is_auto(patience):
        return PATIENCE if total is None else None
    return None if patience is None else int(patience)


def _fingerprints(target: Target, start: PyTree, validation: Batch | None) -> dict[str, Any]:
    """What tells the data and the model from others, for those who resume."""
    rest = dataclasses.replace(target, data=None)
    return {
        "data": None if target.data is None else fingerprint(target.data._asdict()),
        "validation": None if validation is None else fingerprint(validation._asdict()),
        "model": digest((rest, start)),
        "num_weights": tree.size(start),
    }
