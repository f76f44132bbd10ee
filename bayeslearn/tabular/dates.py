"""Dates as numbers: days since 1970-01-01, and where they are in the year, the week and the day."""

from __future__ import annotations

import datetime
import re
from typing import NamedTuple

import numpy as np

from bayeslearn.tabular.columns import map_unique

YEAR, WEEK, DAY = 365.2425, 7.0, 1.0
CYCLES = {"year": YEAR, "week": WEEK, "day": DAY}  # days
MIN_SPAN = {"year": 365.0, "week": 14.0}  # days from first to last, for a cycle to be seen
MONDAY = 4.0  # 1970-01-05
ISO = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}(?:[T ]\d{1,2}:\d{2}.*)?")
NUMERIC = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{4})(?:[T ](\d{1,2}:\d{2}.*))?")
MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july", "august"),
    *("september", "october", "november", "december"),
)
# "5 Jan 2024", "05-Jan-2024", "January 5, 2024"
NAMED = re.compile(
    r"(?:(\d{1,2})[ .-] ?([A-Za-z]{3,9})\.?[ ,-] ?|([A-Za-z]{3,9})\.? (\d{1,2}),? )(\d{4})"
    r"(?:[T ](\d{1,2}:\d{2}.*))?"
)
EPOCH = datetime.datetime(1970, 1, 1)


class Dates(NamedTuple):
    """The dates of a column."""

    days: np.ndarray  # since 1970; NaN: no date
    day_first: bool | None  # the order of cells like 03/04/2024; None: there are none
    is_ambiguous: bool  # nothing says which order they have


def read_dates(text: np.ndarray, day_first: bool | None) -> Dates:
    """The dates of some cells; `day_first` decides where two orders are possible."""
    distinct = {cell for cell in set(text.tolist()) if NUMERIC.fullmatch(cell)}
    parts = [NUMERIC.fullmatch(cell) for cell in distinct]
    if parts:
        first = max(int(part.group(1)) for part in parts if part)
        second = max(int(part.group(3)) for part in parts if part)
        if first > 12 or second > 12:  # the table itself decides
            day_first = first > 12
        elif day_first is None and all(part.group(2) == "." for part in parts if part):
            day_first = True  # points are used with the day first alone
    order = True if day_first is None else day_first
    days = map_unique(lambda cell: _days(cell, order), text)
    if not parts:
        return Dates(days, None, False)
    return Dates(days, day_first, day_first is None)


def _month_of(name: str) -> int:
    """1 to 12 for an English name, also cut to three letters (Sept to four); else 0."""
    name = name.lower()
    for number, month in enumerate(MONTHS, 1):
        if name in (month, month[:3]) or (name == "sept" and number == 9):
            return number
    return 0


def _in_numbers(cell: str) -> str:
    """A date with the name of its month as one of numbers; other text as it is."""
    found = NAMED.fullmatch(cell)
    if found is None:
        return cell
    day, month = found[1] or found[4], _month_of(found[2] or found[3])
    if not month:
        return cell
    return f"{found[5]}-{month:02d}-{int(day):02d}" + (f" {found[6]}" if found[6] else "")


def _days(cell: str, day_first: bool) -> float:
    cell = _in_numbers(cell)
    found = NUMERIC.fullmatch(cell)
    if found is not None:
        day, month = (found.group(1), found.group(3))[:: 1 if day_first else -1]
        cell = f"{found.group(4)}-{int(month):02d}-{int(day):02d}"
        cell += f" {found.group(5)}" if found.group(5) else ""
    elif ISO.fullmatch(cell) is None:
        return np.nan
    date, _, time = cell.replace("T", " ").partition(" ")
    year, month, day = re.split(r"[-/.]", date)
    text = f"{year}-{int(month):02d}-{int(day):02d}"
    if time:
        text += f"T{time.strip() if time.index(':') == 2 else '0' + time.strip()}"
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return np.nan
    if moment.tzinfo is not None:
        moment = moment.astimezone(datetime.UTC).replace(tzinfo=None)
    return (moment - EPOCH) / datetime.timedelta(days=1)


def cycles_of(days: np.ndarray) -> tuple[str, ...]:
    """The cycles that a column of dates is long enough to show."""
    span = float(np.max(days) - np.min(days))
    found = [name for name, least in MIN_SPAN.items() if span >= least]
    if np.any(days != np.floor(days)):
        found.append("day")
    return tuple(found)


def features(name: str, days: np.ndarray, cycles: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Numbers by name: the days themselves, and sine and cosine of each cycle."""
    found = {name: days}
    for cycle in cycles:
        angle = 2 * np.pi * (days - (MONDAY if cycle == "week" else 0.0)) / CYCLES[cycle]
        found[f"{name}:{cycle}_sin"] = np.sin(angle)
        found[f"{name}:{cycle}_cos"] = np.cos(angle)
    return found
