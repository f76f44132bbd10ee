"""Read CSV, TSV and Parquet files into cells."""

from __future__ import annotations

import dataclasses
import gzip
import io
import os
import re
import zlib
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import NoReturn

import numpy as np

from bayeslearn.errors import ArgumentError, refuse
from bayeslearn.tabular import text_columns
from bayeslearn.tabular.columns import (
    FIT,
    MISSING,
    NEW,
    ColumnValues,
    Remedies,
    TableError,
    Written,
    join_names,
    problems_of,
    refuse_table,
)
from bayeslearn.tabular.number_formats import OTHER
from bayeslearn.tabular.pandas_parts import pd

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
MAX_BYTES = 2**30  # of a compressed file
OTHER_KINDS = (
    (re.compile(r"\s*(\{\s*\"|\[\s*[\[{])"), "JSON"),
    (re.compile(r"\s*<(!doctype|html|\?xml)", re.IGNORECASE), "an HTML or XML page"),
)
WANTED = "be a CSV, TSV or Parquet file with a header"


@dataclasses.dataclass(frozen=True)
class RawTable:
    """A file's cells as they are."""

    argument: str  # what the file is called in an error
    path: str
    cells: pd.DataFrame  # text, or whatever Parquet holds
    is_text: bool
    separator: str
    notes: tuple[str, ...] = ()
    remedies: Remedies = FIT
    decimal: str = ""  # of all numbers with two readings, if an option says so
    day_first: bool | None = None
    problems: tuple[TableError, ...] = ()  # of its header, to be listed with those of its cells

    @property
    def names(self) -> list[str]:
        """Of all columns."""
        return list(self.cells.columns)

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return len(self.cells)

    def values(self, name: str, written: Written = NEW) -> ColumnValues:
        """A column; of two readings of a number or a date the one of an option, or of training."""
        if self.day_first is not None:
            written = written._replace(day_first=self.day_first)
        return text_columns.read(
            self._plain(name),
            name,
            self.where,
            written,
            decimal=self.decimal,
            established=self._established,
            separator=self.separator,
        )

    def _plain(self, name: str | int) -> ColumnValues:
        """A column as text and plain numbers; kept, for the cells are read more than once."""
        if name not in self._columns:
            self._columns[name] = _plain_values(self.cells[name], self.is_text)
        return self._columns[name]

    @cached_property
    def _columns(self) -> dict[str | int, ColumnValues]:
        return {}

    @cached_property
    def _established(self) -> frozenset[str]:
        columns = (self._plain(name) for name in self.cells.columns)
        return text_columns.established_decimals(columns, self.separator)

    def where(self, row: int) -> str:
        """Where a row is in the file: the line of a text file."""
        if not self.is_text:
            return f"row {row + 1}"
        before = self.cells.iloc[:row]
        inside = sum(int(before[name].str.count("\n").sum()) for name in before)
        return f"line {int(self.cells.index[row]) + 1 + inside}"

    def refuse(self, what: str, must: str = WANTED, remedy: str = "") -> NoReturn:
        """Raise the error of this file."""
        _refuse(self.argument, self.path, what, must, remedy)


def read(
    path: str | os.PathLike[str],
    *,
    argument: str = "data",
    encoding: str = "utf-8",
    remedies: Remedies = FIT,
    decimal: str | None = None,
    thousands: str | None = None,
    day_first: bool | None = None,
    max_bytes: int = MAX_BYTES,
) -> RawTable:
    """The cells of a CSV, TSV (also gzipped) or Parquet file, with distinct column names.

    `decimal` or `thousands` decides numbers with two readings, `day_first` such dates;
    `max_bytes` is the most that a compressed file may hold.
    """
    raw = _read(os.fspath(path), argument, encoding, max_bytes)
    chosen = _decimal(decimal, thousands)
    return dataclasses.replace(raw, remedies=remedies, decimal=chosen, day_first=day_first)


def _decimal(decimal: str | None, thousands: str | None) -> str:
    """The decimal separator that two options ask for."""
    for name, value in (("decimal", decimal), ("thousands", thousands)):
        if value is not None and value not in OTHER:
            refuse(name, value, "be '.' or ','")
    if decimal is not None and decimal == thousands:
        refuse("thousands", thousands, "differ from `decimal`")
    return decimal or (OTHER[thousands] if thousands else "")


def _read(path: str, argument: str, encoding: str, max_bytes: int) -> RawTable:
    content = _content(argument, path, max_bytes)
    if content[:4] == b"PAR1":
        return _read_parquet(argument, path, max_bytes)
    text = _decode(argument, path, content, encoding)
    header = next((line for line in text.splitlines() if line.strip()), "")
    if not header:
        _refuse(argument, path, "the file is empty")
    for pattern, kind in OTHER_KINDS:
        if pattern.match(text):
            _refuse(argument, path, f"it is {kind}", remedy="Save the table as CSV first.")
    is_tsv = Path(path.removesuffix(".gz")).suffix.lower() in (".tsv", ".tab")
    separator = "\t" if is_tsv else max(SEPARATORS, key=header.count)
    notes = []
    if separator != "," and not is_tsv:
        notes.append(f"{path} is separated by {SEPARATORS[separator]}.")
    cells = _parse(argument, path, text, separator)
    names = [str(name).strip() for name in cells.iloc[0]]
    cells = cells.iloc[1:].set_axis(range(len(names)), axis=1)
    return _name_columns(RawTable(argument, path, cells, True, separator, tuple(notes)), names)


def _parse(argument: str, path: str, text: str, separator: str) -> pd.DataFrame:
    """All cells as text, without blank lines; the index is the line."""
    try:
        cells = pd.read_csv(
            io.StringIO(text),
            sep=separator,
            header=None,
            dtype=str,
            keep_default_na=False,
            skip_blank_lines=False,
            skipinitialspace=True,
        )
    except (pd.errors.ParserError, pd.errors.EmptyDataError, ValueError) as error:
        reason = (
            str(error).strip().splitlines()[-1].removeprefix("Error tokenizing data. C error: ")
        )
        first = text.lstrip("\n").partition("\n")[0].strip()
        is_above = re.match(r"Expected \d+ fields in line 2,", reason) or first.startswith("#")
        remedy = f"Remove what is above the header: {first[:60]!r}." if is_above else ""
        _refuse(argument, path, f"it could not be parsed ({reason.rstrip('.')})", remedy=remedy)
    cells = cells.fillna("")
    is_empty = (cells == "").all(axis=1).to_numpy()
    if np.any(is_empty):  # a blank line, or cells without values?
        inside = np.cumsum(sum(cells[name].str.count("\n") for name in cells))
        lines = text.split("\n")
        is_blank = [not lines[i + inside[i]].strip(" ") for i in np.flatnonzero(is_empty)]
        cells = cells.drop(index=np.flatnonzero(is_empty)[is_blank])  # the rest keep their numbers
    return cells


def _refuse(argument: str, path: str, what: str, must: str = WANTED, remedy: str = "") -> NoReturn:
    refuse_table(argument, path, what, must, remedy)


def _content(argument: str, path: str, max_bytes: int) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read()  # whole, for a pipe cannot go back
        if content[:2] != b"\x1f\x8b":  # gzip, whatever the name says
            return content
        content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(max_bytes + 1)
    except FileNotFoundError:
        raise ArgumentError(f"File not found: {path}") from None
    except IsADirectoryError:
        _refuse(argument, path, "it is a folder")
    except (gzip.BadGzipFile, EOFError, zlib.error):
        _refuse(argument, path, "the gzip file is damaged")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        _refuse(argument, path, f"it could not be read ({reason})")
    if len(content) > max_bytes:
        _refuse_size(argument, path, "more", max_bytes)
    return content


def _refuse_size(argument: str, path: str, size: int | str, max_bytes: int) -> NoReturn:
    """Refuse what is compressed to a small file, and would fill the memory."""
    found = size if isinstance(size, str) else f"{size:,} bytes"
    must = f"hold at most {max_bytes:,} bytes when it is decompressed"
    remedy = "Allow more with --max-bytes, if there is memory for it."
    _refuse(argument, path, f"it holds {found}", must, remedy)


def _decode(argument: str, path: str, content: bytes, encoding: str) -> str:
    if content[:4] in (b"PK\x03\x04", b"\xd0\xcf\x11\xe0"):  # of today, and of before 2007
        remedy = "Save a spreadsheet as CSV first."
        _refuse(argument, path, "it is a spreadsheet or a zip archive", remedy=remedy)
    try:
        text = content.decode(encoding).removeprefix("\ufeff")
    except LookupError:
        refuse("encoding", encoding, "be the name of a text encoding, such as utf-8 or latin-1")
    except UnicodeError as error:
        place = ""
        if isinstance(error, UnicodeDecodeError):
            line = content.count(b"\n", 0, error.start) + 1
            place = f" (byte 0x{content[error.start]:02x} in line {line})"
        likely = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "latin-1"
        _refuse(
            argument,
            path,
            f"it is not text in {encoding}{place}",
            remedy=f"Name its encoding, such as --encoding {likely}.",
        )
    if "\0" in text:
        _refuse(argument, path, "it is not a text file")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _read_parquet(argument: str, path: str, max_bytes: int) -> RawTable:
    try:
        size = _parquet_size(path)
        if size > max_bytes:
            _refuse_size(argument, path, size, max_bytes)
        cells = pd.read_parquet(path)
    except ArgumentError:
        raise
    except ImportError as error:
        raise ArgumentError(
            f"`{argument}` is a Parquet file, which needs pyarrow: pip install"
            " 'bayeslearn[parquet]'."
        ) from error
    except Exception as error:  # the library has errors of its own
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        _refuse(argument, path, f"it could not be parsed as Parquet ({reason})")
    names = [str(name) for name in cells.columns]
    cells = cells.set_axis(range(len(names)), axis=1).reset_index(drop=True)
    return _name_columns(RawTable(argument, path, cells, False, ""), names)


def _parquet_size(path: str) -> int:
    """Bytes of the columns when they are decompressed."""
    from pyarrow import parquet

    metadata = parquet.ParquetFile(path).metadata
    return sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))


def _name_columns(raw: RawTable, names: list[str]) -> RawTable:
    """With its columns under their names, and without an index column."""
    cells, notes = raw.cells, list(raw.notes)
    if len(names) > 1 and names[0] == "":
        first = _plain_values(cells[0], raw.is_text).numbers
        counts = [np.arange(len(first)) + begin for begin in (0, 1)]
        if any(np.array_equal(first, count) for count in counts) and len(first):
            cells, names = cells.drop(columns=0), names[1:]
            notes.append("The first column has no name and counts the rows: it is dropped.")
    problems = problems_of(raw)
    for i, name in enumerate(names):
        if not name:
            with problems.collected():
                raw.refuse(f"column {i + 1} has no name", "name every column")
    if all(_is_number(name) for name in names):
        shown = ", ".join(names[:3])
        must = "have a first line that names the columns"
        raw.refuse(f"it begins with the numbers {shown}{', ...' if len(names) > 3 else ''}", must)
    duplicates = sorted(name for name, number in Counter(names).items() if number > 1)
    if duplicates:
        plural = "s" if len(duplicates) > 1 else ""
        with problems.collected():
            what = f"duplicate column name{plural} {join_names(duplicates)}"
            raw.refuse(what, "have distinct names")
    if len(names) < 2:
        raw.refuse(
            f"it has one column, {names[0][:80]!r}",
            "have a target and at least one other column",
            "Columns are separated by commas, semicolons, tabs or bars.",
        )
    cells = cells.set_axis(_distinct(names), axis=1)
    return dataclasses.replace(raw, cells=cells, notes=tuple(notes), problems=problems.errors)


def _distinct(names: list[str]) -> list[str]:
    """Names by which the cells of a refused header can be checked all the same."""
    found: list[str] = []
    for i, name in enumerate(names):
        name = name or f"column {i + 1}"
        while name in found:
            name += " again"
        found.append(name)
    return found


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.strip().lower() not in MISSING


def _plain_values(cells: pd.Series, is_text: bool) -> ColumnValues:
    """The cells of a column as text, and as numbers where that is how they are written."""
    kind = cells.dtype
    if not is_text and pd.api.types.is_datetime64_any_dtype(kind):
        naive = (
            cells.dt.tz_convert("UTC").dt.tz_localize(None)
            if kind.name != "object" and getattr(kind, "tz", None)
            else cells
        )
        days = (naive - pd.Timestamp(0)) / pd.Timedelta(days=1)
        is_missing = cells.isna().to_numpy(bool)
        nothing = np.full(len(cells), np.nan)
        return ColumnValues(
            cells.astype(str).to_numpy(object), nothing, is_missing, days.to_numpy(np.float64)
        )
    if not is_text and pd.api.types.is_numeric_dtype(kind) and kind.name.lower() != "bool":
        numbers = cells.to_numpy(np.float64, na_value=np.nan)
        return ColumnValues(cells.astype(str).to_numpy(object), numbers, np.isnan(numbers))
    text = cells.astype(object).where(cells.notna(), "").astype(str).str.strip()
    is_missing = text.str.lower().isin(MISSING).to_numpy(bool)
    numbers = pd.to_numeric(text.where(~is_missing), errors="coerce").to_numpy(np.float64)
    is_categorical = isinstance(kind, pd.CategoricalDtype)
    return ColumnValues(text.to_numpy(object), numbers, is_missing, is_categorical=is_categorical)
