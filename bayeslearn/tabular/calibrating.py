"""Calibration of the estimators, on rows that are set aside or on out-of-fold rows."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bayeslearn.data.rows import Rows
from bayeslearn.data.scaling import TableScaling
from bayeslearn.errors import refuse
from bayeslearn.predictive_base import PredictiveBase
from bayeslearn.results.calibration import ALLOWED, fit_calibrator
from bayeslearn.results.cross_conformal import CrossConformalPredictive, scores_of
from bayeslearn.results.posterior import Posterior
from bayeslearn.tabular.folds import KeyedRows, Keys, fold_of

AUTO, CV, JACKKNIFE = "auto", "cv+", "jackknife+"
CROSS = (CV, JACKKNIFE)
CV_FOLDS = 5
MAX_JACKKNIFE = 100  # rows, each of which is a fit
MANY_ROWS = 500  # from which on a fifth of them can be spared
Predict = Callable[[Posterior], PredictiveBase]


def check_calibration(method: str | None, fraction: float, task: str) -> None:
    """Refuse settings that make no sense."""
    allowed = (AUTO, *ALLOWED[task], *(CROSS if task == "regression" else ()))
    if method is not None and method not in allowed:
        names = ", ".join(map(repr, allowed))
        refuse("calibration", method, f"be one of {names} for {task}")
    if not (isinstance(fraction, numbers.Real) and 0 < fraction < 1):
        refuse("calibration_fraction", fraction, "be between 0 and 1")


def resolve(method: str | None, task: str, num_rows: int, keys: Keys | None) -> str | None:
    """The method that "auto" stands for; refuses one that these rows do not allow."""
    in_order = keys is not None and keys.is_time
    if method == AUTO:
        if task == "classification":
            return "temperature"
        return "conformal" if num_rows >= MANY_ROWS or in_order else CV
    if method in CROSS and in_order:
        refuse("calibration", method, 'be "conformal" for rows in order of time')
    if method == JACKKNIFE and num_rows > MAX_JACKKNIFE:
        must = f'be "{CV}" for more than {MAX_JACKKNIFE} different rows, each of which is a fit'
        refuse("calibration", method, must)
    return method


def warnings_of(method: str | None, keys: Keys | None) -> tuple[str, ...]:
    """What to say of calibration on rows in order of time."""
    if method is None or keys is None or not keys.is_time:
        return ()
    return (
        "Calibrated on the latest rows: rows in order of time are not exchangeable with those that"
        " follow, and the guarantee of coverage does not hold.",
    )


def calibrated(
    posterior: Posterior, predictive: PredictiveBase, aside: Rows, method: str
) -> Posterior:
    """The posterior, calibrated on its predictive of the rows that were set aside."""
    calibrator = fit_calibrator(
        predictive, aside.y, method, weight=aside.weight, seed=posterior.seed
    )
    return posterior.with_calibrator(calibrator)


class CrossCalibration(NamedTuple):
    """Scores of out-of-fold rows, and the fits that they are of."""

    method: str
    fold: np.ndarray
    scores: np.ndarray
    weight: np.ndarray
    members: list[dict[str, Any]]  # family, likelihood and scaling of each fit

    def apply(
        self, posterior: Posterior, predictive: PredictiveBase, predict: Predict
    ) -> PredictiveBase:
        """The calibrated predictive; `predict` answers for a fold's posterior."""
        folds = [predict(_member(posterior, member)) for member in self.members]
        return CrossConformalPredictive(predictive, folds, self.fold, self.scores, self.weight)

    @property
    def note(self) -> str:
        """A sentence about it."""
        return (
            f"Calibrated ({self.method}) on {len(self.fold)} out-of-fold rows: the predictions of"
            " the estimator are, those of its `posterior_` are not."
        )


def cross_calibrate(
    method: str,
    table: KeyedRows,
    fit: Callable[[KeyedRows], Posterior],
    predict: Callable[[Posterior, np.ndarray], PredictiveBase],
) -> CrossCalibration:
    """Fit without each fold in turn, and score the fold."""
    rows, keys = table
    number = len(rows.y)
    if method == JACKKNIFE and keys is None:
        fold = np.arange(number)
    else:
        fold = fold_of(rows.y, CV_FOLDS, False, keys)
    if fold.max() < 0:
        refuse("calibration", method, "be another for a single row or group: it needs two")
    scores = np.empty((number, rows.y.reshape(number, -1).shape[1]))
    members: list[dict[str, Any]] = []
    for k in range(int(fold.max()) + 1):
        posterior = fit(table.take(np.flatnonzero(fold != k)))
        own = np.flatnonzero(fold == k)
        scored = rows.take(own)
        scores[own] = scores_of(predict(posterior, np.asarray(scored.x)), scored.y)
        assert posterior.scaling is not None
        members.append(
            {
                "family": posterior.family,
                "likelihood": posterior.target.likelihood,
                "scaling": posterior.scaling.to_list(),
            }
        )
    return CrossCalibration(method, fold, scores, rows.weight, members)


def _member(posterior: Posterior, member: dict[str, Any]) -> Posterior:
    """The posterior of a fit without a fold."""
    return dataclasses.replace(
        posterior,
        target=dataclasses.replace(posterior.target, likelihood=member["likelihood"]),
        family=member["family"],
        scaling=TableScaling.from_list(member["scaling"]),
        calibrator=None,
    )
