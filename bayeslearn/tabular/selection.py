"""How `method="auto"` chooses: short fits, scored on rows that they have not seen.

Each candidate is a short run of MILE with two members on some of the rows. One run gives three
predictions of the others: of a plain network (a member), of the ensemble, and of the chains.
Candidates are compared by the log-likelihood of these out-of-fold rows: noise and hidden layers,
then the prior scale of the best where an ensemble needs one (chains infer it). A candidate
replaces the one before it where it is better by a standard error of the difference. Of the best
the chains are chosen, the ensemble where it is better by a standard error, and the plain network
where it is better than both by a standard error. Where they tie, an average over networks is the
safer choice: its log-likelihood is never below the mean of its members'.

The choice does not depend on the machine's speed unless there is a budget.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bayeslearn.data.scaling import Scaling
from bayeslearn.errors import DivergenceError
from bayeslearn.inference.options import Checkpoint
from bayeslearn.progress import Progress
from bayeslearn.results import metrics
from bayeslearn.results.calibration import Calibrator
from bayeslearn.results.calibration_maps import FactorMap
from bayeslearn.results.posterior import Posterior
from bayeslearn.results.scaled import ScaledPredictive
from bayeslearn.storage import folders
from bayeslearn.tabular.candidates import (
    ENSEMBLE,
    MILE_NAME,
    PLAIN,
    USUAL_SECONDS,
    Candidate,
    Method,
    allows_chains,
    method_for,
)
from bayeslearn.tabular.crew import Crew
from bayeslearn.tabular.json_values import JSON
from bayeslearn.tabular.scores import score
from bayeslearn.tabular.timing import MIN_SHARE, Callback, within_budget
from bayeslearn.tabular.trials import Problem, Trial

FILE = "selection"
CLEAR_GAIN = 1.0  # standard errors by which a choice must be better than the one before it


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


def select(problem: Problem, callback: Callback | None, progress: bool | None) -> Selection:
    """Try candidates and choose."""
    first = Candidate(problem.hidden[0], problem.prior_scales[0], problem.noises[0])
    if not problem.trial_rows().num_folds:
        return unselected(problem, first)
    shapes = [
        first,
        *(first._replace(noise=noise) for noise in problem.noises[1:]),
        *(first._replace(hidden=hidden) for hidden in problem.hidden[1:]),
    ]
    number = len(shapes) + len(problem.prior_scales) - 1
    with Progress("auto", 1, progress) as bar:
        crew = Crew(problem, problem.budget, callback, bar, number)
        trials = crew.run(shapes)
        best = best_of(trials)
        if best is not None and crew.has_time():
            base = best.candidate
            others = [scale for scale in problem.prior_scales if scale != base.prior_scale]
            scales = [base._replace(prior_scale=scale) for scale in others]
            more = crew.run(scales, folds=len(best.folds))
            trials, best = trials + more, best_of([best, *more])
        notes = [f"{_described(candidate)} {why}" for candidate, why in crew.failures]
        if best is None:
            raise DivergenceError(f"No candidate could be fitted. {notes[0]}")
        if problem.is_classification:
            best = crew.completed(best)
        found = [trial for trial in trials if trial is not None]
        return choose(problem, best, found, notes, crew.elapsed)


def unselected(problem: Problem, candidate: Candidate) -> Selection:
    """The first candidate, where no row can be held out."""
    work = problem.work(candidate)
    name = MILE_NAME if allows_chains(work) else ENSEMBLE
    note = (
        f"auto: {name} with {_described(candidate)}, the first candidate. No others were tried: the"
        " rows are of one group or time, or no class has two of them."
    )
    speed = 1.0 if problem.budget is None else problem.budget / USUAL_SECONDS
    method = method_for(name, work, speed, problem.num_weights(candidate))
    return Selection(candidate, method, [], {}, note)


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


def choose(
    problem: Problem,
    best: Trial,
    tried: list[Trial],
    failures: list[str],
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
    if -gain > CLEAR_GAIN * error:
        note = (
            f"auto: with {_described(best.candidate)} the plain network predicts out-of-fold rows"
            f" better than {name} by more than a standard error ({-gain:.3f}, {error:.3f}): it is"
            " returned."
        )
        name = PLAIN
    work, num_weights = problem.work(best.candidate), problem.num_weights(best.candidate)
    if problem.budget is None:
        method = method_for(name, work, num_weights=num_weights)
    else:
        share = min(1.0, len(problem.trial_rows().rows.y) / len(problem.rows.y))
        left = max(MIN_SHARE * problem.budget, problem.budget - elapsed)
        method = within_budget(name, work, num_weights, best.costs, share, left)
        if method.name != name:
            note += f" The budget is too short for {name}: {method.name} is used."
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
        method,
        rows,
        _all_scores(best, problem.y_scale),
        " ".join([note, *failures]),
        best.temperatures.get(method.name),
        len(best.y),
    )


def _all_scores(trial: Trial, y_scale: np.ndarray | None) -> dict[str, dict[str, float]]:
    """Scores of every method with the chosen settings, averaged over folds.

    In units of y; the RMSE of several columns, whose units differ, in those of their scaling.
    """
    found: dict[str, dict[str, float]] = {}
    for name in trial.folds[0].predictives:
        scaled = pairs = [(trial.predictive(fold, name), fold.rows.y) for fold in trial.folds]
        if y_scale is not None:
            unit = Scaling(np.zeros_like(y_scale), y_scale)
            pairs = [(ScaledPredictive(q, unit), unit.undo(y)) for q, y in pairs]
        parts = [score(q, y, with_crps=False) for q, y in pairs]  # CRPS takes seconds to compile
        found[name] = {key: float(np.mean([part[key] for part in parts])) for key in parts[0]}
        if y_scale is not None and y_scale.ndim:
            found[name]["rmse"] = float(np.mean([metrics.rmse(q, y) for q, y in scaled]))
    found[PLAIN]["seconds"] = float(np.mean([fold.costs.member for fold in trial.folds]))
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
