"""Which methods, and which rows each is fitted to and judged on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bayeslearn.algorithms import ALGORITHMS, MAP, Algorithm
from bayeslearn.errors import Shown, refuse
from bayeslearn.inference.arguments import check_algorithm
from bayeslearn.tabular.encoding import detect_task

DEFAULT = ("map", "mc-dropout", "hmc", "bayes-by-backprop", "vogn", "laplace")

LEAST_ROWS = 10
LEAST_FOLDS = 5
SCORED_ROWS = 256  # most test rows, and rows of a fold left out: the rest are learned from
SHIFT = 2.0  # standard deviations, up or down, of every column
METRICS = {
    "regression": ("rmse", "log_likelihood", "coverage90", "crps", "ood_auroc"),
    "classification": ("accuracy", "log_likelihood", "ece", "brier", "ood_auroc"),
}


class _Table(NamedTuple):
    X: Any
    y: np.ndarray
    task: str
    classes: np.ndarray | None

    def at(self, rows: np.ndarray) -> tuple[Any, np.ndarray]:
        return (self.X.iloc[rows] if hasattr(self.X, "iloc") else self.X[rows]), self.y[rows]

    def like(self, values: np.ndarray) -> Any:
        """Other inputs, with the names of the columns."""
        if not hasattr(self.X, "iloc"):
            return values
        return type(self.X)(values, columns=self.X.columns)


def _read(X: Any, y: Any, task: str) -> tuple[_Table, dict[str, Any]]:
    from sklearn.utils.validation import check_array, column_or_1d

    values = check_array(X, dtype=np.float64, estimator="compare", input_name="X")
    names = [str(name) for name in X.columns] if hasattr(X, "columns") else None
    target = getattr(y, "name", None)
    if hasattr(y, "columns") and len(y.columns) == 1:
        target = y.columns[0]
    if np.ndim(y) > 1 and np.shape(y)[1] > 1:
        refuse("y", Shown(f"{np.shape(y)[1]} columns"), "be one column", "Compare one by one.")
    y = column_or_1d(y, warn=False)
    if len(y) != len(values):
        refuse("y", Shown(f"{len(y)} rows"), f"have as many rows as X ({len(values)})")
    if len(y) < LEAST_ROWS:
        refuse("X", Shown(f"{len(y)} rows"), f"have at least {LEAST_ROWS} rows")
    if task not in ("auto", *METRICS):
        refuse("task", task, 'be "auto", "regression" or "classification"')
    if task == "auto":
        task, _ = detect_task(y if y.dtype.kind in "iuf" else None, np.unique(y))
    if task == "regression":
        y = check_array(y, dtype=np.float64, ensure_2d=False, estimator="compare", input_name="y")
    labels = np.unique(y)
    if len(labels) < 2:
        refuse("y", Shown(f"only the value {labels[0]}"), "hold at least two values")
    told = {
        "rows": len(y),
        "columns": values.shape[1],
        "column_names": names,
        "target": None if target is None else str(target),
        "classes": None if task == "regression" else [_plain(label) for label in labels],
    }
    X = X if hasattr(X, "iloc") else values
    return _Table(X, y, task, None if task == "regression" else labels), told


def _methods(methods: Any) -> dict[str, Algorithm]:
    """Algorithms by label, as given; the baseline first, last what cannot be stopped on its way."""
    if isinstance(methods, str) and methods in ("default", "all"):
        methods = DEFAULT if methods == "default" else list(ALGORITHMS)
    if isinstance(methods, str) or not isinstance(methods, Sequence) or not len(methods):
        must = 'be "default", "all" or a list of names and algorithms'
        refuse("methods", methods, must)
    found = [check_algorithm(method, "methods") for method in methods]
    if not any(isinstance(method, MAP) for method in found):
        found.insert(0, MAP())
    found.sort(key=lambda m: (not isinstance(m, MAP), m.auto_steps == 1))
    labels: dict[str, Algorithm] = {}
    for method in found:
        same = sum(other.name == method.name for other in labels.values())
        labels[f"{method.name} ({same + 1})" if same else method.name] = method
    return labels


class _Split(NamedTuple):
    train: np.ndarray
    left_out: np.ndarray


class _Plan(NamedTuple):
    test: np.ndarray
    splits: list[_Split]
    outside: list[Any]  # inputs unlike the training rows
    devices: str | None = None


def _plan(table: _Table, splits: int, test_fraction: float, seed: int) -> _Plan:
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(table.y))
    if table.classes is not None:  # dealt out class by class, so that every part has its share
        order = order[np.argsort(table.y[order], kind="stable")]
    number = len(order)
    wanted = max(1, round(min(test_fraction * number, SCORED_ROWS)))
    if number - wanted < LEAST_FOLDS:
        refuse("test_fraction", test_fraction, f"leave at least {LEAST_FOLDS} rows to learn from")
    is_test = np.diff(np.floor(np.arange(number + 1) * wanted / number + 0.5)) > 0
    test, rest = order[is_test], order[~is_test]
    folds = max(LEAST_FOLDS, splits, math.ceil(len(rest) / SCORED_ROWS))
    if folds > len(rest):
        refuse("splits", splits, f"be at most the number of training rows ({len(rest)})")
    # Of one size, so that all splits share what was compiled; a remainder is always learned from.
    fold = np.arange(len(rest)) % folds
    fold[len(rest) // folds * folds :] = -1
    parts = [_Split(np.sort(rest[fold != k]), np.sort(rest[fold == k])) for k in range(splits)]
    test = np.sort(test)
    return _Plan(test, parts, _outside(table, test, rest, rng))


def _outside(table: _Table, test: np.ndarray, rest: np.ndarray, rng: Any) -> list[Any]:
    """The test rows with every column moved, and with every column shuffled for itself."""
    values = np.asarray(table.X, np.float64)
    signs = rng.choice([-1.0, 1.0], size=(len(test), values.shape[1]))
    shifted = values[test] + SHIFT * signs * values[rest].std(axis=0)
    shuffled = rng.permuted(values[test], axis=0)
    if values.shape[1] == 1:  # shuffled, they are the same rows
        return [table.like(shifted)]
    return [table.like(shifted), table.like(shuffled)]


def _plain(value: Any) -> Any:
    """Something JSON can hold."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    return value if isinstance(value, str | int | float | bool | None) else repr(value)
