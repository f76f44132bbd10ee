"""Independent tasks in worker processes, through joblib: loky, Dask, Ray or a Slurm array.

A task is a pure function of arguments that can be pickled; its result depends on nothing else, so
that it is the same wherever the task runs. Workers begin without JAX's backend: arguments hold
NumPy arrays, and the number of threads is set before the backend starts.

Where a worker is killed, joblib's loky gives up its other workers too. Results that have come in
stay, and what was under way is run again. Dask and Ray lose the killed worker's task alone, and
start it again (`clusters`).
"""

from __future__ import annotations

import functools
import importlib.util
import json
import numbers
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from bayeslearn import clusters
from bayeslearn.clusters import MAX_LOSSES
from bayeslearn.errors import BayesLearnError, Shown, StorageError, refuse

R = TypeVar("R")

THREADS = "OMP_NUM_THREADS"  # set in their workers by loky, Dask and Ray
XLA_THREADS = "NPROC"  # read by XLA when the backend starts


def check_jobs(n_jobs: int | None) -> None:
    """Refuse what joblib does not take."""
    if n_jobs is None:
        return
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, numbers.Integral) or n_jobs == 0:
        refuse("n_jobs", n_jobs, "be a number of processes, -1 (all cores) or None")


def num_workers(n_jobs: int | None) -> int:
    """How many tasks run at a time; None: what `joblib.parallel_config` says, else one."""
    check_jobs(n_jobs)
    if n_jobs == 1 or (n_jobs is None and "joblib" not in sys.modules):
        return 1
    return int(_joblib(n_jobs).effective_n_jobs(n_jobs))


def run_tasks(
    function: Callable[..., R],
    shared: tuple[Any, ...],
    tasks: Sequence[tuple[Any, ...]],
    n_jobs: int | None,
) -> Iterator[tuple[int, R]]:
    """function(*shared, *task) of every task, with its number, as they come to an end.

    With one worker they run here, in their order. A worker reads `shared` once, so that functions
    in it stay the same, and what was compiled for them.
    """
    cluster = None if n_jobs == 1 or len(tasks) < 2 else _active_cluster()
    if cluster is not None:
        yield from _run_on_cluster(cluster, function, shared, tasks, num_workers(n_jobs))
        return
    if num_workers(n_jobs) == 1 or len(tasks) < 2:
        for number, task in enumerate(tasks):
            yield number, function(*shared, *task)
        return
    joblib = _joblib(n_jobs)
    pickled = _cloudpickle().dumps(shared)
    waiting, losses = set(range(len(tasks))), 0
    backend, _ = joblib.parallel.get_active_backend()
    comes_singly = getattr(backend, "supports_return_generator", False)
    how = "generator_unordered" if comes_singly else "list"
    while waiting:
        parallel = joblib.Parallel(
            n_jobs=n_jobs, batch_size=1, pre_dispatch="n_jobs", return_as=how
        )
        calls = (
            joblib.delayed(_in_worker)(os.getpid(), number, function, pickled, tasks[number])
            for number in sorted(waiting)
        )
        try:
            for number, result in parallel(calls):
                waiting.remove(number)
                losses = 0
                yield number, result
        except BrokenExecutor as error:
            losses += 1
            if losses >= MAX_LOSSES:
                raise _lost(len(waiting)) from error


def _active_cluster() -> clusters.Cluster | None:
    if "joblib" not in sys.modules:
        return None
    backend, _ = sys.modules["joblib"].parallel.get_active_backend()
    return clusters.cluster_of(backend)


def _run_on_cluster(
    cluster: clusters.Cluster,
    function: Callable[..., R],
    shared: tuple[Any, ...],
    tasks: Sequence[tuple[Any, ...]],
    num_at_a_time: int,
) -> Iterator[tuple[int, R]]:
    read = cluster.share(_cloudpickle().dumps(shared))
    calls = [(_in_worker, os.getpid(), n, function, read, task) for n, task in enumerate(tasks)]
    num_left = len(calls)
    try:
        for found in clusters.run(cluster, calls, num_at_a_time):
            num_left -= 1
            yield found
    except clusters.WorkersLostError as error:
        raise _lost(num_left) from error


def _lost(num_waiting: int) -> BayesLearnError:
    return BayesLearnError(
        f"Worker processes were lost {MAX_LOSSES} times in a row, and {num_waiting} tasks are not"
        " done: use fewer jobs if memory was short."
    )


def _in_worker(
    driver: int, number: int, function: Callable[..., R], shared: bytes, task: tuple[Any, ...]
) -> tuple[int, R]:
    threads = os.environ.get(THREADS, "")
    if os.getpid() != driver and threads.isdecimal():
        os.environ.setdefault(XLA_THREADS, threads)
    return number, function(*_read(shared), *task)


@functools.lru_cache(maxsize=1)
def _read(shared: bytes) -> tuple[Any, ...]:
    return _cloudpickle().loads(shared)  # from this run's own driver, never from a file


def _cloudpickle() -> ModuleType:
    """What joblib sends functions with: a package, which it brought along before 1.6."""
    return importlib.import_module(
        "cloudpickle" if importlib.util.find_spec("cloudpickle") else "joblib.externals.cloudpickle"
    )


def _joblib(n_jobs: int | None) -> ModuleType:
    try:
        import joblib
    except ImportError as error:
        must = "be left out: processes are started by joblib"
        text = f"`n_jobs` must {must}, got {n_jobs}. Install it: pip install joblib."
        raise ImportError(text) from error
    return joblib


class ResultFolder:
    """One JSON file for each finished task of a study, written atomically.

    `settings` describe the study: a folder of another one is refused.
    """

    SETTINGS = "settings.json"

    def __init__(self, folder: str | os.PathLike[str], settings: dict[str, Any]):
        self.path = Path(folder)
        self.path.mkdir(parents=True, exist_ok=True)
        found = self.read(self.SETTINGS)
        if found is None:
            self.write(self.SETTINGS, settings)
            return
        differ = [name for name in {**found, **settings} if found.get(name) != settings.get(name)]
        if differ:
            names = ", ".join(sorted(differ))
            shown = Shown(f"{folder}, whose results are of another study: {names} differ")
            refuse("results", shown, "be a new folder, or one of the same data and settings")

    def read(self, name: str) -> Any:
        """The contents of a file; None if it is not there."""
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise StorageError(f"{self.path / name} is not sound JSON: remove it.") from error

    def write(self, name: str, contents: Any) -> None:
        """A whole file, or none."""
        temporary = self.path / f".{name}.{secrets.token_hex(8)}"
        try:
            temporary.write_text(json.dumps(contents), encoding="utf-8")
            os.replace(temporary, self.path / name)
        finally:
            temporary.unlink(missing_ok=True)
