"""Read CSV, TSV and Parquet files into cells."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np

from bayeslearn.errors import ArgumentError, Shown, refuse
from bayeslearn.tabular.pandas_parts import pd

MISSING = {"", "na", "n/a", "#n/a", "nan", "null", "none", "<na>", "?"}

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
WANTED = "be a CSV, TSV or Parquet file with a header"


class RawTable(NamedTuple):
    """A file's cells as they are."""

    argument: str  # what the file is called in an error
    path: str
    cells: pd.DataFrame  # text, or whatever Parquet holds
    is_text: bool
    decimal: str
    notes: tuple[str, ...]

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
    path: str | os.PathLike[str], *, argument: str = "data", encoding: str = "utf-8"
) -> RawTable:
    """The cells of a CSV, TSV (also gzipped) or Parquet file, with distinct column names."""
    path = os.fspath(path)
    content = _content(argument, path)
    if content[:4] == b"PAR1":
        return _read_parquet(argument, path)
    text = _decode(argument, path, content, encoding)
    header = next((line for line in text.splitlines() if line.strip()), "")
    if not header:
        _refuse(argument, path, "the file is empty")
    is_tsv = Path(path.removesuffix(".gz")).suffix.lower() in (".tsv", ".tab")
    separator = "\t" if is_tsv else max(SEPARATORS, key=header.count)
    notes = []
    if separator != "," and not is_tsv:
        notes.append(f"{path} is separated by {SEPARATORS[separator]}.")
    cells = _parse(argument, path, text, separator)
    names = [str(name).strip() for name in cells.iloc[0]]
    cells = cells.iloc[1:].set_axis(range(len(names)), axis=1)
    decimal = "," if separator == ";" else "."
    return _name_columns(RawTable(argument, path, cells, True, decimal, tuple(notes)), names)


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
        _refuse(argument, path, f"it could not be parsed ({reason.rstrip('.')})")
    cells = cells.fillna("")
    is_empty = (cells == "").all(axis=1).to_numpy()
    if np.any(is_empty):  # a blank line, or cells without values?
        inside = np.cumsum(sum(cells[name].str.count("\n") for name in cells))
        lines = text.split("\n")
        is_blank = [not lines[i + inside[i]].strip(" ") for i in np.flatnonzero(is_empty)]
        cells = cells.drop(index=np.flatnonzero(is_empty)[is_blank])  # the rest keep their numbers
    return cells


def _refuse(argument: str, path: str, what: str, must: str = WANTED, remedy: str = "") -> NoReturn:
    refuse(argument, Shown(f"{path}: {what}"), must, remedy)


def _content(argument: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read()
        # gzip by its first bytes, whatever the name says
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except FileNotFoundError:
        raise ArgumentError(f"File not found: {path}") from None
    except IsADirectoryError:
        _refuse(argument, path, "it is a folder")
    except (gzip.BadGzipFile, EOFError, zlib.error):
        _refuse(argument, path, "the gzip file is damaged")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        _refuse(argument, path, f"it could not be read ({reason})")


def _decode(argument: str, path: str, content: bytes, encoding: str) -> str:
    if content[:4] == b"PK\x03\x04":
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


def _read_parquet(argument: str, path: str) -> RawTable:
    try:
        cells = pd.read_parquet(path)
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
    return _name_columns(RawTable(argument, path, cells, False, ".", ()), names)


def _name_columns(raw: RawTable, names: list[str]) -> RawTable:
    """With its columns under their names, and without an index column."""
    cells, notes = raw.cells, list(raw.notes)
    if len(names) > 1 and names[0] == "":
        first = column_values(raw, 0).numbers
        counts = [np.arange(len(first)) + begin for begin in (0, 1)]
        if any(np.array_equal(first, count) for count in counts) and len(first):
            cells, names = cells.drop(columns=0), names[1:]
            notes.append("The first column has no name and counts the rows: it is dropped.")
    for i, name in enumerate(names):
        if not name:
            raw.refuse(f"column {i + 1} has no name", "name every column")
    if all(_is_number(name) for name in names):
        shown = ", ".join(names[:3])
        must = "have a first line that names the columns"
        raw.refuse(f"it begins with the numbers {shown}{', ...' if len(names) > 3 else ''}", must)
    duplicates = sorted(name for name, number in Counter(names).items() if number > 1)
    if duplicates:
        plural = "s" if len(duplicates) > 1 else ""
        raw.refuse(f"duplicate column name{plural} {join_names(duplicates)}", "have distinct names")
    if len(names) < 2:
        raw.refuse(
            f"it has one column, {names[0][:80]!r}",
            "have a target and at least one other column",
            "Columns are separated by commas, semicolons, tabs or bars.",
        )
    return raw._replace(cells=cells.set_axis(names, axis=1), notes=tuple(notes))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.strip().lower() not in MISSING


class ColumnValues(NamedTuple):
    """The cells of one column, read as text and as numbers."""

    text: np.ndarray
    numbers: np.ndarray  # NaN where there is none
    is_missing: np.ndarray


def column_values(raw: RawTable, name: str | int, impute: bool = False) -> ColumnValues:
    """A column's cells; imputation also replaces infinite values."""
    cells = raw.cells[name]
    kind = cells.dtype
    if not raw.is_text and pd.api.types.is_numeric_dtype(kind) and kind.name.lower() != "bool":
        numbers = cells.to_numpy(np.float64, na_value=np.nan)
        is_missing = np.isnan(numbers) | (np.isinf(numbers) & impute)
        return ColumnValues(cells.astype(str).to_numpy(object), numbers, is_missing)
    text = cells.astype(object).where(cells.notna(), "").astype(str).str.strip()
    is_missing = text.str.lower().isin(MISSING).to_numpy(bool)
    plain = text.str.replace(",", ".", regex=False) if raw.decimal == "," else text
    numbers = pd.to_numeric(plain.where(~is_missing), errors="coerce").to_numpy(np.float64)
    return ColumnValues(text.to_numpy(object), numbers, is_missing | (np.isinf(numbers) & impute))


def join_names(names: Sequence[str], limit: int = 5, quoted: bool = True) -> str:
    """Names with commas between them, the first few of many."""
    shown = [repr(name) if quoted else name for name in names[:limit]]
    return ", ".join(shown) + (f" and {len(names) - limit} more" if len(names) > limit else "")
