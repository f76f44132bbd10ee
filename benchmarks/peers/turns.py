"""A contender in a process of its own, which does one turn at a time.

    python benchmarks/peers/turns.py MODULE FUNCTION '{"option": 1}'

`MODULE` is a file of this folder, `FUNCTION(turns, **options)` a contender in it: it sets itself
up, compiles, and then does one turn of work for every `turns.wait()` that is true. The other end of
the pipes writes "go" and gets one line of JSON back: the seconds of the turn, and metrics
of it. So contenders of different environments take turns within one run.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from importlib import metadata
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parent.parent


class Turns:
    """This process's end of the pipes."""

    def __init__(self):
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # whatever a library prints must not get among the answers

    def begin(self, versions: dict[str, str]) -> None:
        """Imports are done; from here on it is setting up."""
        self._send(versions)
        self._start()

    def _start(self) -> None:
        self._marks: dict[str, float] = {}
        self._ended: tuple[float, float] | None = None
        self._began = time.perf_counter(), time.process_time()

    def _elapsed(self) -> tuple[float, float]:
        return time.perf_counter() - self._began[0], time.process_time() - self._began[1]

    def _send(self, answer: dict) -> None:
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()

    def mark(self, name: str) -> None:
        """Seconds of the turn so far, under a name."""
        self._marks[name] = self._elapsed()[0]

    def end(self) -> None:
        """The turn's work is done; what follows only describes it."""
        self._ended = self._elapsed()

    def wait(self, units: float = 1, **metrics) -> bool:
        """Ends a turn of so many steps, gradients, ...; true when the next one is to be done."""
        wall, cpu = self._ended or self._elapsed()
        answer = {"seconds": wall, "cpu_seconds": cpu, "units": units, **self._marks, **metrics}
        self._send(answer)
        wanted = sys.stdin.readline().strip() == "go"
        self._start()
        return wanted


def main() -> None:
    module, function, options = sys.argv[1:]
    sys.path[0] = str(BENCHMARKS)  # this folder's files have the names of the packages they use
    turns = Turns()
    contenders = importlib.import_module(f"peers.{module}")
    found = {name: metadata.version(name) for name in contenders.PACKAGES}
    turns.begin(found)
    getattr(contenders, function)(turns, **json.loads(options))


if __name__ == "__main__":
    main()
