"""Tables of scores: labels, formats, and the row of a method, for all that shows them.

Imports nothing heavy, so that a stored report can be rendered without JAX.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias, TypedDict

Estimate: TypeAlias = "list[float | None]"  # mean and standard error; None where there is none


class Metric(NamedTuple):
    """A score: its label, which values are better, and what it means."""

    label: str
    better: str  # "lower", "higher", or "near 90 %"
    is_fraction: bool
    meaning: str


METRICS = {
    "rmse": Metric("RMSE", "lower", False, "typical error of the predicted mean, in units of y"),
    "r2": Metric(
        "R²", "higher", False, "fraction of the variance of y explained; 0 predicts the mean"
    ),
    "accuracy": Metric("accuracy", "higher", True, "fraction of rows whose class was right"),
    "log_likelihood": Metric(
        "log-likelihood",
        "higher",
        False,
        "mean log predictive density (or probability) of a row: it rewards accuracy and honest"
        " uncertainty",
    ),
    "coverage90": Metric(
        "90 % coverage", "near 90 %", True, "fraction of observations inside their 90 % interval"
    ),
    "ece": Metric(
        "ECE",
        "lower",
        True,
        "expected calibration error: gap between predicted probability and accuracy",
    ),
    "crps": Metric(
        "CRPS",
        "lower",
        False,
        "continuous ranked probability score: distance of the whole predictive distribution from"
        " y, in units of y",
    ),
    "brier": Metric("Brier", "lower", False, "squared distance of the class probabilities"),
    "ood_auroc": Metric(
        "OOD AUROC",
        "higher",
        False,
        "how well epistemic uncertainty tells out-of-distribution rows from test rows: 0.5 is"
        " chance, 1 perfect",
    ),
    "seconds": Metric("seconds", "lower", False, "to fit, compilation included"),
    "memory_mb": Metric("memory (MB)", "lower", False, "arrays of the posterior and of its run"),
}

OK, FAILED, NOT_FINISHED, NOT_TRIED = "ok", "failed", "not finished", "not tried"


class Row(TypedDict):
    """One method in a table: of a comparison, or the only one of a fit."""

    method: str
    status: str  # OK, FAILED, NOT_FINISHED (the budget ended it) or NOT_TRIED (before its turn)
    reason: str | None
    metrics: dict[str, Estimate]  # on the test rows
    validation: dict[str, Estimate]  # on the validation folds
    seconds: Estimate
    compile_seconds: float | None
    memory_mb: float | None
    cut_short: str | None  # where the budget ended it, such as "step 550 of 5000"
    rhat: float | None  # largest R-hat of predictions, where it was computed
    chosen: dict[str, int]  # the length that the budget allowed
    notes: list[str]
    pareto: bool


def metric(name: str) -> Metric:
    """The entry of a score; one that is not in the table is called by its name."""
    return METRICS.get(name, Metric(name.replace("_", " "), "", False, ""))


class Written(NamedTuple):
    """A score as text: its mean, its standard error ("" without one), and its unit."""

    mean: str
    error: str = ""
    unit: str = ""

    def __str__(self) -> str:
        return self.mean + (f" ± {self.error}" if self.error else "") + self.unit


def write_score(name: str, mean: float | None, error: float | None = None) -> Written:
    """A score with as many digits as its standard error leaves (without one: three or four)."""
    if mean is None:
        return Written("–")
    unit = ""
    if metric(name).is_fraction:
        mean, error, unit = 100 * mean, None if error is None else 100 * error, " %"
    if error is not None and error <= 1e-9 * abs(mean):
        error = 0.0
    if error:
        places = max(0, 1 - math.floor(math.log10(error)))
    else:
        places = max(0, 2 - math.floor(math.log10(abs(mean)))) if mean else 0
    places = min(places, 1 if unit or name == "seconds" else 2 if name == "memory_mb" else 6)
    text, error_text = f"{mean:,.{places}f}", f"{error or 0.0:.{places}f}"
    return Written(text, error_text if float(error_text) else "", unit)
