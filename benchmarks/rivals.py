"""bayeslearn beside what people use on tables: scores on test rows, seconds, mean ranks.

    python benchmarks/rivals.py run --data DIR [--methods auto map] [--tables yacht iris] \
        [--splits 5] [--jobs 16] [--time-limit 1500] [--environments .peers]
    python benchmarks/rivals.py table [--picture FILE.png]

Every cell (table, method, split) is a JSON file in benchmarks/results/rivals with scores, settings,
seconds and core-seconds; a cell that is there is not run again. Each runs in a process of its own,
on one core, with the rival's environment (`make peers-tables` sets them up). bayeslearn, the deep
ensemble and scikit-learn's methods need no environment but the one that runs this file. Splits come
in turn, so a run that ends early has the first splits of all tables. Seconds are of one fit and
the prediction of the test rows, with imports and compiling. Nothing is tuned on any test row.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import IO, Any, NamedTuple

import rivals_methods as methods
import rivals_networks as networks
from faithfulness import write_cell
from rivals_data import TABLES, load
from rivals_scores import classification_scores, regression_scores

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results" / "rivals"
ENVIRONMENTS = ROOT / ".peers"
ONE_THREAD = {
    name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
} | {"JAX_PLATFORMS": "cpu"}


@dataclass(frozen=True)
class Method:
    """`environment`: a folder of --environments, or "own" for the Python that runs this file."""

    fit_predict: Callable[..., methods.Outcome]
    package: str
    environment: str = "own"
    kinds: tuple[str, ...] = ("regression", "classification")


METHODS = {
    **{
        name: Method(partial(networks.ours, name), "bayeslearn")
        for name in ("auto", "mile", "ensemble", "map")
    },
    "deep-ensemble": Method(networks.deep_ensemble, "jax"),
    "gp": Method(methods.gp, "scikit-learn"),
    "logistic-regression": Method(
        methods.logistic_regression, "scikit-learn", kinds=("classification",)
    ),
    "random-forest": Method(methods.random_forest, "scikit-learn", kinds=("classification",)),
    "lightgbm": Method(methods.lightgbm, "lightgbm", "tables"),
    "catboost": Method(methods.catboost, "catboost", "tables"),
    "ngboost": Method(methods.ngboost, "ngboost", "tables"),
    "quantile-forest": Method(
        methods.quantile_forest, "quantile-forest", "tables", kinds=("regression",)
    ),
    "bde": Method(networks.bde, "sklearn-contrib-bde", "bde"),
}


def settings_of(name: str, kind: str) -> dict[str, Any]:
    known = methods.SETTINGS | networks.SETTINGS
    if name == "bde" and kind == "classification":
        return known["bde-classes"]
    return known.get(name, {"method": name, "others": "defaults of the estimator"})


def measure(name: str, table: str, split: int, data: Path | None) -> dict[str, Any]:
    """Scores, notes and seconds of one fit; the seed is the number of the split."""
    method, kind = METHODS[name], TABLES[table].kind
    rows = load(table, split, data)
    result: dict[str, Any] = {
        "rows": len(rows.y),
        "columns": rows.x.shape[1],
        "settings": settings_of(name, kind),
    }
    began, cores_began = time.perf_counter(), sum(os.times()[:4])
    try:
        prediction, notes = method.fit_predict(rows.x, rows.y, rows.x_test, kind, split)
        score = regression_scores if kind == "regression" else classification_scores
        elapsed = {
            "seconds": time.perf_counter() - began,
            "core_seconds": sum(os.times()[:4]) - cores_began,
        }
        result |= {"scores": score(prediction, rows.y_test), "notes": notes} | elapsed
    except ImportError:
        raise
    except Exception as error:  # of any library: the table shows that it failed
        result["failed"] = f"{type(error).__name__}: {error}"
    try:
        version = metadata.version(method.package)
    except metadata.PackageNotFoundError:  # run from a checkout
        version = "unknown"
    return result | {"versions": {method.package: version}}


class Cell(NamedTuple):
    table: str
    method: str
    split: int

    def path(self, results: Path) -> Path:
        return results / f"{self.table}__{self.method}__{self.split}.json"


class Worker:
    """One cell in a process of its own, on one core."""

    def __init__(self, cell: Cell, core: int, python: Path, data: Path | None):
        self.cell, self.core, self.began = cell, core, time.monotonic()
        self._out: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115, read when it ends
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115
        command = [python, __file__, "cell", cell.method, cell.table, cell.split, "--core", core]
        if data is not None:
            command += ["--data", data]
        self._process = subprocess.Popen(
            [*map(str, command), "--result-descriptor", str(self._out.fileno())],
            stdout=self._errors,
            stderr=self._errors,
            pass_fds=[self._out.fileno()],
            env=os.environ | ONE_THREAD,
        )

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def result(self) -> dict[str, Any] | str:
        """The result, or why there is none."""
        self._out.seek(0)
        text = self._out.read()
        if self._process.returncode == 0 and text:
            return json.loads(text)
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return lines[-1] if lines else f"exit code {self._process.returncode}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def wanted(options: argparse.Namespace) -> Iterator[Cell]:
    """Cells that are not there, split by split."""
    for split in range(options.splits):
        for table in options.tables:
            for method in options.methods:
                cell = Cell(table, method, split)
                is_possible = TABLES[table].kind in METHODS[method].kinds
                if (
                    is_possible
                    and split < TABLES[table].num_splits
                    and not cell.path(options.results).exists()
                ):
                    yield cell


def python_of(method: str, environments: Path) -> Path:
    environment = METHODS[method].environment
    if environment == "own":
        return Path(sys.executable)
    return environments / environment / "bin" / "python"


def finish(worker: Worker, options: argparse.Namespace) -> None:
    """Write the cell at once."""
    cell, found = worker.cell, worker.result()
    words = f"{cell.table} {cell.method} {cell.split} {worker.seconds:.0f} s"
    if isinstance(found, str):
        print(f"{words}: no result, {found}", file=sys.stderr, flush=True)
        return
    write_cell(cell.path(options.results), cell._asdict() | found)
    print(f"{words}: {json.dumps(found.get('scores', found.get('failed')))}", flush=True)


def run(options: argparse.Namespace) -> None:
    missing = {
        name for name in options.methods if not python_of(name, options.environments).exists()
    }
    for name in sorted(missing):
        print(f"{name} is not installed (make peers-tables)", file=sys.stderr)
    options.methods = [name for name in options.methods if name not in missing]
    waiting = [*wanted(options)]
    cores = sorted(os.sched_getaffinity(0))
    idle = [cores[-1 - i % len(cores)] for i in range(options.jobs)]
    running: list[Worker] = []
    began = time.monotonic()
    try:
        while waiting or running:
            for worker in [one for one in running if one.has_ended()]:
                finish(worker, options)
                running.remove(worker)
                idle.append(worker.core)
            if options.time_limit is not None and time.monotonic() - began > options.time_limit:
                print(f"time limit: {len(waiting) + len(running)} cells remain", file=sys.stderr)
                return
            if options.cell_limit is not None:
                for worker in [one for one in running if one.seconds > options.cell_limit]:
                    worker.kill()
                    reason = {"failed": f"not finished after {options.cell_limit:.0f} s"}
                    write_cell(worker.cell.path(options.results), worker.cell._asdict() | reason)
                    running.remove(worker)
                    idle.append(worker.core)
            while waiting and idle:
                cell = waiting.pop(0)
                python = python_of(cell.method, options.environments)
                running.append(Worker(cell, idle.pop(0), python, options.data))
            time.sleep(0.1)
    finally:
        for worker in running:
            worker.kill()


def plain(value: Any) -> Any:
    """Arrays and numbers of NumPy as lists and numbers, anything else as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def run_cell(options: argparse.Namespace) -> None:
    """The worker's side."""
    os.sched_setaffinity(0, {options.core})
    method, table, split = options.cell
    result = measure(method, table, int(split), options.data)
    with os.fdopen(options.result_descriptor, "w") as file:
        json.dump(result, file, default=plain)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("run", "table", "cell"))
    parser.add_argument("cell", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--core", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--result-descriptor", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help="folder with the tables and splits/")
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=[*METHODS])
    parser.add_argument("--tables", nargs="*", choices=TABLES, default=[*TABLES])
    parser.add_argument("--splits", type=int, default=20, help="the first so many of each table")
    parser.add_argument("--jobs", type=int, default=1, help="cells side by side, each on one core")
    parser.add_argument("--time-limit", type=float, help="seconds; what runs then is ended")
    parser.add_argument("--cell-limit", type=float, help="seconds after which a cell has failed")
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--picture", type=Path, help="file for the critical-difference picture")
    options = parser.parse_args()
    if options.command == "cell":
        run_cell(options)
    elif options.command == "run":
        os.environ["JAX_PLATFORMS"] = "cpu"  # also here, where cells are written
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that workers are ended too
        run(options)
    else:
        import rivals_report

        cells = [json.loads(path.read_text()) for path in sorted(options.results.glob("*.json"))]
        cells = [
            cell
            for cell in cells
            if cell["method"] in options.methods
            and cell["table"] in options.tables
            and cell["split"] < options.splits
        ]
        print(rivals_report.report(cells, [*TABLES], [*METHODS]))
        if options.picture is not None:
            rivals_report.draw(cells, options.picture)


if __name__ == "__main__":
    main()
