"""Trials of `method="auto"`: short fits of a candidate, and predictions of rows they have not seen.

A trial is a short run of MILE with two members on some of the rows, without each fold in turn. One
run gives three predictions of the fold: of a plain network (a member), of the ensemble, and of the
chains. Knows nothing of how candidates are chosen.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from bayeslearn.data.rows import Rows, pad_rows
from bayeslearn.families import Mixture
from bayeslearn.inference.api import fit
from bayeslearn.inference.options import FitEvent
from bayeslearn.models.model import Model
from bayeslearn.numerics import mean_and_error
from bayeslearn.predictive_base import PredictiveBase
from bayeslearn.results.calibrated_classes import TemperedPredictive
from bayeslearn.results.calibration_maps import FactorMap
from bayeslearn.results.posterior import Posterior
from bayeslearn.tabular import folds as folding
from bayeslearn.tabular.candidates import (
    ENSEMBLE,
    HELD_OUT,
    MAX_TRIAL_STEPS,
    MILE_NAME,
    PLAIN,
    TRIAL_ROWS_WORK,
    Candidate,
    Method,
    Noise,
    PriorScale,
    allows_chains,
    trial_steps,
)
from bayeslearn.tabular.temperature import best_temperature, log_prob_at
from bayeslearn.tabular.timing import Costs, Stopwatch

SHORT = Method(MILE_NAME, num_members=2, num_steps=MAX_TRIAL_STEPS)  # at most so long
MIN_ROWS, SELECTION_ROWS = 256, 2048
FOLDS = 5  # at most, of which only the first few are held out in turn
TEMPERATURE_ROWS = 400


class Problem(NamedTuple):
    """A table, scaled, and what may be tried on it."""

    rows: Rows
    is_classification: bool
    hidden: tuple[tuple[int, ...], ...]
    prior_scales: tuple[PriorScale, ...]
    noises: tuple[Noise, ...]
    make_model: Callable[[Candidate], Model]
    work: Callable[[Candidate], float]  # rows times weights, of all rows
    y_scale: np.ndarray | None  # the units of y, for the scores
    seed: int
    keys: folding.Keys | None = None  # groups or times of the rows
    budget: float | None = None  # seconds

    def num_weights(self, candidate: Candidate) -> float:
        """Weights of a candidate's network."""
        return self.work(candidate) / len(self.rows.y)

    def trial_rows(self) -> TrialRows:
        """The rows that candidates are tried on."""
        y, has_classes = self.rows.y, self.is_classification
        table = folding.KeyedRows(self.rows, self.keys)
        first = Candidate(self.hidden[0], self.prior_scales[0], self.noises[0])
        most = TRIAL_ROWS_WORK / max(
            self.num_weights(first._replace(hidden=hidden)) for hidden in self.hidden
        )
        most = int(min(SELECTION_ROWS, max(MIN_ROWS, most)))
        rows, keys = table.take(folding.first_rows(y, most, has_classes))
        return TrialRows(rows, keys, folding.fold_of(rows.y, FOLDS, has_classes, keys))


class TrialRows(NamedTuple):
    """Rows that candidates are tried on."""

    rows: Rows
    keys: folding.Keys | None
    fold: np.ndarray  # of each row

    @property
    def num_folds(self) -> int:
        """How many folds there are; 0: the rows cannot be held out in turn."""
        return int(self.fold.max()) + 1


class FoldResult(NamedTuple):
    """Predictions of one fold, by the method that makes them, from a fit without it."""

    rows: Rows
    predictives: dict[str, PredictiveBase]
    log_probs: dict[str, np.ndarray]  # of each row
    costs: Costs


class Trial:
    """A candidate's predictions of out-of-fold rows.

    Class probabilities of ensemble and chains have the temperature that suits these rows.
    """

    def __init__(
        self, candidate: Candidate, folds: list[FoldResult], seconds: float, has_classes: bool
    ):
        self.candidate, self.folds, self.seconds = candidate, folds, seconds
        self.y = np.concatenate([fold.rows.y for fold in folds])
        self.weight = np.concatenate([fold.rows.weight for fold in folds])
        names = folds[0].log_probs
        self.log_probs = {
            name: np.concatenate([fold.log_probs[name] for fold in folds]) for name in names
        }
        self.temperatures: dict[str, float] = {}
        if has_classes:
            for name in names.keys() - {PLAIN}:
                probs = np.concatenate([fold.predictives[name].probs for fold in folds])
                found = best_temperature(probs, self.y, self.weight)
                self.temperatures[name] = found
                self.log_probs[name] = log_prob_at(found, probs, self.y)

    def joined(self, other: Trial) -> Trial:
        """With the folds of another trial of the same candidate."""
        seconds = self.seconds + other.seconds
        has_classes = bool(self.temperatures)
        return Trial(self.candidate, [*self.folds, *other.folds], seconds, has_classes)

    @property
    def costs(self) -> Costs:
        """Of the first fold, the only one that compiles."""
        return self.folds[0].costs

    def mean(self, name: str) -> float:
        """Log-likelihood of a row."""
        return float(np.average(self.log_probs[name], weights=self.weight))

    @property
    def best(self) -> str:
        """Chains, or the ensemble where it is better by a standard error or there are none."""
        if MILE_NAME not in self.log_probs:
            return ENSEMBLE
        gain, error = self.gain_over(self, ENSEMBLE, MILE_NAME)
        return ENSEMBLE if gain > error else MILE_NAME

    def gain_over(self, other: Trial, name: str, other_name: str) -> tuple[float, float]:
        """By how much it predicts better, and the standard error of that."""
        return mean_and_error(self.log_probs[name] - other.log_probs[other_name], self.weight)

    def predictive(self, fold: FoldResult, name: str) -> PredictiveBase:
        """The predictive distribution of a fold, with the temperature."""
        found = fold.predictives[name]
        if name not in self.temperatures:
            return found
        return TemperedPredictive(found, (FactorMap(self.temperatures[name]),))


def run_trial(
    problem: Problem,
    candidate: Candidate,
    folds: Iterable[int],
    callback: Callable[[FitEvent], object] | None,
) -> Trial:
    """Fit a candidate without each of some folds in turn, and predict the fold."""
    began = time.perf_counter()
    real, keys, fold = problem.trial_rows()
    padded = pad_rows(real)
    work = problem.work(candidate)
    trial_work = problem.num_weights(candidate) * len(padded.y)
    chain, training = trial_steps(trial_work * num_folds(len(problem.rows.y)), problem.budget)
    name = MILE_NAME if allows_chains(work) else ENSEMBLE
    method = SHORT._replace(name=name, num_steps=min(SHORT.num_steps, chain))
    results = []
    for k in folds:
        weight = padded.weight.copy()
        # As many rows for every fold: compiled once.
        is_out = folding.left_out(fold, k, keys)
        weight[: len(fold)][is_out] = 0.0
        learned, validation = np.flatnonzero(~is_out), None
        own_keys = None if keys is None else keys.take(learned)
        if (is_held := folding.held_to_stop(own_keys, HELD_OUT)) is not None:
            validation = tuple(pad_rows(real.take(learned[is_held])))
            weight[learned[is_held]] = 0.0
        watch = Stopwatch(callback)
        posterior = fit(
            problem.make_model(candidate),
            method.algorithm(),
            (padded.x, padded.y, weight),
            seed=problem.seed,
            validation=validation,
            num_steps=training,
            callback=watch,
            progress=False,
        )
        left_out = real.take(np.flatnonzero(fold == k))
        found = _predict(posterior, left_out)
        members = [found.pop(name) for name in list(found) if name.startswith("member")]
        log_probs = {name: np.asarray(p.log_prob(left_out.y)) for name, p in found.items()}
        log_probs[PLAIN] = np.mean([p.log_prob(left_out.y) for p in members], axis=0)
        costs = watch.costs(trial_work, method.num_members)
        results.append(FoldResult(left_out, found | {PLAIN: members[0]}, log_probs, costs))
    seconds = time.perf_counter() - began
    return Trial(candidate, results, seconds, problem.is_classification)


def num_folds(num_rows: int) -> int:
    """How many folds candidates are compared on: the fewer the rows, the more."""
    return 5 if num_rows < 250 else 3 if num_rows < 500 else 2 if num_rows < 1000 else 1


def num_temperature_folds(num_rows: int) -> int:
    """How many folds a temperature is estimated on: those of about so many rows."""
    return min(FOLDS, max(num_folds(num_rows), -(-TEMPERATURE_ROWS * FOLDS // num_rows)))


def _predict(posterior: Posterior, rows: Rows) -> dict[str, PredictiveBase]:
    """Predictions of every member, of all of them, and of the chains if there are any."""
    family = posterior.family
    members = family.members if isinstance(family, Mixture) else posterior.state.members
    parts = {f"member {i}": member for i, member in enumerate(members)}
    parts[ENSEMBLE] = Mixture(tuple(members))
    if not isinstance(family, Mixture):
        parts[MILE_NAME] = family
    return {
        name: dataclasses.replace(posterior, family=part).predict(rows.x)
        for name, part in parts.items()
    }
