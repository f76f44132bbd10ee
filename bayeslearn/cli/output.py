"""What commands print: sentences for a person, or one JSON object for a program."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from bayeslearn.cli.safe_text import visible
from bayeslearn.cli.wording import in_flags
from bayeslearn.progress import Progress
from bayeslearn.tabular.json_values import JSON
from bayeslearn.tabular.score_table import metric

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDE = 120  # columns where standard output is no terminal


class Output:
    """Where a command writes: results to standard output, notes and progress to standard error.

    With `as_json` the result is one JSON object; with `quiet` nothing is written but errors.
    """

    def __init__(self, as_json: bool, quiet: bool):
        self.as_json, self.quiet = as_json, quiet
        self.notes: list[str] = []

    @property
    def shows_progress(self) -> bool:
        """What `progress` is to be for long calls."""
        return not self.quiet

    @property
    def width(self) -> int:
        """Columns of a table."""
        return shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDE

    def progress(self, name: str, total: int | None = None) -> Progress:
        """The progress of a long call; without a total, of work that has no steps."""
        return Progress(visible(name), total, self.shows_progress)

    def note(self, text: str) -> None:
        """Something the user should know; it is part of the JSON object too."""
        text = in_flags(text)
        if text in self.notes:
            return
        self.notes.append(text)
        if not self.as_json and not self.quiet:
            click.secho(visible(f"Note: {text}"), fg="yellow", err=True)

    def say(self, text: str) -> None:
        """A line for a person."""
        if not self.as_json and not self.quiet:
            click.echo(visible(text))

    def data(self, text: str) -> None:
        """A table for a person or a program; only a terminal gets escapes as text."""
        click.echo(visible(text) if sys.stdout.isatty() else text, nl=False)

    def show(self, renderable: RenderableType) -> None:
        """A table for a person."""
        if not self.as_json and not self.quiet:
            from rich.console import Console

            Console(width=self.width).print(renderable, markup=False, highlight=False)

    def finish(self, **result: JSON) -> None:
        """The JSON object."""
        if self.as_json:
            click.echo(json.dumps({**result, "notes": self.notes}, indent=1))

    @contextlib.contextmanager
    def warnings_as_notes(self) -> Iterator[None]:
        """Show warnings inside the block as notes."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            yield
        for warning in caught:
            if issubclass(warning.category, UserWarning):
                self.note(str(warning.message))


def write_scores(scores: dict[str, float]) -> str:
    """Scores on one line: "RMSE 55.3, log-likelihood -5.43, 90 % coverage 88 %"."""
    texts = []
    for name, value in scores.items():
        known = metric(name)
        texts.append(f"{known.label} {f'{value:.0%}' if known.is_fraction else number(value)}")
    return ", ".join(texts)


def number(value: float) -> str:
    """Four figures, or a whole number with commas."""
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def typed_command() -> str:
    """What was typed, for the report."""
    return shlex.join(["bayeslearn", *sys.argv[1:]])
