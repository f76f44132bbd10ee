"""Trials of `method="auto"`: short fits of a candidate, and predictions of rows they have not seen.

A trial is a short run of MILE with two members on some of the rows, without each fold in turn. One
run gives three predictions of the fold: of a plain network (a member), of the ensemble, and of the
chains. Knows nothing of how candidates are chosen.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
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
from bayeslearn.tabular.candidates import (
    ENSEMBLE,
    MILE_NAME,
    PLAIN,
    Candidate,
    Method,
    Noise,
    allows_chains,
)
from bayeslearn.tabular.temperature import best_temperature, log_prob_at

SHORT = Method(MILE_NAME, num_members=2, num_steps=3000)
SELECTION_ROWS = 2048
FOLDS = 5  # of which only the first few are held out in turn


class Problem(NamedTuple):
    """A table, scaled, and what may be tried on it."""

    rows: Rows
    is_classification: bool
    hidden: tuple[tuple[int, ...], ...]
    prior_scales: tuple[float, ...]
    noises: tuple[Noise, ...]
    make_model: Callable[[Candidate], Model]
    work: Callable[[Candidate], float]  # rows times weights, of all rows
    y_scale: np.ndarray | None  # the units of y, for the scores
    seed: int


class Trial(NamedTuple):
    """A candidate's predictions of out-of-fold rows."""

    candidate: Candidate
    y: np.ndarray
    weight: np.ndarray
    log_probs: dict[str, np.ndarray]  # by method, of each row
    predictives: list[tuple[dict[str, PredictiveBase], np.ndarray]]  # of each fold, and its y
    seconds: float
    rate: float  # rows times weights, a second
    temperatures: dict[str, float]  # by method, of classes

    def mean(self, name: str) -> float:
        """Log-likelihood of a row."""
        return float(np.average(self.log_probs[name], weights=self.weight))

    @property
    def best(self) -> str:
        """The better of ensemble and chains."""
        names = [name for name in (MILE_NAME, ENSEMBLE) if name in self.log_probs]
        return max(names, key=self.mean)

    def gain_over(self, other: Trial, name: str, other_name: str) -> tuple[float, float]:
        """By how much it predicts better, and the standard error of that."""
        return mean_and_error(self.log_probs[name] - other.log_probs[other_name], self.weight)


def run_trial(
    problem: Problem, candidate: Candidate, callback: Callable[[FitEvent], object] | None
) -> Trial:
    """Fit a candidate without each fold in turn, and predict the fold."""
    began = time.perf_counter()
    real = problem.rows.take(slice(SELECTION_ROWS))
    rows = pad_rows(real)
    fold = _folds(problem, len(real.y))
    work = problem.work(candidate)
    method = SHORT if allows_chains(work) else SHORT._replace(name=ENSEMBLE)
    predictives, log_probs, held_out, rate = [], [], [], 0.0
    for k in range(_num_folds(len(real.y))):
        weight = rows.weight.copy()
        weight[: len(fold)][fold == k] = 0.0  # as many rows for every fold: compiled once
        posterior = fit(
            problem.make_model(candidate),
            method.algorithm(),
            (rows.x, rows.y, weight),
            seed=problem.seed,
            callback=callback,
            progress=False,
        )
        left_out = real.take(np.flatnonzero(fold == k))
        found = _predict(posterior, left_out)
        members = [found.pop(name) for name in list(found) if name.startswith("member")]
        log_prob = {name: np.asarray(p.log_prob(left_out.y)) for name, p in found.items()}
        log_prob[PLAIN] = np.mean([p.log_prob(left_out.y) for p in members], axis=0)
        predictives.append((found | {PLAIN: members[0]}, left_out.y))
        log_probs.append(log_prob)
        held_out.append(left_out)
        rate = max(rate, _rate(posterior, work * len(rows.y) / len(problem.rows.y)))
    trial = Trial(
        candidate,
        np.concatenate([part.y for part in held_out]),
        np.concatenate([part.weight for part in held_out]),
        {name: np.concatenate([p[name] for p in log_probs]) for name in log_probs[0]},
        predictives,
        time.perf_counter() - began,
        rate,
        {},
    )
    return _tempered(trial) if problem.is_classification else trial


def _tempered(trial: Trial) -> Trial:
    """The same trial with the temperatures of ensemble and chains; the plain network stays."""
    found: dict[str, float] = {}
    log_probs = dict(trial.log_probs)
    parts = [dict(predictives) for predictives, _ in trial.predictives]
    for name in log_probs.keys() - {PLAIN}:
        probs = np.concatenate([part[name].probs for part in parts])
        found[name] = best_temperature(probs, trial.y, trial.weight)
        log_probs[name] = log_prob_at(found[name], probs, trial.y)
        for part in parts:
            part[name] = TemperedPredictive(part[name], (FactorMap(found[name]),))
    predictives = [(part, y) for part, (_, y) in zip(parts, trial.predictives, strict=True)]
    return trial._replace(log_probs=log_probs, predictives=predictives, temperatures=found)


def _num_folds(num_rows: int) -> int:
    """Small tables need more than one, or the choice is noise."""
    return 5 if num_rows < 250 else 3 if num_rows < 500 else 2 if num_rows < 1000 else 1


def _folds(problem: Problem, number: int) -> np.ndarray:
    """The fold of each row; classes are spread evenly. Rows are in random order already."""
    order = np.arange(number)
    if problem.is_classification:
        order = np.argsort(problem.rows.y[:number], kind="stable")
    fold = np.empty(number, int)
    fold[order] = np.arange(number) % FOLDS
    return fold


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


def _rate(posterior: Posterior, work: float) -> float:
    """Rows times weights that chains get through in a second."""
    phase = posterior.phases[-1]
    return phase.num_gradients * work / max(phase.seconds, 1e-9)
