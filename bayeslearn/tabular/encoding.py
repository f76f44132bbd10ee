"""Columns of a file as numbers that an estimator takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bayeslearn.errors import refuse
from bayeslearn.tabular.files import Raw, _listed, _Values, _values
from bayeslearn.tabular.pandas_parts import pd

MOST_CATEGORIES = 50  # a text column with more is a name or a number in disguise
MOST_CLASSES = 20  # of whole numbers taken for classes
LEAST_ROWS = 4
FEW_ROWS = 50
MANY_COLUMNS = 500
TASKS = ("regression", "classification")
ENCODINGS = ("one-hot", "ordinal")
FILL = "Fill it in, or fit with --impute (the median, or the most frequent category)."


@dataclasses.dataclass(frozen=True)
class Column:
    name: str
    categories: tuple[str, ...] | None = None  # None: numbers
    fill: float | str | None = None  # stands for a missing value


@dataclasses.dataclass(frozen=True)
class Table:
    """What is remembered of a table, so that a new file is read in the same way."""

    target: str
    task: str
    columns: tuple[Column, ...]
    encoding: str = "one-hot"
    impute: bool = False

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Table:
        columns = tuple(
            Column(
                c["name"], None if c["categories"] is None else tuple(c["categories"]), c["fill"]
            )
            for c in given["columns"]
        )
        return cls(**{**given, "columns": columns})

    def filled_from(self, raw: Raw, rows: np.ndarray) -> Table:
        """With the medians and most frequent categories of these rows, where it is to impute."""
        if not self.impute:
            return self

        def filled(column: Column) -> Column:
            values = _values(raw, column.name, self.impute)
            there = ~values.is_missing[rows]
            if not np.any(there):
                raw.bad(f"the column {column.name!r} is empty", remedy=_drop(column.name))
            if column.categories is None:
                numbers = values.numbers[rows][there]
                return dataclasses.replace(column, fill=float(np.median(numbers)))
            names, counts = np.unique(values.text[rows][there], return_counts=True)
            return dataclasses.replace(column, fill=str(names[np.argmax(counts)]))

        return dataclasses.replace(self, columns=tuple(map(filled, self.columns)))

    def encode(self, raw: Raw, notes: Callable[[str], Any] = lambda note: None) -> pd.DataFrame:
        """The file as columns of numbers; `notes` is told what a person should know."""
        there = set(raw.cells.columns)
        gone = [column.name for column in self.columns if column.name not in there]
        if gone:
            must = f"have the columns of the table that was learned from ({len(self.columns)})"
            raw.bad(f"{_listed(gone)} {'is' if len(gone) == 1 else 'are'} missing", must)
        made: dict[str, np.ndarray] = {}
        filled = []
        for column in self.columns:
            values = _values(raw, column.name, self.impute)
            if column.fill is not None and np.any(values.is_missing):
                filled.append(f"{column.name!r} ({int(np.sum(values.is_missing))})")
            if column.categories is None:
                new = {column.name: self._numbers(raw, column, values)}
            else:
                new = self._categories(raw, column, values, notes)
            for name, column_values in new.items():
                while name in made:  # a column called like another's category
                    name += "_"
                made[name] = column_values
        if filled:
            notes(f"Missing values were filled in: {_listed(filled, quoted=False)}.")
        return pd.DataFrame(made, index=pd.RangeIndex(len(raw.cells)), dtype=np.float64)

    def _numbers(self, raw: Raw, column: Column, values: _Values) -> np.ndarray:
        _check_numbers(raw, column.name, values)
        if column.fill is None:
            _check_there(raw, column.name, values)
        return np.where(values.is_missing, column.fill or 0.0, values.numbers)

    def _categories(
        self, raw: Raw, column: Column, values: _Values, notes: Callable[[str], Any]
    ) -> dict[str, np.ndarray]:
        if column.fill is None:
            _check_there(raw, column.name, values)
        text = np.where(values.is_missing, str(column.fill), values.text)
        known = column.categories or ()
        codes = pd.Index(known, dtype=object).get_indexer(text).astype(np.float64)
        is_unseen = codes < 0
        if np.any(is_unseen):
            names = sorted({str(name) for name in text[is_unseen]})
            treated = "0 in all its columns" if self.encoding == "one-hot" else "the middle rank"
            notes(
                f"The column {column.name!r} holds {_listed(names)}, unknown when the table was"
                f" learned (first in {raw.where(int(np.argmax(is_unseen)))}): {treated}."
            )
        if self.encoding == "ordinal":
            return {column.name: np.where(is_unseen, (len(known) - 1) / 2, codes)}
        return {f"{column.name}={name}": codes == i for i, name in enumerate(known)}


class Learned(NamedTuple):
    table: Table
    y: np.ndarray
    rows: np.ndarray  # of the file, those with a target
    notes: tuple[str, ...]


def learn(
    raw: Raw,
    target: str,
    *,
    task: str = "auto",
    categorical: Sequence[str] = (),
    drop: Sequence[str] = (),
    impute: bool = False,
    encoding: str = "one-hot",
) -> Learned:
    """What each column is, and the target. `categorical` columns hold categories whatever they
    look like; those in `drop` are left out."""
    if task not in ("auto", *TASKS):
        refuse("task", task, "be 'auto', 'regression' or 'classification'")
    if encoding not in ENCODINGS:
        refuse("categories", encoding, "be 'one-hot' or 'ordinal'")
    names = list(raw.cells.columns)
    for argument, given in (("target", [target]), ("categorical", categorical), ("drop", drop)):
        for name in given:
            if name not in names:
                refuse(argument, name, f"be a column of {raw.path}: {_listed(names, most=12)}")
    if target in drop:
        refuse("drop", target, "leave the target")
    if len(raw.cells) < LEAST_ROWS:
        number = len(raw.cells)
        what = f"it has {number} row{'s' if number > 1 else ''}" if number else "it has no rows"
        raw.bad(f"{what} below its header", f"have at least {LEAST_ROWS} rows")
    notes = list(raw.notes)
    rows, y, task = _target(raw, target, task, impute, notes.append)
    features = [name for name in names if name != target and name not in drop]
    if not features:
        raw.bad("it has no column but the target", "have a target and at least one other column")
    columns = tuple(_column(raw, name, name in categorical, impute) for name in features)
    table = Table(target, task, columns, encoding, impute)
    width = sum(
        1 if c.categories is None or encoding == "ordinal" else len(c.categories) for c in columns
    )
    told = [f"{c.name!r} ({len(c.categories)})" for c in columns if c.categories is not None]
    if told:
        notes.append(f"Categories, {encoding}: {_listed(told, quoted=False)}.")
    if len(y) < FEW_ROWS:
        notes.append(f"There are only {len(y)} rows: expect wide and rough error bars.")
    if width >= MANY_COLUMNS or width > len(y):
        notes.append(
            f"There are {width} columns for {len(y)} rows: fitting is slow and much is left to the"
            " prior. Leave out columns that do not matter with --drop."
        )
    return Learned(table, y, rows, tuple(notes))


def _column(raw: Raw, name: str, categorical: bool, impute: bool) -> Column:
    values = _values(raw, name, impute)
    there = ~values.is_missing
    if not np.any(there):
        raw.bad(f"the column {name!r} is empty", "have a value in every cell", _drop(name))
    if not impute:
        _check_there(raw, name, values)
    share = np.mean(~np.isnan(values.numbers[there]))
    if share > 0.5 and not categorical:
        _check_numbers(raw, name, values)
        return Column(name)
    found = tuple(sorted({str(text) for text in values.text[there]}))
    if len(found) > MOST_CATEGORIES and not categorical:
        shown = _listed(found[:2])
        raw.bad(
            f"{name!r} holds {len(found)} different texts, such as {shown}",
            f"hold numbers, or at most {MOST_CATEGORIES} categories in a column",
            f"Leave it out with --drop {_flag(name)}, or keep it with --categorical {_flag(name)}.",
        )
    return Column(name, found)


def _check_numbers(raw: Raw, name: str, values: _Values) -> None:
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
            raw.bad(f"{text[:80]!r} in {raw.where(row)}", must, remedy + ".")


def _check_there(raw: Raw, name: str, values: _Values, remedy: str = FILL) -> None:
    if not np.any(values.is_missing):
        return
    row, number = int(np.argmax(values.is_missing)), int(np.sum(values.is_missing))
    more = f" and {number - 1} more" if number > 1 else ""
    must = f"have a value in every cell of the column {name!r}"
    raw.bad(f"a missing value in {raw.where(row)}{more}", must, remedy)


def _target(
    raw: Raw, name: str, task: str, impute: bool, notes: Callable[[str], Any]
) -> tuple[np.ndarray, np.ndarray, str]:
    values = _values(raw, name, impute)
    if impute and np.any(values.is_missing):
        notes(f"{int(np.sum(values.is_missing))} rows have no target and are left out.")
    else:
        _check_there(raw, name, values, "Rows without a target are left out with --impute.")
    rows = np.flatnonzero(~values.is_missing)
    if len(rows) < LEAST_ROWS:
        raw.bad(f"{len(rows)} rows have a target", f"have at least {LEAST_ROWS} of them")
    text, numbers = values.text[rows], values.numbers[rows]
    share = np.mean(~np.isnan(numbers))
    if task == "regression" or (task == "auto" and share > 0.5):
        _check_numbers(raw, name, values)
    is_numeric = share == 1 and bool(np.all(np.isfinite(numbers)))
    found = np.unique(numbers) if is_numeric else np.unique(text)
    if len(found) < 2:
        raw.bad(f"the target {name!r} is {text[0]!r} in every row", "have a target that varies")
    if task == "auto":
        task, held = detect_task(numbers if is_numeric else None, found)
        notes(f"The target {name!r} holds {held}: {task}. Another reading is chosen with --task.")
    if task == "regression":
        return rows, numbers, task
    if len(found) > len(rows) // 2:
        must = "have a target with fewer classes than half its rows"
        raw.bad(f"{len(found)} classes in {len(rows)} rows of {name!r}", must)
    is_whole = is_numeric and bool(np.all(numbers == np.round(numbers)))
    return rows, numbers.astype(np.int64) if is_whole else text.astype(str), task


def detect_task(numbers: np.ndarray | None, found: np.ndarray) -> tuple[str, str]:
    """What a target is for, and what it holds: `numbers`, or None for text; `found` are its values.

    Text, two numbers, or a count from 0 or 1 in which nothing is missing or alone are classes.
    """
    if numbers is None:
        return "classification", f"{len(found)} different texts"
    if len(found) == 2:
        return "classification", "two different numbers"
    _, counts = np.unique(numbers, return_counts=True)
    if (
        len(found) <= MOST_CLASSES
        and found[0] in (0, 1)
        and np.array_equal(found, found[0] + np.arange(len(found)))
        and np.min(counts) > 1
    ):
        told = f"the whole numbers {found[0]:g} to {found[-1]:g}, each more than once"
        return "classification", told
    return "regression", f"{len(found)} different numbers"


def _flag(name: str) -> str:
    """A column's name as it is typed on a command line."""
    import shlex

    return shlex.quote(name)


def _drop(name: str) -> str:
    return f"Leave it out with --drop {_flag(name)}."
