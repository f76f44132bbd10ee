"""Durations as people write them: "90s", "2m", "1h"."""

from __future__ import annotations

import re

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str, *, needs_unit: bool = False) -> float | None:
    """Seconds; None where the text is not a duration."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([smh]?)\s*", text)
    if match is None or (needs_unit and not match[2]):
        return None
    return float(match[1]) * UNITS[match[2]]
