"""Arguments of Python as the options that a command has for them."""

from __future__ import annotations

import re

import click

FLAGS = {
    "calibration": "--calibrate",
    "calibration_fraction": "--calibration-fraction",
    "likelihood": "--likelihood",
    "noise": "--observation-noise",
    "class_weight": "--class-weight",
}


def in_flags(text: str, command: click.Command | None = None) -> str:
    """A note or a refusal of a command with `--likelihood beta` for `likelihood="beta"`."""
    flags = _options(command) | FLAGS
    names = "|".join(map(re.escape, flags))
    text = re.sub(rf"`({names})`", lambda found: f"`{flags[found[1]]}`", text)
    given = rf"\b({'|'.join(FLAGS)})=\"([^\"]+)\""
    return re.sub(given, lambda found: f"{FLAGS[found[1]]} {found[2]}", text)


def _options(command: click.Command | None) -> dict[str, str]:
    """The options of a command by the names of their arguments."""
    if command is None:
        context = click.get_current_context(silent=True)
        command = None if context is None else context.command
    options = [] if command is None else command.params
    return {p.name: max(p.opts, key=len) for p in options if isinstance(p, click.Option) and p.name}
