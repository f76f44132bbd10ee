"""Columns of a table as numbers that an estimator takes. Needs NumPy alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bayeslearn.errors import refuse
from bayeslearn.tabular import column_notes, dates
from bayeslearn.tabular.cell_checks import check_numbers, check_present, check_unit, dates_of
from bayeslearn.tabular.columns import (
    ColumnValues,
    Problems,
    Table,
    join_names,
    problems_of,
)
from bayeslearn.tabular.json_values import JSON
from bayeslearn.tabular.task import TASKS, detect_task

if TYPE_CHECKING:
    import pandas as pd

    from bayeslearn.tabular.files import RawTable

MAX_CATEGORIES = 50  # a text column with more is a name or a number in disguise
MIN_ROWS = 4
FEW_ROWS = 50
MANY_COLUMNS = 500
ENCODINGS = ("one-hot", "ordinal")
MISSING_SUFFIX = ":missing"
Notify = Callable[[str], object]


@dataclasses.dataclass(frozen=True)
class Column:
    """One input column, and how it was written."""

    name: str
    categories: tuple[str, ...] | None = None  # None: numbers, or dates
    fill: float | str | None = None  # replaces a missing value
    cycles: tuple[str, ...] | None = None  # of dates; None: no dates
    has_indicator: bool = False  # a column of its own says where values were missing
    decimal: str = ""  # of numbers with two readings
    day_first: bool | None = None  # of dates with two readings
    unit: str = ""


@dataclasses.dataclass(frozen=True)
class Schema:
    """The columns of a table, by which a new one is encoded in the same way."""

    target: str
    task: str
    columns: tuple[Column, ...]
    encoding: str = "one-hot"
    impute: bool = False
    indicators: bool = False

    def to_dict(self) -> dict[str, JSON]:
        """Ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Schema:
        """The inverse of `to_dict`."""

        def column(entry: Mapping[str, Any]) -> Column:
            lists = {
                name: tuple(entry[name])
                for name in ("categories", "cycles")
                if entry.get(name) is not None
            }
            return Column(**{**entry, **lists})

        return cls(**{**stored, "columns": tuple(map(column, stored["columns"]))})

    def with_fill_values(self, table: Table, rows: np.ndarray) -> Schema:
        """With the medians and most frequent categories of these rows, where it imputes."""
        if not self.impute:
            return self

        def filled(column: Column) -> Column:
            values = self._values(table, column)
            present = ~values.is_missing[rows]
            if not np.any(present):
                remedy = table.remedies.of(table.remedies.drop, column.name)
                table.refuse(f"the column {column.name!r} is empty", remedy=remedy)
            has_indicator = self.indicators and not np.all(present)
            if column.categories is None:
                numbers = values.numbers if column.cycles is None else values.dates
                assert numbers is not None
                fill: float | str = float(np.median(numbers[rows][present]))
            else:
                names, counts = np.unique(values.text[rows][present], return_counts=True)
                fill = str(names[np.argmax(counts)])
            return dataclasses.replace(column, fill=fill, has_indicator=has_indicator)

        return dataclasses.replace(self, columns=tuple(map(filled, self.columns)))

    def encode(self, raw: RawTable, notify: Notify = lambda note: None) -> pd.DataFrame:
        """A file as columns of numbers; `notify` gets notes for the user."""
        from bayeslearn.tabular.pandas_parts import pd

        encoded = self.numbers(raw, notify)
        return pd.DataFrame(encoded, index=pd.RangeIndex(raw.num_rows), dtype=np.float64)

    def numbers(self, table: Table, notify: Notify = lambda note: None) -> dict[str, np.ndarray]:
        """A table as columns of numbers by name; all of its problems are one error."""
        known = set(table.names)
        missing = [column.name for column in self.columns if column.name not in known]
        if missing:
            must = f"have the {len(self.columns)} columns of the training table"
            verb = "is" if len(missing) == 1 else "are"
            table.refuse(f"{join_names(missing)} {verb} missing", must)
        encoded: dict[str, np.ndarray] = {}
        filled: list[str] = []
        problems = problems_of(table)
        for column in self.columns:
            with problems.collected():
                values = self._values(table, column)
                if column.fill is not None and np.any(values.is_missing):
                    filled.append(f"{column.name!r} ({int(np.sum(values.is_missing))})")
                for name, numbers in self._encoded(table, column, values, problems, notify).items():
                    while name in encoded:  # a column called like another's category
                        name += "_"
                    encoded[name] = numbers
        problems.raise_all()
        if filled:
            notify(f"Missing values were imputed: {join_names(filled, quoted=False)}.")
        return encoded

    def read_target(self, table: Table, classes: np.ndarray | None) -> np.ndarray:
        """The target of a new table, as the estimator takes it; `classes` are its labels."""
        if self.target not in table.names:
            table.refuse(f"{self.target!r} is missing", "have the target beside the other columns")
        values = table.values(self.target)
        check_present(table, self.target, values, "Drop the rows without a target.")
        if classes is not None:
            is_whole = classes.dtype.kind in "iu" and not np.any(np.isnan(values.numbers))
            return values.numbers.astype(np.int64) if is_whole else values.text.astype(str)
        problems = problems_of(table)
        check_numbers(table, self.target, values, problems)
        problems.raise_all()
        return values.numbers

    def _values(self, table: Table, column: Column) -> ColumnValues:
        values = table.values(column.name, column.decimal, column.day_first)
        return _without_infinite(values) if self.impute else values

    def _encoded(
        self,
        table: Table,
        column: Column,
        values: ColumnValues,
        problems: Problems,
        notify: Notify,
    ) -> dict[str, np.ndarray]:
        """The columns of numbers that one column becomes."""
        if column.fill is None:
            with problems.collected():
                check_present(table, column.name, values)
        if column.categories is not None:
            new = self._categories(table, column, values, notify)
        elif column.cycles is not None:
            days = dates_of(table, column.name, values)
            new = dates.features(column.name, _imputed(days, column, values), column.cycles)
        else:
            check_numbers(table, column.name, values, problems)
            check_unit(table, column.name, column.unit, values)
            new = {column.name: _imputed(values.numbers, column, values)}
        if column.has_indicator:
            new[column.name + MISSING_SUFFIX] = values.is_missing.astype(np.float64)
        return new

    def _categories(
        self, table: Table, column: Column, values: ColumnValues, notify: Notify
    ) -> dict[str, np.ndarray]:
        text = np.where(values.is_missing, str(column.fill), values.text)
        known = column.categories or ()
        place = {name: float(i) for i, name in enumerate(known)}
        codes = np.array([place.get(name, -1.0) for name in text])
        is_unseen = codes < 0
        if np.any(is_unseen):
            names = sorted({str(name) for name in text[is_unseen]})
            treated = "0 in all its columns" if self.encoding == "one-hot" else "the middle rank"
            notify(
                f"The column {column.name!r} holds {join_names(names)}, not seen in training"
                f" (first in {table.where(int(np.argmax(is_unseen)))}): encoded as {treated}."
            )
        if self.encoding == "ordinal":
            return {column.name: np.where(is_unseen, (len(known) - 1) / 2, codes)}
        return {f"{column.name}={name}": codes == i for i, name in enumerate(known)}


def _imputed(numbers: np.ndarray, column: Column, values: ColumnValues) -> np.ndarray:
    return np.where(values.is_missing, column.fill or 0.0, numbers)


def _without_infinite(values: ColumnValues) -> ColumnValues:
    """With infinite numbers as missing ones."""
    return values._replace(is_missing=values.is_missing | np.isinf(values.numbers))


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
    found_target: tuple[np.ndarray, np.ndarray, str] | None = None
    with problems.collected():
        found_target = _target(raw, target, task, impute, notes.append)
    columns = learn_columns(raw, features, problems, categorical=categorical, impute=impute)
    problems.raise_all()
    assert found_target is not None
    rows, y, task = found_target
    schema = Schema(target, task, columns, encoding, impute or indicators, indicators)
    notes += column_notes.describe(raw, columns, encoding)
    notes += column_notes.suspicions(raw, columns, rows, y, target)
    width = sum(
        1 if c.categories is None or encoding == "ordinal" else len(c.categories) for c in columns
    )
    if len(y) < FEW_ROWS:
        notes.append(f"There are only {len(y)} rows: expect wide and imprecise intervals.")
    if width >= MANY_COLUMNS or width > len(y):
        notes.append(
            f"There are {width} columns for {len(y)} rows: fitting is slow, and the prior decides"
            " much. Drop columns that do not matter with --drop."
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
    for argument, given in (("target", [target]), ("categorical", categorical), ("drop", drop)):
        for name in given:
            if name not in names:
                refuse(argument, name, f"be a column of {raw.path}: {join_names(names, limit=12)}")
    if target in drop:
        refuse("drop", target, "leave the target")
    number = raw.num_rows
    if number < MIN_ROWS:
        what = f"it has {number} row{'s' if number > 1 else ''}" if number else "it has no rows"
        raw.refuse(f"{what} below its header", f"have at least {MIN_ROWS} rows")


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
    values = _without_infinite(values) if impute else values
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
            return Column(name, decimal=values.decimal, unit=values.unit)
    found = tuple(sorted({str(text) for text in values.text[present]}))
    if len(found) > MAX_CATEGORIES and not is_categorical and not values.is_categorical:
        shown = join_names(found[:2])
        table.refuse(
            f"{name!r} holds {len(found)} different texts, such as {shown}",
            f"hold numbers, or at most {MAX_CATEGORIES} categories in a column",
            remedies.of(remedies.keep, name),
        )
    return Column(name, found)


def _target(
    raw: RawTable, name: str, task: str, impute: bool, notify: Notify
) -> tuple[np.ndarray, np.ndarray, str]:
    values = raw.values(name)
    values = _without_infinite(values) if impute else values
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
        notify(f"The target {name!r} holds {contents}: {task}. Override with --task.")
    if task == "regression":
        return rows, numbers, task
    if len(found) > len(rows) // 2:
        must = "have a target with fewer classes than half its rows"
        raw.refuse(f"{len(found)} classes in {len(rows)} rows of {name!r}", must)
    is_whole = is_numeric and bool(np.all(numbers == np.round(numbers)))
    return rows, numbers.astype(np.int64) if is_whole else text.astype(str), task
