"""Calibration of the estimators on rows that are set aside from fitting."""

from __future__ import annotations

import numbers

from bayeslearn.data.rows import Rows
from bayeslearn.errors import refuse
from bayeslearn.predictive_base import PredictiveBase
from bayeslearn.results.calibration import check_method, fit_calibrator
from bayeslearn.results.posterior import Posterior


def check_calibration(method: str | None, fraction: float, task: str) -> None:
    """Refuse settings that make no sense."""
    if method is not None:
        check_method(method, task, "calibration")
    if not (isinstance(fraction, numbers.Real) and 0 < fraction < 1):
        refuse("calibration_fraction", fraction, "be between 0 and 1")


def calibrated(
    posterior: Posterior, predictive: PredictiveBase, aside: Rows, method: str
) -> Posterior:
    """The posterior, calibrated on its predictive of the rows that were set aside."""
    calibrator = fit_calibrator(
        predictive, aside.y, method, weight=aside.weight, seed=posterior.seed
    )
    return posterior.with_calibrator(calibrator)
