"""How `method="auto"` chooses: short fits, scored on rows that they have not seen.

Each candidate is a short run of MILE with two members on some of the rows. One run gives three
predictions of the others: of a plain network (a member), of the ensemble, and of the chains.
Candidates are compared by the log-likelihood of these out-of-fold rows: noise and hidden layers,
then the prior scale of the best where an ensemble needs one (chains infer it). A candidate
replaces the one before it where it is better by a standard error of the difference. Of the best
the chains are chosen, the ensemble where it is better by a standard error, and the plain network
where they are not better than it by a standard error or 0.02 nats.

The choice does not depend on the machine's speed unless there is a budget.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bayeslearn.data.scaling import Scaling
from bayeslearn.errors import DivergenceError
from bayeslearn.inference.chains import num_cores
from bayeslearn.inference.context import MAIN
from bayeslearn.inference.options import Checkpoint, FitEvent
from bayeslearn.results.calibration import Calibrator
from bayeslearn.results.calibration_maps import FactorMap
from bayeslearn.results.posterior import Posterior
from bayeslearn.results.scaled import ScaledPredictive
from bayeslearn.storage import folders
from bayeslearn.tabular.candidates import (
    ENSEMBLE,
    MILE_NAME,
    PLAIN,
    TOTAL_WORK,
    USUAL_SECONDS,
    Candidate,
    Method,
    allows_chains,
    method_for,
)
from bayeslearn.tabular.json_values import JSON
from bayeslearn.tabular.scores import score
from bayeslearn.tabular.trials import (
    Problem,
    Trial,
    num_folds,
    num_temperature_folds,
    run_trial,
)

FILE = "selection"
CLEAR_GAIN = 1.0  # standard errors by which a candidate must be better than the one before it
SMALL_GAIN = 0.02  # nats a row; a larger one is taken even if few rows leave it uncertain
SMALL_SHARE = 0.05  # the same as a fraction of the plain network's log loss
SELECTION_SHARE = 0.4  # of a budget


class Selection(NamedTuple):
    """What was chosen, and the scores of all candidates."""

    candidate: Candidate
    method: Method
    candidates: list[dict[str, JSON]]
    scores: dict[str, dict[str, float]]  # of plain network, ensemble and chains, with the choice
    note: str
    temperature: float | None = None  # of class probabilities
    num_rows: int = 0  # out-of-fold

    def applied_to(self, posterior: Posterior, is_calibrated: bool) -> Posterior:
        """The posterior with the note, and with the temperature of its class probabilities."""
        posterior = dataclasses.replace(posterior, notes=(self.note, *posterior.notes))
        if self.temperature is None or not is_calibrated:
            return posterior
        maps = (FactorMap(self.temperature),)
        calibrator = Calibrator("temperature", "classification", self.num_rows, maps)
        return posterior.with_calibrator(calibrator)

    def to_json(self) -> dict[str, JSON]:
        """For a file."""
        return self._asdict() | {
            "candidate": self.candidate._asdict() | {"hidden": list(self.candidate.hidden)},
            "method": self.method._asdict(),
        }

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Selection:
        """The inverse of `to_json`."""
        candidate = stored["candidate"] | {"hidden": tuple(stored["candidate"]["hidden"])}
        parts = {"candidate": Candidate(**candidate), "method": Method(**stored["method"])}
        return cls(**stored | parts)


def select(
    problem: Problem,
    budget: float | None,
    callback: Callable[[FitEvent], object] | None,
) -> Selection:
    """Try candidates and choose; `budget` is in seconds."""
    began = time.perf_counter()
    first = Candidate(problem.hidden[0], problem.prior_scales[0], problem.noises[0])
    if not problem.trial_rows().num_folds:
        return unselected(problem, first, budget)
    shapes = [
        first,
        *(first._replace(noise=noise) for noise in problem.noises[1:]),
        *(first._replace(hidden=hidden) for hidden in problem.hidden[1:]),
    ]
    crew = _Crew(problem, callback, len(shapes) + len(problem.prior_scales) - 1)
    trials = crew.run(shapes)
    best = best_of(trials)
    elapsed = time.perf_counter() - began
    if best is not None and (budget is None or elapsed < SELECTION_SHARE * budget):
        base = best.candidate
        others = [scale for scale in problem.prior_scales if scale != base.prior_scale]
        trials += crew.run([base._replace(prior_scale=scale) for scale in others])
        best = best_of([best, *trials[len(shapes) :]])
    if best is None:
        raise DivergenceError(f"No candidate could be fitted. {crew.failures[0]}")
    found = [trial for trial in trials if trial is not None]
    if problem.is_classification:
        best = crew.completed(best)
    return choose(problem, best, found, crew.failures, budget, time.perf_counter() - began)


def unselected(problem: Problem, candidate: Candidate, budget: float | None) -> Selection:
    """The first candidate, where no row can be held out."""
    work = problem.work(candidate)
    name = MILE_NAME if allows_chains(work) else ENSEMBLE
    note = (
        f"auto: {name} with {_described(candidate)}, the first candidate. No others were tried: the"
        " rows are of one group or time, or no class has two of them."
    )
    speed = 1.0 if budget is None else budget / USUAL_SECONDS
    return Selection(candidate, method_for(name, work, speed), [], {}, note)


def best_of(trials: list[Trial | None]) -> Trial | None:
    """The first, unless a later one is clearly better."""
    best: Trial | None = None
    for trial in trials:
        if best is None:
            best = trial
        elif trial is not None:
            gain, error = trial.gain_over(best, trial.best, best.best)
            best = trial if gain > CLEAR_GAIN * error else best
    return best


class _Crew:
    """Tries candidates side by side: most of their time is compiling."""

    def __init__(
        self, problem: Problem, callback: Callable[[FitEvent], object] | None, number: int
    ):
        self._problem, self._callback, self._number = problem, callback, number
        self._num_folds = problem.trial_rows().num_folds
        self._count, self._is_stopped, self._lock = 0, False, threading.Lock()
        self.failures: list[str] = []

    def run(self, candidates: list[Candidate]) -> list[Trial | None]:
        """The trials in order; None for one that failed."""
        pool = ThreadPoolExecutor(min(len(candidates), num_cores()) or 1)
        try:
            return list(pool.map(self._one, candidates))
        finally:
            self._is_stopped = True
            pool.shutdown(cancel_futures=True)
            self._is_stopped = False

    def _one(self, candidate: Candidate) -> Trial | None:
        with self._lock:
            self._count += 1
            name = f"candidate {self._count} of {self._number}"
        folds = range(min(num_folds(len(self._problem.rows.y)), self._num_folds))
        try:
            return run_trial(self._problem, candidate, folds, partial(self._hear, name=name))
        except DivergenceError as error:
            self.failures.append(f"{_described(candidate)} failed: {error}")
            return None

    def completed(self, trial: Trial) -> Trial:
        """The trial with more folds where a temperature needs more rows."""
        wanted = min(num_temperature_folds(len(self._problem.rows.y)), self._num_folds)
        folds = range(len(trial.folds), wanted)
        if not folds:
            return trial
        hear = partial(self._hear, name="temperature")
        try:
            return trial.joined(run_trial(self._problem, trial.candidate, folds, hear))
        except DivergenceError:
            return trial

    def _hear(self, event: FitEvent, name: str) -> bool:
        with self._lock:
            callback = self._callback
            rest = event.phase.removeprefix(MAIN).removeprefix("/")
            event = event._replace(phase=f"{name}/{rest}".rstrip("/"))
            return self._is_stopped or (callback is not None and bool(callback(event)))


def choose(
    problem: Problem,
    best: Trial,
    tried: list[Trial],
    failures: list[str],
    budget: float | None,
    elapsed: float,
) -> Selection:
    """The method for the best candidate, and the length that the budget leaves for it."""
    name = best.best
    gain, error = best.gain_over(best, name, PLAIN)
    note = (
        f"auto: {name} with {_described(best.candidate)} has the best log-likelihood of"
        f" {len(best.y)} out-of-fold rows, {best.mean(name):.3f}; a plain network has"
        f" {best.mean(PLAIN):.3f}."
    )
    small = SMALL_GAIN
    if problem.is_classification:
        small = min(small, SMALL_SHARE * -best.mean(PLAIN))
    if gain <= error and gain < small:
        name = PLAIN
        note = (
            f"auto: with {_described(best.candidate)} no method predicts out-of-fold rows better"
            f" than the plain network by a standard error ({gain:.3f}, {error:.3f}): it is"
            " returned."
        )
    speed = 1.0
    work = problem.work(best.candidate)
    if budget is not None and best.rate:
        compiling = tried[0].seconds / 2
        left = max(0.1 * budget, budget - elapsed - compiling)
        speed = best.rate * left / TOTAL_WORK
    rows = [
        {
            **trial.candidate._asdict(),
            "hidden": list(trial.candidate.hidden),
            **{name: trial.mean(name) for name in trial.log_probs},
            "seconds": trial.seconds,
        }
        for trial in tried
    ]
    return Selection(
        best.candidate,
        method_for(name, work, speed),
        rows,
        _all_scores(best, problem.y_scale),
        " ".join([note, *failures]),
        best.temperatures.get(name),
        len(best.y),
    )


def _all_scores(trial: Trial, y_scale: np.ndarray | None) -> dict[str, dict[str, float]]:
    """Scores of every method with the chosen settings in units of y, averaged over folds."""
    found: dict[str, dict[str, float]] = {}
    for name in trial.folds[0].predictives:
        pairs = [(trial.predictive(fold, name), fold.rows.y) for fold in trial.folds]
        if y_scale is not None:
            unit = Scaling(np.zeros_like(y_scale), y_scale)
            pairs = [(ScaledPredictive(q, unit), unit.undo(y)) for q, y in pairs]
        parts = [score(q, y, with_crps=False) for q, y in pairs]  # CRPS takes seconds to compile
        found[name] = {key: float(np.mean([part[key] for part in parts])) for key in parts[0]}
    return found


def _described(candidate: Candidate) -> str:
    hidden = "-".join(map(str, candidate.hidden)) or "no hidden layer"
    noise = "" if candidate.noise is None else f", {candidate.noise} noise"
    return f"{hidden}, prior scale {candidate.prior_scale}{noise}"


def stored_or(
    checkpoint: str | os.PathLike[str] | Checkpoint | None, make: Callable[[], Selection]
) -> Selection:
    """The choice that an earlier process has made for this run, or a new one, written down."""
    if checkpoint is None:
        return make()
    folder = Path(checkpoint.folder if isinstance(checkpoint, Checkpoint) else checkpoint)
    place = folder / FILE
    if isinstance(checkpoint, Checkpoint) and checkpoint.resume and place.is_dir():
        return Selection.from_json(folders.read_folder(place)[1])
    selection = make()
    folder.mkdir(exist_ok=True)
    folders.write_folder(place, {}, selection.to_json(), overwrite=True)
    return selection
