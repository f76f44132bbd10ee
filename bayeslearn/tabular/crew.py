"""Runs the trials of `method="auto"` side by side: most of their time is compiling."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from bayeslearn.errors import DivergenceError, OutOfMemoryError
from bayeslearn.inference.chains import num_cores
from bayeslearn.inference.options import FitEvent
from bayeslearn.progress import Progress, run_label
from bayeslearn.tabular.candidates import Candidate
from bayeslearn.tabular.timing import SELECTION_SHARE, Callback
from bayeslearn.tabular.trials import Problem, Trial, num_folds, num_temperature_folds, run_trial

NOT_TRIED = "was not tried: the budget left no time for it."


class Crew:
    """Tries candidates; with a budget only those for which there is time.

    Folds are taken one after the other, of all candidates each, so that candidates always have the
    same folds and the clock can end the search between them.
    """

    def __init__(
        self,
        problem: Problem,
        budget: float | None,
        callback: Callback | None,
        bar: Progress,
        number: int,
    ):
        self._problem, self._callback, self._bar = problem, callback, bar
        self._until = None if budget is None else SELECTION_SHARE * budget
        self._began, self._slowest = time.perf_counter(), 0.0
        rows = problem.trial_rows()
        self._num_rows, self._num_folds = len(problem.rows.y), rows.num_folds
        self._count, self._number = 0, number
        self._is_stopped, self._lock = False, threading.Lock()
        self.failures: list[tuple[Candidate, str]] = []

    @property
    def elapsed(self) -> float:
        """Seconds since the first trial began."""
        return time.perf_counter() - self._began

    def has_time(self, number: int = 1) -> bool:
        """Whether so many trials, each as long as the longest, would end in time."""
        seconds = self._slowest * -(-number // num_cores())
        return self._until is None or self.elapsed + seconds < self._until

    def run(self, candidates: list[Candidate], folds: int | None = None) -> list[Trial | None]:
        """The trials in order; None for one that failed. `folds`: all of so many, or none."""
        names = self._names(len(candidates))
        wanted = min(num_folds(self._num_rows), self._num_folds) if folds is None else folds
        found: dict[int, Trial] = {}
        going, done = list(range(len(candidates))), 0
        for k in range(wanted):
            if not going or (k and not self.has_time(len(going))):
                break
            parts = self._side_by_side([(candidates[i], names[i], k, i == 0) for i in going])
            for i, part in zip(going, parts, strict=True):
                if isinstance(part, Trial):
                    found[i] = found[i].joined(part) if k else part
                else:
                    found.pop(i, None)
                    self.failures.append((candidates[i], part))
            going, done = sorted(found), k + 1
        if folds is not None and done < folds:
            self.failures += [(candidates[i], NOT_TRIED) for i in going]
            found.clear()
        return [found.get(i) for i in range(len(candidates))]

    def completed(self, trial: Trial) -> Trial:
        """The trial with more folds where a temperature needs more rows."""
        wanted = min(num_temperature_folds(self._num_rows), self._num_folds)
        for k in range(len(trial.folds), wanted):
            if not self.has_time():
                break
            (part,) = self._side_by_side([(trial.candidate, "temperature", k, True)])
            if not isinstance(part, Trial):
                break
            trial = trial.joined(part)
        return trial

    def _names(self, number: int) -> list[str]:
        first = self._count + 1
        self._count += number
        return [f"candidate {i} of {self._number}" for i in range(first, first + number)]

    def _side_by_side(self, work: list[tuple[Candidate, str, int, bool]]) -> list[Trial | str]:
        pool = ThreadPoolExecutor(min(len(work), num_cores()))
        try:
            return list(pool.map(lambda one: self._try(*one), work))
        finally:
            self._is_stopped = True
            pool.shutdown(cancel_futures=True)
            self._is_stopped = False

    def _try(self, candidate: Candidate, name: str, fold: int, is_first: bool) -> Trial | str:
        """The trial on one fold, or why there is none."""
        if not fold and not is_first and not self.has_time():
            return NOT_TRIED
        hear = partial(self._hear, name=name)
        try:
            trial = run_trial(self._problem, candidate, [fold], hear)
        except (DivergenceError, OutOfMemoryError) as error:
            return f"failed: {error}"
        with self._lock:
            self._slowest = max(self._slowest, trial.seconds)
        return trial

    def _hear(self, event: FitEvent, name: str) -> bool:
        with self._lock:
            rest = event.phase.partition("/")[2]
            event = event._replace(phase=f"{name}/{rest}".rstrip("/"))
            label = run_label(event.algorithm, event.phase, event.num_members)
            self._bar.update(event.step, event.metrics, name=label, total=event.num_steps)
            callback = self._callback
            return self._is_stopped or (callback is not None and bool(callback(event)))
