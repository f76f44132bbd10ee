"""The columns of a training table, by which new ones are encoded alike. Needs NumPy alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from bayeslearn.tabular import dates
from bayeslearn.tabular.cell_checks import check_numbers, check_present, check_unit, dates_of
from bayeslearn.tabular.columns import (
    ColumnValues,
    Problems,
    Table,
    Written,
    join_names,
    problems_of,
)
from bayeslearn.tabular.json_values import JSON

if TYPE_CHECKING:
    import pandas as pd

    from bayeslearn.tabular.files import RawTable

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
    decimal: str = ""  # separator of its numbers; "": nothing showed which
    day_first: bool | None = None  # of dates with two readings
    unit: str = ""
    has_two_readings: bool = False  # of its numbers, of which `decimal` was chosen

    @property
    def written(self) -> Written:
        """How its cells are read."""
        return Written(self.decimal, self.day_first)

    @classmethod
    def of_numbers(cls, name: str, values: ColumnValues) -> Column:
        """A column of numbers as it is written."""
        return cls(
            name,
            decimal=values.decimal,
            unit=values.unit,
            has_two_readings=values.has_two_readings,
        )


@dataclasses.dataclass(frozen=True)
class Schema:
    """The columns of a table, by which a new one is encoded in the same way."""

    target: str
    task: str
    columns: tuple[Column, ...]
    encoding: str = "one-hot"
    impute: bool = False
    indicators: bool = False
    separator: str | None = None  # of the file's cells; None: unknown, as before 0.3
    target_column: Column | None = None  # how the target was written; None: unknown, or classes

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

        target = stored.get("target_column")
        return cls(
            **{
                **stored,
                "columns": tuple(map(column, stored["columns"])),
                "target_column": None if target is None else column(target),
            }
        )

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
        problems = problems_of(table)
        if missing:
            must = f"have the {len(self.columns)} columns of the training table"
            verb = "is" if len(missing) == 1 else "are"
            with problems.collected():
                table.refuse(f"{join_names(missing)} {verb} missing", must)
            problems.raise_all()
        encoded: dict[str, np.ndarray] = {}
        filled: list[str] = []
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
        written = self.target_column
        values = table.values(self.target, self._written(written or Column(self.target)))
        check_present(table, self.target, values, "Drop the rows without a target.")
        if classes is not None:
            is_whole = classes.dtype.kind in "iu" and not np.any(np.isnan(values.numbers))
            return values.numbers.astype(np.int64) if is_whole else values.text.astype(str)
        problems = problems_of(table)
        check_numbers(table, self.target, values, problems)
        problems.raise_all()
        if written is not None:
            check_unit(table, self.target, written.unit, values)
        return values.numbers

    def _written(self, column: Column) -> Written:
        """How a column was written; whole numbers as the rest of the table."""
        written = column.written._replace(separator=self.separator)
        if written.decimal or self.separator is None:
            return written
        known = [*self.columns, *([self.target_column] if self.target_column else [])]
        decimals = {other.decimal for other in known if other.decimal}
        return written._replace(decimal=decimals.pop() if len(decimals) == 1 else "")

    def _values(self, table: Table, column: Column) -> ColumnValues:
        values = table.values(column.name, self._written(column))
        return without_infinite(values) if self.impute else values

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


def without_infinite(values: ColumnValues) -> ColumnValues:
    """With infinite numbers as missing ones."""
    return values._replace(is_missing=values.is_missing | np.isinf(values.numbers))
