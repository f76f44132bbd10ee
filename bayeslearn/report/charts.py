"""The charts of predictions. All numbers are in the units of the data."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bayeslearn.predictive_base import PredictiveBase
from bayeslearn.report.thinning import SHOWN_ROWS, TRACE_POINTS, evenly_spaced, rounded
from bayeslearn.results import metrics
from bayeslearn.tabular.base import BayesianNN
from bayeslearn.tabular.frames import Inputs, take_rows, with_columns_of
from bayeslearn.tabular.json_values import JSON
from bayeslearn.tabular.scores import LEVEL

MIN_GRID, MAX_GRID = 64, 256  # points on a line
SIDE = 36  # points on each side of a plane
BINS, REACH = 20, 3.5  # of a predictive density, up to that many standard deviations
TOP_CLASSES = 6  # shown of a row
CURVES = 8  # of class probabilities
PADDING = 0.15  # of a line, on either side of the data
NORMAL_90 = 1.645  # standard deviations on either side that hold 90 % of a Gaussian


class Rows(NamedTuple):
    """Training rows, and the held-out rows that are shown."""

    X_train: Inputs
    y_train: np.ndarray
    X: Inputs
    y: np.ndarray  # as `estimator.observed` returns it
    shown: np.ndarray  # which of the held-out rows are drawn


def column_names(estimator: BayesianNN) -> list[str]:
    """Names of the columns of X."""
    number = estimator.n_features_in_
    names = getattr(estimator, "feature_names_in_", [f"x[{i}]" for i in range(number)])
    return [str(name) for name in names]


def regression(estimator: BayesianNN, predictive: PredictiveBase, rows: Rows) -> dict[str, JSON]:
    """Charts of a regression, of the first column of y."""
    chosen, y = rows.shown, first_column(rows.y)
    shown = predictive
    if len(chosen) < len(y):
        shown = estimator.predictive(take_rows(rows.X, chosen))
    edges = np.linspace(-REACH, REACH, BINS + 1)
    steps = [first_column(cdf) for cdf in shown.cdfs([shown.mean + e * shown.std for e in edges])]
    mean = first_column(predictive.mean)
    low, high = map(first_column, predictive.interval(LEVEL))
    columns = {
        "observed": y,
        "mean": mean,
        "std": first_column(predictive.std),
        "low": low,
        "high": high,
        "epistemic": np.sqrt(first_column(predictive.epistemic)),
        "aleatoric": np.sqrt(first_column(predictive.aleatoric)),
    }
    drawn: dict[str, JSON] = {name: rounded(v[chosen]) for name, v in columns.items()}
    drawn["bins"] = np.round(1000 * np.diff(steps, axis=0).T).astype(int).tolist()
    pit = first_column(metrics.pit(predictive, rows.y))
    return {
        "rows": drawn,
        "where": _band(estimator, rows, y - mean),
        "calibration": calibration(predictive, rows.y),
        "pit": np.histogram(pit, bins=10, range=(0.0, 1.0))[0].tolist(),
        "outputs": 1 if rows.y.ndim == 1 else rows.y.shape[1],
    }


def classification(
    estimator: BayesianNN, predictive: PredictiveBase, rows: Rows
) -> dict[str, JSON]:
    """Charts of a classification."""
    chosen, y, probs = rows.shown, rows.y, predictive.probs
    bars: list[JSON] = []
    for row, truth in zip(probs[chosen], y[chosen], strict=True):
        top = np.argsort(-row, kind="stable")[:TOP_CLASSES].tolist()
        top = top if truth in top else [*top[:-1], int(truth)]
        bars.append([[label, round(1000 * float(row[label]))] for label in top])
    drawn: dict[str, JSON] = {
        "observed": y[chosen].tolist(),
        "predicted": probs[chosen].argmax(axis=1).tolist(),
        "own": rounded(probs[np.arange(len(probs)), y][chosen]),
        "probs": bars,
        "epistemic": rounded(predictive.epistemic[chosen]),
        "aleatoric": rounded(predictive.aleatoric[chosen]),
    }
    selective = metrics.selective(predictive, y)
    where = _regions if len(column_names(estimator)) == 2 else _probabilities
    points = evenly_spaced(len(selective.kept), TRACE_POINTS)
    return {
        "rows": drawn,
        "classes": [str(label) for label in getattr(estimator, "classes_", ())],
        "where": where(estimator, rows),
        "calibration": calibration(predictive, y),
        "selective": {
            "kept": rounded(selective.kept[points]),
            "risk": rounded(selective.risk[points]),
        },
    }


def calibration(predictive: PredictiveBase, y: np.ndarray) -> dict[str, JSON]:
    """The fraction of observations inside intervals of each level; of classes, accuracy by
    probability."""
    if predictive.kind == "classification":
        bins = metrics.reliability(predictive, y)
        return {
            "confidence": rounded(bins.confidence),
            "accuracy": rounded(bins.accuracy),
            "rows": bins.rows.tolist(),
        }
    central = np.sort(np.abs(2.0 * first_column(metrics.pit(predictive, y)) - 1.0))
    levels = np.linspace(0.0, 1.0, 41)
    covered = np.searchsorted(central, levels, side="right") / len(central)
    return {"levels": rounded(levels), "covered": rounded(covered)}


class Line(NamedTuple):
    """A line through the data."""

    grid: np.ndarray  # rows on it
    at: np.ndarray  # their coordinates on it
    at_train: np.ndarray  # those of the training rows
    at_rows: np.ndarray  # those of the held-out rows
    label: str
    is_whole: bool  # whether x is one column, of which the line shows everything


def line_through(estimator: BayesianNN, rows: Rows) -> Line:
    """The only column of x, or the first principal component.

    It is that of the scaled columns: else the column with the largest numbers would be it.
    """
    both = np.concatenate([np.asarray(part, np.float64) for part in (rows.X_train, rows.X)])
    names, number = column_names(estimator), len(rows.y_train)
    if len(names) == 1:
        at = both[:, 0]
        points = _padded_grid(at, _grid_size(len(rows.y)))
        return Line(points[:, None], points, at[:number], at[number:], names[0], True)
    scaled = estimator.scaling_.apply(both)
    center = scaled.mean(axis=0)
    direction = np.linalg.svd(scaled - center, full_matrices=False)[2][0]
    direction = direction * np.sign(direction[np.argmax(np.abs(direction))])
    at = (scaled - center) @ direction
    points = _padded_grid(at, _grid_size(len(rows.y)))
    grid = estimator.scaling_.undo(center + points[:, None] * direction)
    label = "first principal component (scaled columns)"
    return Line(grid, points, at[:number], at[number:], label, False)


def _grid_size(num_rows: int) -> int:
    """As many points as the held-out rows are padded to, so that no program compiles again."""
    return min(MAX_GRID, max(MIN_GRID, 1 << (num_rows - 1).bit_length()))


def _band(estimator: BayesianNN, rows: Rows, residual: np.ndarray) -> JSON:
    """Mean and intervals along a line through the data."""
    line, chosen = line_through(estimator, rows), rows.shown
    predictive = estimator.predictive(with_columns_of(rows.X, line.grid))
    low, high = map(first_column, predictive.interval(LEVEL))
    mean = first_column(predictive.mean)
    inner = NORMAL_90 * np.sqrt(first_column(predictive.epistemic))
    some = evenly_spaced(len(line.at_train), SHOWN_ROWS if line.is_whole else 0)
    heights = np.interp(line.at_rows, line.at, mean) + residual  # partial residuals
    return {
        "kind": "band",
        "label": line.label,
        "is_whole": line.is_whole,
        "at": rounded(line.at),
        "mean": rounded(mean),
        "low": rounded(low),
        "high": rounded(high),
        "inner_low": rounded(mean - inner),
        "inner_high": rounded(mean + inner),
        "points": rounded(line.at_rows[chosen]),
        "heights": rounded(heights[chosen]),
        "train": [rounded(line.at_train[some]), rounded(first_column(rows.y_train)[some])],
    }


def _regions(estimator: BayesianNN, rows: Rows) -> JSON:
    """The predicted class over two columns of x."""
    x = np.asarray(rows.X, np.float64)
    both = np.concatenate([np.asarray(rows.X_train, np.float64), x])
    sides = [_padded_grid(both[:, i], SIDE, 0.08) for i in (0, 1)]
    grid = np.stack(np.meshgrid(*sides), axis=-1).reshape(-1, 2)
    probs = estimator.predictive(with_columns_of(rows.X, grid)).probs
    return {
        "kind": "regions",
        "labels": list(column_names(estimator)),
        "side": SIDE,
        "low": [float(side[0]) for side in sides],
        "high": [float(side[-1]) for side in sides],
        "classes": probs.argmax(axis=1).tolist(),
        "confidence": np.round(100 * probs.max(axis=1)).astype(int).tolist(),
        "points": [rounded(x[rows.shown, 0]), rounded(x[rows.shown, 1])],
    }


def _probabilities(estimator: BayesianNN, rows: Rows) -> JSON:
    """Class probabilities along a line through the data."""
    line = line_through(estimator, rows)
    probs = estimator.predictive(with_columns_of(rows.X, line.grid)).probs
    top = np.sort(np.argsort(-probs.max(axis=0), kind="stable")[:CURVES])
    return {
        "kind": "probabilities",
        "label": line.label,
        "is_whole": line.is_whole,
        "at": rounded(line.at),
        "classes": top.tolist(),
        "probs": [rounded(probs[:, index]) for index in top],
        "points": rounded(line.at_rows[rows.shown]),
    }


def _padded_grid(values: np.ndarray, number: int, padding: float = PADDING) -> np.ndarray:
    low, high = float(values.min()), float(values.max())
    room = padding * (high - low if high > low else 1.0)
    return np.linspace(low - room, high + room, number)


def first_column(values: np.ndarray) -> np.ndarray:
    """Of y, where it has several."""
    return values if values.ndim == 1 else values[:, 0]
