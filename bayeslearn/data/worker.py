"""One thread that reads ahead."""

from __future__ import annotations

import contextvars
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import jax

MOST_WAIT = 5.0  # seconds for the thread's last batch


class Worker:
    """Calls functions one after the other on one thread, in the precision and on the device of
    the thread that made it."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        device = jax.config.jax_default_device  # type: ignore[attr-defined]
        run = contextvars.copy_context().run
        self._thread = threading.Thread(
            target=run, args=(_work, self._tasks, device), name="bayeslearn batches", daemon=True
        )
        self._stop = weakref.finalize(self, self._tasks.put, None)
        self._thread.start()

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Queue a call; the future has its result."""
        future: Future[Any] = Future()
        self._tasks.put((future, function, args))
        return future

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Queue a call and wait for its result."""
        return self.submit(function, *args).result()

    def close(self) -> None:
        """Wait for the end of what is under way, but not for ever: it is the user's code."""
        self._stop()
        self._thread.join(MOST_WAIT)


def _work(tasks: queue.SimpleQueue[Any], device: Any) -> None:
    with jax.enable_x64(True), jax.default_device(device):
        while (task := tasks.get()) is not None:
            future, function, args = task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function(*args))
            except BaseException as error:
                future.set_exception(error)
            del task, future, function, args  # they hold the stream, whose end ends this thread
