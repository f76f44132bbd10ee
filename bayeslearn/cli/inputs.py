"""Tables and estimators of the commands."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import bayeslearn as bl
from bayeslearn.cli import flags
from bayeslearn.cli.flags import FileOptions, NetworkOptions, OrderOptions, TableOptions
from bayeslearn.cli.output import Output
from bayeslearn.cli.settings import algorithm_class
from bayeslearn.errors import Shown, did_you_mean, refuse
from bayeslearn.tabular import encoding, files
from bayeslearn.tabular.cell_checks import check_numbers, check_present, dates_of
from bayeslearn.tabular.columns import NEW_FILE, join_names, problems_of
from bayeslearn.tabular.schema import Schema

if TYPE_CHECKING:
    import pandas as pd


def read_table(
    output: Output,
    path: str,
    options: TableOptions,
    file_options: FileOptions,
    order: OrderOptions | None = None,
) -> tuple[files.RawTable, encoding.LearnedTable]:
    """A file to learn from; the columns of `order` are no inputs."""
    with output.progress(f"reading {path}"):
        raw = files.read(path, **file_options.for_file())
        not_inputs = _order_columns(raw, options, order or OrderOptions())
        learned = encoding.learn(
            raw,
            options.target,
            task=options.task,
            drop=(*options.drop, *not_inputs),
            categorical=options.categorical,
            impute=options.impute or options.indicators,
            indicators=options.indicators,
            encoding=options.categories,
        )
    for note in learned.notes:
        output.note(note)
    return raw, learned


def _order_columns(raw: files.RawTable, options: TableOptions, order: OrderOptions) -> list[str]:
    given = {"groups": order.groups, "time-order": order.time_order}
    found = {argument: name for argument, name in given.items() if name is not None}
    for argument, name in found.items():
        if name not in raw.names:
            must = f"be a column of {raw.path}: {join_names(raw.names, limit=12)}"
            refuse(argument, name, must, did_you_mean(name, raw.names))
        if name == options.target:
            refuse(argument, name, "be another column than the target")
    if len(found) == 2:
        refuse("time-order", order.time_order, "be left out where --groups is given")
    return list(found.values())


class RowOrder(NamedTuple):
    """The group or the time of each row that is learned from; None: not given."""

    groups: np.ndarray | None = None
    time_order: np.ndarray | None = None

    def take(self, index: np.ndarray) -> RowOrder:
        """Of some of the rows."""
        return RowOrder(*(None if values is None else values[index] for values in self))


def read_order(raw: files.RawTable, rows: np.ndarray, options: OrderOptions) -> RowOrder:
    """The columns by which rows are held out; none of their cells may be missing."""
    name = options.groups or options.time_order
    if name is None:
        return RowOrder()
    values = raw.values(name)
    check_present(raw, name, values, "Fill it in.")
    if options.groups is not None:
        return RowOrder(groups=values.text[rows].astype(str))
    if values.dates is not None:
        return RowOrder(time_order=dates_of(raw, name, values)[rows])
    if np.all(np.isnan(values.numbers)):
        shown = Shown(f"{name!r}, which holds text such as {str(values.text[0])[:80]!r}")
        refuse("time-order", shown, "be a column of dates or numbers")
    problems = problems_of(raw)
    check_numbers(raw, name, values, problems)
    problems.raise_all()
    return RowOrder(time_order=values.numbers[rows])


def for_likelihood(options: TableOptions, likelihood: str | None) -> TableOptions:
    """With the task that a likelihood is for, if none is given."""
    from bayeslearn.tabular import classes, target_types

    if options.task != flags.AUTO or likelihood in (None, flags.AUTO):
        return options
    if likelihood in classes.LIKELIHOODS:
        return dataclasses.replace(options, task="classification")
    if likelihood in (target_types.GAUSSIAN, *target_types.LIKELIHOODS):
        return dataclasses.replace(options, task="regression")
    return options


class NewRows(NamedTuple):
    """A file to predict: its cells, and its encoded columns."""

    raw: files.RawTable
    x: pd.DataFrame


def read_new_rows(
    output: Output,
    schema: Schema,
    path: str,
    argument: str,
    options: FileOptions,
    has_target: bool = False,
) -> NewRows:
    """A file to predict, encoded as the training table was; `has_target`: its target is used."""
    with output.progress(f"reading {path}"):
        raw = files.read(path, argument=argument, remedies=NEW_FILE, **options.for_file())
        if not raw.num_rows:
            raw.refuse("it has no rows below its header", "have rows to predict")
        x = schema.encode(raw, output.note)
    for note in raw.notes:
        output.note(note)
    known = {column.name for column in schema.columns}
    known |= {schema.target} if has_target else set()
    extra = [name for name in raw.names if name not in known]
    if schema.target in extra:
        extra.remove(schema.target)
        output.note(f"Ignored: the target {schema.target!r}.")
    if extra:
        plural = "s" if len(extra) > 1 else ""
        output.note(f"Not used: the column{plural} {join_names(extra)}.")
    return NewRows(raw, x)


class RowSplit(NamedTuple):
    """Training and held-out rows."""

    train: np.ndarray
    test: np.ndarray


def split_rows(
    learned: encoding.LearnedTable, test_fraction: float, seed: int, row_order: RowOrder
) -> RowSplit:
    """A random split, stratified by class; with an order, whole groups or the latest rows."""
    order = np.random.default_rng(seed).permutation(len(learned.y))
    if test_fraction and any(values is not None for values in row_order):
        return _split_in_order(learned, test_fraction, order, row_order)
    groups = [order]
    if learned.schema.task == "classification":
        labels = learned.y[order]
        groups = [order[labels == label] for label in np.unique(labels)]
    sizes = [min(round(test_fraction * len(group)), len(group) - 1) for group in groups]
    if test_fraction and not any(sizes):
        sizes[int(np.argmax([len(group) for group in groups]))] = 1
    test = [group[:size] for group, size in zip(groups, sizes, strict=True)]
    train = [group[size:] for group, size in zip(groups, sizes, strict=True)]
    return RowSplit(np.sort(np.concatenate(train)), np.sort(np.concatenate(test)))


def _split_in_order(
    learned: encoding.LearnedTable, test_fraction: float, order: np.ndarray, row_order: RowOrder
) -> RowSplit:
    from bayeslearn.data.rows import Rows  # imports JAX
    from bayeslearn.tabular.folds import KeyedRows, hold_out, keys_of

    keys = keys_of(*row_order, len(order))
    assert keys is not None
    rows = Rows(order, learned.y[order], np.ones(len(order)))
    parts = hold_out(KeyedRows(rows, keys.take(order)), test_fraction, False, "test-fraction")
    train, test = (np.sort(np.asarray(part.rows.x)) for part in parts)
    if learned.schema.task == "classification":
        argument = "time-order" if keys.is_time else "groups"
        unseen = np.setdiff1d(learned.y, learned.y[train])
        if len(unseen):
            shown = Shown(f"held-out rows with all of the class {str(unseen[0])!r}")
            refuse(
                argument, shown, "leave rows of every class to learn from", "See --test-fraction."
            )
    return RowSplit(train, test)


def make_estimator(
    output: Output, task: str, method: str, settings: dict[str, Any], options: NetworkOptions
) -> bl.BayesianNNRegressor | bl.BayesianNNClassifier:
    """The estimator that the options describe."""
    given = options.for_estimator(task)
    kind = bl.BayesianNNRegressor if task == "regression" else bl.BayesianNNClassifier
    if method == flags.AUTO:
        return kind(**given)
    cls = algorithm_class(method)
    if cls.capabilities.needs_linear_model and "hidden" not in given:
        output.note(f"{method} fits a linear model: there is no hidden layer.")
    return kind(method=cls(**settings) if settings else method, **given)
