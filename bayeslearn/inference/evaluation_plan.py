"""How often a run is evaluated, and on how many rows and draws: a fixed rule on shapes.

Small runs have up to 100 evaluations of 64 draws on up to 8,192 rows, and no fewer than one every
10,000 steps. Where that would be much work (minibatches, or many weights) evaluations cost a
twentieth of the run's steps, counted in rows: a forward pass is a third of a gradient. Half of that
is for the lower bound at the end. Very short runs and many held-out rows may cost more: there is at
least one evaluation, of a batch and all held-out rows. Evaluations run through one batch of rows
and one draw at a time, and so need no more memory than a step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import tree
from bayeslearn.algorithms.base import Algorithm
from bayeslearn.data.batches import first_rows, sample_rows
from bayeslearn.data.rows import Batch, weights_of
from bayeslearn.models.target import Target
from bayeslearn.tree import LARGE_NETWORK, PyTree

EVALUATIONS = 100  # in a full-length run
MIN_EVAL_EVERY = 10  # steps between evaluations in a short one: an evaluation costs steps
MAX_EVAL_EVERY = 10_000  # in a long one: between them nobody hears of the run, or can stop it
EVAL_DRAWS = 64
EVAL_BATCH = 16  # of those at a time
EVAL_ROWS = 8192
FINAL_EVALUATIONS = 4  # of EVAL_DRAWS each, for the lower bound that is reported

MAX_LOW_EVALUATIONS = 20  # in a row, far below the first or not finite, before it steps back

COST = 0.05  # of a run's steps, that its evaluations cost
FORWARD = 1.0 / 3.0  # the cost of a forward pass, in gradients
FREE = 1e8  # weights x rows x draws of an evaluation that is not worth a rule
FEWEST, STEPS_BETWEEN = 10, 200  # evaluations, and steps between them, where a run can afford it
CALL = 100  # steps of the compiled loop
FEW_DRAWS = 4
FEWEST_LOW = 2  # evaluations in a row, before a run of few evaluations steps back
PIECES = 8  # batches of rows in an evaluation, where a run can afford it
PIECE_OF_ALL = 1024  # rows at a time, of a method whose only step takes all rows


class EvaluationPlan(NamedTuple):
    """Steps between evaluations, and the size of one."""

    every: int
    draws: int = EVAL_DRAWS
    at_once: int = EVAL_BATCH  # draws
    rows: int = EVAL_ROWS  # at most
    piece: int | None = None  # rows at a time; None: all
    final: int = FINAL_EVALUATIONS  # evaluations for the lower bound that is reported
    most_low: int = MAX_LOW_EVALUATIONS  # in a row, before a run steps back

    def cost(
        self, algorithm: Algorithm, num_steps: int, rows: Batch | None, batch: int, held_out: int
    ) -> float:
        """Work of a phase's evaluations on so many rows, in gradients over a batch."""
        is_point = not algorithm.capabilities.has_lower_bound
        number, draws = -(-num_steps // self.every), 1 if is_point else self.draws
        used = 1 if rows is None else len(rows.y)
        passes = number * (used + held_out) + (0 if is_point else self.final * used)
        return FORWARD * draws * passes / max(batch, 1)

    def rows_of(self, data: Batch | None) -> Batch | None:
        """The rows on which the lower bound is measured: all, or an even sample of them."""
        if data is None:
            return None
        chosen = sample_rows(data, self.rows)
        return chosen if self.piece is None else pad_to(chosen, self.piece)

    def bind(self, target: Target, rows: Batch | None) -> Target:
        """The target on those rows, a piece of them at a time."""
        return self.in_pieces(target.with_data(rows))

    def first_piece(self, target: Target) -> Target:
        """The target on its first rows, for the check of a start."""
        if self.piece is None or target.data is None:
            return target
        return target.with_data(first_rows(target.data, self.piece))

    def in_pieces(self, target: Target) -> Target:
        """The target with its network evaluated on a piece of the rows at a time."""
        return target if self.piece is None else dataclasses.replace(target, microbatch=self.piece)


def pad_to(rows: Batch, multiple: int) -> Batch:
    """The rows, and at their end some of weight 0, up to a multiple of a number of rows."""
    number = len(rows.y)
    missing = -number % multiple
    if missing == 0:
        return rows
    weight = weights_of(rows)
    x, y = jax.tree.map(
        lambda leaf: jnp.concatenate([leaf, jnp.repeat(leaf[-1:], missing, axis=0)]),
        (rows.x, rows.y),
    )
    return Batch(x, y, jnp.concatenate([weight, jnp.zeros(missing, weight.dtype)]))


def num_weights(target: Target, params: PyTree) -> int:
    """Weights that an evaluation of the network uses, frozen ones too."""
    return tree.size(params) + tree.size(target.frozen)


def start_target(algorithm: Algorithm, target: Target, params: PyTree, batch_size: int) -> Target:
    """What the first state is made of; of a large network one batch of rows.

    Not where that state is the method's result.
    """
    is_start = not algorithm.capabilities.init_is_result
    if num_weights(target, params) > LARGE_NETWORK and is_start and target.data is not None:
        target = target.with_data(first_rows(target.data, batch_size))
    return algorithm.training_target(target, None)


def plan_evaluations(
    algorithm: Algorithm,
    target: Target,
    params: PyTree,
    *,
    num_steps: int,
    batch_size: int,
    is_minibatch: bool,
    gradients: Callable[[], int],
    num_held_out: int = 0,
    eval_every: int | None = None,
) -> EvaluationPlan:
    """The plan of a phase of so many steps, each of `gradients()` gradients of a batch."""
    rows = 1 if target.data is None else len(target.data.y)
    weights, draws = num_weights(target, params), _least_draws(algorithm, FEW_DRAWS)
    work = weights * min(rows, EVAL_ROWS) * _least_draws(algorithm, EVAL_DRAWS)
    if target.is_density or (weights <= LARGE_NETWORK and not (is_minibatch and work > FREE)):
        fewest = min(MIN_EVAL_EVERY, num_steps // MIN_EVAL_EVERY)
        every = eval_every or max(1, fewest, min(num_steps // EVALUATIONS, MAX_EVAL_EVERY))
        return EvaluationPlan(min(num_steps, every))
    piece = min(batch_size, rows, target.microbatch or batch_size)
    if algorithm.capabilities.init_is_result:
        piece = min(piece, PIECE_OF_ALL)
    budget = COST / FORWARD * num_steps * max(gradients(), 1) * batch_size
    final = 0.5 * budget if algorithm.capabilities.has_lower_bound else 0.0
    least = draws * (piece + num_held_out)
    if eval_every is None:
        most = min(EVALUATIONS, max(FEWEST, num_steps // STEPS_BETWEEN))
        most = max(most, -(-num_steps // MAX_EVAL_EVERY))
        number = int(np.clip((budget - final) / (PIECES * least), FEWEST, most))
        number = max(1, min(number, int((budget - final) / least)))
        eval_every = -(-num_steps // number)
        if eval_every > CALL:  # whole calls of the compiled loop
            eval_every = round(eval_every / CALL) * CALL
    eval_every = min(num_steps, eval_every)
    size = (budget - final) * eval_every / num_steps - draws * num_held_out
    pieces = int(np.clip(size / (draws * piece), 1, max(1, min(rows, EVAL_ROWS) // piece)))
    if pieces * piece + piece > rows:  # all rows, the last piece padded
        pieces = -(-rows // piece)
    used = min(rows, pieces * piece)
    if draws > 1:
        draws = int(np.clip(size / used, draws, EVAL_DRAWS))
    times = int(np.clip(final / (draws * used), 1, FINAL_EVALUATIONS * EVAL_DRAWS // draws))
    # A fifth of the run below its first bound is too much.
    low = int(np.clip(num_steps // eval_every // 5, FEWEST_LOW, MAX_LOW_EVALUATIONS))
    return EvaluationPlan(eval_every, draws, 1, used, piece, times, low)


def _least_draws(algorithm: Algorithm, draws: int) -> int:
    """Draws of an evaluation: one for a point."""
    return draws if algorithm.capabilities.has_lower_bound else 1
