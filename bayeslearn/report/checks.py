"""What a report checks on held-out rows: the baseline, coverage by part of the table, which
columns matter, and what calibration changed. All numbers are in the units of the data."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np

from bayeslearn.numerics import LOG_2PI
from bayeslearn.predictive_base import PredictiveBase
from bayeslearn.report.charts import Rows, calibration, column_names, first_column
from bayeslearn.report.thinning import evenly_spaced, rounded, significant
from bayeslearn.results import metrics
from bayeslearn.tabular.base import BayesianNN
from bayeslearn.tabular.dates import CYCLES
from bayeslearn.tabular.frames import Inputs, take_rows
from bayeslearn.tabular.json_values import JSON
from bayeslearn.tabular.schema import MISSING_SUFFIX
from bayeslearn.tabular.scores import is_covered, score

CRPS_ROWS = 2000  # of which the CRPS is computed
PERMUTED_ROWS, REPEATS, MAX_COLUMNS = 256, 2, 24  # of the permutation importance
DECILES, MIN_BIN = 10, 10  # bins, and rows in each
MAX_LEVELS, MAX_GROUPS = 8, 24  # values of a column that makes groups, and groups listed
MAX_CLASSES = 12  # of a confusion matrix
SUFFIXES = {
    MISSING_SUFFIX.removeprefix(":"),
    *(f"{cycle}_{part}" for cycle in CYCLES for part in ("sin", "cos")),
}


class Group(NamedTuple):
    """Columns that belong together: one, or the one-hot columns of a category."""

    name: str
    columns: list[int]


def scores(estimator: BayesianNN, predictive: PredictiveBase, rows: Rows) -> dict[str, float]:
    """Those of a comparison, and R². The CRPS takes long: it is of at most 2,000 rows."""
    chosen = evenly_spaced(len(rows.y), CRPS_ROWS)
    found = score(predictive, rows.y, with_crps=len(chosen) == len(rows.y))
    if predictive.kind == "classification" or rows.y.ndim > 1:
        return found
    if len(chosen) < len(rows.y):
        some = estimator.predictive(take_rows(rows.X, chosen))
        found["crps"] = metrics.crps(some, rows.y[chosen])
    explained = r2(predictive, rows.y)
    return found if explained is None else found | {"r2": explained}


def r2(predictive: PredictiveBase, y: np.ndarray) -> float | None:
    """Of a single column that varies; None otherwise."""
    if y.ndim > 1 or not np.var(y) > 0:
        return None
    return float(1.0 - np.mean((y - predictive.mean) ** 2) / np.var(y))


def baseline(
    is_regression: bool, y_train: np.ndarray, y: np.ndarray, classes: Sequence[str]
) -> JSON:
    """The scores of predictions that ignore all columns."""
    if is_regression:
        y_train, y = first_column(y_train), first_column(y)
        mean, variance = float(np.mean(y_train)), float(np.var(y_train))
        error = float(np.mean((y - mean) ** 2))
        scores = {"rmse": np.sqrt(error)}
        if variance > 0:
            scores["log_likelihood"] = -0.5 * (
                (1.0 + LOG_2PI) - 1 + np.log(variance) + error / variance
            )
        return {"label": f"predicting the mean, {_text(mean)}", "metrics": scores}
    counts = np.bincount(y_train, minlength=len(classes))
    top = int(np.argmax(counts))
    probs = (counts + 1) / (counts.sum() + len(counts))
    return {
        "label": f"predicting the most frequent class, {classes[top]}",
        "metrics": {
            "accuracy": float(np.mean(y == top)),
            "log_likelihood": float(np.mean(np.log(probs[y]))),
        },
    }


def confusion(predicted: np.ndarray, y: np.ndarray, number: int) -> JSON:
    """Rows by observed and predicted class; None of many classes."""
    if number > MAX_CLASSES:
        return None
    counts = np.zeros((number, number), np.int64)
    np.add.at(counts, (y, predicted), 1)
    return cast(JSON, counts.tolist())


def before_calibration(estimator: BayesianNN, rows: Rows) -> JSON:
    """Scores and calibration without the calibrator; None where there is none."""
    posterior, calibrator = estimator.posterior_, estimator.posterior_.calibrator
    if calibrator is None and not hasattr(estimator, "cross_calibration_"):
        return None
    plain = copy.copy(estimator)
    plain.posterior_ = posterior.uncalibrated()
    plain.__dict__.pop("cross_calibration_", None)
    predictive = plain.predictive(rows.X)
    scores = score(predictive, rows.y, with_crps=len(rows.y) <= CRPS_ROWS)
    found = {"metrics": cast(JSON, scores), "calibration": calibration(predictive, rows.y)}
    is_conformal = calibrator is not None and calibrator.method == "conformal"
    if is_conformal and predictive.kind == "classification":
        # Sets alone change: probabilities, and the scores above, are the model's.
        found["metrics"] = cast(JSON, set_scores(predictive, rows.y))
        found["after"] = cast(JSON, set_scores(estimator.predictive(rows.X), rows.y))
    return cast(JSON, found)


def set_scores(predictive: PredictiveBase, y: np.ndarray, level: float = 0.9) -> dict[str, float]:
    """How many prediction sets hold the observed class, and how large they are."""
    sets = predictive.prediction_set(level)
    is_in = sets[np.arange(len(y)), y]
    return {"set_coverage90": float(np.mean(is_in)), "set_size90": float(np.mean(sets.sum(axis=1)))}


class Hits(NamedTuple):
    """Of each held-out row: whether it is covered (or its class right), how probable that was,
    and by what rows are ordered: the mean, or the probability of the predicted class."""

    is_good: np.ndarray
    expected: np.ndarray
    order: np.ndarray


def hits_of(predictive: PredictiveBase, y: np.ndarray, level: float) -> Hits:
    """Rows against what was predicted for them."""
    if predictive.kind == "classification":
        top = predictive.probs.max(axis=1)
        return Hits(predictive.probs.argmax(axis=1) == y, top, top)
    covered = first_column(is_covered(predictive, y))
    return Hits(covered, np.full(len(y), level), first_column(predictive.mean))


def deciles(rows: Hits) -> list[JSON]:
    """Coverage (or accuracy) in tenths of the held-out rows; fewer bins of few rows."""
    number = min(DECILES, len(rows.order) // MIN_BIN)
    if number < 2:
        return []
    order = np.argsort(rows.order, kind="stable")
    return [
        {
            "from": significant(rows.order[part[[0]]], 4)[0],
            "to": significant(rows.order[part[[-1]]], 4)[0],
            **_fraction(rows, part),
        }
        for part in np.array_split(order, number)
    ]


def groups(rows: Hits, X: Inputs, names: list[str], predicted: np.ndarray | None) -> list[JSON]:
    """Coverage (or accuracy) by the values of each column that has few, and by predicted class.

    `predicted` are the predicted classes by name, None for a regression.
    """
    columns = np.asarray(X)
    found: list[tuple[str, np.ndarray]] = []
    if predicted is not None:
        found += [(f"predicted {name}", predicted == name) for name in np.unique(predicted)]
    for group in grouped(names, columns):
        if len(group.columns) > 1:
            flags = [
                i for i in group.columns if np.all((columns[:, i] == 0) | (columns[:, i] == 1))
            ]
            listed = [(names[i], columns[:, i] == 1) for i in flags]
        else:
            values = columns[:, group.columns[0]]
            levels = np.unique(values)
            few = 2 <= len(levels) <= MAX_LEVELS
            listed = [(f"{group.name} = {_text(v)}", values == v) for v in levels] if few else []
        found += listed
    return [
        {"name": name, **_fraction(rows, np.flatnonzero(chosen))}
        for name, chosen in found[:MAX_GROUPS]
        if np.any(chosen)
    ]


def grouped(names: list[str], columns: np.ndarray) -> list[Group]:
    """One-hot columns `name=category` together, and what else became of one column of the table:
    the cycles of a date, where values were missing. Every other column by itself."""
    parts: dict[str, Group] = {}
    bases = {name.partition("=")[0] for name in names}
    for i, name in enumerate(names):
        prefix, sign, _ = name.partition("=")
        is_one_hot = sign and np.all((columns[:, i] == 0) | (columns[:, i] == 1))
        key = prefix if is_one_hot else name
        base, colon, suffix = name.rpartition(":")
        if colon and base in bases and suffix in SUFFIXES:
            key = base
        parts.setdefault(key, Group(key, [])).columns.append(i)
    return list(parts.values())


def importance(estimator: BayesianNN, rows: Rows, seed: int = 0) -> JSON:
    """Permutation importance of each column of x, largest first.

    `error` is what shuffling the column among the held-out rows adds to the RMSE (of classes: the
    log loss), `epistemic` by how much it changes the epistemic standard deviation (of classes: the
    mutual information) of a row: the root mean square.
    """
    chosen = evenly_spaced(len(rows.y), PERMUTED_ROWS)
    if len(chosen) < 2:
        return None
    X, y = take_rows(rows.X, chosen), rows.y[chosen]
    groups = grouped(column_names(estimator), np.asarray(X))
    if len(groups) > MAX_COLUMNS:
        values = np.asarray(X)
        groups = [group for group in groups if len(np.unique(values[:, group.columns])) > 1]
    rng = np.random.default_rng(seed)
    tiled = take_rows(rows.X, np.tile(chosen, REPEATS))
    before_error, before_std = _error_and_std(estimator.predictive(X), y)
    found = []
    for group in groups[:MAX_COLUMNS]:
        shuffled = np.concatenate([rng.permutation(chosen) for _ in range(REPEATS)])
        moved = with_columns_from(tiled, take_rows(rows.X, shuffled), group)
        error, std = _error_and_std(estimator.predictive(moved), np.concatenate([y] * REPEATS))
        change = np.sqrt(np.mean((std - np.tile(before_std, REPEATS)) ** 2))
        found.append((group.name, error - before_error, change))
    found.sort(key=lambda row: -row[1])
    return {
        "names": [name for name, _, _ in found],
        "error": significant(np.array([error for _, error, _ in found]), 3),
        "epistemic": significant(np.array([change for _, _, change in found]), 3),
        "rows": len(chosen),
        "left_out": max(0, len(groups) - MAX_COLUMNS),
    }


def with_columns_from(X: Inputs, other: Inputs, group: Group) -> Inputs:
    """X with some columns of another table of as many rows."""
    if isinstance(X, np.ndarray):
        mixed = X.copy()
        mixed[:, group.columns] = np.asarray(other)[:, group.columns]
        return mixed
    mixed = X.copy()
    names = X.columns[group.columns]
    mixed[names] = other[names].to_numpy()
    return mixed


def every_row(predictive: PredictiveBase, y: np.ndarray, numbers: np.ndarray, level: float) -> JSON:
    """The held-out rows, for the table of the page."""
    rows: dict[str, JSON] = {"row": (numbers + 1).tolist()}
    if predictive.kind == "classification":
        probs = predictive.probs
        return rows | {
            "observed": y.tolist(),
            "predicted": probs.argmax(axis=1).tolist(),
            "prob": rounded(probs.max(axis=1), 3),
            "epistemic": rounded(predictive.epistemic, 3),
        }
    low, high = map(first_column, predictive.interval(level))
    return rows | {
        "observed": rounded(first_column(y)),
        "mean": rounded(first_column(predictive.mean)),
        "low": rounded(low),
        "high": rounded(high),
        "epistemic": rounded(np.sqrt(first_column(predictive.epistemic)), 3),
    }


def _error_and_std(predictive: PredictiveBase, y: np.ndarray) -> tuple[float, np.ndarray]:
    if predictive.kind == "classification":
        return metrics.nll(predictive, y), predictive.epistemic
    residual = first_column(y) - first_column(predictive.mean)
    return float(np.sqrt(np.mean(residual**2))), np.sqrt(first_column(predictive.epistemic))


def _text(value: object) -> str:
    if isinstance(value, float | np.floating):
        return f"{value:,.0f}" if abs(float(value)) >= 1e4 else f"{value:.4g}"
    return str(value)


def _fraction(rows: Hits, part: np.ndarray) -> dict[str, JSON]:
    return {
        "rows": len(part),
        "good": round(float(np.mean(rows.is_good[part])), 4),
        "expected": round(float(np.mean(rows.expected[part])), 4),
    }
