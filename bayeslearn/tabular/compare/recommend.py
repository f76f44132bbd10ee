"""Which method to recommend, and why.

Methods are ranked by a proper score of the validation folds: log-likelihood (or CRPS) per row.

- The best is recommended. Among near-ties, methods whose paired difference to the best is within
  one standard error, the best calibrated is.
- A fit cut short by the budget is recommended only if it beats the best of the others by more than
  one standard error, a sampler whose chains disagree (R-hat above 1.2) by more than two.
- With fewer than two finished methods there is no recommendation.

The test rows have no part in it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bayeslearn.tabular.compare.held_out import LOG_LIKELIHOOD, HeldOut, standard_error
from bayeslearn.tabular.score_table import NOT_FINISHED, NOT_TRIED, OK, Row, metric, write_score

MAX_RHAT = 1.2
TIE, CUT_MARGIN, RHAT_MARGIN = 1.0, 1.0, 2.0  # standard errors of the paired difference


class Candidate(NamedTuple):
    """A finished method."""

    held_out: HeldOut
    cut_short: str | None = None  # where the budget ended it
    rhat: float | None = None

    @property
    def chains_disagree(self) -> bool:
        """Whether a sampler has not mixed."""
        return self.rhat is not None and self.rhat > MAX_RHAT

    @property
    def margin(self) -> float:
        """By how many standard errors it must win; 0: it needs no margin."""
        if self.chains_disagree:
            return RHAT_MARGIN
        return CUT_MARGIN if self.cut_short else 0.0

    @property
    def caveat(self) -> str:
        """Why it needs a margin."""
        if self.chains_disagree:
            return f"its chains disagree (R-hat {self.rhat:.2f})"
        return f"it was stopped by the budget at {self.cut_short}" if self.cut_short else ""


class Choice(NamedTuple):
    """What is recommended, and how it was found."""

    name: str | None
    ranking: list[str]  # best first
    ties: list[str]  # near-ties among which calibration decided, the chosen one included
    passed_over: list[str]  # ranked above the chosen one, and neither sound nor clearly better


def choose(candidates: dict[str, Candidate], by: str = LOG_LIKELIHOOD) -> Choice:
    """The rule at the head of this file; it sees the validation folds and nothing else."""
    utility = {label: c.held_out.utility(by) for label, c in candidates.items()}
    ranking = sorted(candidates, key=lambda label: -float(np.mean(utility[label])))
    if len(ranking) < 2:
        return Choice(None, ranking, [], [])

    def lead(label: str, other: str) -> float:
        """Paired difference, in standard errors."""
        difference = utility[label] - utility[other]
        mean, error = float(np.mean(difference)), standard_error(difference)
        return mean / error if error > 0 else np.inf * np.sign(mean) if mean else 0.0

    sound = [label for label in ranking if not candidates[label].margin]
    for place, label in enumerate(ranking):
        if label in sound:
            ties = [other for other in sound if lead(label, other) <= TIE]
            best = min(ties, key=lambda other: candidates[other].held_out.calibration_error)
            return Choice(best, ranking, ties, ranking[:place])
        rival = sound[0] if sound else next(other for other in ranking if other != label)
        if lead(label, rival) > candidates[label].margin:
            return Choice(label, ranking, [label], ranking[:place])
    return Choice(None, ranking, [], ranking)


class Report(NamedTuple):
    """What the sentences are made of."""

    choice: Choice
    candidates: dict[str, Candidate]
    rows: dict[str, Row]
    baseline: str
    by: str = LOG_LIKELIHOOD
    test_rows: int = 0
    budget: float | None = None
    sufficient: str | None = None  # a budget in which all methods would finish


def explain(report: Report) -> str:
    """The recommendation as a statistician would put it."""
    choice = report.choice
    if len(choice.ranking) < 2:
        return _too_few(report)
    sentences = [_ranking(report)]
    for label in choice.passed_over:
        caveat = report.candidates[label].caveat
        sentences.append(f"{label} is not recommended: {caveat}.")
    if choice.name is None:
        sentences.append("No method is clearly better than the others and sound.")
        sentences += _more_time(report)
        return " ".join(sentences)
    if len(choice.ties) > 1:
        sentences.append(_tie(report))
    if candidate_caveat := report.candidates[choice.name].caveat:
        sentences.append(
            f"It wins by more than {report.candidates[choice.name].margin:.0f} standard"
            f" error{'s' if report.candidates[choice.name].margin > 1 else ''} although"
            f" {candidate_caveat}: run it longer before you rely on it."
        )
    return " ".join([*sentences, _on_test_rows(report), *_more_time(report)])


def _ranking(report: Report) -> str:
    """Best held-out log-likelihood: hmc, -1.01 ± 0.05 per row (next: vogn, -1.08)."""
    best, following = report.choice.ranking[:2]
    sign = 1.0 if report.by == LOG_LIKELIHOOD else -1.0
    values, others = (
        sign * report.candidates[label].held_out.utility(report.by) for label in (best, following)
    )
    error = standard_error(values)
    name = "log_likelihood" if report.by == LOG_LIKELIHOOD else "crps"
    mean = write_score(name, float(np.mean(values)), error)
    after = write_score(name, float(np.mean(others)), error).mean
    return (
        f"Best held-out {metric(name).label}: {best}, {mean} per row (next: {following}, {after})."
    )


def _calibration(held_out: HeldOut) -> str:
    value = held_out.calibration
    if held_out.is_regression:
        return f"90 % intervals cover {100 * value:.0f} %"
    return f"expected calibration error {100 * value:.1f} %"


def _tie(report: Report) -> str:
    name, ties = report.choice.name, report.choice.ties
    assert name is not None
    others = ", ".join(label for label in ties if label != name)
    verb = "are" if len(ties) > 2 else "is"
    calibration = _calibration(report.candidates[name].held_out)
    return (
        f"{others} {verb} within one standard error of {name}, which is the best calibrated of"
        f" these ({calibration})."
    )


def _on_test_rows(report: Report) -> str:
    """The chosen method's scores beside the baseline's."""
    name, baseline = report.choice.name, report.baseline
    assert name is not None
    mine, plain = report.rows[name], report.rows[baseline]
    has_baseline = name != baseline and plain["status"] == OK
    shown = []
    for score in ("log_likelihood", "coverage90", "accuracy", "ece"):
        if score in mine["metrics"]:
            text = f"{metric(score).label} {write_score(score, mine['metrics'][score][0])}"
            if has_baseline:
                text += f" ({baseline}: {write_score(score, plain['metrics'][score][0])})"
            shown.append(text)
    seconds = write_score("seconds", mine["seconds"][0])
    return (
        f"On the {report.test_rows} test rows, which had no part in the choice: {', '.join(shown)};"
        f" {seconds} s per fit, compilation included."
    )


def _too_few(report: Report) -> str:
    finished = report.choice.ranking
    which = f"only {finished[0]} was fitted" if finished else "no method was fitted"
    if not _short_of_time(report):
        return f"No recommendation: {which}, and a comparison needs two methods."
    first = f"No recommendation: {which} within the budget of {report.budget:g} s."
    return " ".join([first, *_more_time(report)])


def _short_of_time(report: Report) -> bool:
    late = (NOT_FINISHED, NOT_TRIED)
    is_cut = any(row["cut_short"] or row["status"] in late for row in report.rows.values())
    return report.budget is not None and is_cut


def _more_time(report: Report) -> list[str]:
    if report.sufficient is None or not _short_of_time(report):
        return []
    number = len(report.rows)
    return [f"A budget of about {report.sufficient} would let all {number} methods finish."]
