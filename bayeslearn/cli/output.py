"""What commands print: sentences to a person, or one JSON object to a program."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import click

WIDE = 120  # columns of a page that is no terminal
METRICS = {
    "rmse": "RMSE",
    "accuracy": "accuracy",
    "log_likelihood": "log-likelihood",
    "coverage90": "90 % coverage",
    "ece": "ECE",
    "crps": "CRPS",
    "brier": "Brier",
}


class Speaker:
    """What a command says: sentences to a person, or one JSON object to a machine."""

    def __init__(self, as_json: bool, quiet: bool):
        self.as_json, self.quiet = as_json, quiet
        self.notes: list[str] = []

    @property
    def progress(self) -> bool | None:
        return False if self.quiet else None

    @property
    def width(self) -> int:
        return shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDE

    def note(self, text: str) -> None:
        """What a person should know; kept for the JSON object too."""
        if text in self.notes:
            return
        self.notes.append(text)
        if not self.as_json and not self.quiet:
            click.secho(f"Note: {text}", fg="yellow", err=True)

    def say(self, text: str) -> None:
        if not self.as_json and not self.quiet:
            click.echo(text)

    def show(self, renderable: Any) -> None:
        if not self.as_json and not self.quiet:
            from rich.console import Console

            Console(width=self.width).print(renderable, markup=False, highlight=False)

    def end(self, **result: Any) -> None:
        if self.as_json:
            click.echo(json.dumps({**result, "notes": self.notes}, indent=1))

    @contextlib.contextmanager
    def warnings_as_notes(self) -> Iterator[None]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            yield
        for warning in caught:
            if issubclass(warning.category, UserWarning):
                self.note(str(warning.message))


def _told_scores(scores: dict[str, float]) -> str:
    is_share = ("coverage90", "accuracy")
    told = {k: f"{v:.0%}" if k in is_share else _number(v) for k, v in scores.items()}
    return ", ".join(f"{METRICS.get(name, name)} {value}" for name, value in told.items())


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def _command() -> str:
    """What was typed, for the report."""
    return shlex.join(["bayeslearn", *sys.argv[1:]])


def _typed(path: str) -> str:
    return shlex.quote(path)
