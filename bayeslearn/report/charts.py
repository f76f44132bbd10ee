"""Numbers of the charts of predictions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bayeslearn.report.thinning import LEVEL, SHOWN_ROWS, TRACE, _column_names, _spread_out
from bayeslearn.results import metrics
from bayeslearn.results.plots.style import _line, _padded

GRID = 120  # places on a line
SQUARE = 36  # places on each side of a plane
BINS, REACH = 20, 3.5  # of a predictive density, up to that many standard deviations
TOP_CLASSES = 6  # shown of a row


def _regression(
    estimator: Any,
    predictive: Any,
    x_train: np.ndarray,
    y_train: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    chosen: np.ndarray,
) -> dict[str, Any]:
    """In the units of y; charts are of its first column."""
    center, scale = estimator.y_scaling_.mean[0], estimator.y_scaling_.scale[0]
    std = predictive.std
    pit = metrics.pit(predictive, estimator._to_network(y))
    shown = predictive if len(chosen) == len(x) else estimator._predictive_at(x[chosen])
    edges = np.linspace(-REACH, REACH, BINS + 1)
    steps = [cdf[:, 0] for cdf in shown.cdfs([shown.mean + e * shown.std for e in edges])]
    ends = [end[:, 0] * scale + center for end in predictive.interval(LEVEL)]
    mean = predictive.mean[:, 0] * scale + center
    doubts = [np.sqrt(part[:, 0]) * scale for part in (predictive.epistemic, predictive.aleatoric)]
    rows = {
        "observed": _short(y[chosen, 0]),
        "mean": _short(mean[chosen]),
        "std": _short(std[chosen, 0] * scale),
        "low": _short(ends[0][chosen]),
        "high": _short(ends[1][chosen]),
        "epistemic": _short(doubts[0][chosen]),
        "aleatoric": _short(doubts[1][chosen]),
        "bins": np.round(1000 * np.diff(steps, axis=0).T).astype(int).tolist(),
    }
    inner = np.sort(np.abs(2.0 * pit[:, 0] - 1.0))
    levels = np.linspace(0.0, 1.0, 41)
    covered = np.searchsorted(inner, levels, side="right") / len(inner)
    counts = np.histogram(pit[:, 0], bins=10, range=(0.0, 1.0))[0]
    return {
        "rows": rows,
        "where": _band(estimator, x_train, y_train, x, y[:, 0] - mean, chosen),
        "calibration": {"levels": _short(levels), "covered": _short(covered)},
        "pit": counts.tolist(),
        "outputs": y.shape[1],
    }


def _classification(
    estimator: Any,
    predictive: Any,
    x_train: np.ndarray,
    y_train: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    chosen: np.ndarray,
) -> dict[str, Any]:
    observed = estimator._to_network(y)
    probs = predictive.probs
    told = []
    for row, truth in zip(probs[chosen], observed[chosen], strict=True):
        top = np.argsort(-row, kind="stable")[:TOP_CLASSES].tolist()
        top = top if truth in top else [*top[:-1], int(truth)]
        told.append([[label, round(1000 * float(row[label]))] for label in top])
    own = probs[np.arange(len(probs)), observed]
    rows = {
        "observed": observed[chosen].tolist(),
        "predicted": probs[chosen].argmax(axis=1).tolist(),
        "own": _short(own[chosen]),
        "probs": told,
        "epistemic": _short(predictive.epistemic[chosen]),
        "aleatoric": _short(predictive.aleatoric[chosen]),
    }
    bins = metrics.reliability(predictive, observed)
    surest = metrics.selective(predictive, observed)
    kept = _spread_out(len(surest.kept), TRACE)
    return {
        "rows": rows,
        "classes": [str(label) for label in estimator.classes_],
        "where": _classes_where(estimator, x_train, x, chosen),
        "calibration": {
            "confidence": _short(bins.confidence),
            "accuracy": _short(bins.accuracy),
            "rows": bins.rows.tolist(),
        },
        "selective": {"kept": _short(surest.kept[kept]), "risk": _short(surest.risk[kept])},
    }


def _through(
    estimator: Any, x_train: np.ndarray, x: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, str]:
    """Rows on a line through the data, their places on it and those of both tables, its name.

    With several columns it is the first principal component of the scaled ones: else the column
    with the largest numbers would be the component.
    """
    both = np.concatenate([x_train, x])
    if x.shape[1] == 1:
        grid, place, at, _ = _line(both, 0, GRID)
        label = _column_names(estimator)[0]
    else:
        grid, place, at, _ = _line(estimator.scaling_.apply(both), "principal", GRID)
        grid = estimator.scaling_.undo(grid)
        label = "first principal component (scaled columns)"
    return grid, place, at[: len(x_train)], at[len(x_train) :], label


def _band(
    estimator: Any,
    x_train: np.ndarray,
    y_train: np.ndarray,
    x: np.ndarray,
    residual: np.ndarray,
    chosen: np.ndarray,
) -> dict[str, Any]:
    grid, place, at_train, at, label = _through(estimator, x_train, x)
    center, scale = estimator.y_scaling_.mean[0], estimator.y_scaling_.scale[0]
    predictive = estimator._predictive_at(grid)
    low, high = (end[:, 0] * scale + center for end in predictive.interval(LEVEL))
    mean = predictive.mean[:, 0] * scale + center
    narrow = 1.645 * np.sqrt(predictive.epistemic[:, 0]) * scale  # 90 % of a Gaussian
    is_line = x.shape[1] == 1
    some = _spread_out(len(at_train), SHOWN_ROWS if is_line else 0)
    return {
        "kind": "band",
        "label": label,
        "is_whole": is_line,
        "at": _short(place),
        "mean": _short(mean),
        "low": _short(low),
        "high": _short(high),
        "inner_low": _short(mean - narrow),
        "inner_high": _short(mean + narrow),
        "points": _short(at[chosen]),
        # What the other columns explain is taken off.
        "heights": _short((np.interp(at, place, mean) + residual)[chosen]),
        "train": [_short(at_train[some]), _short(y_train[some, 0])],
    }


def _classes_where(
    estimator: Any, x_train: np.ndarray, x: np.ndarray, chosen: np.ndarray
) -> dict[str, Any]:
    if x.shape[1] == 2:
        low, high = _padded(np.concatenate([x_train, x]), 0.08)
        sides = [np.linspace(low[i], high[i], SQUARE) for i in (0, 1)]
        rows = np.stack(np.meshgrid(*sides), axis=-1).reshape(-1, 2)
        probs = estimator._predictive_at(rows).probs
        return {
            "kind": "regions",
            "labels": _column_names(estimator),
            "side": SQUARE,
            "low": low.tolist(),
            "high": high.tolist(),
            "classes": probs.argmax(axis=1).tolist(),
            "confidence": np.round(100 * probs.max(axis=1)).astype(int).tolist(),
            "points": [_short(x[chosen, 0]), _short(x[chosen, 1])],
        }
    grid, place, _, at, label = _through(estimator, x_train, x)
    probs = estimator._predictive_at(grid).probs
    most = np.sort(np.argsort(-probs.max(axis=0), kind="stable")[:8])
    return {
        "kind": "probabilities",
        "label": label,
        "is_whole": x.shape[1] == 1,
        "at": _short(place),
        "classes": most.tolist(),
        "probs": [_short(probs[:, index]) for index in most],
        "points": _short(at[chosen]),
    }


def _short(values: Any, digits: int = 4) -> list[Any]:
    """Numbers rounded to what a chart of their range can show; None where there is none."""
    values = np.asarray(values, np.float64)
    finite = values[np.isfinite(values)]
    spread = np.ptp(finite) if finite.size else 0.0
    spread = spread or (np.max(np.abs(finite)) if finite.size else 0.0) or 1.0
    rounded = np.round(values, digits - 1 - math.floor(math.log10(spread)))
    return [float(v) if np.isfinite(v) else None for v in rounded]
