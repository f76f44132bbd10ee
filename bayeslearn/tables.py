"""A file as it comes, read into a table of numbers that an estimator takes.

    raw = read("data.csv")
    learned = learn(raw, "price")        # learned.task, learned.y, learned.table, learned.notes
    X = learned.table.encode(raw)        # and of a new file later: the same columns, the same codes

CSV (the separator is read off the header), TSV, both gzipped or not, and Parquet. Every cell is
read as text and judged column by column, so that a refusal can name the column and the line:

- a column in which every value is a number is one of numbers;
- one of which more than half are numbers is refused at the first that is not;
- every other one holds categories: one column of 0 and 1 for each (one-hot), or their rank in
  alphabetical order (ordinal). A category that was not there when the table was learned has 0 in
  all of its columns, or the middle rank, and is spoken of;
- a missing value (an empty cell, NA, NaN, null, ...) or an infinite one is refused, unless `impute`
  fills in the median or the most frequent category of the training rows.

The target is one of classes if it holds text, two different values, or whole numbers that count
from 0 or 1 without a gap to at most 20, each in two rows or more; it is a number otherwise.
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from bayeslearn.errors import ArgumentError, Shown, refuse

try:
    import pandas as pd
except ImportError as error:  # pragma: no cover
    raise ImportError("bayeslearn.tables needs pandas: pip install 'bayeslearn[cli]'") from error

MISSING = {"", "na", "n/a", "#n/a", "nan", "null", "none", "<na>", "?"}
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
MOST_CATEGORIES = 50  # a text column with more is a name or a number in disguise
MOST_CLASSES = 20  # of whole numbers taken for classes
LEAST_ROWS = 4
FEW_ROWS = 50
MANY_COLUMNS = 500
TASKS = ("regression", "classification")
ENCODINGS = ("one-hot", "ordinal")
FILL = "Fill it in, or fit with --impute (the median, or the most frequent category)."
WANTED = "be a CSV, TSV or Parquet file with a header"


class Raw(NamedTuple):
    """A file's cells, before anything is made of them."""

    argument: str  # what the file is called in a refusal
    path: str
    cells: pd.DataFrame  # text, or whatever Parquet holds
    is_text: bool
    decimal: str
    notes: tuple[str, ...]

    def where(self, row: int) -> str:
        """A row as a person finds it: the line of a text file."""
        if not self.is_text:
            return f"row {row + 1}"
        before = self.cells.iloc[:row]
        inside = sum(int(before[name].str.count("\n").sum()) for name in before)
        return f"line {int(self.cells.index[row]) + 1 + inside}"

    def bad(self, what: str, must: str = WANTED, remedy: str = "") -> NoReturn:
        _bad(self.argument, self.path, what, must, remedy)


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


def read(path: str | os.PathLike[str], *, argument: str = "data", encoding: str = "utf-8") -> Raw:
    """The cells of a file, with every column named once."""
    path = os.fspath(path)
    content = _content(argument, path)
    if content[:4] == b"PAR1":
        return _read_parquet(argument, path)
    text = _decoded(argument, path, content, encoding)
    header = next((line for line in text.splitlines() if line.strip()), "")
    if not header:
        _bad(argument, path, "it is empty")
    tabbed = Path(path.removesuffix(".gz")).suffix.lower() in (".tsv", ".tab")
    separator = "\t" if tabbed else max(SEPARATORS, key=header.count)
    notes = []
    if separator != "," and not tabbed:
        notes.append(f"{path} is separated by {SEPARATORS[separator]}.")
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
        _bad(argument, path, f"it cannot be taken apart ({reason.rstrip('.')})")
    cells = cells.fillna("")
    is_empty = (cells == "").all(axis=1).to_numpy()
    if np.any(is_empty):  # a blank line, or cells without values?
        inside = np.cumsum(sum(cells[name].str.count("\n") for name in cells))
        lines = text.split("\n")
        is_blank = [not lines[i + inside[i]].strip(" ") for i in np.flatnonzero(is_empty)]
        cells = cells.drop(index=np.flatnonzero(is_empty)[is_blank])  # the rest keep their numbers
    names = [str(name).strip() for name in cells.iloc[0]]
    cells = cells.iloc[1:].set_axis(range(len(names)), axis=1)
    decimal = "," if separator == ";" else "."
    raw = Raw(argument, path, cells, True, decimal, tuple(notes))
    return _named(raw, names)


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


# Files


def _bad(argument: str, path: str, what: str, must: str = WANTED, remedy: str = "") -> NoReturn:
    refuse(argument, Shown(f"{path}: {what}"), must, remedy)


def _content(argument: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read()
        # gzip by its first bytes, whatever the name says
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except FileNotFoundError:
        _bad(argument, path, "there is no such file")
    except IsADirectoryError:
        _bad(argument, path, "it is a folder")
    except (gzip.BadGzipFile, EOFError, zlib.error):
        _bad(argument, path, "it is gzipped and damaged")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        _bad(argument, path, f"it cannot be read ({reason})")


def _decoded(argument: str, path: str, content: bytes, encoding: str) -> str:
    if content[:4] == b"PK\x03\x04":
        remedy = "Save a spreadsheet as CSV first."
        _bad(argument, path, "it is a spreadsheet or a zip archive", remedy=remedy)
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
        _bad(
            argument,
            path,
            f"it is not text in {encoding}{place}",
            remedy=f"Name its encoding, such as --encoding {likely}.",
        )
    if "\0" in text:
        _bad(argument, path, "it is not a text file")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _read_parquet(argument: str, path: str) -> Raw:
    try:
        cells = pd.read_parquet(path)
    except ImportError as error:
        raise ArgumentError(
            f"`{argument}` is a Parquet file, which needs pyarrow: pip install"
            " 'bayeslearn[parquet]'."
        ) from error
    except Exception as error:  # the library has errors of its own
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        _bad(argument, path, f"it is not sound Parquet ({reason})")
    names = [str(name) for name in cells.columns]
    cells = cells.set_axis(range(len(names)), axis=1).reset_index(drop=True)
    return _named(Raw(argument, path, cells, False, ".", ()), names)


def _named(raw: Raw, names: list[str]) -> Raw:
    """With its columns under their names, and without one that only counts the rows."""
    cells, notes = raw.cells, list(raw.notes)
    if len(names) > 1 and names[0] == "":
        first = _values(raw, 0).numbers
        counts = [np.arange(len(first)) + begin for begin in (0, 1)]
        if any(np.array_equal(first, count) for count in counts) and len(first):
            cells, names = cells.drop(columns=0), names[1:]
            notes.append("The first column has no name and counts the rows: it is left out.")
    for i, name in enumerate(names):
        if not name:
            raw.bad(f"column {i + 1} has no name", "name every column")
    if all(_is_number(name) for name in names):
        shown = ", ".join(names[:3])
        must = "have a first line that names the columns"
        raw.bad(f"it begins with the numbers {shown}{', ...' if len(names) > 3 else ''}", must)
    twice = (
        sorted({name for name in names if names.count(name) > 1})
        if (len(set(names)) < len(names))
        else []
    )
    if twice:
        raw.bad(
            f"{_listed(twice)} {'stand' if len(twice) > 1 else 'stands'} there more than once",
            "name each column once",
        )
    if len(names) < 2:
        raw.bad(
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


# Columns


class _Values(NamedTuple):
    text: np.ndarray
    numbers: np.ndarray  # NaN where there is none
    is_missing: np.ndarray


def _values(raw: Raw, name: Any, impute: bool = False) -> _Values:
    """A column's cells; to an imputation an infinite one is as good as missing."""
    cells = raw.cells[name]
    kind = cells.dtype
    if not raw.is_text and pd.api.types.is_numeric_dtype(kind) and kind.name.lower() != "bool":
        numbers = cells.to_numpy(np.float64, na_value=np.nan)
        is_missing = np.isnan(numbers) | (np.isinf(numbers) & impute)
        return _Values(cells.astype(str).to_numpy(object), numbers, is_missing)
    text = cells.astype(object).where(cells.notna(), "").astype(str).str.strip()
    is_missing = text.str.lower().isin(MISSING).to_numpy(bool)
    plain = text.str.replace(",", ".", regex=False) if raw.decimal == "," else text
    numbers = pd.to_numeric(plain.where(~is_missing), errors="coerce").to_numpy(np.float64)
    return _Values(text.to_numpy(object), numbers, is_missing | (np.isinf(numbers) & impute))


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


def _listed(names: Sequence[str], most: int = 5, quoted: bool = True) -> str:
    shown = [repr(name) if quoted else name for name in names[:most]]
    return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")


def _flag(name: str) -> str:
    """A column's name as it is typed on a command line."""
    import shlex

    return shlex.quote(name)


def _drop(name: str) -> str:
    return f"Leave it out with --drop {_flag(name)}."
