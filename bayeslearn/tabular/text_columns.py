"""What the cells of a column are: numbers in some format, dates, or text."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from bayeslearn.tabular import dates, number_formats
from bayeslearn.tabular.columns import NEW, ColumnValues, Written
from bayeslearn.tabular.number_formats import Readings

PER_CENT = "%"


def established_decimals(columns: Iterable[ColumnValues], separator: str) -> frozenset[str]:
    """The decimal separators of columns that can be read in one way alone."""
    found: set[str] = set()
    for column in columns:
        readings = _readings(column, is_doubtful=separator == ";")
        if readings is not None and len(readings.decimals) == 1:
            found |= set(readings.decimals)
    return frozenset(found)


def _readings(column: ColumnValues, is_doubtful: bool) -> Readings | None:
    """Both readings of the cells that are there.

    None where they are plain numbers with points, unless that is doubtful, and where they are text.
    """
    present = ~column.is_missing
    text, numbers = column.text[present], column.numbers[present]
    if not len(text) or column.dates is not None:
        return None
    is_plain = not np.any(np.isnan(numbers))
    if is_plain and not (is_doubtful and any("." in cell for cell in text)):
        return None
    readings = number_formats.read_both(text)
    is_number = ~np.isnan(readings.point) | ~np.isnan(readings.comma)
    return readings if np.mean(is_number | ~np.isnan(numbers)) > 0.5 else None


def read(
    column: ColumnValues,
    name: str,
    where: Callable[[int], str],
    written: Written = NEW,
    *,
    decimal: str = "",
    established: frozenset[str] = frozenset(),
    separator: str = "",
) -> ColumnValues:
    """A column of text with its numbers or dates.

    Where there are two readings, `decimal` decides, then what the training table has `written`;
    `established` are the decimal separators of the table's other columns.
    """
    is_doubtful = separator == ";" or "," in established or "," in (decimal, written.decimal)
    readings = _readings(column, is_doubtful)
    present = ~column.is_missing
    if readings is None:
        is_text = np.any(present) and np.mean(np.isnan(column.numbers[present])) > 0.5
        if is_text:
            return _with_dates(column, name, where, written.day_first)
        has_point = separator and any("." in cell for cell in column.text[present])
        return column._replace(decimal=".") if has_point else column
    text = column.text[present]
    evidence = number_formats.Evidence(decimal, written, established, separator)
    choice = number_formats.choose(readings, text, evidence)
    rows = np.flatnonzero(present)
    if choice.decimal is None:
        place = where(int(rows[choice.first]))
        what, remedy = number_formats.describe_ambiguity(
            text[choice.first], place, name, written.decimal
        )
        column = column._replace(ambiguity=what, ambiguity_remedy=remedy)
    elif choice.first >= 0 or len(readings.decimals) == 1:
        column = column._replace(decimal=choice.decimal, has_two_readings=choice.first >= 0)
    numbers = column.numbers.copy()
    found = readings.numbers(choice.decimal or ".")
    infinite = np.isinf(numbers[present])  # written as text
    numbers[present] = np.where(infinite, numbers[present], found)
    units = [unit for unit in readings.units if unit]
    if len(units) > 1 or (PER_CENT in units and "" in readings.units):
        shown = " and ".join(repr(unit) for unit in units)
        shown += " beside numbers without it" if len(units) == 1 else ""
        column = column._replace(
            ambiguity=f"the column {name!r} holds {shown}",
            ambiguity_remedy="Write all of its numbers in one unit.",
        )
    return column._replace(numbers=numbers, unit=units[0] if units else "")


def _with_dates(
    column: ColumnValues, name: str, where: Callable[[int], str], day_first: bool | None
) -> ColumnValues:
    """The column with its dates, if that is what most cells are."""
    if column.dates is not None or column.is_categorical:
        return column
    present = ~column.is_missing
    text = column.text[present]
    found = dates.read_dates(text, day_first)
    is_date = ~np.isnan(found.days)
    if np.mean(is_date) <= 0.5:
        return column
    days = np.full(len(column.text), np.nan)
    days[present] = found.days
    column = column._replace(dates=days, day_first=found.day_first)
    if not found.is_ambiguous:
        return column
    first = int(np.argmax([bool(dates.NUMERIC.fullmatch(cell)) for cell in text]))
    place = where(int(np.flatnonzero(present)[first]))
    return column._replace(
        ambiguity=f"{text[first]!r} in {place} of the column {name!r} can be read with the day or"
        " with the month first",
        ambiguity_remedy="Use --dates day-first or --dates month-first.",
    )
