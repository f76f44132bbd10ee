"""What every cell of a column must be; each refusal names the first cell that is not."""

from __future__ import annotations

import numpy as np

from bayeslearn.tabular.columns import ColumnValues, Problems, Table


def check_numbers(table: Table, name: str, values: ColumnValues, problems: Problems) -> None:
    """Every value there must be a finite number with one reading."""
    remedies = table.remedies
    if values.ambiguity:
        with problems.collected():
            must = f"hold numbers that can be read in one way in the column {name!r}"
            table.refuse(values.ambiguity, must, values.ambiguity_remedy)
        return
    is_bad = ~values.is_missing & np.isnan(values.numbers)
    is_infinite = ~values.is_missing & np.isinf(values.numbers)
    for bad, what, remedy in (
        (is_bad, "a number", f"Correct it{remedies.of(remedies.categorical, name)}."),
        (is_infinite, "a finite number", f"Correct it{remedies.impute.partition(' (')[0]}."),
    ):
        if np.any(bad):
            with problems.collected():
                row, more = int(np.argmax(bad)), int(np.sum(bad)) - 1
                must = f"hold {what} in every cell of the column {name!r}"
                place = table.where(row) + (f" and {more} more" if more else "")
                table.refuse(f"{str(values.text[row])[:80]!r} in {place}", must, remedy)


def dates_of(table: Table, name: str, values: ColumnValues) -> np.ndarray:
    """Days since 1970; every value there must be a date."""
    if values.dates is None:
        row = int(np.argmax(~values.is_missing))
        what = f"{str(values.text[row])[:80]!r} in {table.where(row)}"
        table.refuse(what, f"hold dates in the column {name!r}", "Correct it.")
    is_bad = ~values.is_missing & np.isnan(values.dates)
    if values.ambiguity:
        must = f"hold dates that can be read in one way in the column {name!r}"
        table.refuse(values.ambiguity, must, values.ambiguity_remedy)
    if np.any(is_bad):
        row, more = int(np.argmax(is_bad)), int(np.sum(is_bad)) - 1
        place = table.where(row) + (f" and {more} more" if more else "")
        must = f"hold a date in every cell of the column {name!r}"
        remedy = f"Correct it{table.remedies.of(table.remedies.categorical, name)}."
        table.refuse(f"{str(values.text[row])[:80]!r} in {place}", must, remedy)
    return values.dates


def check_unit(table: Table, name: str, unit: str, values: ColumnValues) -> None:
    """Per cent and fractions are a factor of a hundred apart, and so may two currencies be."""
    if values.unit == unit or not ((unit and values.unit) or "%" in (values.unit, unit)):
        return
    if np.all(values.is_missing):
        return
    here, there = (f"with {u!r}" if u else "without unit" for u in (values.unit, unit))
    must = f"be written as in the training table, {there}"
    table.refuse(f"the column {name!r} has numbers {here}", must, "Convert the column.")


def check_present(table: Table, name: str, values: ColumnValues, remedy: str = "") -> None:
    """No value may be missing."""
    if not np.any(values.is_missing):
        return
    row, number = int(np.argmax(values.is_missing)), int(np.sum(values.is_missing))
    more = f" and {number - 1} more" if number > 1 else ""
    must = f"have a value in every cell of the column {name!r}"
    what = f"a missing value in {table.where(row)}{more}"
    table.refuse(what, must, remedy or f"Fill it in{table.remedies.impute}.")
