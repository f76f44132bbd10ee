"""Which numbers y holds, and the likelihood for them: counts, proportions, positive and skewed.

Such a y is not shifted: its range has a meaning. Positive numbers are divided by their mean.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bayeslearn.data.rows import Rows
from bayeslearn.data.scaling import Scaling
from bayeslearn.errors import DataWarning, Shown, refuse, warn
from bayeslearn.models.likelihoods.base import Likelihood
from bayeslearn.models.likelihoods.counts import NegativeBinomial, Poisson, ZeroInflatedPoisson
from bayeslearn.models.likelihoods.gaussian import LogNormal
from bayeslearn.models.likelihoods.shape import Beta, Gamma
from bayeslearn.tabular.columns import is_null

AUTO, GAUSSIAN = "auto", "gaussian"
LIKELIHOODS: dict[str, Likelihood] = {
    "log-normal": LogNormal(),
    "gamma": Gamma(),
    "beta": Beta(),
    "poisson": Poisson(),
    "negative-binomial": NegativeBinomial(),
    "zero-inflated-poisson": ZeroInflatedPoisson(),
}
POSITIVE = ("log-normal", "gamma")
MAX_LEAST = 5  # counts begin near zero; whole numbers far from it are as good as real ones
MIN_ROWS = 20  # fewer do not show what they are
SKEWED, SYMMETRIC = 1.0, 0.5  # skewness above, and below in absolute value
ZERO_ERRORS = 3.0  # binomial standard errors
REAL = "real numbers"


def check_likelihood(name: str, noise: object) -> None:
    """Refuse an unknown name, or a kind of noise that only Gaussian likelihoods have."""
    if name not in (AUTO, GAUSSIAN, *LIKELIHOODS):
        known = ", ".join(map(repr, (AUTO, GAUSSIAN, *LIKELIHOODS)))
        refuse("likelihood", name, f"be one of {known}", "Others need bl.fit and bl.likelihoods.")
    if name != GAUSSIAN and noise != AUTO:
        refuse("noise", noise, f'be "auto" with likelihood="{name}"')


def check_numbers(y: Any) -> None:
    """Refuse dates and text as y: scikit-learn reads dates as nanoseconds, in silence."""
    found = np.asarray(y.to_numpy() if hasattr(y, "to_numpy") else y)
    must, remedy = "hold numbers", "Convert dates to numbers; for labels use BayesianNNClassifier."
    if found.dtype.kind in "Mm":
        refuse("y", Shown("dates" if found.dtype.kind == "M" else "durations"), must, remedy)
    if found.dtype.kind not in "OUT" or found.ndim not in (1, 2):
        return
    for row, cells in enumerate(found.reshape(len(found), -1).tolist()):
        for cell in cells:
            try:
                float("nan" if is_null(cell) else cell)
            except (TypeError, ValueError):
                refuse("y", Shown(f"{str(cell)[:80]!r} in row {row}"), must, remedy)


def warn_of_constant(y: np.ndarray) -> None:
    """Say that a column of y without variation teaches nothing."""
    values = y.reshape(len(y), -1)
    constant = np.flatnonzero(np.all(values == values[:1], axis=0))
    if constant.size:
        where = f"Column {constant[0]} of y" if values.shape[1] > 1 else "y"
        rows = "in every row" if len(y) > 1 else "in its only row"
        warn(
            f"{where} is {values[0, constant[0]]:g} {rows}: there is nothing to learn, and the"
            " predicted standard deviation means nothing.",
            DataWarning,
        )


def recognize(y: np.ndarray) -> tuple[str, str]:
    """The name of a likelihood for y, and what y holds, in words."""
    if len(y) < MIN_ROWS:
        return GAUSSIAN, f"{len(y)} rows, too few to recognise what they are"
    whole = np.all(y == np.floor(y))
    if np.all(y >= 0) and whole and np.all(y.min(axis=0) <= MAX_LEAST):
        if np.all(y.max(axis=0) <= 2):
            return GAUSSIAN, "whole numbers up to 2"
        if has_more_zeros(y):
            return "zero-inflated-poisson", "counts with more zeros than their variance explains"
        return "negative-binomial", "counts"
    if np.all((y > 0) & (y < 1)):
        return "beta", "proportions"
    if np.all((y >= 0) & (y <= 1)):
        return GAUSSIAN, "proportions with exact 0 or 1"
    if is_skewed(y):
        is_log_normal = np.all(np.abs(_skewness(np.log(y))) < SYMMETRIC)
        return "log-normal" if is_log_normal else "gamma", "positive, skewed numbers"
    if np.all(y >= 0) and np.all(_skewness(y) > SKEWED):
        return GAUSSIAN, "skewed numbers with zeros"
    return GAUSSIAN, REAL


def has_more_zeros(y: np.ndarray) -> bool:
    """Whether zeros are too many for a negative binomial of y's mean and variance, by far."""
    mean, variance = y.mean(axis=0), y.var(axis=0)
    excess = np.maximum(variance - mean, 1e-9)
    size = mean**2 / excess
    expected = (size / (size + mean)) ** size
    error = np.sqrt(expected * (1.0 - expected) / len(y))
    return bool(np.all(np.mean(y == 0, axis=0) > expected + ZERO_ERRORS * error))


def is_skewed(y: np.ndarray) -> bool:
    """Whether y holds positive numbers, far more small ones than large ones."""
    return len(y) >= MIN_ROWS and bool(np.all(y > 0) and np.all(_skewness(y) > SKEWED))


def _skewness(y: np.ndarray) -> np.ndarray:
    centred = y - y.mean(axis=0)
    std = np.maximum(centred.std(axis=0), 1e-300)
    return np.mean((centred / std) ** 3, axis=0)


def choose(name: str, y: np.ndarray) -> tuple[str, str]:
    """The likelihood for y, and a note where y is not what a Gaussian is for."""
    found, words = recognize(y)
    if name == AUTO:
        taken = ", taken as real numbers" if found == GAUSSIAN else ""
        note = f'y holds {words}{taken}: likelihood="{found}".'
        return found, "" if words == REAL else note
    if name == GAUSSIAN and found != GAUSSIAN:
        note = f'y holds {words}, taken as real numbers: likelihood="{found}" is made for them.'
        return name, note
    return name, ""


def scaling_of(name: str, rows: Rows) -> Scaling:
    """How y is scaled for a likelihood."""
    if name == GAUSSIAN:
        return Scaling.of(rows.y, rows.weight)
    zero, one = np.zeros(rows.y.shape[1:]), np.ones(rows.y.shape[1:])
    if name in POSITIVE and np.all(rows.y > 0):
        return Scaling(zero, np.average(rows.y, axis=0, weights=rows.weight) * one)
    return Scaling(zero, one)
