"""Tables and estimators of the commands."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import bayeslearn as bl
from bayeslearn.cli import flags
from bayeslearn.cli.flags import FileOptions, NetworkOptions, TableOptions
from bayeslearn.cli.output import Output
from bayeslearn.cli.settings import algorithm_class
from bayeslearn.tabular import encoding, files
from bayeslearn.tabular.columns import NEW_FILE, join_names
from bayeslearn.tabular.schema import Schema

if TYPE_CHECKING:
    import pandas as pd


def read_table(
    output: Output, path: str, options: TableOptions, file_options: FileOptions
) -> tuple[files.RawTable, encoding.LearnedTable]:
    """A file to learn from."""
    with output.progress(f"reading {path}"):
        raw = files.read(path, **file_options.for_file())
        learned = encoding.learn(
            raw,
            options.target,
            task=options.task,
            drop=options.drop,
            categorical=options.categorical,
            impute=options.impute or options.indicators,
            indicators=options.indicators,
            encoding=options.categories,
        )
    for note in learned.notes:
        output.note(note)
    return raw, learned


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


def split_rows(learned: encoding.LearnedTable, test_fraction: float, seed: int) -> RowSplit:
    """A random split, stratified by class."""
    order = np.random.default_rng(seed).permutation(len(learned.y))
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
        given["hidden"] = ()
        output.note(f"{method} fits a linear model: there is no hidden layer.")
    return kind(method=cls(**settings) if settings else method, **given)
