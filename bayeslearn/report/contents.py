"""What a report says: every number of the page, computed once and small enough to be embedded.

Charts are of held-out rows. All of them (up to `SCORED_ROWS`) make the curves and scores, some the
points that a reader can ask for their predictive distribution.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bayeslearn import diagnostics, metrics, tree
from bayeslearn.comparison import versions
from bayeslearn.errors import ArgumentError, Shown, refuse
from bayeslearn.plots import _line, _padded, leaf_widths

LEVEL = 0.9
SCORED_ROWS = 2000  # held-out rows looked at
SHOWN_ROWS, LEAST_SHOWN, ALL_SHOWN = 200, 60, 1500  # points of one method, and of all together
GRID = 120  # places on a line
SQUARE = 36  # places on each side of a plane
BINS, REACH = 20, 3.5  # of a predictive density, up to that many standard deviations
TOP_CLASSES = 6  # shown of a row
TRACE = 200  # points of a line over steps or draws
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


# Over the inputs


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


# The run


def _trace(posterior: Any) -> dict[str, Any] | None:
    """Course of the lower bound (of a point: the log-joint), or of the chains' log-density."""
    trace = posterior.trace
    for name in ("elbo", "log_joint", "objective"):
        if f"eval_{name}" in trace:
            steps = np.asarray(trace["eval_step"])
            kept = _spread_out(len(steps), TRACE)
            return {
                "kind": "steps",
                "label": name.replace("_", "-"),
                "steps": steps[kept].tolist(),
                "values": _figures(np.asarray(trace[f"eval_{name}"])[kept]),
                "result": posterior.elbo if name == "elbo" else None,
            }
    if posterior.draws is None or "log_density" not in trace:
        return None
    values = np.atleast_2d(np.asarray(trace["log_density"]))
    kept = _spread_out(values.shape[1], TRACE)
    return {
        "kind": "chains",
        "label": "log-density",
        "steps": (kept + 1).tolist(),
        "values": [_figures(chain) for chain in values[:8, kept]],
    }


def _chains(posterior: Any) -> dict[str, Any] | None:
    """R-hat and effective sample sizes of a sampler."""
    if posterior.draws is None:
        return None
    try:
        found = posterior.diagnostics()
    except (ArgumentError, ImportError) as error:
        return {"error": str(error)}
    parts: dict[str, Any] = {}
    for what in ("predictions", "weights"):
        rhat, bulk, tail = (
            np.asarray(getattr(found, f"{name}_{what}"))
            for name in ("rhat", "ess_bulk", "ess_tail")
        )
        rhat = np.sort(rhat[np.isfinite(rhat)])
        parts[what] = {
            "rhat": _figures(rhat[_spread_out(len(rhat), TRACE // 2)], 4),
            "ess_bulk": _least(bulk),
            "ess_tail": _least(tail),
        }
    draws = posterior.family.num_draws
    return parts | {
        "rhat_log_density": found.rhat_log_density,
        "divergences": found.divergences,
        "warning": found.warning,
        "limit": diagnostics.MAX_RHAT,
        "chains": posterior.family.num_chains,
        "draws": draws,
    }


def _widths(posterior: Any) -> list[dict[str, Any]]:
    """Quantiles of the weights' standard deviations by leaf; none for a point."""
    return [
        {
            "name": name,
            "weights": len(widths),
            "quantiles": _figures(np.quantile(widths, [0.05, 0.25, 0.5, 0.75, 0.95]), 3),
            "prior": prior,
        }
        for name, widths, prior in leaf_widths(posterior)
        if len(widths)
    ]


# Small things


def _task(estimator: Any) -> str:
    return "classification" if hasattr(estimator, "classes_") else "regression"


def _column_names(estimator: Any) -> list[str]:
    number = estimator.n_features_in_
    names = getattr(estimator, "feature_names_in_", [f"x[{i}]" for i in range(number)])
    return [str(name) for name in names]


def _spread_out(number: int, most: int) -> np.ndarray:
    """All of the rows, or that many at even distances."""
    return np.unique(np.linspace(0, number - 1, min(number, most)).round().astype(int))


def _short(values: Any, digits: int = 4) -> list[Any]:
    """Numbers rounded to what a chart of their range can show; None where there is none."""
    values = np.asarray(values, np.float64)
    finite = values[np.isfinite(values)]
    spread = np.ptp(finite) if finite.size else 0.0
    spread = spread or (np.max(np.abs(finite)) if finite.size else 0.0) or 1.0
    rounded = np.round(values, digits - 1 - math.floor(math.log10(spread)))
    return [float(v) if np.isfinite(v) else None for v in rounded]


def _figures(values: Any, digits: int = 7) -> list[Any]:
    """Numbers to that many significant figures."""
    return [float(f"{v:.{digits}g}") if np.isfinite(v) else None for v in np.asarray(values)]


def _least(values: np.ndarray) -> float | None:
    values = values[np.isfinite(values)]
    return float(f"{values.min():.3g}") if len(values) else None


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
