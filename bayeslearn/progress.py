"""Progress of long runs: a bar on a terminal, elsewhere a line every few seconds if wanted."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

SHOWN = (
    *("elbo", "nll", "kl", "validation", "acceptance", "diverging"),
    *("skipped", "back_offs"),  # where a guard has acted
)
HEARTBEAT = 8.0  # seconds between two lines
COMPILING = "compiling"


def phase_label(phase: str) -> str:
    """A phase of `fit` as a person reads it: "warm start"; "" for the method's own."""
    return phase.removeprefix("main").removeprefix("/").replace("/", ", ")


def run_label(algorithm: str, phase: str) -> str:
    """A method and its phase: "vogn, warm start"."""
    return ", ".join(part for part in (algorithm, phase_label(phase)) if part)


class Status(NamedTuple):
    """Where a run is: what a bar or a line shows."""

    name: str
    total: int | None
    step: int | None = None  # None: nothing has run yet
    text: str = ""
    unit: str = "step"

    def line(self, seconds: float) -> str:
        """One line of text, such as "vogn, warm start: step 250 of 1666, elbo -310 (12 s)"."""
        steps = COMPILING
        if self.step is not None:
            steps = f"{self.unit} {self.step}"
            steps += "" if self.total is None else f" of {self.total}"
        if self.total is None and self.step is None:  # work without steps
            return f"{self.name} ({seconds:.0f} s)"
        parts = ", ".join(part for part in (steps, self.text) if part)
        return f"{self.name}: {parts} ({seconds:.0f} s)"


class Progress:
    """`with Progress(name, total, shown) as bar: bar.update(step, metrics)`.

    Args:
        name: what runs; `update` can change it.
        total: how many steps there are; None: work without steps.
        shown: True: a bar on a terminal, elsewhere a line on standard error every few seconds,
            also before the first step; None: a bar on a terminal, elsewhere nothing; False:
            nothing.
        unit: what is counted.
    """

    def __init__(self, name: str, total: int | None, shown: bool | None, unit: str = "step"):
        self._status = Status(name, total, unit=unit)
        self._shown = shown
        self._bar: _TerminalBar | None = None
        self._lines: _Heartbeat | None = None

    def __enter__(self) -> Progress:
        if self._shown is False:
            return self
        if sys.stderr.isatty():
            self._bar = _TerminalBar(self._status)
        elif self._shown:
            self._lines = _Heartbeat(self)
            self._lines.start()
        return self

    @property
    def status(self) -> Status:
        """What is shown at the moment."""
        return self._status

    def update(
        self,
        step: int,
        metrics: dict[str, float] | None = None,
        *,
        name: str | None = None,
        total: int | None = None,
        text: str = "",
    ) -> None:
        """Show that `step` of `total` steps are done, and metrics or a text."""
        if self._bar is None and self._lines is None:
            return
        if metrics is not None:
            text = " ".join(f"{k} {metrics[k]:.4g}" for k in SHOWN if k in metrics)
            text = f"warm-up {text}".rstrip() if "warmup" in metrics else text
        before = self._status
        self._status = before._replace(
            name=name or before.name, total=total or before.total, step=step, text=text
        )
        if self._bar is not None:
            self._bar.show(self._status)

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._lines is not None:
            self._lines.stop()


class _TerminalBar:
    """A bar of Rich."""

    def __init__(self, status: Status):
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bar

        texts = ("{task.fields[text]}", "{task.fields[pace]}")
        columns = (
            *(TextColumn("{task.description}"), BarColumn()),
            *((MofNCompleteColumn(), *map(TextColumn, texts)) if status.total else ()),
            TimeRemainingColumn() if status.total else TimeElapsedColumn(),
        )
        self._bar: Bar = Bar(*columns, console=Console(stderr=True), transient=not status.total)
        self._bar.start()
        name = f"{status.name}: {COMPILING}" if status.total else status.name
        self._task: TaskID = self._bar.add_task(name, total=status.total, text="", pace="")

    def show(self, status: Status) -> None:
        """Redraw."""
        speed = self._bar.tasks[0].speed
        self._bar.update(
            self._task,
            completed=status.step or 0,
            total=status.total,
            text=status.text,
            pace=f"{speed:.3g}/s" if speed else "",
            description=status.name,
        )

    def stop(self) -> None:
        """Leave the terminal as it was."""
        self._bar.stop()


class _Heartbeat(threading.Thread):
    """Repeats the status on standard error, so that no silence is longer than `HEARTBEAT`."""

    last_line: float | None = None  # of any of them, so that short stages in a row are heard too

    def __init__(self, progress: Progress):
        super().__init__(name="bayeslearn-progress", daemon=True)
        self._progress = progress
        self._began = time.monotonic()
        self._stopped = threading.Event()

    def run(self) -> None:
        """Print a line whenever one is due."""
        cls = type(self)
        if cls.last_line is None:
            cls.last_line = self._began
        while not self._stopped.wait(max(0.0, cls.last_line + HEARTBEAT - time.monotonic())):
            line = self._progress.status.line(time.monotonic() - self._began)
            print(line, file=sys.stderr, flush=True)
            cls.last_line = time.monotonic()

    def stop(self) -> None:
        """No line after this."""
        self._stopped.set()
        self.join(timeout=1.0)
