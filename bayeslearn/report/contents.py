"""What a report says: every number of the page, small enough to be embedded."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bayeslearn import tree
from bayeslearn.errors import Shown, refuse
from bayeslearn.report.charts import _classification, _regression
from bayeslearn.report.thinning import (
    ALL_SHOWN,
    LEAST_SHOWN,
    LEVEL,
    SHOWN_ROWS,
    _column_names,
    _spread_out,
)
from bayeslearn.report.traces import _chains, _trace, _widths
from bayeslearn.results import metrics
from bayeslearn.tabular.compare.api import versions

SCORED_ROWS = 2000  # held-out rows looked at
CODE = "import bayeslearn as bl\n\n"


def from_fit(
    estimator: Any,
    X_train: Any,
    y_train: Any,
    X_test: Any,
    y_test: Any,
    settings: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Everything the page of one fitted estimator shows, ready for JSON.

    Args:
        estimator: a fitted `BayesianNNRegressor` or `BayesianNNClassifier`.
        X_train, y_train: the rows it was fitted to.
        X_test, y_test: rows it has not seen, by which it is judged.
        settings: what else is to be said of the run, by name: `file`, `target` (the name of y),
            `title`, and `command` or `code`, which repeat it.
    """
    if not hasattr(estimator, "posterior_"):
        refuse("estimator", Shown(type(estimator).__name__), "be a fitted estimator of bayeslearn")
    name = estimator.posterior_.algorithm.name
    fit = _method(name, estimator, (X_train, y_train), (X_test, y_test), SHOWN_ROWS)
    scores = _scores(estimator, X_test, y_test)
    names = _column_names(estimator)
    seed = estimator.random_state
    told = {
        "rows": len(X_train),
        "held_out": len(X_test),
        "columns": len(names),
        "column_names": names,
        "seed": seed if isinstance(seed, int | np.integer) else None,
        "code": f"{CODE}estimator = bl.{estimator!r}\nestimator.fit(X_train, y_train)",
        "options": {k: v for k, v in estimator.get_params().items() if k != "random_state"},
    }
    row = {
        "method": name,
        "status": "ok",
        "reason": None,
        "metrics": {metric: [value, None] for metric, value in scores.items()},
        "seconds": [estimator.posterior_.wall_time, None],
        "memory_mb": None,
        "pareto": True,
    }
    contents = {
        "kind": "fit",
        "task": _task(estimator),
        "table": [row],
        "settings": told | (settings or {}),
        "versions": versions(),
        "fits": [fit],
    }
    return _plain(contents)


def from_comparison(comparison: Any) -> dict[str, Any]:
    """Everything the page of a comparison shows, ready for JSON: its table, and each method that
    was fitted, on the first split."""
    contents = dict(comparison.to_dict())
    x_train, y_train, x_test, y_test = comparison.first_split
    shown = min(SHOWN_ROWS, max(LEAST_SHOWN, ALL_SHOWN // max(1, len(comparison.fitted))))
    fits = []
    for name, estimator in comparison.fitted.items():
        try:
            fit = _method(name, estimator, (x_train, y_train), (x_test, y_test), shown)
        except Exception as error:  # one method must not cost the report of the others
            first = (str(error).splitlines() or [""])[0]
            fit = {"method": name, "error": f"{type(error).__name__}: {first}"}
        fits.append(fit)
    settings = contents["settings"]
    asked = {"task": contents["task"], "methods": [row["method"] for row in contents["table"]]}
    for name in ("methods", "budget", "splits", "test_fraction", "seed"):
        if settings.get(name) is not None:
            asked[name] = settings[name]
    asked |= settings.get("options") or {}
    call = ", ".join(f"{name}={value!r}" for name, value in asked.items())
    code = f"{CODE}bl.compare(X, y, {call})"
    return _plain(contents | {"fits": fits, "settings": {"code": code} | settings})


def _method(
    name: str, estimator: Any, train: tuple[Any, Any], test: tuple[Any, Any], shown: int
) -> dict[str, Any]:
    """One method's part of the page."""
    x_train, y_train = estimator._read(*train, first=False)
    x, y, kept = _judged(estimator, *test)
    predictive = estimator._predictive_at(x)
    chosen = _spread_out(len(x), shown)
    posterior = estimator.posterior_
    about = {
        "method": name,
        "weights": tree.size(posterior.family.mean),
        "family": type(posterior.family).__name__,
        "stopped": posterior.stopped,
        "notes": list(posterior.notes),
        "wall_time": posterior.wall_time,
        "compile_time": posterior.compile_time,
        "num_rows": len(x),
        "trace": _trace(posterior),
        "chains": _chains(posterior),
        "widths": _widths(posterior),
    }
    view = _regression if _task(estimator) == "regression" else _classification
    part = view(estimator, predictive, x_train, y_train, x, y, chosen)
    part["rows"]["row"] = (kept[chosen] + 1).tolist()
    return about | part


def _judged(estimator: Any, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Held-out rows that are looked at, and their places among all."""
    x, y = estimator._read(X, y, first=False)
    kept = _spread_out(len(x), SCORED_ROWS)
    return x[kept], y[kept], kept


def _scores(estimator: Any, X: Any, y: Any) -> dict[str, float]:
    x, y, _ = _judged(estimator, X, y)
    predictive, observed = estimator._predictive_at(x), estimator._to_network(y)
    log_likelihood = metrics.log_likelihood(predictive, observed)
    if _task(estimator) == "classification":
        return {
            "accuracy": metrics.accuracy(predictive, observed),
            "log_likelihood": log_likelihood,
            "ece": metrics.ece(predictive, observed),
            "brier": metrics.brier(predictive, observed),
        }
    scaling = estimator.y_scaling_
    scores = {
        "rmse": float(np.sqrt(np.mean((scaling.undo(predictive.mean) - y) ** 2))),
        "log_likelihood": log_likelihood - float(np.sum(np.log(scaling.scale))),
        "coverage90": metrics.coverage(predictive, observed, LEVEL),
    }
    if y.shape[1] == 1:  # of several columns the units differ
        scores["crps"] = metrics.crps(predictive, observed) * scaling.scale[0]
    return scores


def _task(estimator: Any) -> str:
    return "classification" if hasattr(estimator, "classes_") else "regression"


def _plain(value: Any) -> Any:
    """What JSON holds: no NaN, no NumPy, and anything else as its repr."""
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(part) for part in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str):
        return None if value is None else str(value)
    return repr(value)
