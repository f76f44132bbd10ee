"""Columns of a table as they come, whatever holds it: text, numbers, dates. Needs NumPy alone."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, NoReturn, Protocol

import numpy as np

from bayeslearn.errors import ArgumentError, Shown, refuse

MISSING = {"", "na", "n/a", "#n/a", "nan", "nat", "null", "none", "<na>", "?"}
MAX_LISTED = 40  # problems of one table


class ColumnValues(NamedTuple):
    """The cells of one column, read as text, as numbers and as dates."""

    text: np.ndarray
    numbers: np.ndarray  # NaN where there is none
    is_missing: np.ndarray
    dates: np.ndarray | None = None  # days since 1970-01-01, NaN where there is none
    is_categorical: bool = False  # by its type, whatever its values look like
    decimal: str = ""  # separator of the numbers; "": nothing shows which
    has_two_readings: bool = False  # of its numbers, of which `decimal` is the chosen one
    day_first: bool | None = None  # of a date that has two readings
    unit: str = ""  # a currency or "%", in every cell
    ambiguity: str = ""  # why neither of two readings was chosen
    ambiguity_remedy: str = ""


class Written(NamedTuple):
    """How a column was written in the training table."""

    decimal: str = ""  # "": unknown
    day_first: bool | None = None
    separator: str | None = None  # of the file's cells; None: unknown


NEW = Written()


@dataclasses.dataclass(frozen=True)
class Remedies:
    """How a user can deal with a column: options of a command, or of an estimator."""

    drop: str = "Drop the column {name}."
    keep: str = ""
    impute: str = ""
    categorical: str = ""
    rows: str = "Drop the rows without a target."

    def of(self, text: str, name: str) -> str:
        """One of them for a column."""
        return text.format(name=shlex.quote(name) if "--" in text else repr(name))


FIT = Remedies(
    "Drop it with --drop {name}.",
    "Drop it with --drop {name}, or keep it with --categorical {name}.",
    ", or fit with --impute (the median, or the most frequent category)",
    ", or take the column as categories with --categorical {name}",
    "Rows without a target are dropped with --impute.",
)
NEW_FILE = Remedies(impute=", or fit again with --impute")
ESTIMATOR = Remedies(
    keep='Drop it, or make it a categorical column to keep it: X[{name}].astype("category").',
    impute=', or set missing="impute" (the median, or the most frequent category)',
)


NEW_FRAME = Remedies(impute=', or fit again with missing="impute"')


class TableError(ArgumentError):
    """A table was refused, with the parts of the sentence."""

    def __init__(self, message: str, what: str, must: str, remedy: str):
        super().__init__(message)
        self.what, self.must, self.remedy = what, must, remedy


class Table(Protocol):
    """A table whose columns can be encoded."""

    @property
    def names(self) -> Sequence[str]:
        """Of all columns."""

    @property
    def num_rows(self) -> int:
        """How many rows there are."""

    @property
    def remedies(self) -> Remedies:
        """What to advise."""

    def values(self, name: str, written: Written = NEW) -> ColumnValues:
        """A column; of two readings of a number or a date the one of the training table."""

    def where(self, row: int) -> str:
        """Where a row is, in words."""

    def refuse(self, what: str, must: str = ..., remedy: str = ...) -> NoReturn:
        """Raise a `TableError`."""


def refuse_table(argument: str, source: str, what: str, must: str, remedy: str) -> NoReturn:
    """Raise a `TableError` in the format of all refusals; `source` is the file's name."""
    try:
        refuse(argument, Shown(f"{source}: {what}" if source else what), must, remedy)
    except ArgumentError as error:
        raise TableError(str(error), what, must, remedy) from None


class Problems:
    """Collects what is wrong with a table, so that all of it is said at once."""

    def __init__(self, argument: str, source: str, known: Sequence[TableError] = ()):
        self._argument, self._source = argument, source
        self._errors: list[TableError] = list(known)

    @property
    def errors(self) -> tuple[TableError, ...]:
        """Those so far."""
        return tuple(self._errors)

    def __bool__(self) -> bool:
        return bool(self._errors)

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Keep a `TableError` of the block for later."""
        try:
            yield
        except TableError as error:
            if str(error) not in map(str, self._errors):
                self._errors.append(error)

    def raise_all(self) -> None:
        """One error for all; nothing where there are none."""
        if not self._errors:
            return
        if len(self._errors) == 1:
            raise self._errors[0]
        lines = [
            f"  {i}. {error.what}; it must {error.must}. {error.remedy}".rstrip()
            for i, error in enumerate(self._errors[:MAX_LISTED], 1)
        ]
        if len(self._errors) > MAX_LISTED:
            lines.append(f"  and {len(self._errors) - MAX_LISTED} more")
        source = f"{self._source}: " if self._source else ""
        what = f"{source}{len(self._errors)} problems"
        message = "\n".join([f"`{self._argument}` must be a valid table, got {what}:", *lines])
        raise TableError(message, what, "be a valid table", "")


def problems_of(table: Table) -> Problems:
    """An empty collection for a table."""
    argument = getattr(table, "argument", "X")
    return Problems(argument, getattr(table, "path", ""), getattr(table, "problems", ()))


def join_names(names: Sequence[str], limit: int = 5, quoted: bool = True) -> str:
    """Names with commas between them, the first few of many."""
    shown = [repr(name) if quoted else name for name in names[:limit]]
    return ", ".join(shown) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def is_null(cell: object) -> bool:
    """Whether a value of any library stands for a missing one."""
    if cell is None or getattr(cell, "ndim", 0) != 0:
        return cell is None
    return str(cell) in ("<NA>", "NaT") or bool(cell != cell)


def map_unique(function: Callable[[str], float], text: np.ndarray) -> np.ndarray:
    """function of each text, called once for equal ones."""
    found: dict[str, float] = {}
    values = np.empty(len(text))
    for i, cell in enumerate(text):
        value = found.get(cell)
        if value is None:
            value = found[cell] = function(cell)
        values[i] = value
    return values
