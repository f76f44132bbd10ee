"""Data frames of the estimators: text, categories, dates and missing values become numbers.

pandas, Polars and others are read through narwhals, if it is installed. What is learned of the
columns is kept as `encoding_`, and saved with the estimator. Frames of numbers without missing
values go to scikit-learn as they are.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from bayeslearn.errors import ArgumentError, DataWarning, Shown, refuse
from bayeslearn.tabular import column_notes, text_columns
from bayeslearn.tabular.columns import (
    ESTIMATOR,
    MISSING,
    NEW,
    NEW_FRAME,
    ColumnValues,
    Remedies,
    Written,
    is_null,
    join_names,
    problems_of,
    refuse_table,
)
from bayeslearn.tabular.encoding import ENCODINGS, learn_columns
from bayeslearn.tabular.json_values import JSON, json_value
from bayeslearn.tabular.schema import Column, Schema
from bayeslearn.tabular.sklearn_parts import check_array, check_X_y, validate_data

IMPUTE, INDICATOR = "impute", "indicator"
MISSING_VALUES = (None, IMPUTE, INDICATOR)
NO_Y = "no_validation"  # of scikit-learn: there is no y to check
ONE_DAY = np.timedelta64(1, "D")
Cells = tuple[ColumnValues, bool]  # a column, and whether it is text that has to be read


class FrameTable:
    """A data frame, or an array, as a table that can be encoded."""

    remedies: Remedies = ESTIMATOR

    def __init__(self, names: Sequence[str], num_rows: int, read: Callable[[int], Cells]):
        self.names, self.num_rows, self._read = list(names), num_rows, read

    @cached_property
    def _columns(self) -> dict[str, Cells]:
        return {name: self._read(i) for i, name in enumerate(self.names)}

    @property
    def has_text(self) -> bool:
        """Whether a column is not numbers."""
        return any(
            is_text or values.is_categorical or values.dates is not None
            for values, is_text in self._columns.values()
        )

    @property
    def has_missing(self) -> bool:
        """Whether a value is missing."""
        return any(np.any(values.is_missing) for values, _ in self._columns.values())

    def values(self, name: str, written: Written = NEW) -> ColumnValues:
        """A column; of two readings of a number or a date the one of the training table."""
        column, is_text = self._columns[name]
        if not is_text:
            return column
        found = text_columns.read(column, name, self.where, written)
        if found.ambiguity:
            remedy = "Convert the column to numbers or dates first."
            found = found._replace(ambiguity_remedy=remedy)
        return found

    def where(self, row: int) -> str:
        """Where a row is."""
        return f"row {row}"

    def refuse(self, what: str, must: str = "be a table", remedy: str = "") -> NoReturn:
        """Raise a `TableError`."""
        refuse_table("X", "", what, must, remedy)


class TableInputs:
    """What makes an estimator take data frames (a mixin).

    Attributes:
        encoding_: how the columns become numbers; only where they were not numbers already.
        column_notes_: what a user should know about the columns of a frame.
    """

    categories: str
    missing: str | None
    encoding_: dict[str, JSON]
    column_notes_: list[str]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.allow_nan = self.missing is not None
        return tags


def check_options(categories: str, missing: str | None) -> None:
    """Refuse settings that make no sense."""
    if categories not in ENCODINGS:
        refuse("categories", categories, "be 'one-hot' or 'ordinal'")
    if missing not in MISSING_VALUES:
        refuse("missing", missing, "be None, 'impute' or 'indicator'")


def validated(estimator: Any, X: Any, y: Any = NO_Y, *, reset: bool, **options: Any) -> Any:
    """scikit-learn's `validate_data` for tables with any columns: X, or X and y as arrays."""
    y = y.to_numpy() if hasattr(y, "to_numpy") else y
    table = _as_table(X, takes_arrays=estimator.missing is not None)
    schema = _learned(estimator, table) if reset else _stored(estimator, X, table)
    if schema is None or table is None:
        found = _as_numbers(estimator, X, y, reset=reset, **options)
    else:
        validate_data(estimator, X, reset=reset, skip_check_array=True)
        columns = schema.numbers(table, _ignore if reset else _warn)
        encoded = np.column_stack(list(columns.values())).astype(np.float64)
        options |= {"estimator": estimator}
        if isinstance(y, str):
            options.pop("multi_output", None)
            return check_array(encoded, **options)
        found = check_X_y(encoded, y, **options)
    if reset:
        _keep(estimator, table, schema, found)
    return found


def _as_numbers(estimator: Any, X: Any, y: Any, **options: Any) -> Any:
    """X, or X and y, by scikit-learn, which does not say what text needs."""
    try:
        return validate_data(estimator, X, y, **options)
    except ArgumentError:
        raise
    except ValueError as error:
        text = str(error).partition("could not convert string to float: ")[2]
        if not text:
            raise
        remedy = "Text and categories need a pandas or Polars data frame."
        refuse("X", Shown(f"the text {text}"), "hold numbers if it is an array", remedy)


def _learned(estimator: Any, table: FrameTable | None) -> Schema | None:
    """How a new table is encoded; None where it is numbers already."""
    missing = estimator.missing
    check_options(estimator.categories, missing)
    if table is None or not (table.has_text or (missing is not None and table.has_missing)):
        return None
    if not table.num_rows:
        table.refuse("no rows", "have at least one row")
    problems = problems_of(table)
    columns = learn_columns(table, table.names, problems, impute=missing is not None)
    problems.raise_all()
    schema = Schema(
        *("", estimator.task, columns, estimator.categories),
        impute=missing is not None,
        indicators=missing == INDICATOR,
        separator="",
    )
    return schema.with_fill_values(table, np.arange(table.num_rows))


def _stored(estimator: Any, X: Any, table: FrameTable | None) -> Schema | None:
    """How the training table was encoded."""
    stored = getattr(estimator, "encoding_", None)
    if stored is None:
        return None
    schema = Schema.from_dict(stored)
    if table is None:
        names = join_names([column.name for column in schema.columns])
        must = f"be a data frame with the columns {names}, as in fit"
        refuse("X", Shown(f"an object of type {type(X).__name__}"), must)
    table.remedies = NEW_FRAME
    return schema


def _keep(estimator: Any, table: FrameTable | None, schema: Schema | None, found: Any) -> None:
    """Remember the encoding, and what a user should know about the columns."""
    vars(estimator).pop("encoding_", None)
    estimator.column_notes_ = []
    if schema is not None:
        estimator.encoding_ = json_value(schema.to_dict())
    if table is None or not hasattr(estimator, "feature_names_in_"):
        return
    columns = schema.columns if schema is not None else tuple(map(Column, table.names))
    y = found[1] if isinstance(found, tuple) else np.zeros(table.num_rows)
    if estimator.task == "regression":
        y = y.astype(np.float64)  # counts are no classes
    rows = np.arange(table.num_rows)
    estimator.column_notes_ = [
        *column_notes.describe(table, columns, estimator.categories),
        *column_notes.suspicions(table, columns, rows, y, "y"),
    ]


def _ignore(note: str) -> None:
    """Of the training table notes are made once, when it is fitted."""


def _warn(note: str) -> None:
    if not note.startswith("Missing values were imputed"):  # which was asked for
        warnings.warn(note, DataWarning, stacklevel=2)


def _as_table(X: Any, takes_arrays: bool) -> FrameTable | None:
    """A table that can be encoded; None for what is left to scikit-learn."""
    if isinstance(X, np.ndarray | list | tuple):
        return _array_table(X) if takes_arrays else None
    try:
        import narwhals.stable.v1 as nw
    except ImportError:  # pragma: no cover
        return None
    _check_names(X)
    frame = nw.from_native(X, pass_through=True)
    if isinstance(frame, nw.LazyFrame):
        refuse("X", Shown("a lazy frame"), "be in memory", "Collect it first: X.collect().")
    if not isinstance(frame, nw.DataFrame):
        return None
    names = [str(name) for name in frame.columns]
    return FrameTable(names, len(frame), lambda i: _series_values(frame[:, i], nw))


def _check_names(X: Any) -> None:
    """A pandas frame may have no columns, or two of one name."""
    if not hasattr(X, "iloc") or getattr(X, "ndim", 0) != 2:
        return
    names = Counter(X.columns.tolist())
    if not names:
        refuse("X", Shown("a frame without columns"), "have at least one column")
    twice = [name for name, number in names.items() if number > 1]
    if twice:
        shown = Shown(f"{join_names(list(map(str, twice)))} more than once")
        refuse("X", shown, "have distinct column names")


def _array_table(X: Any) -> FrameTable | None:
    try:
        array = np.asarray(X, np.float64)
    except (TypeError, ValueError):
        return None
    if array.ndim != 2:
        return None
    names = [f"x{i}" for i in range(array.shape[1])]
    return FrameTable(names, len(array), lambda i: (_numbers(array[:, i]), False))


def _numbers(values: np.ndarray) -> ColumnValues:
    return ColumnValues(values.astype(object), values, np.isnan(values))


def _series_values(series: Any, nw: Any) -> Cells:
    """A column of a narwhals frame, and whether it is text."""
    kind = series.dtype
    if kind.is_numeric() or kind == nw.Boolean:
        return _numbers(series.cast(nw.Float64).to_numpy().astype(np.float64)), False
    if kind == nw.Duration:
        return _numbers(series.to_numpy().astype("timedelta64[us]") / ONE_DAY), False
    if kind in (nw.Date, nw.Datetime):
        if kind == nw.Date:
            series = series.cast(nw.Datetime("us"))
        elif kind.time_zone is not None:
            series = series.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        moments = series.to_numpy().astype("datetime64[us]")
        days = (moments - np.datetime64(0, "us")) / ONE_DAY
        nothing = np.full(len(days), np.nan)
        return ColumnValues(moments.astype(object), nothing, np.isnat(moments), days), False
    cells = series.to_list()
    if kind == nw.Object:
        try:
            return _numbers(np.array(cells, np.float64)), False
        except (TypeError, ValueError):
            pass
    text = np.array(["" if is_null(cell) else str(cell).strip() for cell in cells], object)
    is_missing = np.array([cell.lower() in MISSING for cell in text], bool)
    numbers = np.array([_as_number(cell) for cell in text])
    is_categorical = kind in (nw.Categorical, nw.Enum)
    if is_categorical:
        is_missing = text == ""
    column = ColumnValues(text, numbers, is_missing, is_categorical=is_categorical)
    return column, not is_categorical


def _as_number(cell: str) -> float:
    try:
        return np.nan if "_" in cell else float(cell)
    except ValueError:
        return np.nan
