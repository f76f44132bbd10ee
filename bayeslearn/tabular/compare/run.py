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

from bayeslearn.algorithms import Algorithm
from bayeslearn.errors import BayesLearnError
from bayeslearn.results import metrics
from bayeslearn.results.posterior import MixingWarning
from bayeslearn.tabular.classifier import BayesianNNClassifier
from bayeslearn.tabular.compare.budget import (
    _Clock,
    _Deadline,
    _lengths,
    _listening,
    _OutOfTime,
    _Pace,
    _shortened,
)
from bayeslearn.tabular.compare.plan import _Plan, _Table
from bayeslearn.tabular.regressor import BayesianNNRegressor

LEVEL, TOLERANCE = 0.9, 0.05
MOST_RHAT = 1.2


class _NotFinite(BayesLearnError):
    """A prediction is no number."""


ESTIMATORS = {"regression": BayesianNNRegressor, "classification": BayesianNNClassifier}


class _HeldOut(NamedTuple):
    """What a method said of the training rows left out, in the order of the splits."""

    log_prob: np.ndarray
    is_right: np.ndarray  # inside the interval, or of the predicted class
    confidence: np.ndarray | None  # probability of the predicted class

    @property
    def log_likelihood(self) -> tuple[float, float]:
        return float(np.mean(self.log_prob)), _error_of(self.log_prob)

    def at(self, rows: np.ndarray) -> _HeldOut:
        return _HeldOut._make(None if part is None else part[rows] for part in self)

    @property
    def calibration(self) -> float:
        """Coverage, or expected calibration error."""
        if self.confidence is None:
            return float(np.mean(self.is_right))
        return metrics.gathered(self.confidence, self.is_right).error


@dataclasses.dataclass
class _Run:
    """Every split of one method, or why there are not."""

    reason: str = ""
    estimator: Any = None  # of the first split
    scores: list[dict[str, float]] = dataclasses.field(default_factory=list)
    parts: list[_HeldOut] = dataclasses.field(default_factory=list)
    seconds: list[float] = dataclasses.field(default_factory=list)
    compiling: float = 0.0
    scoring: float = 0.0  # seconds a split
    steps: int = 0  # of the first split
    megabytes: float = 0.0
    has_mixed: bool = True
    chosen: dict[str, int] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def held_out(self) -> _HeldOut:
        def joined(name: str) -> Any:
            parts = [getattr(part, name) for part in self.parts]
            return None if parts[0] is None else np.concatenate(parts)

        return _HeldOut(*map(joined, _HeldOut._fields))


def _run(
    table: _Table,
    plan: _Plan,
    algorithm: Algorithm,
    options: dict[str, Any],
    seed: int,
    share: float | None,
    deadline: _Deadline | None,
    pace: _Pace | None,
    told: Callable[[int], None],
) -> _Run:
    run = _Run()
    splits = len(plan.splits)
    stop_at = None
    told(0)
    try:
        if share is not None and share <= 0:
            raise _OutOfTime("The budget was spent before its turn.")
        if share is not None and pace is not None and algorithm.capabilities.is_sampler:
            algorithm = _shortened(algorithm, share, splits, pace)
        for number, split in enumerate(plan.splits):
            if number and deadline is not None and deadline.is_over:
                raise _OutOfTime(f"The budget ended after {number} of {splits} splits.")
            warmup = getattr(algorithm, "num_warmup", 0)
            estimator = _estimator(table.task, algorithm, options, seed + number)
            clock = _Clock(share, splits, warmup, stop_at)
            with _listening(clock), warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                timer = time.perf_counter()
                X, y = table.at(split.train)
                estimator._fit(X, y, None, table.classes, callback=clock, devices=plan.devices)
                seconds = time.perf_counter() - timer
            run.notes += [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
            run.notes += estimator.posterior_.notes
            if any(issubclass(w.category, MixingWarning) for w in caught):
                rhat = estimator.posterior_.diagnostics().rhat_predictions
                run.has_mixed &= bool(np.nanmax(rhat) <= MOST_RHAT)
            run.seconds.append(seconds)
            run.compiling += clock.compiling
            if number == 0:
                run.estimator = estimator
                run.megabytes = _megabytes(estimator.posterior_)
                run.steps = clock.step
                stop_at = clock.step if clock.was_stopped else None
                run.chosen = _lengths(algorithm, clock) if share is not None else {}
            timer = time.perf_counter()
            run.parts.append(_held_out(estimator, *table.at(split.left_out)))
            run.scores.append(_scores(estimator, *table.at(plan.test), plan.outside))
            run.scoring = time.perf_counter() - timer  # of the last split: nothing is compiled then
            told(number + 1)
    except Exception as error:  # whatever it is, the other methods go on
        run.reason = _reason(error)
    run.notes = list(dict.fromkeys(run.notes))
    return run


def _estimator(task: str, algorithm: Algorithm, options: dict[str, Any], seed: int) -> Any:
    known = dict(options)
    if algorithm.capabilities.is_sampler or algorithm.auto_steps == 1:
        known.pop("num_steps", None)
    if algorithm.capabilities.is_sampler:
        known.pop("batch_size", None)
        known.pop("validation_fraction", None)
    return ESTIMATORS[task](method=algorithm, random_state=seed, **known)


def _held_out(estimator: Any, X: Any, y: np.ndarray) -> _HeldOut:
    predictive, observed, unit = _predicted(estimator, X, y)
    log_prob = predictive.log_prob(observed) - np.log(unit)
    if not np.all(np.isfinite(log_prob)):
        raise _NotFinite("Its log-likelihood on training rows left out is not finite.")
    if predictive.kind == "classification":
        seen = predictive.align_y(observed)
        probs = predictive.probs
        return _HeldOut(log_prob, probs.argmax(axis=1) == seen, probs.max(axis=1))
    return _HeldOut(log_prob, _is_inside(predictive, observed), None)


def _scores(estimator: Any, X: Any, y: np.ndarray, outside: list[Any]) -> dict[str, float]:
    predictive, observed, unit = _predicted(estimator, X, y)
    told = {"log_likelihood": metrics.log_likelihood(predictive, observed) - math.log(unit)}
    if predictive.kind == "regression":
        told["rmse"] = metrics.rmse(predictive, observed) * unit
        told["coverage90"] = float(np.mean(_is_inside(predictive, observed)))
        told["crps"] = metrics.crps(predictive, observed) * unit
    else:
        told["accuracy"] = metrics.accuracy(predictive, observed)
        told["ece"] = metrics.ece(predictive, observed)
        told["brier"] = metrics.brier(predictive, observed)
    others = (estimator._predictive(inputs) for inputs in outside)
    told["ood_auroc"] = float(np.mean([metrics.auroc(predictive, other) for other in others]))
    return told


def _is_inside(predictive: Any, observed: np.ndarray) -> np.ndarray:
    """Whether each row is in its central interval, without looking for the interval's ends."""
    return np.abs(predictive.cdf(observed).reshape(-1) - 0.5) <= LEVEL / 2


def _predicted(estimator: Any, X: Any, y: np.ndarray) -> tuple[Any, np.ndarray, float]:
    """The predictive, y as it sees it, and how large its unit is."""
    _, read = estimator._read(X, y, first=False)
    scaling = getattr(estimator, "y_scaling_", None)
    unit = 1.0 if scaling is None else float(scaling.scale[0])
    return estimator._predictive(X), estimator._to_network(read), unit


def _megabytes(posterior: Any) -> float:
    kept = jax.tree.leaves((posterior.family, posterior.state))
    return sum(getattr(leaf, "nbytes", 0) for leaf in kept) / 1e6


def _reason(error: Exception) -> str:
    """The first sentence of what went wrong."""
    told = " ".join(str(error).split())
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in told:
        return "It needs more memory than there is."
    first = re.split(r"(?<=[^.\s]\.) (?=[A-Z`])", told)[0]
    return first if isinstance(error, BayesLearnError) else f"{type(error).__name__}: {first}"


def _error_of(values: np.ndarray) -> float:
    """Standard error of the mean."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0
