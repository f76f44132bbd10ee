"""The optimisation loop: steps in rounds, an evaluation after each, guards, early stopping."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial

import jax
import numpy as np

from bayeslearn import tree
from bayeslearn.algorithms.base import Algorithm
from bayeslearn.data.rows import Batch
from bayeslearn.data.streams import planned_counts
from bayeslearn.distributed.processes import gather
from bayeslearn.errors import ArgumentError, DataError
from bayeslearn.inference import guards
from bayeslearn.inference.context import MAIN, RunContext, named_key
from bayeslearn.inference.evaluate import final_lower_bound, planned
from bayeslearn.inference.evaluation_plan import EvaluationPlan, plan_evaluations, start_target
from bayeslearn.inference.kernels import (
    init_state,
    init_state_from,
    refresh,
    run_steps,
)
from bayeslearn.inference.options import Phase
from bayeslearn.inference.outcomes import RunOutcome, StartingPoint
from bayeslearn.inference.run_state import (
    OptimizationState,
    join_segments,
    phase_record,
    restore_phase,
)
from bayeslearn.inference.usefulness import measures_start, usefulness_notes
from bayeslearn.models.target import Target
from bayeslearn.progress import Progress, phase_label
from bayeslearn.tree import Array, PyTree

PATIENCE = 20  # evaluations without a new best before stopping
CHUNK = 100  # steps per compiled call
_fold_in = jax.jit(jax.random.fold_in)


def optimize(
    context: RunContext,
    algorithm: Algorithm,
    params: PyTree,
    start: StartingPoint | None,
    num_steps: int,
    eval_every: int | None = None,
    patience: int | None = None,
    *,
    may_end: bool = True,
    min_gain: float = 0.0,
) -> RunOutcome:
    """Run one phase of at most `num_steps` steps, those of `start` included.

    A stream of batches that ends before all steps are done ends them, if it `may_end`.
    """
    algorithm = algorithm.for_network(tree.size(params))
    loop = _Loop(context, algorithm, params, start, num_steps, eval_every, patience, may_end)
    return loop.restored() or loop.run(min_gain)


def _all_done(num_steps: int) -> str:
    return "The step was done." if num_steps == 1 else f"All {num_steps} steps were done."


class _Loop:
    """One phase: what it is made of, and the parts of its loop."""

    def __init__(
        self,
        context: RunContext,
        algorithm: Algorithm,
        params: PyTree,
        start: StartingPoint | None,
        num_steps: int,
        eval_every: int | None,
        patience: int | None,
        may_end: bool,
    ):
        self.context, self.algorithm, self.params, self.start = context, algorithm, params, start
        returns_last = algorithm.capabilities.returns_last_state
        self.patience, self.may_end = None if returns_last else patience, may_end
        self.base, self.done = (context.target, 0)
        if start is not None:
            self.base, self.done = start.target, start.steps_done
        self.num_steps = num_steps - self.done
        # A fixed length, so that runs of other lengths do not compile again.
        stream = context.stream
        chunk = CHUNK if jax.default_backend() == "cpu" else 2 * CHUNK  # each has a fixed cost
        self.length = chunk if stream is None else stream.length(self.base)
        self.limit = context.chunk_limit(self.length)
        self.key_evaluate = named_key(context.key, "evaluate")
        self.batch_size = context.batch_size
        if stream is not None:
            self.batch_size = stream.batch_size or context.batch_size
        self.began = time.perf_counter()
        self.first: dict[str, Array] | None = None  # what an evaluation says of the first state
        self.plan = self.planned_evaluations(eval_every)
        self.eval_every = self.plan.every
        rows = self.plan.rows_of(self.base.data)
        self.eval_rows = rows if context.layout is None else context.layout.put_rows(rows)

    def planned_evaluations(self, eval_every: int | None) -> EvaluationPlan:
        """How often the phase is evaluated, and on what."""
        stream, data, held_out = self.context.stream, self.base.data, self.context.validation
        is_part = data is not None and self.batch_size < len(data.y)
        return plan_evaluations(
            self.algorithm,
            self.base,
            self.params,
            num_steps=self.num_steps,
            batch_size=self.batch_size,
            is_minibatch=stream is not None or is_part,
            gradients=lambda: self.algorithm.gradients_per_step(
                self.base, jax.eval_shape(self.begin)
            ),
            num_held_out=0 if held_out is None else len(held_out.y),
            eval_every=eval_every,
        )

    def begin(self) -> PyTree:
        """The first state, from the warm start if there was one."""
        algorithm, start, layout = self.algorithm, self.start, self.context.layout
        key = named_key(self.context.key, "init")
        target = start_target(algorithm, self.base, self.params, self.batch_size)
        if start is None:
            return init_state(algorithm, key, target, self.params, layout=layout)
        if start.state is not None:
            return start.state
        return init_state_from(algorithm, key, target, start.q, layout=layout)

    def restored(self) -> RunOutcome | None:
        """The result of this phase, where an earlier process has finished it."""
        context = self.context
        if context.checkpointer is None:
            return None
        record = context.checkpointer.completed_phase(context.phase)
        if record is None:
            return None
        state, target = restore_phase(record, jax.eval_shape(self.begin), self.base)
        state = state if context.layout is None else context.layout.put_state(state)
        unknown = Phase(context.phase, self.algorithm.name, 0, 0, 0.0, None, True)
        context.phases.append(Phase(**record["phase"]) if "phase" in record else unknown)
        return RunOutcome(state, target, None, {}, None, "", [], 0.0)

    def run(self, min_gain: float) -> RunOutcome:
        """The loop itself."""
        context, algorithm = self.context, self.algorithm
        run = self.prepared()
        run.best.keeps_last = algorithm.capabilities.returns_last_state
        run.best.min_gain = min_gain
        advance = self.compiled(run)
        compile_time = time.perf_counter() - self.began
        phase = phase_label(context.phase)
        label = f"{algorithm.name}, {phase}" if phase else algorithm.name
        with Progress(label, self.num_steps, context.progress) as bar:
            while run.step < run.length and not run.has_ended:
                if not self.round(run, advance):
                    continue
                if run.position == run.step:
                    run.stop_reason = f"The data iterator ended after {run.step} steps."
                    break
                before = run.good, run.target, run.step
                guards.accept_round(run)
                self.evaluated(run, before, bar)
        if run.step == 0:
            raise ArgumentError(
                "`data` must give at least one batch, got an iterator that is empty."
            )
        if run.best.step == 0:  # every evaluation was rejected
            guards.give_up(algorithm, run, guards.SCALE_OUT_OF_RANGE)
        return self.finished(run, compile_time)

    def prepared(self) -> OptimizationState:
        """The state of the loop: new, or as an earlier process left it."""
        context = self.context
        saved = None
        if context.checkpointer is not None:
            saved = context.checkpointer.saved_state(context.phase)
        if saved is None:
            run = OptimizationState(self.begin(), self.base, self.patience, self.num_steps)
            if context.phase == MAIN and measures_start(
                self.algorithm, run.length, self.eval_every
            ):
                self.first = self.metrics_of(run)
            if self.first is not None and math.isfinite(self.first["bound"]):
                run.start_bound = float(self.first["bound"])
            else:
                start = self.plan.first_piece(self.base)
                guards.check_finite_start(start, run.state, self.params)
            run.stop_reason = _all_done(self.num_steps)
            return run
        put = None if context.layout is None else context.layout.put_state
        return OptimizationState.from_record(
            saved, jax.eval_shape(self.begin), self.base, self.patience, self.num_steps, put
        )

    def compiled(self, run: OptimizationState) -> Callable:
        """The steps, compiled by a call of none so that compile and run time can be separated."""
        context = self.context
        rows = context.batch_size if context.stream is None else None
        advance = partial(
            run_steps,
            key_step=named_key(context.key, "step"),
            key_data=named_key(context.key, "data"),
            length=self.length,
            layout=context.layout,
            batch_size=rows,
        )
        if context.stream is None:
            advance(
                self.algorithm, target=run.target, state=run.state, begin=0, count=0, stream=None
            )
        return advance

    def round(self, run: OptimizationState, advance: Callable) -> bool:
        """Steps up to the next evaluation; False after a step back."""
        goal = min(run.length, run.step + self.eval_every)
        while run.position < goal and not run.has_ended:
            self.context.maybe_save(run)
            stream, count = self.next_batches(run, goal)
            if run.has_ended:
                break
            algorithm = self.algorithm.with_run_length(self.done + run.length)
            if run.rate_scale != 1.0:
                algorithm = algorithm.with_shorter_steps(run.rate_scale)
            results = advance(
                algorithm,
                target=run.target,
                state=run.state,
                begin=run.position,
                count=count,
                stream=stream,
            )
            run.state = results.state
            for name, values in results.infos.items():
                run.infos.setdefault(name, []).append(values[:count])
            run.position += count
            run.nonfinite += results.nonfinite
            if not results.is_finite or run.nonfinite > self.eval_every // 2:
                guards.back_off(run)
                guards.check_can_continue(self.algorithm, run, guards.NONFINITE)
                return False
        return True

    def next_batches(self, run: OptimizationState, goal: int) -> tuple[Batch | None, int]:
        """Batches of a stream for the next call, and its number of steps."""
        context, count = self.context, min(self.limit, goal - run.position)
        if context.stream is None:
            return None, count
        counts = planned_counts(run.position, goal, run.length, self.eval_every, self.limit)
        with context.save_on_error(run):
            batches, count = context.stream.chunk(run.target, counts, self.length)
            if context.is_shared:  # it ends where the first of the processes' ends
                count = int(np.min(gather(count)))
            if count == 0 and not self.may_end:
                raise DataError(
                    f"The data iterator ended after {run.position} of {self.num_steps} steps. Give"
                    ' more batches, or num_steps="auto" to end where they do.'
                )
        run.has_ended = count == 0
        return batches, count

    def evaluated(
        self, run: OptimizationState, before: tuple[PyTree, Target, int], bar: Progress
    ) -> None:
        """Evaluate the new state; then guards, early stopping and the callback."""
        context, algorithm = self.context, self.algorithm
        if run.target.refreshes:
            key = _fold_in(self.key_at(run.step), 1)
            run.target = refresh(algorithm, run.target, run.state, key)
        target = self.plan.bind(run.target, self.eval_rows)
        values = self.metrics_of(run)
        scores, bound = values.pop("scores", None), float(values.pop("bound"))
        metrics = {name: float(value) for name, value in jax.device_get(values).items()}
        acted = {"skipped": run.num_skipped, "back_offs": run.back_offs}
        for name, value in ({"step": run.step} | metrics | acted).items():
            run.trace.setdefault("eval_" + name, []).append(value)
        bar.update(run.step, metrics | {name: n for name, n in acted.items() if n})
        self.guard(run, before, target, metrics, bound, scores)
        metrics.pop("error")
        if context.notify(run, algorithm.name, self.num_steps, metrics):
            run.stop_reason = f"The callback stopped it at step {run.step}."
            run.has_ended = True

    def metrics_of(self, run: OptimizationState) -> dict[str, Array]:
        """What an evaluation says of the state; new draws each time, whose noise averages out."""
        target, key = self.plan.bind(run.target, self.eval_rows), self.key_at(run.step)
        return planned(self.plan, self.algorithm, target, run.state, key, self.context.validation)

    def key_at(self, step: int) -> Array:
        """That of an evaluation."""
        return _fold_in(self.key_evaluate, step)

    def guard(
        self,
        run: OptimizationState,
        before: tuple[PyTree, Target, int],
        target: Target,
        metrics: dict[str, float],
        bound: float,
        scores: Array | None,
    ) -> None:
        """Step back from a state that makes no sense; stop where nothing is gained."""
        algorithm, step = self.algorithm, run.step
        error = metrics["error"]
        num_data = float(self.base.num_data)
        rejection = guards.why_rejected(
            algorithm, target, run, bound, metrics.get("kl", 0.0), num_data
        )
        accepted = before if rejection else (run.state, run.target, step)
        if rejection and run.best.state is not None:
            pass  # what is rejected says nothing of the state it goes back to
        elif not run.best.update(metrics["objective"], error, *accepted, *self.held_out(scores)):
            self.converged(run)
        elif run.has_ended:
            run.stop_reason = f"The data iterator ended after {step} steps."
        if rejection:
            guards.reject_round(run, *before[:2])
            guards.check_can_continue(algorithm, run, rejection)
        elif (
            algorithm.can_shorten_steps
            and not run.has_ended
            and guards.lower_bound_lost(run, bound, error, num_data, self.plan.most_low)
        ):
            guards.back_off(run, to_best=True)
            guards.check_can_continue(algorithm, run, guards.LOWER_BOUND_LOST)

    def held_out(self, scores: Array | None) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Scores of held-out rows and their weights, on the host."""
        rows = self.context.validation
        if scores is None or rows is None:
            return None, None
        whole, weight = self.context.gather_to_host((scores, rows.weight))
        return np.asarray(whole), None if weight is None else np.asarray(weight)

    def converged(self, run: OptimizationState) -> None:
        """Patience has ended: stop, or let the step size decay and then stop."""
        reason = (
            f"The objective's moving average had no new best for {run.best.patience} evaluations,"
            f" after step {run.step}; "
        )
        if self.algorithm.has_decaying_rate:
            guards.shorten_schedule(run, self.eval_every)
            run.stop_reason = f"{reason}its step size then decayed to zero by {run.length}."
        else:
            run.stop_reason = f"{reason}the iterate of step {run.best.step} is returned."
            run.has_ended = True

    def finished(self, run: OptimizationState, compile_time: float) -> RunOutcome:
        """The best state, and the trace where it is the method's own phase."""
        context, algorithm, best = self.context, self.algorithm, run.best
        checkpointer = context.checkpointer
        assert best.target is not None
        notes = [*algorithm.run_notes(best.target, self.params), *guards.guard_notes(run)]
        target = algorithm.bind_state(best.target, best.state)
        num_gradients = run.step * algorithm.gradients_per_step(target, best.state)
        seconds = time.perf_counter() - self.began
        counts = (run.step, num_gradients, seconds)
        held_out = 0 if context.validation is None else len(context.validation.y)
        cost = self.plan.cost(algorithm, run.step, self.eval_rows, self.batch_size, held_out)
        if context.phase != MAIN:
            phase = Phase(context.phase, algorithm.name, *counts, None, True, cost)
            context.phases.append(phase)
            if checkpointer is not None:
                state, changed = context.gather_to_host((best.state, target.with_data(None)))
                record = phase_record(state, changed) | {"phase": phase._asdict()}
                checkpointer.finish_phase(context.phase, record, context.position)
            return RunOutcome(
                best.state, target, None, {}, None, run.stop_reason, notes, compile_time
            )
        elbo = None
        if algorithm.capabilities.has_lower_bound:
            key = named_key(context.key, "fresh")
            elbo = final_lower_bound(
                algorithm, best.target, best.state, key, context.validation, self.plan
            )
        segments = [run.segment()]
        if checkpointer is not None:
            run.has_ended = True
            checkpointer.save(context.phase, run)
            segments = [*checkpointer.segments(context.phase), run.segment()]
        trace = join_segments(segments, 0)
        rows, first = context.gather_to_host((self.eval_rows, self.first))
        if algorithm.predicts_by_itself:
            notes += usefulness_notes(self.base, rows, trace, best.step, first)
        context.phases.append(Phase(context.phase, algorithm.name, *counts, elbo, True, cost))
        return RunOutcome(
            best.state, target, None, trace, elbo, run.stop_reason, notes, compile_time
        )
