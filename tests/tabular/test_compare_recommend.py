"""The recommendation, on made-up predictions of validation rows."""

from __future__ import annotations

import numpy as np
import pytest

from bayeslearn.tabular.compare.held_out import CRPS, LOG_LIKELIHOOD, HeldOut
from bayeslearn.tabular.compare.recommend import Candidate, Report, choose, explain
from bayeslearn.tabular.compare.result import mark_front
from bayeslearn.tabular.score_table import FAILED, NOT_FINISHED, NOT_TRIED, OK, Row

ROWS = 400
NOISE = np.random.default_rng(0).normal(size=ROWS)


def fold(log_likelihood, covered=0.9, pair_noise=0.1, seed=1, crps=None):
    """Paired differences between folds have about `pair_noise` times sqrt(2 / 400) as error."""
    own = np.random.default_rng(seed).normal(size=ROWS)
    own -= own.mean()
    is_covered = np.arange(ROWS) < covered * ROWS
    log_prob = NOISE - NOISE.mean() + log_likelihood + pair_noise * own
    return HeldOut(log_prob, is_covered, None, None if crps is None else np.full(ROWS, crps) + own)


def class_fold(log_likelihood, confidence, seed=1):
    is_correct = np.arange(ROWS) < 0.85 * ROWS
    part = fold(log_likelihood, seed=seed)
    return HeldOut(part.log_prob, is_correct, np.full(ROWS, confidence))


def row(label, status=OK, cut_short=None, reason=None):
    scores = {"log_likelihood": [-1.0, 0.1], "coverage90": [0.88, 0.01]} if status == OK else {}
    return Row(
        method=label,
        status=status,
        reason=reason,
        metrics=scores,
        validation={},
        seconds=[2.0, 0.1] if status == OK else [None, None],
        compile_seconds=1.0,
        memory_mb=1.0,
        cut_short=cut_short,
        rhat=None,
        chosen={},
        notes=[],
        pareto=False,
    )


def chosen_and_explained(candidates, by=LOG_LIKELIHOOD, others=(), **options):
    """The choice, and its sentences."""
    choice = choose(candidates, by)
    rows = {label: row(label, cut_short=c.cut_short) for label, c in candidates.items()}
    rows |= {other["method"]: other for other in others}
    report = Report(choice, candidates, rows, baseline="map", by=by, test_rows=50, **options)
    return choice, explain(report)


def test_the_highest_log_likelihood_is_recommended():
    candidates = {
        "map": Candidate(fold(-1.2)),
        "hmc": Candidate(fold(-1.0, seed=2)),
        "vogn": Candidate(fold(-1.08, seed=3)),
    }
    choice, text = chosen_and_explained(candidates)
    assert choice.name == "hmc"
    assert choice.ranking == ["hmc", "vogn", "map"]
    assert text.startswith("Best held-out log-likelihood: hmc, -1.000 ± 0.05")
    assert "per row (next: vogn, -1.080)." in text
    assert "On the 50 test rows" in text
    assert "(map: -1.00)" in text


def test_calibration_alone_drops_nobody():
    candidates = {
        "map": Candidate(fold(-1.0, covered=0.6)),
        "wide": Candidate(fold(-1.5, covered=0.9, seed=2)),
    }
    assert choose(candidates).name == "map"


def test_calibration_decides_among_near_ties():
    candidates = {
        "map": Candidate(fold(-1.000, covered=0.8)),
        "calibrated": Candidate(fold(-1.001, covered=0.89, seed=2)),
        "far": Candidate(fold(-1.2, covered=0.9, seed=3)),
    }
    choice, text = chosen_and_explained(candidates)
    assert choice.name == "calibrated"
    assert set(choice.ties) == {"map", "calibrated"}
    assert "map is within one standard error of calibrated, which is the best calibrated" in text
    assert "90 % intervals cover 89 %" in text


def test_classifiers_are_ranked_in_the_same_way():
    candidates = {
        "map": Candidate(class_fold(-0.5, 0.95)),
        "better": Candidate(class_fold(-0.2, 0.99, seed=2)),
    }
    assert choose(candidates).name == "better"
    candidates["calibrated"] = Candidate(class_fold(-0.2, 0.86, seed=3))
    choice, text = chosen_and_explained(candidates)
    assert choice.name == "calibrated"
    assert "expected calibration error 1.0 %" in text


def test_the_criterion_can_be_crps():
    candidates = {
        "map": Candidate(fold(-1.0, crps=0.5)),
        "sharp": Candidate(fold(-2.0, crps=0.2, seed=2)),
    }
    assert choose(candidates, LOG_LIKELIHOOD).name == "map"
    choice, text = chosen_and_explained(candidates, CRPS)
    assert choice.name == "sharp"
    assert text.startswith("Best held-out CRPS: sharp, 0.200")


@pytest.mark.parametrize(
    ("lead", "rhat", "cut_short", "chosen"),
    [
        (0.005, 1.5, None, "map"),  # within one standard error
        (0.010, 1.5, None, "map"),  # between one and two
        (0.050, 1.5, None, "other"),  # more than two
        (0.010, 1.1, None, "other"),  # mixed well enough
        (0.005, None, "step 50 of 5000", "map"),
        (0.010, None, "step 50 of 5000", "other"),  # outright
        (0.010, 1.5, "step 50 of 5000", "map"),
    ],
)
def test_what_is_not_sound_must_win_by_a_margin(lead, rhat, cut_short, chosen):
    candidates = {
        "map": Candidate(fold(-1.0)),
        "other": Candidate(fold(-1.0 + lead, seed=2), cut_short, rhat),
    }
    difference = candidates["other"].held_out.log_prob - candidates["map"].held_out.log_prob
    error = difference.std(ddof=1) / np.sqrt(ROWS)
    assert (
        {0.005: 0, 0.010: 1, 0.050: 7}[lead] <= lead / error < {0.005: 1, 0.010: 2, 0.05: 9}[lead]
    )
    choice, text = chosen_and_explained(candidates)
    assert choice.name == chosen
    caveat = "chains disagree (R-hat 1.50)" if rhat == 1.5 else "stopped by the budget at step 50"
    is_sound = (rhat or 0) <= 1.2 and cut_short is None
    assert (caveat in text) == (not is_sound)
    if chosen == "map":
        assert f"other is not recommended: {'its' if rhat == 1.5 else 'it was'}" in text
    elif not is_sound:
        assert "run it longer before you rely on it" in text


def test_without_a_sound_method_only_a_clear_winner_is_recommended():
    cut = "step 50 of 5000"
    tied = {"map": Candidate(fold(-1.0), cut), "vogn": Candidate(fold(-1.002, seed=2), cut)}
    choice, text = chosen_and_explained(tied, budget=60.0, sufficient="3m")
    assert choice.name is None
    assert "A budget of about 3m would let all 2 methods finish." in text
    clear = {"map": Candidate(fold(-1.0), cut), "vogn": Candidate(fold(-0.5, seed=2), cut)}
    assert choose(clear).name == "vogn"


def test_fewer_than_two_finished_methods_give_no_recommendation():
    late = [
        row("vogn", NOT_TRIED, reason="The budget was spent."),
        row("hmc", NOT_FINISHED, reason="The budget ended."),
    ]
    choice, text = chosen_and_explained(
        {"map": Candidate(fold(-1.0))}, others=late, budget=20.0, sufficient="90s"
    )
    assert choice.name is None
    assert text == (
        "No recommendation: only map was fitted within the budget of 20 s. A budget of about 90s"
        " would let all 3 methods finish."
    )


def test_time_is_not_blamed_where_methods_failed():
    failed = [row("conjugate", FAILED, reason="The network is not linear.")]
    choice, text = chosen_and_explained({"map": Candidate(fold(-1.0))}, others=failed)
    assert choice.name is None
    assert text == ("No recommendation: only map was fitted, and a comparison needs two methods.")


def test_equal_predictions_are_a_tie():
    same = fold(-1.0)
    assert set(choose({"map": Candidate(same), "twin": Candidate(same)}).ties) == {"map", "twin"}


def test_the_pareto_front():
    rows = [row(str(i)) for i in range(5)]
    for part, value, seconds in zip(
        rows[:4], (-1.0, -0.5, -0.7, None), (1.0, 5.0, 6.0, 0.5), strict=True
    ):
        part["metrics"]["log_likelihood"] = [value, 0.0]
        part["seconds"] = [seconds, 0.0]
    rows[4]["status"] = FAILED
    mark_front(rows)
    assert [part["pareto"] for part in rows] == [True, True, False, True, False]
