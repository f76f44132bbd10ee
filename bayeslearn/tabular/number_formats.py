"""Numbers as people write them: thousands separators, decimal commas, currency, per cent.

A cell is read with a decimal point and with a decimal comma. A column whose cells all have one of
the two readings, or the same value in both, is read so. "17.087" can be 17.087 or 17,087: such a
column is decided by an option, by the other columns of the file, or not at all.
"""

from __future__ import annotations

import re
from functools import partial
from typing import NamedTuple

import numpy as np

from bayeslearn.tabular.columns import Written, map_unique

SIGNS = "$€£¥₹₩₽₺"
CODES = "USD|EUR|GBP|CHF|JPY|CNY|INR|CAD|AUD|SEK|NOK|DKK|PLN|BRL|MXN|kr|zł|Fr\\.?"
UNIT = re.compile(rf"^([+\-]?)\s*([{SIGNS}]|{CODES})\s*|\s*([{SIGNS}%‰]|{CODES})$")
IN_PARENTHESES = re.compile(r"\([^()]*\)")
SPACES = " \u00a0\u2009\u202f'’"
MINUS = str.maketrans({"\u2212": "-", "\u2013": "-"})
EXPONENT = r"(?:[eE][+\-]?\d+)?"


def _pattern(decimal: str, thousands: str) -> re.Pattern[str]:
    whole = rf"(?:\d+|[1-9]\d{{0,2}}(?:{thousands}\d{{3}})+|[1-9]\d{{0,2}}(?:[{SPACES}]\d{{3}})+)"
    return re.compile(rf"[+\-]?(?:{whole}(?:{decimal}\d*)?|{decimal}\d+){EXPONENT}")


PATTERNS = {".": _pattern(r"\.", ","), ",": _pattern(",", r"\.")}
OTHER = {".": ",", ",": "."}
NAMES = {".": "point", ",": "comma"}


class Readings(NamedTuple):
    """The cells of a column with a decimal point and with a decimal comma."""

    point: np.ndarray  # NaN where a cell cannot be read so
    comma: np.ndarray
    units: tuple[str, ...]  # "" for a cell without

    @property
    def decimals(self) -> tuple[str, ...]:
        """With which all cells that are numbers can be read."""
        is_point, is_comma = ~np.isnan(self.point), ~np.isnan(self.comma)
        is_number = is_point | is_comma
        if not np.any(is_number):
            return (".", ",")
        fits = {".": np.all(is_point[is_number]), ",": np.all(is_comma[is_number])}
        return tuple(decimal for decimal, fit in fits.items() if fit)

    @property
    def ambiguous(self) -> np.ndarray:
        """Cells with two different values."""
        return (self.point != self.comma) & ~np.isnan(self.point) & ~np.isnan(self.comma)

    def numbers(self, decimal: str) -> np.ndarray:
        """One of the readings."""
        return self.point if decimal == "." else self.comma


def split_unit(cell: str) -> tuple[str, str]:
    """The number without its currency or per cent sign, and that sign.

    "(1.07)" is an accountant's -1.07; the unit may be inside the parentheses or outside.
    """
    if IN_PARENTHESES.fullmatch(cell):
        number, unit = split_unit(cell[1:-1].strip())
        return _negative(number), unit
    found = UNIT.search(cell)
    if found is None:
        return cell, ""
    number = UNIT.sub(lambda m: m.group(1) or "", cell, count=1).strip()
    if IN_PARENTHESES.fullmatch(number):
        number = _negative(number[1:-1].strip())
    return number, found.group(2) or found.group(3)


def _negative(number: str) -> str:
    return f"-{number}" if number[:1].isdigit() else "?"  # (-5) is no number


def read_cell(cell: str, decimal: str) -> float:
    """A number, NaN if the cell is none with this decimal separator."""
    number = split_unit(cell.translate(MINUS))[0]
    if PATTERNS[decimal].fullmatch(number) is None:
        return np.nan
    plain = re.sub(rf"[{SPACES}{re.escape(OTHER[decimal])}]", "", number)
    return float(plain.replace(",", "."))


def read_both(text: np.ndarray) -> Readings:
    """Both readings of the cells of a column."""
    point, comma = (map_unique(partial(read_cell, decimal=d), text) for d in (".", ","))
    is_number = ~np.isnan(point) | ~np.isnan(comma)
    units = sorted({split_unit(cell)[1] for cell in set(text[is_number].tolist())})
    return Readings(point, comma, tuple(units))


class Choice(NamedTuple):
    """The decimal separator of a column; None if there are two readings."""

    decimal: str | None
    first: int = -1  # the first cell with two readings


class Evidence(NamedTuple):
    """What decides between two readings."""

    option: str  # the decimal separator that the user asks for; "": none
    written: Written  # of the column in the training table
    established: frozenset[str]  # of columns with a single reading
    separator: str  # of the file's cells


def choose(readings: Readings, text: np.ndarray, evidence: Evidence) -> Choice:
    """The reading of a column."""
    decimals = readings.decimals
    if len(decimals) != 2:
        return Choice(decimals[0] if decimals else evidence.option or ".")
    if not np.any(readings.ambiguous):
        return Choice(evidence.option or ".")
    first = int(np.argmax(readings.ambiguous))
    if evidence.option:
        return Choice(evidence.option, first)
    own = _by_the_file(text[first], evidence)
    before = evidence.written
    if not before.decimal or own == before.decimal:
        return Choice(own, first)
    is_same_format = not evidence.established and before.separator in (None, evidence.separator)
    # A file in another format than the training table is not overruled by it.
    return Choice(before.decimal if own is None or is_same_format else None, first)


def _by_the_file(cell: str, evidence: Evidence) -> str | None:
    """The reading of a cell with two, by the other columns and by what separates the cells."""
    used = "." if "." in cell else ","
    if evidence.established:
        return used if evidence.established == {used} else None
    usual = "," if evidence.separator == ";" else "."
    return used if used == usual else None


def describe_ambiguity(cell: str, place: str, name: str, before: str = "") -> tuple[str, str]:
    """What has two readings, and the flags that decide; `before`: of the training table."""
    used = "." if "." in cell else ","
    as_decimal, as_thousands = read_cell(cell, used), read_cell(cell, OTHER[used])
    what = (
        f"{cell!r} in {place} of the column {name!r} can be read as {as_decimal:.10g} (decimal"
        f" {NAMES[used]}) or as {as_thousands:.10g} (thousands separator)"
    )
    if before:
        what += f"; the training table has decimal {NAMES[before]}s"
    return what, f"Use --decimal {used!r} for the first, --thousands {used!r} for the second."
