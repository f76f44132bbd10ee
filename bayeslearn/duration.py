"""Durations as people write them: "90s", "2m", "1h"."""

from __future__ import annotations

import math
import numbers
import re

from bayeslearn.errors import refuse

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str, *, needs_unit: bool = False) -> float | None:
    """Seconds; None where the text is not a duration."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([smh]?)\s*", text)
    if match is None or (needs_unit and not match[2]):
        return None
    return float(match[1]) * UNITS[match[2]]


def seconds_of(argument: str, value: float | str) -> float:
    """A duration as seconds; what is none is refused."""
    seconds = parse_duration(value) if isinstance(value, str) else value
    is_number = isinstance(seconds, numbers.Real) and not isinstance(seconds, bool)
    if seconds is None or not is_number or not 0 < seconds < math.inf:
        refuse(argument, value, 'be a number of seconds, or such as "90s", "2m", "1h"')
    return float(seconds)
