"""Compiled programs are kept for the next fit, but not without bound.

Every new shape of data compiles some hundred small programs, of about 0.2 MB each, which JAX keeps
for the life of the process. After `MAX_PROGRAMS` of them its caches are cleared, the user's own
included: what is still in use is then compiled once more, and results stay the same. Fits of shapes
that were seen before compile nothing, and so clear nothing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import jax

MAX_PROGRAMS = 2000
COMPILED = "/jax/core/compile/backend_compile_duration"


class ProgramCount:
    """Programs compiled inside fits since the caches were last cleared."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.programs, self.running, self.is_listening = 0, 0, False

    def hear(self, event: str, duration_secs: float, **details: str | int) -> None:
        """The listener of JAX's monitoring."""
        if event == COMPILED and self.running:
            self.programs += 1


count = ProgramCount()


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Around a fit: clear the caches after it, if it is the last that runs and they are full."""
    with count.lock:
        if not count.is_listening:
            jax.monitoring.register_event_duration_secs_listener(count.hear)
            count.is_listening = True
        count.running += 1
    try:
        yield
    finally:
        with count.lock:
            count.running -= 1
            if count.programs > MAX_PROGRAMS and not count.running:
                count.programs = 0
                jax.clear_caches()
