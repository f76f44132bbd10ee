"""The progress line of long runs: a Rich bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from typing import Any

SHOWN = (
    *("elbo", "nll", "kl", "validation", "acceptance", "diverging"),
    *("skipped", "back_offs"),  # where a guard has acted
)


class Progress:
    """`with Progress(name, total, shown) as bar: bar.update(step, metrics)`."""

    def __init__(self, name: str, total: int, shown: bool | None):
        self._bar: Any = None
        self._task: Any = None
        self._name, self._total = name, total
        self._is_shown = sys.stderr.isatty() if shown is None else shown

    def __enter__(self) -> Progress:
        if self._is_shown:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[told]}"),
                TextColumn("{task.fields[pace]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._bar.start()
            self._task = self._bar.add_task(self._name, total=self._total, told="", pace="")
        return self

    def update(self, step: int, metrics: dict[str, float], name: str | None = None) -> None:
        if self._bar is None:
            return
        told = " ".join(f"{k} {metrics[k]:.4g}" for k in SHOWN if k in metrics)
        if "warmup" in metrics:
            told = "warm-up " + told
        speed = self._bar.tasks[self._task].speed
        pace = f"{speed:.0f} steps/s" if speed else ""
        name = name or self._name
        self._bar.update(self._task, completed=step, told=told, pace=pace, description=name)

    def __exit__(self, *args: Any) -> None:
        if self._bar is not None:
            self._bar.stop()
