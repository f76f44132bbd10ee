"""SIGTERM and SIGINT during a run: a last checkpoint first, then the process leaves."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from bayeslearn.errors import Interrupted


class SignalListener:
    """Remembers a signal until the run has an occasion to stop; a second one does not wait."""

    def __init__(self) -> None:
        self._signal: int | None = None

    @property
    def is_signalled(self) -> bool:
        """Whether a signal has come."""
        return self._signal is not None

    def resume_hint(self) -> str:
        """How to go on after an interruption."""
        raise NotImplementedError

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Around a run; in another thread than the main one signals are left alone."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {}
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                before[number] = signal.signal(number, self._catch)
            yield
        finally:
            for number, handler in before.items():
                # None: it was not set from Python, and cannot be set back from there.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if self.is_signalled:  # after the last occasion
            self.leave(True)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if self.is_signalled:
            self.leave(False)
        self._signal = number

    def leave(self, is_written: bool) -> NoReturn:
        """End the process as the signal asks."""
        state = "A checkpoint was written" if is_written else "No checkpoint could be written"
        message = f"{state}; {self.resume_hint()}."
        number, self._signal = self._signal, None
        raise KeyboardInterrupt(message) if number == signal.SIGINT else Interrupted(message)
