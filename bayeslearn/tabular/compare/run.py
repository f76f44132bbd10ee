"""Fit one method on every split and score it."""

from __future__ import annotations

import dataclasses
import math
import re
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from bayeslearn.errors import BayesLearnError
from bayeslearn.inference.context import MAIN
from bayeslearn.inference.options import FitEvent
from bayeslearn.results import metrics
from bayeslearn.results.posterior import MixingWarning, Posterior
from bayeslearn.tabular.classifier import BayesianNNClassifier
from bayeslearn.tabular.compare.budget import (
    Clock,
    Cost,
    Deadline,
    NotTried,
    OutOfBudget,
    Pace,
    Share,
    shorten_sampler,
)
from bayeslearn.tabular.compare.held_out import HeldOut, concatenate, predict_held_out
from bayeslearn.tabular.compare.plan import Method, Plan, Split, TableData
from bayeslearn.tabular.regressor import BayesianNNRegressor
from bayeslearn.tabular.score_table import FAILED, NOT_FINISHED, NOT_TRIED, OK
from bayeslearn.tabular.scores import score

Estimator = BayesianNNRegressor | BayesianNNClassifier
ESTIMATORS: dict[str, type[Estimator]] = {
    "regression": BayesianNNRegressor,
    "classification": BayesianNNClassifier,
}
Listener = Callable[[FitEvent | None, int], None]  # the event (None: a fit begins), and the split


class Experiment(NamedTuple):
    """What is the same for all methods."""

    table: TableData
    plan: Plan
    options: dict[str, Any]  # of the estimators
    seed: int
    by: str
    test_fraction: float
    devices: str | None = None


@dataclasses.dataclass
class MethodRun:
    """All splits of one method, or why they are not there."""

    status: str = OK
    reason: str = ""
    estimator: Estimator | None = None  # of the first split
    scores: list[dict[str, float]] = dataclasses.field(default_factory=list)
    folds: list[HeldOut] = dataclasses.field(default_factory=list)
    seconds: list[float] = dataclasses.field(default_factory=list)  # of each fit
    scoring: list[float] = dataclasses.field(default_factory=list)  # of each split
    compiling: float = 0.0
    steps: int = 0  # of the method itself in the first split
    planned_steps: int = 0
    megabytes: float = 0.0
    rhat: float | None = None
    cut_short: str | None = None
    chosen: dict[str, int] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def held_out(self) -> HeldOut:
        """Its predictions of all validation rows."""
        return concatenate(self.folds)

    @property
    def cost(self) -> Cost | None:
        """What it took; None before its first split was scored."""
        if not self.scoring:
            return None
        fit = min(max(0.0, self.seconds[0] - self.compiling), *self.seconds[1:], math.inf)
        return Cost(self.compiling, fit, self.scoring[0], self.scoring[-1])


def run_method(
    experiment: Experiment,
    method: Method,
    share: Share | None,
    pace: Pace | None,
    listener: Listener,
) -> MethodRun:
    """Fit and score every split; whatever goes wrong is its status and reason."""
    run = MethodRun()
    splits = experiment.plan.splits
    try:
        if share is not None and pace is not None and not isinstance(method, str):
            method = shorten_sampler(method, share, pace)
        clock = None
        for number, split in enumerate(splits):
            cost = run.cost
            if share is not None and cost is not None and not share.allows(cost.fit + cost.scoring):
                raise OutOfBudget(f"The budget ended after {number} of {len(splits)} splits.")
            listener(None, number)
            first = clock
            clock = _clock(method, share, first, listener, number)
            estimator = _fit_split(experiment, method, split, number, clock, run)
            if first is None:
                run.estimator, run.megabytes = estimator, _megabytes(estimator.posterior_)
                if MAIN in clock.events:
                    run.steps, run.planned_steps = clock.events[MAIN][1:3]
                run.cut_short = clock.cut_short
                run.chosen = {} if share is None else _length(method, clock)
            clock = first or clock
            _score_split(experiment, split, estimator, run)
    except NotTried as error:
        run.status, run.reason = NOT_TRIED, _first_sentence(error)
    except OutOfBudget as error:
        run.status, run.reason = NOT_FINISHED, _first_sentence(error)
    except Exception as error:  # whatever it is, the other methods go on
        run.status, run.reason = FAILED, _first_sentence(error)
    if run.cut_short:
        run.notes.insert(0, f"Stopped by the budget at {run.cut_short} (not converged).")
    run.notes = list(dict.fromkeys(run.notes))
    return run


def _clock(
    method: Method, share: Share | None, first: Clock | None, listener: Listener, number: int
) -> Clock:
    if isinstance(method, str):  # it keeps to a budget of its own
        return Deadline(share, listener=lambda event: listener(event, number))
    stop_at = None
    if first is not None:
        stop_at = {phase: event.step for phase, event in first.stopped.items()}
    sampler = getattr(method, "sampler", method)  # of an ensemble with chains
    is_ensemble = method.capabilities.is_composite and sampler is method
    return Clock(
        share,
        stop_at,
        getattr(sampler, "num_warmup", 0),
        lambda event: listener(event, number),
        has_own_phase=not is_ensemble,
    )


def _fit_split(
    experiment: Experiment,
    method: Method,
    split: Split,
    number: int,
    clock: Clock,
    run: MethodRun,
) -> Estimator:
    estimator = make_estimator(experiment, method, number)
    if isinstance(clock, Deadline):
        estimator.budget = clock.fit_seconds
    X, y = experiment.table.rows(split.train)
    with clock.listening(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        began = time.perf_counter()
        if isinstance(estimator, BayesianNNClassifier):
            classes = experiment.table.classes
            estimator.fit(X, y, classes=classes, callback=clock, devices=experiment.devices)
        else:
            estimator.fit(X, y, callback=clock, devices=experiment.devices)
        run.seconds.append(time.perf_counter() - began)
    run.compiling += clock.compiling
    run.notes += [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    run.notes += [n for n in estimator.posterior_.notes if n not in run.notes]
    if any(note.startswith("Interrupted:") for note in estimator.posterior_.notes):
        raise KeyboardInterrupt  # an ensemble keeps the members it has; a comparison ends
    if any(issubclass(w.category, MixingWarning) for w in caught):
        rhat = float(np.nanmax(estimator.posterior_.diagnostics().rhat_predictions))
        run.rhat = rhat if run.rhat is None else max(run.rhat, rhat)
    return estimator


def make_estimator(experiment: Experiment, method: Method, number: int) -> Estimator:
    """The estimator of one split, with the options that its method knows."""
    known = {"progress": False} | experiment.options
    kind = ESTIMATORS[experiment.table.task]
    if isinstance(method, str):
        return kind(method=method, random_state=experiment.seed + number, **known)
    algorithm = method
    is_closed_form = algorithm.auto_steps == 1 and algorithm.warm_start() is None
    if algorithm.capabilities.is_sampler or is_closed_form:
        known.pop("num_steps", None)
    if algorithm.capabilities.is_sampler:
        known.pop("batch_size", None)
        known.pop("validation_fraction", None)
    return kind(method=algorithm, random_state=experiment.seed + number, **known)


def _score_split(
    experiment: Experiment, split: Split, estimator: Estimator, run: MethodRun
) -> None:
    """Predict the validation fold, by which methods are chosen, and score the test rows."""
    began = time.perf_counter()
    X, y = experiment.table.rows(split.validation)
    observed = estimator.observed(X, y)
    run.folds.append(predict_held_out(estimator.predictive(X), observed, experiment.by))
    X, y = experiment.table.rows(experiment.plan.test)
    predictive = estimator.predictive(X)
    others = [estimator.predictive(inputs) for inputs in experiment.plan.outside]
    auroc = float(np.mean([metrics.auroc(predictive, other) for other in others]))
    run.scores.append(score(predictive, estimator.observed(X, y)) | {"ood_auroc": auroc})
    run.scoring.append(time.perf_counter() - began)


def _length(algorithm: Method, clock: Clock) -> dict[str, int]:
    """Steps or draws that the budget allowed."""
    if isinstance(algorithm, str):
        return {}
    if not algorithm.capabilities.is_sampler:
        steps = sum(event.step for event in clock.events.values())
        return {"num_steps": steps} if clock.stopped else {}
    warmup, thin = getattr(algorithm, "num_warmup", 0), getattr(algorithm, "thin", 1)
    return {"num_warmup": warmup, "num_samples": (clock.events[MAIN].step - warmup) // thin}


def _megabytes(posterior: Posterior) -> float:
    arrays = jax.tree.leaves((posterior.family, posterior.state))
    return sum(getattr(leaf, "nbytes", 0) for leaf in arrays) / 1e6


def _first_sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text:
        return "It needs more memory than there is."
    first = re.split(r"(?<=[^.\s]\.) (?=[A-Z`])", text)[0]
    return first if isinstance(error, BayesLearnError) else f"{type(error).__name__}: {first}"
