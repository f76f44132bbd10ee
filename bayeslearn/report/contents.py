"""What a report says: every number of the page, small enough to be embedded."""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike

from bayeslearn import tree
from bayeslearn.errors import Shown, refuse
from bayeslearn.predictive_base import PredictiveBase
from bayeslearn.report import checks
from bayeslearn.report.charts import Rows, classification, column_names, regression
from bayeslearn.report.thinning import ALL_SHOWN, MIN_SHOWN, SHOWN_ROWS, evenly_spaced
from bayeslearn.report.traces import chains, trace, widths
from bayeslearn.tabular.base import BayesianNN
from bayeslearn.tabular.compare.api import versions
from bayeslearn.tabular.compare.result import Comparison
from bayeslearn.tabular.frames import Inputs, take_rows
from bayeslearn.tabular.json_values import JSON, json_value
from bayeslearn.tabular.score_table import OK, Row
from bayeslearn.tabular.scores import LEVEL

SCORED_ROWS = 10_000  # held-out rows that are scored
COMPARED_ROWS = 2000  # of each method of a comparison
CODE = "import bayeslearn as bl\n\n"
Contents = dict[str, JSON]


class Judged(NamedTuple):
    """What is shown of an estimator: rows, their places among the held-out ones, predictions."""

    rows: Rows
    numbers: np.ndarray
    predictive: PredictiveBase


def from_fit(
    estimator: BayesianNN,
    X_train: ArrayLike,
    y_train: ArrayLike,
    X_test: ArrayLike,
    y_test: ArrayLike,
    settings: dict[str, JSON] | None = None,
) -> Contents:
    """Everything the page of one fitted estimator shows, ready for JSON.

    Args:
        estimator: a fitted `BayesianNNRegressor` or `BayesianNNClassifier`.
        X_train, y_train: the rows it was fitted to.
        X_test, y_test: held-out rows, on which it is scored.
        settings: what else is known of the run, by name: `file`, `target` (the name of y),
            `title`, and `command` or `code`, which repeat it.
    """
    if not hasattr(estimator, "posterior_"):
        refuse("estimator", Shown(type(estimator).__name__), "be a fitted estimator of bayeslearn")
    posterior = estimator.posterior_
    train, test = (_table(X_train), y_train), (_table(X_test), y_test)
    judged = judge(estimator, train, test, SCORED_ROWS, SHOWN_ROWS)
    fit = describe_method(posterior.algorithm.name, estimator, judged, is_whole=True)
    scores = checks.scores(estimator, judged.predictive, judged.rows)
    names = column_names(estimator)
    seed = estimator.random_state
    about = {
        "rows": len(train[0]),
        "held_out": len(test[0]),
        "columns": len(names),
        "column_names": names,
        "seed": seed if isinstance(seed, int | np.integer) else None,
        "code": f"{CODE}estimator = bl.{estimator!r}\nestimator.fit(X_train, y_train)",
        "options": {k: v for k, v in estimator.get_params().items() if k != "random_state"},
    }
    row = Row(
        method=posterior.algorithm.name,
        status=OK,
        reason=None,
        metrics={name: [value, None] for name, value in scores.items()},
        validation={},
        seconds=[posterior.wall_time, None],
        compile_seconds=posterior.compile_time,
        memory_mb=None,
        cut_short=None,
        rhat=None,
        chosen={},
        notes=[],
        pareto=True,
    )
    contents = {
        "kind": "fit",
        "task": _task(estimator),
        "table": [row],
        "settings": about | (settings or {}),
        "versions": versions(),
        "fits": [fit],
    }
    return cast(Contents, json_value(contents))


def from_comparison(comparison: Comparison) -> Contents:
    """Everything the page of a comparison shows, ready for JSON: its table, and each method that
    was fitted, on the first split."""
    contents = comparison.to_dict()
    x_train, y_train, x_test, y_test = comparison.first_split
    train, test = (x_train, y_train), (x_test, y_test)
    shown = min(SHOWN_ROWS, max(MIN_SHOWN, ALL_SHOWN // max(1, len(comparison.fitted))))
    fits: list[JSON] = []
    for name, estimator in comparison.fitted.items():
        try:
            judged = judge(estimator, train, test, COMPARED_ROWS, shown)
            fit = describe_method(name, estimator, judged, name == contents.get("recommended"))
        except Exception as error:  # one method must not cost the report of the others
            first = (str(error).splitlines() or [""])[0]
            fit = {"method": name, "error": f"{type(error).__name__}: {first}"}
        fits.append(fit)
    settings = cast(Contents, contents["settings"])
    table = cast(list[Row], contents["table"])
    call: Contents = {"task": contents["task"], "methods": [row["method"] for row in table]}
    for name in ("budget", "by", "splits", "test_fraction", "seed"):
        if settings.get(name) is not None:
            call[name] = settings[name]
    call |= cast(Contents, settings.get("options") or {})
    arguments = ", ".join(f"{name}={value!r}" for name, value in call.items())
    code = f"{CODE}bl.compare(X, y, {arguments})"
    made = json_value(contents | {"fits": fits, "settings": {"code": code, **settings}})
    return cast(Contents, made)


def judge(
    estimator: BayesianNN,
    train: tuple[Inputs, ArrayLike],
    test: tuple[Inputs, ArrayLike],
    limit: int,
    shown: int,
) -> Judged:
    """Up to `limit` held-out rows, of which `shown` are drawn, and the predictions of them."""
    observed = estimator.observed(*test)
    index = evenly_spaced(len(observed), limit)
    X, y = take_rows(test[0], index), observed[index]
    rows = Rows(train[0], estimator.observed(*train), X, y, evenly_spaced(len(y), shown))
    return Judged(rows, index, estimator.predictive(X))


def describe_method(name: str, estimator: BayesianNN, judged: Judged, is_whole: bool) -> Contents:
    """One method's part of the page; `is_whole` adds what takes time or room."""
    posterior, (rows, numbers, predictive) = estimator.posterior_, judged
    is_regression = _task(estimator) == "regression"
    charts = regression if is_regression else classification
    part = charts(estimator, predictive, rows)
    cast(Contents, part["rows"])["row"] = (numbers[rows.shown] + 1).tolist()
    names = [str(name) for name in getattr(estimator, "classes_", ())]
    predicted = None
    if not is_regression:
        codes = predictive.probs.argmax(axis=1)
        predicted = np.asarray(names)[codes]
        part["confusion"] = checks.confusion(codes, rows.y, len(names))
    fractions = checks.hits_of(predictive, rows.y, LEVEL)
    about: Contents = {
        "method": name,
        "weights": tree.size(posterior.family.mean),
        "family": type(posterior.family).__name__,
        "stopped": posterior.stopped,
        "notes": list(posterior.notes),
        "wall_time": posterior.wall_time,
        "compile_time": posterior.compile_time,
        "num_rows": len(rows.y),
        "trace": trace(posterior),
        "chains": chains(posterior),
        "widths": widths(posterior),
        "baseline": checks.baseline(is_regression, rows.y_train, rows.y, names),
        "before": checks.before_calibration(estimator, rows),
        "deciles": checks.deciles(fractions),
        "groups": checks.groups(fractions, rows.X, column_names(estimator), predicted),
    }
    if is_whole:
        about["importance"] = checks.importance(estimator, rows)
        about["every_row"] = checks.every_row(predictive, rows.y, numbers, LEVEL)
    return about | part


def _table(X: ArrayLike) -> Inputs:
    return X if hasattr(X, "iloc") else np.asarray(X)


def _task(estimator: BayesianNN) -> str:
    return "classification" if hasattr(estimator, "classes_") else "regression"
