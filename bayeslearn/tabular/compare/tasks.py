"""The methods of a comparison, one after the other or in worker processes, and their files.

A task is one method with all its splits. Its result is a JSON file beside the saved estimator of
its first split, so that a comparison can be continued, or divided over the jobs of a Slurm array.
"""

from __future__ import annotations

import dataclasses
import os
import re
import time
from typing import Any, NamedTuple

import numpy as np

from bayeslearn.algorithms import MAP
from bayeslearn.errors import BayesLearnError, Shown, StorageError, check_whole, refuse
from bayeslearn.inference.options import FitEvent
from bayeslearn.jobs import ResultFolder, num_workers, run_tasks
from bayeslearn.progress import COMPILING, Progress, phase_label
from bayeslearn.storage.fingerprints import digest
from bayeslearn.tabular.compare.budget import TOLERANCE, Budget, Cost, NotTried, Pace, Share
from bayeslearn.tabular.compare.held_out import HeldOut
from bayeslearn.tabular.compare.plan import Method
from bayeslearn.tabular.compare.run import Experiment, MethodRun, run_method
from bayeslearn.tabular.persistence import load
from bayeslearn.tabular.score_table import FAILED, NOT_TRIED, OK

Runs = dict[str, MethodRun]
STORED = (OK, FAILED)  # what had no time is tried again


class Limit(NamedTuple):
    """A share of a budget that can be sent to another process, whose clock begins elsewhere."""

    seconds: float
    ends: float  # since the epoch
    splits: int
    expected: Cost

    def share(self) -> Share:
        """The share on this process's clock."""
        left = self.ends - time.time()
        share = Share(
            min(self.seconds, left), time.perf_counter() + left, self.splits, self.expected
        )
        needed = self.expected.total(self.splits)
        if left <= 0 or not share.allows(needed):
            raise NotTried(
                f"The budget was spent before its turn: it would take about {needed:.2g} s, and"
                f" {max(0.0, left):.2g} s were left."
            )
        return share


def run_all(
    experiment: Experiment,
    methods: dict[str, Method],
    budget: Budget | None,
    bar: Progress,
    n_jobs: int | None = None,
    results: Results | None = None,
) -> Runs:
    """Every method that has no result yet; the baseline is the first."""
    found: Runs = {} if results is None else results.read(methods)
    waiting = {label: method for label, method in methods.items() if label not in found}
    stage = _Stage(experiment, list(methods), bar, found, results)
    if num_workers(n_jobs) == 1:
        _in_turn(stage, waiting, budget)
    else:
        _in_workers(stage, waiting, budget, n_jobs)
    runs = {label: found[label] for label in methods}
    if not any(run.status == OK for run in runs.values()):
        reasons = {run.reason for run in runs.values()}
        raise BayesLearnError(f"No method could be fitted: {' '.join(sorted(reasons))}")
    return runs


@dataclasses.dataclass
class _Stage:
    """What both ways to run share."""

    experiment: Experiment
    labels: list[str]
    bar: Progress
    found: Runs
    results: Results | None

    def keep(self, label: str, run: MethodRun) -> None:
        """A method has come to its end."""
        self.found[label] = run
        if self.results is not None and run.status in STORED:
            self.results.write(label, run)

    def listener(self, label: str) -> Any:
        """Shows the fits of one method."""
        splits = len(self.experiment.plan.splits)

        def listen(event: FitEvent | None, number: int) -> None:
            done = self.labels.index(label) * splits + number
            self.bar.update(done, text=f"{label}, {_status(event)}")

        return listen

    @property
    def rows(self) -> int:
        """Of a fit."""
        return len(self.experiment.plan.splits[0].train)


def _in_turn(stage: _Stage, waiting: dict[str, Method], budget: Budget | None) -> None:
    pace = None
    for place, (label, method) in enumerate(waiting.items()):
        is_baseline = isinstance(method, MAP)
        share = None
        if budget is not None:
            try:
                share = budget.share(len(waiting) - place, is_baseline)
            except NotTried as error:
                stage.keep(label, MethodRun(status=NOT_TRIED, reason=str(error)))
                continue
        run = run_method(stage.experiment, method, share, pace, stage.listener(label))
        if budget is not None:
            pace = _learned(budget, run, is_baseline, stage.rows) or pace
        stage.keep(label, run)


def _in_workers(
    stage: _Stage, waiting: dict[str, Method], budget: Budget | None, n_jobs: int | None
) -> None:
    """All at once. With a budget the baseline is first fitted here: it sets the pace."""
    pace = limit = None
    if budget is not None:
        first = [label for label, method in waiting.items() if isinstance(method, MAP)]
        for label in first[:1]:
            share = budget.share(len(waiting), is_baseline=True)
            listen = stage.listener(label)
            run = run_method(stage.experiment, waiting.pop(label), share, None, listen)
            pace = _learned(budget, run, True, stage.rows)
            stage.keep(label, run)
        limit = _limit(budget, len(waiting), num_workers(n_jobs))
    labels = list(waiting)
    tasks = [(method, limit, pace) for method in waiting.values()]
    for number, run in run_tasks(run_task, (stage.experiment,), tasks, n_jobs):
        stage.keep(labels[number], run)
        splits = len(stage.experiment.plan.splits)
        stage.bar.update(len(stage.found) * splits, text=f"{labels[number]}, {run.status}")


def _limit(budget: Budget, methods: int, workers: int) -> Limit:
    """Of each method, where so many share what is left."""
    left = max(0.0, budget.left)
    seconds = left * min(1.0, workers / max(methods, 1))
    ends = time.time() + left + TOLERANCE * budget.seconds
    return Limit(seconds, ends, budget.splits, budget.expected())


def run_task(
    experiment: Experiment, method: Method, limit: Limit | None, pace: Pace | None
) -> MethodRun:
    """One method, in whatever process."""
    try:
        share = None if limit is None else limit.share()
    except NotTried as error:
        return MethodRun(status=NOT_TRIED, reason=str(error))
    return run_method(experiment, method, share, pace, lambda event, number: None)


def _learned(budget: Budget, run: MethodRun, is_baseline: bool, rows: int) -> Pace | None:
    """Tell the budget what a method took; the pace, if it was the baseline."""
    cost = run.cost
    if cost is None:
        return None
    if is_baseline and run.planned_steps > run.steps > 0 and run.cut_short:
        cost = cost._replace(fit=cost.fit * run.planned_steps / run.steps)
    budget.record(cost, is_baseline)
    if not is_baseline or run.status != OK:
        return None
    return Pace.of(cost, run.planned_steps if run.cut_short else run.steps, rows)


def _status(event: FitEvent | None) -> str:
    if event is None:
        return COMPILING
    phase = phase_label(event.phase)
    return f"{phase}{', ' if phase else ''}step {event.step} of {event.num_steps}"


class Results:
    """The files of a comparison: one for each method, beside its estimator."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        experiment: Experiment,
        methods: dict[str, Method],
        settings: dict[str, Any],
    ):
        arrays = (np.asarray(experiment.table.X, np.float64), _numbers(experiment.table.y))
        described = {label: repr(method) for label, method in methods.items()}
        known = {name: value for name, value in settings.items() if name != "budget"}
        known |= {"data": digest(arrays), "methods": described}
        self._folder = ResultFolder(folder, known)
        self._network = experiment.options.get("network")

    def read(self, methods: dict[str, Method]) -> Runs:
        """What is there."""
        runs = {}
        for label in methods:
            stored = self._folder.read(f"{_file_name(label)}.json")
            if stored is not None:
                runs[label] = self._rebuilt(label, stored)
        return runs

    def read_all(self, methods: dict[str, Method]) -> Runs:
        """All of them; refused where one is missing."""
        runs = self.read(methods)
        missing = [label for label in methods if label not in runs]
        if missing:
            shown = Shown(f"{self._folder.path}, without {', '.join(missing)}")
            refuse("results", shown, "hold the result of every method", "Run the missing jobs.")
        return runs

    def write(self, label: str, run: MethodRun) -> None:
        """A method that has come to its end; the file last."""
        if run.estimator is not None:
            run.estimator.save(self._folder.path / _file_name(label), overwrite=True)
        stored = {
            field.name: getattr(run, field.name)
            for field in dataclasses.fields(run)
            if field.name != "estimator"
        }
        stored["folds"] = [
            {name: _listed(values) for name, values in fold._asdict().items()} for fold in run.folds
        ]
        self._folder.write(f"{_file_name(label)}.json", stored)

    def _rebuilt(self, label: str, stored: dict[str, Any]) -> MethodRun:
        try:
            stored["folds"] = [
                HeldOut(*(_array(fold[name]) for name in HeldOut._fields))  # type: ignore[arg-type]
                for fold in stored["folds"]
            ]
            run = MethodRun(**stored)
        except (KeyError, TypeError) as error:
            name = self._folder.path / f"{_file_name(label)}.json"
            raise StorageError(f"{name} is not the result of a method: remove it.") from error
        if run.status == OK:
            run.estimator = load(self._folder.path / _file_name(label), self._network)  # type: ignore[assignment]
        return run


def own_part(methods: dict[str, Method], part: tuple[int, int]) -> dict[str, Method]:
    """The methods of job I of N: every N-th one."""
    index, number = part
    check_whole("array_task", number, least=1)
    if not 0 <= index < number:
        refuse("array_task", f"{index}/{number}", "be I/N with I from 0 to N - 1")
    return {
        label: method for i, (label, method) in enumerate(methods.items()) if i % number == index
    }


def _numbers(y: np.ndarray) -> np.ndarray:
    return y if y.dtype.kind in "iufb" else np.unique(y.astype(str), return_inverse=True)[1]


def _listed(values: np.ndarray | None) -> list[Any] | None:
    return None if values is None else values.tolist()


def _array(values: list[Any] | None) -> np.ndarray | None:
    return None if values is None else np.array(values)


def _file_name(label: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", label).strip("-")
