"""Which methods are compared, and which rows each is fitted to and scored on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bayeslearn.algorithms import ALGORITHMS, MAP, Algorithm
from bayeslearn.errors import Shown, refuse
from bayeslearn.inference.arguments import check_algorithm
from bayeslearn.tabular.frames import Inputs, take_rows, with_columns_of
from bayeslearn.tabular.json_values import JSON, json_value
from bayeslearn.tabular.task import TASKS, detect_task

DEFAULT_METHODS = ("map", "ensemble", "mile", "hmc", "bayes-by-backprop", "vogn", "laplace")
AUTO = "auto"  # of the estimators: they choose a method themselves
Method = Algorithm | str  # an algorithm, or "auto"
MIN_ROWS = 10
MIN_FOLDS = 5
MAX_SCORED_ROWS = 256  # test rows, and rows of a validation fold: the rest are learned from
SHIFT = 2.0  # standard deviations, up or down, of every column


class TableData(NamedTuple):
    """The rows to compare on."""

    X: Inputs
    y: np.ndarray
    task: str
    classes: np.ndarray | None

    def rows(self, index: np.ndarray) -> tuple[Inputs, np.ndarray]:
        """Some rows of X and y."""
        return take_rows(self.X, index), self.y[index]


def read_table(X: ArrayLike, y: ArrayLike, task: str) -> tuple[TableData, dict[str, JSON]]:
    """X and y checked, and what the settings of a comparison say of them."""
    from sklearn.utils.validation import check_array, column_or_1d

    values = check_array(X, dtype=np.float64, estimator="compare", input_name="X")
    columns = getattr(X, "columns", None)
    target = getattr(y, "name", None)
    y_columns: Sequence[str] = getattr(y, "columns", ())
    if len(y_columns) == 1:
        target = y_columns[0]
    shape: tuple[int, ...] = np.shape(y)
    if len(shape) > 1 and shape[1] > 1:
        refuse("y", Shown(f"{shape[1]} columns"), "be one column", "Compare one by one.")
    observed = column_or_1d(y, warn=False)
    if len(observed) != len(values):
        refuse("y", Shown(f"{len(observed)} rows"), f"have as many rows as X ({len(values)})")
    if len(observed) < MIN_ROWS:
        refuse("X", Shown(f"{len(observed)} rows"), f"have at least {MIN_ROWS} rows")
    if task not in ("auto", *TASKS):
        refuse("task", task, 'be "auto", "regression" or "classification"')
    if task == "auto":
        numbers = observed if observed.dtype.kind in "iuf" else None
        task, _ = detect_task(numbers, np.unique(observed))
    if task == "regression":
        observed = check_array(
            observed, dtype=np.float64, ensure_2d=False, estimator="compare", input_name="y"
        )
    labels = np.unique(observed)
    if len(labels) < 2:
        refuse("y", Shown(f"only the value {labels[0]}"), "hold at least two values")
    classes = None if task == "regression" else labels
    settings: dict[str, JSON] = {
        "rows": len(observed),
        "columns": values.shape[1],
        "column_names": None if columns is None else [str(name) for name in columns],
        "target": None if target is None else str(target),
        "classes": json_value(classes),
    }
    return TableData(X if hasattr(X, "iloc") else values, observed, task, classes), settings


def resolve_methods(methods: str | Sequence[str | Algorithm]) -> dict[str, Method]:
    """Methods by label, in the order given; the baseline first, closed forms last.

    A closed form cannot be stopped on its way, so that it gets what the others leave of a budget.
    """
    if isinstance(methods, str) and methods in ("default", "all"):
        methods = DEFAULT_METHODS if methods == "default" else list(ALGORITHMS)
    if isinstance(methods, str) or not isinstance(methods, Sequence) or not len(methods):
        must = 'be "default", "all" or a list of names and algorithms'
        refuse("methods", methods, must)
    found: list[Method] = [
        AUTO
        if isinstance(method, str) and method == AUTO
        else check_algorithm(method, "methods", (AUTO,))
        for method in methods
    ]
    if not any(isinstance(method, MAP) for method in found):
        found.insert(0, MAP())
    found.sort(key=lambda m: (not isinstance(m, MAP), not isinstance(m, str) and m.auto_steps == 1))
    labels: dict[str, Method] = {}
    for method in found:
        name = method if isinstance(method, str) else method.name
        same = sum(label.split(" (")[0] == name for label in labels)
        labels[f"{name} ({same + 1})" if same else name] = method
    return labels


class Split(NamedTuple):
    """Rows of one fit, and the validation fold by which methods are chosen."""

    train: np.ndarray
    validation: np.ndarray


class Plan(NamedTuple):
    """The rows of all fits: every method has the same."""

    test: np.ndarray
    splits: list[Split]
    outside: list[Inputs]  # inputs unlike the training rows


def make_plan(table: TableData, splits: int, test_fraction: float, seed: int) -> Plan:
    """Test rows, then folds of the others, of which each split leaves out one."""
    test, rest = separate_test_rows(table.y, table.task, test_fraction, seed)
    folds = max(MIN_FOLDS, splits, math.ceil(len(rest) / MAX_SCORED_ROWS))
    if folds > len(rest):
        refuse("splits", splits, f"be at most the number of training rows ({len(rest)})")
    # Of one size, so that all splits share what was compiled; a remainder is always learned from.
    fold = np.arange(len(rest)) % folds
    fold[len(rest) // folds * folds :] = -1
    parts = [Split(np.sort(rest[fold != k]), np.sort(rest[fold == k])) for k in range(splits)]
    test = np.sort(test)
    return Plan(test, parts, _outside(table, test, rest, np.random.default_rng([seed, 1])))


def separate_test_rows(
    y: np.ndarray, task: str, test_fraction: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Test rows, and all others, in random order; classes have the same share in both.

    What is learned of a table before it is compared, such as medians for missing values, must not
    come from the test rows.
    """
    order = np.random.default_rng(seed).permutation(len(y))
    if task == "classification":
        order = order[np.argsort(y[order], kind="stable")]
    number = len(order)
    wanted = max(1, round(min(test_fraction * number, MAX_SCORED_ROWS)))
    if number - wanted < MIN_FOLDS:
        refuse("test_fraction", test_fraction, f"leave at least {MIN_FOLDS} rows to learn from")
    is_test = np.diff(np.floor(np.arange(number + 1) * wanted / number + 0.5)) > 0
    return order[is_test], order[~is_test]


def _outside(
    table: TableData, test: np.ndarray, rest: np.ndarray, rng: np.random.Generator
) -> list[Inputs]:
    """The test rows with every column shifted, and with every column shuffled by itself."""
    values = np.asarray(table.X, np.float64)
    signs = rng.choice([-1.0, 1.0], size=(len(test), values.shape[1]))
    shifted = values[test] + SHIFT * signs * values[rest].std(axis=0)
    shuffled = rng.permuted(values[test], axis=0)
    if values.shape[1] == 1:  # shuffled, they are the same rows
        return [with_columns_of(table.X, shifted)]
    return [with_columns_of(table.X, values) for values in (shifted, shuffled)]
