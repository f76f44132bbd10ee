"""Progress of long runs: a bar on a terminal or in a notebook, elsewhere lines if wanted."""

from __future__ import annotations

import html
import re
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
REDRAW, TICK = 0.1, 1.0  # seconds between two pictures of a bar in a notebook: least, most
COMPILING = "compiling"
MIN_BAR, MAX_BAR = 8, 40  # columns of the bar itself
TIME_WIDTH = 7  # of "0:01:23"


def phase_label(phase: str, num_members: int | None = None) -> str:
    """A phase of `fit` as a person reads it: "warm start"; "" for the method's own.

    Members are counted from one, "member 1 of 10".
    """
    of = "" if num_members is None else f" of {num_members}"
    label = phase.removeprefix("main").removeprefix("/").replace("/", ", ")
    return re.sub(r"\bmember (\d+)", lambda found: f"member {int(found[1]) + 1}{of}", label)


def run_label(algorithm: str, phase: str, num_members: int | None = None) -> str:
    """A method and its phase: "vogn, warm start"."""
    return ", ".join(part for part in (algorithm, phase_label(phase, num_members)) if part)


class Status(NamedTuple):
    """Where a run is: what a bar or a line shows."""

    name: str
    total: int | None
    step: int | None = None  # None: nothing has run yet
    text: str = ""
    unit: str = "step"
    metrics: tuple[str, ...] = ()  # the parts of the text, the first the most important

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
        shown: True: a bar on a terminal or in a notebook, elsewhere a line on standard error
            every few seconds, also before the first step; None: a bar on a terminal or in a
            notebook, elsewhere nothing; False: nothing.
        unit: what is counted.
    """

    def __init__(self, name: str, total: int | None, shown: bool | None, unit: str = "step"):
        self._status = Status(name, total, unit=unit)
        self._shown = shown
        self._bar: _TerminalBar | _NotebookBar | None = None
        self._lines: _Heartbeat | None = None

    def __enter__(self) -> Progress:
        if self._shown is False:
            return self
        if sys.stderr.isatty():
            self._bar = _TerminalBar(self._status)
        elif _is_in_notebook():
            self._bar = _NotebookBar(self)
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
        parts: tuple[str, ...] = (text,)
        if metrics is not None:
            parts = ("warm-up",) if "warmup" in metrics else ()
            parts += tuple(f"{k} {metrics[k]:.4g}" for k in SHOWN if k in metrics)
            text = " ".join(parts)
        before = self._status
        self._status = before._replace(
            name=name or before.name,
            total=total or before.total,
            step=step,
            text=text,
            metrics=parts,
        )
        if self._bar is not None:
            self._bar.show(self._status)

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._lines is not None:
            self._lines.stop()


class Layout(NamedTuple):
    """What of a status fits on one line of a terminal."""

    name: str
    bar: int
    text: str
    pace: str


def fit_to(width: int, status: Status, pace: str) -> Layout:
    """Metrics are left out first, the last first, then the pace; digits of the counts never."""
    counts = 2 * len(str(status.total)) + 1
    name, parts = status.name, list(status.metrics)

    def room() -> int:
        """Columns left for the bar; a space between any two parts."""
        texts = [name, " ".join(parts), pace]
        return width - counts - TIME_WIDTH - 5 - sum(len(text) for text in texts)

    while parts and room() < MIN_BAR:
        parts.pop()
    if room() < MIN_BAR:
        pace = ""
    if room() < MIN_BAR:
        kept = max(1, len(name) - (MIN_BAR - room()) - 1)
        name = f"{name[:kept]}…"
    return Layout(name, max(1, min(MAX_BAR, room())), " ".join(parts), pace)


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
        self._column = BarColumn(MAX_BAR)
        columns = (
            *(TextColumn("{task.description}"), self._column),
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
        pace = f"{speed:.3g}/s" if speed else ""
        here = fit_to(self._bar.console.width, status, pace)
        self._column.bar_width = here.bar
        self._bar.update(
            self._task,
            completed=status.step or 0,
            total=status.total,
            text=here.text,
            pace=here.pace,
            description=here.name,
        )

    def stop(self) -> None:
        """Leave the terminal as it was."""
        self._bar.stop()


def _is_in_notebook() -> bool:
    """Whether a kernel runs this: IPython on a terminal is another shell."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class _NotebookBar:
    """A bar in the output of a cell, which is replaced as it grows. Needs no widgets."""

    def __init__(self, progress: Progress):
        from IPython.display import display

        self._progress = progress
        self._began = self._drawn = time.monotonic()
        self._handle = display(self._contents(), raw=True, display_id=True)
        self._stopped = threading.Event()
        # So that seconds go on where steps are long, and while compiling.
        self._clock = threading.Thread(target=self._tick, name="bayeslearn-progress", daemon=True)
        self._clock.start()

    def show(self, status: Status) -> None:
        """Redraw, if it is time; a notebook keeps no more of it."""
        if time.monotonic() - self._drawn > REDRAW:
            self._draw()

    def stop(self) -> None:
        """The state at the end remains; a bar without steps goes."""
        self._stopped.set()
        self._clock.join(timeout=1.0)
        if self._progress.status.total is None:
            self._handle.update({"text/plain": "", "text/html": ""}, raw=True)
        else:
            self._draw()

    def _tick(self) -> None:
        while not self._stopped.wait(TICK):
            self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        self._handle.update(self._contents(), raw=True)

    def _contents(self) -> dict[str, str]:
        status = self._progress.status
        line = status.line(time.monotonic() - self._began)
        done = "" if status.total is None else f' max="{status.total}" value="{status.step or 0}"'
        bar = f'<progress{done} style="width: 16em; vertical-align: middle"></progress>'
        return {"text/plain": line, "text/html": f"<div>{bar} {html.escape(line)}</div>"}


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
