"""What is learned of a table: its columns, its target, notes. Needs NumPy alone."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bayeslearn.errors import did_you_mean, refuse
from bayeslearn.tabular import column_notes, dates
from bayeslearn.tabular.cell_checks import check_numbers, check_present, dates_of
from bayeslearn.tabular.columns import (
    Problems,
    Table,
    join_names,
    problems_of,
)
from bayeslearn.tabular.schema import Column, Notify, Schema, without_infinite
from bayeslearn.tabular.task import TASKS, detect_task

if TYPE_CHECKING:
    from bayeslearn.tabular.files import RawTable

MAX_CATEGORIES = 50  # a text column with more is a name or a number in disguise
MIN_ROWS = 4
FEW_ROWS = 50
MANY_COLUMNS = 500
ENCODINGS = ("one-hot", "ordinal")


class LearnedTable(NamedTuple):
    """What was learned of a file."""

    schema: Schema
    y: np.ndarray
    rows: np.ndarray  # of the file, those with a target
    notes: tuple[str, ...]


def learn(
    raw: RawTable,
    target: str,
    *,
    task: str = "auto",
    categorical: Sequence[str] = (),
    drop: Sequence[str] = (),
    impute: bool = False,
    indicators: bool = False,
    encoding: str = "one-hot",
) -> LearnedTable:
    """The schema of a file, and its target; all of its problems are one error.

    Columns in `categorical` hold categories whatever they look like; those in `drop` are not used.
    """
    _check_arguments(raw, target, task, categorical, drop, encoding)
    notes = list(raw.notes)
    features = [name for name in raw.names if name != target and name not in drop]
    if not features:
        raw.refuse("it has no column but the target", "have a target and at least one other column")
    problems = problems_of(raw)
    found_target: _Target | None = None
    if target in raw.names:
        with problems.collected():
            found_target = _target(raw, target, task, impute, notes.append)
    columns = learn_columns(raw, features, problems, categorical=categorical, impute=impute)
    if target not in raw.names:
        shown = join_names(raw.names, limit=12)
        if not problems:
            hint = did_you_mean(target, raw.names)
            refuse("target", target, f"be a column of {raw.path}: {shown}", hint)
        with problems.collected():
            raw.refuse(f"there is no column {target!r}", f"hold the target; it has {shown}")
    problems.raise_all()
    assert found_target is not None
    rows, y, task, target_column = found_target
    schema = Schema(
        *(target, task, columns, encoding, impute or indicators, indicators),
        separator=raw.separator,
        target_column=target_column,
    )
    described = columns if target_column is None else (*columns, target_column)
    notes += column_notes.describe(raw, described, encoding)
    notes += column_notes.suspicions(raw, columns, rows, y, target)
    width = sum(
        1 if c.categories is None or encoding == "ordinal" else len(c.categories) for c in columns
    )
    if len(y) < FEW_ROWS:
        notes.append(f"There are only {len(y)} rows: expect wide and imprecise intervals.")
    if width >= MANY_COLUMNS or width > len(y):
        notes.append(
            f"There are {width} columns for {len(y)} rows: fitting is slow, and predictions depend"
            " much on the prior. Drop columns that do not matter with --drop."
        )
    return LearnedTable(schema, y, rows, tuple(notes))


def _check_arguments(
    raw: RawTable,
    target: str,
    task: str,
    categorical: Sequence[str],
    drop: Sequence[str],
    encoding: str,
) -> None:
    if task not in ("auto", *TASKS):
        refuse("task", task, "be 'auto', 'regression' or 'classification'")
    if encoding not in ENCODINGS:
        refuse("categories", encoding, "be 'one-hot' or 'ordinal'")
    names = raw.names
    for argument, given in (("categorical", categorical), ("drop", drop)):
        for name in given:
            if name not in names:
                must = f"be a column of {raw.path}: {join_names(names, limit=12)}"
                refuse(argument, name, must, _remedy_of(argument, name, names))
    if target in drop:
        refuse("drop", target, "leave the target")
    number = raw.num_rows
    if number < MIN_ROWS:
        what = f"it has {number} row{'s' if number > 1 else ''}" if number else "it has no rows"
        raw.refuse(f"{what} below its header", f"have at least {MIN_ROWS} rows")


def _remedy_of(argument: str, name: str, names: Sequence[str]) -> str:
    """What to write for a name that is no column, but may be several."""
    parts = [part.strip() for part in name.split(",")]
    if len(parts) > 1 and set(parts) <= set(names):
        options = " ".join(f"--{argument} {shlex.quote(part)}" for part in parts)
        return f"Repeat the option: {options}."
    return did_you_mean(name, names)


def learn_columns(
    table: Table,
    names: Sequence[str],
    problems: Problems,
    *,
    categorical: Sequence[str] = (),
    impute: bool = False,
) -> tuple[Column, ...]:
    """What some columns hold; what is wrong with them is collected."""
    found: list[Column] = []
    for name in names:
        with problems.collected():
            found.append(_column(table, name, name in categorical, impute, problems))
    return tuple(found)


def _column(
    table: Table, name: str, is_categorical: bool, impute: bool, problems: Problems
) -> Column:
    values = table.values(name)
    values = without_infinite(values) if impute else values
    present, remedies = ~values.is_missing, table.remedies
    if not np.any(present):
        remedy = remedies.of(remedies.drop, name)
        table.refuse(f"the column {name!r} is empty", "have a value in every cell", remedy)
    if not impute:
        with problems.collected():
            check_present(table, name, values)
    if not (is_categorical or values.is_categorical):
        if values.dates is not None:
            days = dates_of(table, name, values)[present]
            return Column(name, cycles=dates.cycles_of(days), day_first=values.day_first)
        if np.mean(~np.isnan(values.numbers[present])) > 0.5:
            check_numbers(table, name, values, problems)
            return Column.of_numbers(name, values)
    found = tuple(sorted({str(text) for text in values.text[present]}))
    if len(found) > MAX_CATEGORIES and not is_categorical and not values.is_categorical:
        shown = join_names(found[:2])
        table.refuse(
            f"{name!r} holds {len(found)} different texts, such as {shown}",
            f"hold numbers, or at most {MAX_CATEGORIES} categories in a column",
            remedies.of(remedies.keep, name),
        )
    return Column(name, found)


class _Target(NamedTuple):
    """What the target holds."""

    rows: np.ndarray
    y: np.ndarray
    task: str
    column: Column | None = None  # of numbers


def _target(raw: RawTable, name: str, task: str, impute: bool, notify: Notify) -> _Target:
    values = raw.values(name)
    values = without_infinite(values) if impute else values
    if values.ambiguity:
        must = f"hold values that can be read in one way in the column {name!r}"
        raw.refuse(values.ambiguity, must, values.ambiguity_remedy)
    if impute and np.any(values.is_missing):
        notify(f"{int(np.sum(values.is_missing))} rows have no target and are dropped.")
    else:
        check_present(raw, name, values, raw.remedies.rows)
    rows = np.flatnonzero(~values.is_missing)
    if len(rows) < MIN_ROWS:
        raw.refuse(f"{len(rows)} rows have a target", f"have at least {MIN_ROWS} of them")
    if values.dates is not None and task != "classification":
        remedy = "Convert it to numbers, such as days, or use --task classification."
        raw.refuse(f"the target {name!r} holds dates", "have numbers or classes as target", remedy)
    text, numbers = values.text[rows], values.numbers[rows]
    fraction = np.mean(~np.isnan(numbers))
    if task == "regression" or (task == "auto" and fraction > 0.5):
        problems = problems_of(raw)
        check_numbers(raw, name, values, problems)
        problems.raise_all()
    is_numeric = fraction == 1 and bool(np.all(np.isfinite(numbers)))
    found = np.unique(numbers) if is_numeric else np.unique(text)
    if len(found) < 2:
        raw.refuse(f"the target {name!r} is {text[0]!r} in every row", "have a target that varies")
    if task == "auto":
        task, contents = detect_task(numbers if is_numeric else None, found)
        is_rating = task == "classification" and is_numeric and len(found) > 2
        others = " Ratings: --likelihood ordinal, counts: --likelihood negative-binomial."
        notify(
            f"The target {name!r} holds {contents}: {task}. Override with --task."
            + (others if is_rating else "")
        )
    if task == "regression":
        return _Target(rows, numbers, task, Column.of_numbers(name, values))
    if len(found) > len(rows) // 2:
        must = "have a target with fewer classes than half its rows"
        raw.refuse(f"{len(found)} classes in {len(rows)} rows of {name!r}", must)
    is_whole = is_numeric and bool(np.all(numbers == np.round(numbers)))
    return _Target(rows, numbers.astype(np.int64) if is_whole else text.astype(str), task)
