"""Tasks on a Dask cluster or on Ray, each of which starts the task of a killed worker again.

They are submitted to the engine itself. Through joblib's backends a task whose workers are killed
again and again never ends on Dask, and on Ray one killed worker ends the run, whose results all
come at its end.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any, NoReturn, Protocol

MAX_LOSSES = 3  # tries of a task that loses its workers


class WorkersLostError(Exception):
    """A task lost its worker each time that it was tried."""


class Cluster(Protocol):
    """What an engine answers; a handle stands for a task that was submitted."""

    def share(self, value: bytes) -> Any:
        """A handle to pass in a task's arguments; the task receives the value."""

    def submit(self, function: Any, *arguments: Any) -> Any:
        """Start a task."""

    def wait(self, handles: list[Any]) -> tuple[Any, list[Any]]:
        """One whose task has ended, and the others."""

    def result(self, handle: Any) -> Any:
        """What the task returned; its error is raised as it is."""

    def cancel(self, handles: list[Any]) -> None:
        """Give tasks up."""


def run(cluster: Cluster, calls: list[tuple[Any, ...]], num_at_a_time: int) -> Iterator[Any]:
    """The result of each call (function, *arguments), as they are found."""
    waiting: deque[tuple[Any, ...]] = deque(calls)
    running: list[Any] = []
    try:
        while waiting or running:
            while waiting and len(running) < num_at_a_time:
                running.append(cluster.submit(*waiting.popleft()))
            done, running = cluster.wait(running)
            found = cluster.result(done)
            del done  # or Dask finds it again where the worker that keeps it is lost
            yield found
    finally:
        if running:
            cluster.cancel(running)


def cluster_of(backend: Any) -> Cluster | None:
    """The engine behind one of joblib's backends; None: tasks run through joblib."""
    name = type(backend).__name__
    if name == "DaskDistributedBackend":
        return Dask(backend)
    return Ray(backend) if name == "RayBackend" else None


class Dask:
    """Tasks of a Dask client."""

    def __init__(self, backend: Any):
        self._client = backend.client

    def share(self, value: bytes) -> Any:
        """A task's result, which is found again where its worker is lost."""
        return self._client.submit(_same, value, pure=False)

    def submit(self, function: Any, *arguments: Any) -> Any:
        """Start a task."""
        return self._client.submit(function, *arguments, pure=False)

    def wait(self, handles: list[Any]) -> tuple[Any, list[Any]]:
        """One whose task has ended, and the others."""
        from distributed import wait

        first = next(iter(wait(handles, return_when="FIRST_COMPLETED").done))
        return first, [handle for handle in handles if handle is not first]

    def result(self, handle: Any) -> Any:
        """What the task returned."""
        from distributed import KilledWorker

        try:
            return handle.result()
        except KilledWorker as error:
            raise WorkersLostError from error

    def cancel(self, handles: list[Any]) -> None:
        """Give tasks up; what runs comes to its end unheard."""
        self._client.cancel(handles)


class Ray:
    """Tasks of Ray, one processor each unless `ray_remote_args` of the backend say otherwise."""

    def __init__(self, backend: Any):
        import ray

        if not ray.is_initialized():
            ray.init()
        self._options = {"num_cpus": 1, "max_retries": MAX_LOSSES - 1}
        self._options |= backend.ray_remote_args or {}
        self._remote: dict[Any, Any] = {}  # or every task would be a function of its own to Ray

    def share(self, value: bytes) -> Any:
        """An object in the store of each machine."""
        import ray

        return ray.put(value)

    def submit(self, function: Any, *arguments: Any) -> Any:
        """Start a task."""
        import ray

        if function not in self._remote:
            self._remote[function] = ray.remote(**self._options)(function)
        return self._remote[function].remote(*arguments)

    def wait(self, handles: list[Any]) -> tuple[Any, list[Any]]:
        """One whose task has ended, and the others."""
        import ray

        (done,), others = ray.wait(handles)
        return done, others

    def result(self, handle: Any) -> Any:
        """What the task returned."""
        import ray
        from ray import exceptions

        try:
            return ray.get(handle)
        except exceptions.RayTaskError as error:
            _raise_cause(error)
        except (exceptions.WorkerCrashedError, exceptions.OutOfMemoryError) as error:
            raise WorkersLostError from error

    def cancel(self, handles: list[Any]) -> None:
        """Give tasks up."""
        import ray

        with contextlib.suppress(Exception):  # the cluster may be gone
            for handle in handles:
                ray.cancel(handle, force=True)


def _same(value: bytes) -> bytes:
    return value


def _raise_cause(error: Any) -> NoReturn:
    if isinstance(error.cause, Exception):
        raise error.cause from error
    raise error
