"""Arguments of Python as the options that a command has for them."""

from __future__ import annotations

import re

FLAGS = {
    "calibration": "--calibrate",
    "calibration_fraction": "--calibration-fraction",
    "likelihood": "--likelihood",
    "noise": "--observation-noise",
    "class_weight": "--class-weight",
}
NAMED = re.compile(rf"`({'|'.join(FLAGS)})`")
GIVEN = re.compile(rf"\b({'|'.join(FLAGS)})=\"([^\"]+)\"")


def in_flags(text: str) -> str:
    """A note or a refusal with `--likelihood beta` for `likelihood="beta"`."""
    text = NAMED.sub(lambda found: f"`{FLAGS[found[1]]}`", text)
    return GIVEN.sub(lambda found: f"{FLAGS[found[1]]} {found[2]}", text)
