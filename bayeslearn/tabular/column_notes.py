"""What a user should know about the columns of a table. Nothing here changes how it is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bayeslearn.tabular import dates
from bayeslearn.tabular.columns import ColumnValues, Table, join_names

if TYPE_CHECKING:
    from bayeslearn.tabular.schema import Column

RARE = 5  # rows of a class, or of a category
SENTINELS = {-1.0, *(float(sign * int("9" * n)) for n in (2, 3, 4, 5, 6) for sign in (1, -1))}
FAR = 3.0  # ranges of the other values, for a code of a missing value
COPY = 1.0 - 1e-9  # correlation
FACTOR = 6364136223846793005  # odd, of hashes


def describe(table: Table, columns: Sequence[Column], encoding: str) -> list[str]:
    """How columns are read."""
    notes = []
    found = [f"{c.name!r} ({len(c.categories)})" for c in columns if c.categories is not None]
    if found:
        notes.append(f"Categorical columns, {encoding}: {join_names(found, quoted=False)}.")
    found = []
    for column in columns:
        if column.cycles is not None:
            names = list(dates.features(column.name, np.zeros(1), column.cycles))
            found.append(f"{column.name!r} ({join_names(names, limit=7, quoted=False)})")
    if found:
        notes.append(f"Dates, as days since 1970 and their cycles: {join_names(found, 20, False)}.")
    units = [f"{c.name!r} ({c.unit})" for c in columns if c.unit]
    if units:
        notes.append(f"Read as numbers without their unit: {join_names(units, 20, False)}.")
    negative = [
        c.name
        for c in columns
        if c.categories is None and c.cycles is None and _has_parentheses(table.values(c.name))
    ]
    if negative:
        notes.append(f"Numbers in parentheses are read as negative: {join_names(negative, 20)}.")
    for decimal, word in ((".", "points"), (",", "commas")):
        names = [
            column.name
            for column in columns
            if column.decimal == decimal and column.has_two_readings
        ]
        if names:
            notes.append(
                f"Numbers with decimal {word}, by --decimal, --thousands or the other"
                f" columns: {join_names(names)}."
            )
    return notes


def suspicions(
    table: Table, columns: Sequence[Column], rows: np.ndarray, y: np.ndarray, target: str
) -> list[str]:
    """What may be a mistake: identifiers, constants, copies of the target, rare classes, codes."""
    constant, copies, counting, codes, rare = [], [], [], [], []
    notes = []
    for column in columns:
        values = table.values(column.name, column.written)
        if column.categories is not None:
            is_constant = len(column.categories) == 1
            _, counts = np.unique(values.text[~values.is_missing], return_counts=True)
            if len(column.categories) > 2 and np.any(counts < RARE):
                rare.append(column.name)
            notes += _same_but_for_case(column)
        else:
            numbers = values.numbers if column.cycles is None else values.dates
            assert numbers is not None
            present = numbers[~values.is_missing & np.isfinite(numbers)]
            is_constant = len(present) > 0 and bool(np.all(present == present[0]))
            if column.cycles is None and not is_constant:
                if _counts(present) or _is_identifier(column.name, present):
                    counting.append(column.name)
                notes += _codes(column.name, values)
                codes += [column.name] if _has_leading_zeros(values) else []
        if is_constant:
            constant.append(column.name)
        elif any(_is_copy(column, values, rows, own) for own in y.reshape(len(rows), -1).T):
            copies.append(column.name)
    for names, what in (
        (constant, "Columns with one value in every row, which teach nothing"),
        (
            copies,
            f"Columns that follow from the target {target!r}, to be dropped unless they are"
            " known when predicting",
        ),
        (counting, "Columns that may be identifiers, whole numbers of which no two are alike"),
        (codes, "Numbers with leading zeros, such as codes, which are better taken as text"),
        (rare, f"Columns with categories of fewer than {RARE} rows"),
    ):
        if names:
            notes.append(f"{what}: {join_names(names)}.")
    if y.dtype.kind not in "f":
        labels, counts = np.unique(y, return_counts=True)
        few = [f"{str(label)!r} ({n})" for label, n in zip(labels, counts, strict=True) if n < RARE]
        if few:
            notes.append(f"Classes with fewer than {RARE} rows: {join_names(few, quoted=False)}.")
    number = _duplicates(table, columns, rows, y)
    if number:
        notes.append(
            f"{number} rows repeat an earlier one; equal rows can be training and test"
            " rows at once."
        )
    return notes


def _counts(numbers: np.ndarray) -> bool:
    """Whether it numbers the rows, in order."""
    is_whole = bool(np.all(numbers == np.floor(numbers)))
    return len(numbers) > 2 and is_whole and bool(np.all(np.diff(numbers) == 1))


def _is_identifier(name: str, numbers: np.ndarray) -> bool:
    words = name.lower().replace("-", "_").split("_")
    is_named = not {"id", "key", "uuid", "nr", "no"}.isdisjoint(words) or name.endswith("ID")
    is_whole = bool(np.all(numbers == np.floor(numbers)))
    return is_named and is_whole and len(np.unique(numbers)) == len(numbers)


def _has_leading_zeros(values: ColumnValues) -> bool:
    return any(
        isinstance(cell, str) and len(cell) > 1 and cell[0] == "0" and cell.isdigit()
        for cell in values.text[~values.is_missing]
    )


def _has_parentheses(values: ColumnValues) -> bool:
    return any(isinstance(cell, str) and "(" in cell for cell in values.text[~values.is_missing])


def _codes(name: str, values: ColumnValues) -> list[str]:
    """Values such as -999 that may stand for missing ones."""
    numbers = values.numbers[~values.is_missing & np.isfinite(values.numbers)]
    for end in (np.min(numbers), np.max(numbers)) if len(numbers) else ():
        others = numbers[numbers != end]
        number = len(numbers) - len(others)
        if end not in SENTINELS or number < 2 or len(np.unique(others)) < 3:
            continue
        gap = float(np.min(np.abs(others - end)))
        if gap > FAR * float(np.ptp(others)):
            return [
                f"The column {name!r} holds {end:g} in {number} rows, far from all others: if it"
                " stands for a missing value, leave those cells empty."
            ]
    return []


def _same_but_for_case(column: Column) -> list[str]:
    known: dict[str, str] = {}
    for name in column.categories or ():
        other = known.setdefault(" ".join(name.lower().split()), name)
        if other != name:
            return [
                f"The column {column.name!r} has categories that differ in case or spaces"
                f" alone, such as {other!r} and {name!r}."
            ]
    return []


def _is_copy(column: Column, values: ColumnValues, rows: np.ndarray, y: np.ndarray) -> bool:
    """Whether the column gives the target, or the target the column, by a line or one to one."""
    present = ~values.is_missing[rows] & ~np.isinf(values.numbers[rows])
    if np.sum(present) < 3:
        return False
    own = y[present]
    if column.categories is None and own.dtype.kind in "fi" and column.cycles is None:
        numbers, own = _scaled(values.numbers[rows][present]), _scaled(own)
        if np.ptp(numbers) == 0 or np.ptp(own) == 0:
            return False
        return abs(float(np.corrcoef(numbers, own)[0, 1])) > COPY
    if own.dtype.kind == "f" or column.categories is None:
        return False
    pairs = set(zip(values.text[rows][present].tolist(), own.tolist(), strict=True))
    return len(pairs) == len(np.unique(own)) == len({text for text, _ in pairs})


def _scaled(numbers: np.ndarray) -> np.ndarray:
    """Of size one, so that squares of numbers of any size are finite."""
    return numbers / max(float(np.max(np.abs(numbers))), float(np.finfo(np.float64).tiny))


def _duplicates(table: Table, columns: Sequence[Column], rows: np.ndarray, y: np.ndarray) -> int:
    """Rows that are equal to one before them, in all columns and the target, by their hashes."""
    found = np.array([hash(value) for value in map(str, y.tolist())], np.int64).astype(np.uint64)
    for c in columns:
        cells = table.values(c.name, c.written).text[rows].tolist()
        found = found * np.uint64(FACTOR) + np.fromiter(map(hash, cells), np.int64).astype(
            np.uint64
        )
    return len(found) - len(np.unique(found))
