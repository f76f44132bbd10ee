"""Columns of a file as numbers that an estimator takes."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bayeslearn.errors import refuse
from bayeslearn.tabular.files import ColumnValues, RawTable, column_values, join_names
from bayeslearn.tabular.json_values import JSON
from bayeslearn.tabular.pandas_parts import pd
from bayeslearn.tabular.task import TASKS, detect_task

MAX_CATEGORIES = 50  # a text column with more is a name or a number in disguise
MIN_ROWS = 4
FEW_ROWS = 50
MANY_COLUMNS = 500
ENCODINGS = ("one-hot", "ordinal")
FILL = "Fill it in, or fit with --impute (the median, or the most frequent category)."
Notify = Callable[[str], object]


@dataclasses.dataclass(frozen=True)
class Column:
    """One input column."""

    name: str
    categories: tuple[str, ...] | None = None  # None: numbers
    fill: float | str | None = None  # replaces a missing value


@dataclasses.dataclass(frozen=True)
class Schema:
    """The columns of a table, by which a new file is encoded in the same way."""

    target: str
    task: str
    columns: tuple[Column, ...]
    encoding: str = "one-hot"
    impute: bool = False

    def to_dict(self) -> dict[str, JSON]:
        """Ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Schema:
        """The inverse of `to_dict`."""
        columns = tuple(
            Column(
                c["name"], None if c["categories"] is None else tuple(c["categories"]), c["fill"]
            )
            for c in stored["columns"]
        )
        return cls(**{**stored, "columns": columns})

    def with_fill_values(self, raw: RawTable, rows: np.ndarray) -> Schema:
        """With the medians and most frequent categories of these rows, where it imputes."""
        if not self.impute:
            return self

        def filled(column: Column) -> Column:
            values = column_values(raw, column.name, self.impute)
            present = ~values.is_missing[rows]
            if not np.any(present):
                raw.refuse(f"the column {column.name!r} is empty", remedy=_drop(column.name))
            if column.categories is None:
                numbers = values.numbers[rows][present]
                return dataclasses.replace(column, fill=float(np.median(numbers)))
            names, counts = np.unique(values.text[rows][present], return_counts=True)
            return dataclasses.replace(column, fill=str(names[np.argmax(counts)]))

        return dataclasses.replace(self, columns=tuple(map(filled, self.columns)))

    def encode(self, raw: RawTable, notify: Notify = lambda note: None) -> pd.DataFrame:
        """The file as columns of numbers; `notify` gets notes for the user."""
        known = set(raw.cells.columns)
        missing = [column.name for column in self.columns if column.name not in known]
        if missing:
            must = f"have the {len(self.columns)} columns of the training table"
            verb = "is" if len(missing) == 1 else "are"
            raw.refuse(f"{join_names(missing)} {verb} missing", must)
        encoded: dict[str, np.ndarray] = {}
        filled = []
        for column in self.columns:
            values = column_values(raw, column.name, self.impute)
            if column.fill is not None and np.any(values.is_missing):
                filled.append(f"{column.name!r} ({int(np.sum(values.is_missing))})")
            if column.categories is None:
                new = {column.name: self._numbers(raw, column, values)}
            else:
                new = self._categories(raw, column, values, notify)
            for name, numbers in new.items():
                while name in encoded:  # a column called like another's category
                    name += "_"
                encoded[name] = numbers
        if filled:
            notify(f"Missing values were imputed: {join_names(filled, quoted=False)}.")
        return pd.DataFrame(encoded, index=pd.RangeIndex(len(raw.cells)), dtype=np.float64)

    def _numbers(self, raw: RawTable, column: Column, values: ColumnValues) -> np.ndarray:
        _check_numbers(raw, column.name, values)
        if column.fill is None:
            _check_present(raw, column.name, values)
        return np.where(values.is_missing, column.fill or 0.0, values.numbers)

    def _categories(
        self, raw: RawTable, column: Column, values: ColumnValues, notify: Notify
    ) -> dict[str, np.ndarray]:
        if column.fill is None:
            _check_present(raw, column.name, values)
        text = np.where(values.is_missing, str(column.fill), values.text)
        known = column.categories or ()
        codes = pd.Index(known, dtype=object).get_indexer(text).astype(np.float64)
        is_unseen = codes < 0
        if np.any(is_unseen):
            names = sorted({str(name) for name in text[is_unseen]})
            treated = "0 in all its columns" if self.encoding == "one-hot" else "the middle rank"
            notify(
                f"The column {column.name!r} holds {join_names(names)}, not seen in training"
                f" (first in {raw.where(int(np.argmax(is_unseen)))}): encoded as {treated}."
            )
        if self.encoding == "ordinal":
            return {column.name: np.where(is_unseen, (len(known) - 1) / 2, codes)}
        return {f"{column.name}={name}": codes == i for i, name in enumerate(known)}


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
    encoding: str = "one-hot",
) -> LearnedTable:
    """The schema of a file, and its target.

    Columns in `categorical` hold categories whatever they look like; those in `drop` are not used.
    """
    _check_arguments(raw, target, task, categorical, drop, encoding)
    notes = list(raw.notes)
    rows, y, task = _target(raw, target, task, impute, notes.append)
    features = [name for name in raw.cells.columns if name != target and name not in drop]
    if not features:
        raw.refuse("it has no column but the target", "have a target and at least one other column")
    columns = tuple(_column(raw, name, name in categorical, impute) for name in features)
    schema = Schema(target, task, columns, encoding, impute)
    width = sum(
        1 if c.categories is None or encoding == "ordinal" else len(c.categories) for c in columns
    )
    found = [f"{c.name!r} ({len(c.categories)})" for c in columns if c.categories is not None]
    if found:
        notes.append(f"Categorical columns, {encoding}: {join_names(found, quoted=False)}.")
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
    names = list(raw.cells.columns)
    for argument, given in (("target", [target]), ("categorical", categorical), ("drop", drop)):
        for name in given:
            if name not in names:
                refuse(argument, name, f"be a column of {raw.path}: {join_names(names, limit=12)}")
    if target in drop:
        refuse("drop", target, "leave the target")
    number = len(raw.cells)
    if number < MIN_ROWS:
        what = f"it has {number} row{'s' if number > 1 else ''}" if number else "it has no rows"
        raw.refuse(f"{what} below its header", f"have at least {MIN_ROWS} rows")


def _column(raw: RawTable, name: str, categorical: bool, impute: bool) -> Column:
    values = column_values(raw, name, impute)
    present = ~values.is_missing
    if not np.any(present):
        raw.refuse(f"the column {name!r} is empty", "have a value in every cell", _drop(name))
    if not impute:
        _check_present(raw, name, values)
    fraction = np.mean(~np.isnan(values.numbers[present]))
    if fraction > 0.5 and not categorical:
        _check_numbers(raw, name, values)
        return Column(name)
    found = tuple(sorted({str(text) for text in values.text[present]}))
    if len(found) > MAX_CATEGORIES and not categorical:
        shown = join_names(found[:2])
        raw.refuse(
            f"{name!r} holds {len(found)} different texts, such as {shown}",
            f"hold numbers, or at most {MAX_CATEGORIES} categories in a column",
            f"Drop it with --drop {_flag(name)}, or keep it with --categorical {_flag(name)}.",
        )
    return Column(name, found)


def _check_numbers(raw: RawTable, name: str, values: ColumnValues) -> None:
    """Every value there must be a finite number."""
    for is_bad, what, remedy in (
        (~values.is_missing & np.isnan(values.numbers), "a number", "Correct it"),
        (
            np.isinf(values.numbers) & ~values.is_missing,
            "a finite number",
            "Correct it, or fit with --impute",
        ),
    ):
        if np.any(is_bad):
            row = int(np.argmax(is_bad))
            must = f"hold {what} in every cell of the column {name!r}"
            text = str(values.text[row])
            if what == "a number":
                remedy += f", or take the column as categories with --categorical {_flag(name)}"
            raw.refuse(f"{text[:80]!r} in {raw.where(row)}", must, remedy + ".")


def _check_present(raw: RawTable, name: str, values: ColumnValues, remedy: str = FILL) -> None:
    if not np.any(values.is_missing):
        return
    row, number = int(np.argmax(values.is_missing)), int(np.sum(values.is_missing))
    more = f" and {number - 1} more" if number > 1 else ""
    must = f"have a value in every cell of the column {name!r}"
    raw.refuse(f"a missing value in {raw.where(row)}{more}", must, remedy)


def _target(
    raw: RawTable, name: str, task: str, impute: bool, notify: Notify
) -> tuple[np.ndarray, np.ndarray, str]:
    values = column_values(raw, name, impute)
    if impute and np.any(values.is_missing):
        notify(f"{int(np.sum(values.is_missing))} rows have no target and are dropped.")
    else:
        _check_present(raw, name, values, "Rows without a target are dropped with --impute.")
    rows = np.flatnonzero(~values.is_missing)
    if len(rows) < MIN_ROWS:
        raw.refuse(f"{len(rows)} rows have a target", f"have at least {MIN_ROWS} of them")
    text, numbers = values.text[rows], values.numbers[rows]
    fraction = np.mean(~np.isnan(numbers))
    if task == "regression" or (task == "auto" and fraction > 0.5):
        _check_numbers(raw, name, values)
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


def _flag(name: str) -> str:
    """A column's name as it is typed on a command line."""
    return shlex.quote(name)


def _drop(name: str) -> str:
    return f"Drop it with --drop {_flag(name)}."
