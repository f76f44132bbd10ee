"""What happens when a run goes wrong: steps back, shorter steps, a named error.

These functions change an `OptimizationState` and decide from its numbers; they know neither files
nor compiled loops.
"""

from __future__ import annotations

import math
from typing import NoReturn

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.algorithms.base import Algorithm
from bayeslearn.errors import DivergenceError
from bayeslearn.families.base import Gaussian
from bayeslearn.inference.evaluation_plan import MAX_LOW_EVALUATIONS
from bayeslearn.inference.kernels import log_joint
from bayeslearn.inference.run_state import OptimizationState
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

BACKOFF_RESET_ROUNDS = 20  # without trouble, after which earlier back-offs are forgotten
MAX_BACK_OFFS = 10  # in that time, before a run is given up
PATIENT_BACK_OFFS = 2  # before a run steps back to its best state
ANNEAL_FRACTION = 0.5  # of its steps so far, in which a converged run lets its step size decay
FAR_STANDARD_ERRORS = 10.0  # within which a bound is not far below
MIN_STD_RATIO, MAX_STD_RATIO = 1e-8, 1e4  # std of q beside the prior's
EXPLODED = 1e3  # nats below the bound of the start, for each nat of it and each row
NONFINITE = "met non-finite numbers"
LOWER_BOUND_LOST = "lost its lower bound"
LOWER_BOUND_EXPLODED = "diverged: its lower bound fell far below that of the start"
SCALE_OUT_OF_RANGE = (
    f"diverged: a posterior std left [{MIN_STD_RATIO:g}, {MAX_STD_RATIO:g}] times the prior std"
)


def check_finite_start(target: Target, state: PyTree, params: PyTree) -> None:
    """Refuse a start at which the density or the state is not finite."""
    value = float(log_joint(target, params))
    if not (math.isfinite(value) and bool(tree.all_finite_compiled(state))):
        raise DivergenceError(
            f"The log-density at the starting point is {value}. Scale x and y to unit variance, or"
            " start elsewhere with `init=`."
        )


def accept_round(run: OptimizationState) -> None:
    """The steps since the last evaluation were finite."""
    run.step, run.good, run.calm_rounds = run.position, run.state, run.calm_rounds + 1
    run.num_skipped, run.nonfinite = run.num_skipped + run.nonfinite, 0
    if run.calm_rounds == BACKOFF_RESET_ROUNDS:
        run.recent_back_offs = 0
    for name, values in run.infos.items():
        run.trace.setdefault(name, []).extend(values)
    run.infos = {}


def back_off(run: OptimizationState, *, to_best: bool = False) -> None:
    """To the last accepted state (or the best one), with steps half as long."""
    run.back_offs += 1
    run.recent_back_offs, run.calm_rounds = run.recent_back_offs + 1, 0
    run.rate_scale *= 0.5
    run.low_evaluations, run.times_lost = 0, run.times_lost + to_best
    best = run.best
    is_stuck = to_best or run.recent_back_offs > PATIENT_BACK_OFFS
    if is_stuck and best.state is not None and best.target is not None:
        # The last state was finite, but already on its way out.
        run.good, run.target = best.state, best.target
    run.state, run.position, run.nonfinite, run.infos = run.good, run.step, 0, {}


def reject_round(run: OptimizationState, good: PyTree, target: Target) -> None:
    """Back to where the round began, with steps half as long: its end made no sense."""
    run.good, run.target = good, target
    run.times_rejected += 1
    back_off(run)


def lower_bound_lost(
    run: OptimizationState,
    bound: float,
    error: float,
    num_data: float,
    most: int = MAX_LOW_EVALUATIONS,
) -> bool:
    """Whether the bound has been lost for long: not finite, or a nat per row below the first.

    Steps that are too long for the noise of their gradients end here if they do not end in
    non-finite numbers. `most` is the number of evaluations in a row that are too many.
    """
    if math.isfinite(bound) and run.first_bound == -math.inf:
        run.first_bound = bound
    far = max(num_data, FAR_STANDARD_ERRORS * error) if math.isfinite(error) else num_data
    is_low = not math.isfinite(bound) or bound < run.first_bound - far
    run.low_evaluations = run.low_evaluations + 1 if is_low else 0
    return run.low_evaluations >= most


def scale_is_suspect(run: OptimizationState, bound: float, kl: float) -> bool:
    """Whether q's scale is worth a check: nothing is computed while all is well.

    A standard deviation of MAX_STD_RATIO adds half its square to the divergence from the prior,
    and one that collapses takes the bound below its first.
    """
    is_low = not math.isfinite(bound) or bound < run.first_bound
    return is_low or kl >= 0.5 * MAX_STD_RATIO**2 - MAX_STD_RATIO


@jax.jit
def scale_out_of_range(algorithm: Algorithm, target: Target, state: PyTree) -> Array:
    """Whether a standard deviation of q makes no sense beside the prior's."""
    target = algorithm.bind_state(target, state)
    q = algorithm.approximation(target, state)
    prior = target.prior
    if prior is None or not prior.is_gaussian or not isinstance(q, Gaussian):
        return jnp.asarray(False)
    _, prec = prior.broadcast(tree.double(q.mean))
    ratio = tree.ravel(jax.tree.map(lambda s, p: s * jnp.sqrt(p), tree.double(q.std), prec))
    return (jnp.max(ratio) > MAX_STD_RATIO) | (jnp.min(ratio) < MIN_STD_RATIO)


def why_rejected(
    algorithm: Algorithm,
    target: Target,
    run: OptimizationState,
    bound: float,
    kl: float,
    num_data: float,
) -> str:
    """Why the state of an evaluation makes no sense; empty: it does.

    From a bound thousands of nats a row below the start no step leads back.
    """
    if not (algorithm.can_shorten_steps and algorithm.capabilities.has_lower_bound):
        return ""
    far = EXPLODED * (num_data + abs(run.start_bound))
    if math.isfinite(run.start_bound) and bound < run.start_bound - far:
        return LOWER_BOUND_EXPLODED
    if scale_is_suspect(run, bound, kl) and bool(scale_out_of_range(algorithm, target, run.state)):
        return SCALE_OUT_OF_RANGE
    return ""


def shorten_schedule(run: OptimizationState, eval_every: int) -> None:
    """The remaining decay of the step size in few more steps; then patience ends."""
    evaluations = math.ceil(ANNEAL_FRACTION * run.step / eval_every)
    run.length = min(run.length, run.step + evaluations * eval_every)
    run.best.patience = None


def check_can_continue(algorithm: Algorithm, run: OptimizationState, what: str) -> None:
    """Give up after too many back-offs, or where steps cannot be shortened."""
    if run.recent_back_offs > MAX_BACK_OFFS or not algorithm.can_shorten_steps:
        give_up(algorithm, run, what)


def give_up(algorithm: Algorithm, run: OptimizationState, what: str) -> NoReturn:
    """The named error of a run that cannot go on."""
    raise DivergenceError(
        f"{algorithm.name} {what} after step {run.step} and {run.recent_back_offs - 1} shorter"
        " steps did not help. Scale x and y to unit variance, lower `learning_rate`, or check the"
        " network for divisions by zero."
    )


def guard_notes(run: OptimizationState) -> list[str]:
    """What the guards did, for the result."""
    notes = []
    if run.num_skipped:
        notes.append(f"{run.num_skipped} steps met non-finite numbers and were skipped.")
    if run.back_offs:
        counts = {
            "the lower bound was lost for long": run.times_lost,
            "the bound or the scale of q exploded or collapsed": run.times_rejected,
        }
        reasons = [f"{reason} ({number})" for reason, number in counts.items() if number]
        why = " or ".join([*reasons, "numbers were not finite"])
        if not reasons:
            why = "non-finite numbers"
        notes.append(
            f"The step size was halved {run.back_offs} time(s) after {why}; the run ended at"
            f" {run.rate_scale:g} of the requested learning rate."
        )
    return notes
