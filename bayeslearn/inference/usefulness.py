"""Whether a run has learned anything: beside a constant prediction, and beside where it started.

Both from evaluations of the training rows; one more, of the first state, is made for it.
"""

from __future__ import annotations

import math

import jax
import numpy as np

from bayeslearn.algorithms.base import Algorithm
from bayeslearn.data.rows import Batch, weights_of
from bayeslearn.models.likelihoods.classes import Bernoulli, Categorical
from bayeslearn.models.likelihoods.gaussian import Gaussian
from bayeslearn.models.target import Target
from bayeslearn.tree import Array

MIN_ROWS = 20  # of fewer the prior may well say more
MIN_EVALUATIONS = 10  # beside which one more costs little
STANDARD_ERRORS = 5.0  # of the two bounds, by which one is below the other


def constant_nll(target: Target) -> float | None:
    """Mean -log p(y) of a row under the best prediction that is the same for all; if known."""
    data = target.data
    if target.is_density or data is None or len(data.y) < MIN_ROWS:
        return None
    y, weight = np.asarray(data.y), np.asarray(weights_of(data))
    likelihood = target.likelihood
    if isinstance(likelihood, Bernoulli | Categorical):
        counts = np.bincount(y.astype(int).ravel(), weight)
        shares = counts[counts > 0] / np.sum(weight)
        return float(-np.sum(shares * np.log(shares)))
    if not isinstance(likelihood, Gaussian):
        return None
    columns = y.reshape(len(y), -1).astype(np.float64)
    center = np.average(columns, axis=0, weights=weight)
    variance = np.average((columns - center) ** 2, axis=0, weights=weight)
    noise = variance
    if likelihood.noise_scale is not None:
        noise = np.broadcast_to(np.asarray(likelihood.noise_scale, np.float64) ** 2, variance.shape)
    if not np.all(noise > 0):
        return None
    return float(0.5 * np.sum(np.log(2 * np.pi * noise) + variance / noise))


def measures_start(algorithm: Algorithm, num_steps: int, every: int) -> bool:
    """Whether the first state is evaluated too."""
    return algorithm.auto_steps > 1 and num_steps >= MIN_EVALUATIONS * every


def usefulness_notes(
    target: Target,
    rows: Batch | None,
    trace: dict[str, np.ndarray],
    best_step: int,
    start: dict[str, Array] | None,
) -> list[str]:
    """Notes on the iterate of `best_step`, measured on `rows`; `start` has the first metrics."""
    steps = np.asarray(trace.get("eval_step", ()))
    found = np.flatnonzero(steps == best_step)
    if not len(found):
        return []
    at, notes = found[-1], []
    here = {name: float(v[at]) for name, v in trace.items() if name.startswith("eval_")}
    baseline = None if rows is None else constant_nll(target.with_data(rows))
    if baseline is not None and math.isfinite(here.get("eval_nll", math.nan)):
        each = here["eval_nll"] / float(jax.device_get(target.num_data))
        if each >= baseline:
            notes.append(
                "The fit predicts the training rows no better than one prediction for all of them"
                f" ({each:.3g} nats a row, and {baseline:.3g} without x). Train longer, with"
                " smaller steps or a lower temperature; or y does not depend on x."
            )
    if start is not None and "eval_objective" in here and "eval_validation" not in here:
        first, error = float(start["objective"]), float(start["error"])
        fall = first - here["eval_objective"]
        if fall > STANDARD_ERRORS * math.hypot(error, here["eval_error"]):
            notes.append(
                f"The run ended below where it started: its objective is {fall:.3g} nats lower than"
                " that of the first state. Use smaller steps."
            )
    return notes
