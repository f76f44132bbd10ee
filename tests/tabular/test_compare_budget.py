"""Budgets, on a clock that the tests set: shares, what is not tried, and where fits are cut."""

from __future__ import annotations

import pytest

import bayeslearn as bl
from bayeslearn.errors import ArgumentError
from bayeslearn.tabular.compare import budget as budgets
from bayeslearn.tabular.compare.budget import (
    Budget,
    Clock,
    Cost,
    Deadline,
    NotTried,
    OutOfBudget,
    Pace,
    Share,
    parse_budget,
    shorten_sampler,
    write_duration,
)

COMPILE = "/jax/core/compile/backend_compile_duration"
BASELINE = Cost(compiling=4.0, fit=0.5, first_scoring=1.0, scoring=0.1)


@pytest.fixture
def now(monkeypatch):
    """`now.seconds` is the time."""

    class Now:
        seconds = 0.0

    monkeypatch.setattr(budgets.time, "perf_counter", lambda: Now.seconds)
    return Now


def event(step, num_steps=1000, phase="main"):
    return bl.FitEvent("vogn", step, num_steps, {}, phase)


NOTHING = Cost(0.0, 0.0, 0.0, 0.0)


def share(seconds, ends=1000.0, splits=1, expected=NOTHING, **options):
    return Share(seconds, ends, splits, expected, **options)


# Durations


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90.0), ("2m", 120.0), ("1.5h", 5400.0), ("7", 7.0), (7, 7.0)]
)
def test_budgets_are_seconds_or_durations(text, seconds):
    assert parse_budget(text) == seconds
    assert parse_budget(None) is None


@pytest.mark.parametrize("text", ["soon", "", -1, 0, float("inf"), True])
def test_bad_budgets(text):
    with pytest.raises(ArgumentError, match="`budget` must"):
        parse_budget(text)


def test_durations_are_written_as_budgets_take_them():
    assert [write_duration(s) for s in (0.2, 89.1, 150.0, 1234.0, 9000.0)] == [
        *("1s", "90s", "2.5m", "21m", "2.5h"),
    ]


# Shares


def test_the_baseline_gets_a_quarter_at_least(now):
    budget = Budget(60.0, splits=3, began=0.0)
    assert budget.share(20, is_baseline=True).seconds == 15.0
    assert budget.share(2, is_baseline=True).seconds == 30.0


def test_methods_share_what_is_left_as_far_as_all_can_finish(now):
    budget = Budget(600.0, splits=3, began=0.0)
    budget.record(BASELINE, is_baseline=True)
    now.seconds = 60.0
    assert budget.share(5).seconds == pytest.approx(540.0 / 5)
    # A useful fit takes about 2 * 4 + 3 * 5 * 0.5 + 2 * 1 + 2 * 0.1 s: of five methods three can.
    now.seconds = 540.0
    assert budget.share(5).seconds == pytest.approx(60.0 / 3)
    assert budget.share(1).seconds == pytest.approx(60.0)


def test_a_method_is_not_begun_without_time_to_finish(now):
    budget = Budget(60.0, splits=3, began=0.0)
    budget.record(BASELINE, is_baseline=True)
    now.seconds = 48.0  # it takes 17.7 s, of which 12 + 10 % of 60 are left
    assert budget.share(1).seconds == pytest.approx(12.0)
    now.seconds = 49.0
    with pytest.raises(NotTried, match=r"take about 18 s, and 11 s were left"):
        budget.share(1)
    budget.record(Cost(20.0, 1.0, 3.0, 0.1))  # another one took longer than was expected
    now.seconds = 35.0
    assert budget.share(1)
    now.seconds = 36.0
    with pytest.raises(NotTried, match=r"take about 31 s, and 24 s were left"):
        budget.share(1)


def test_a_sufficient_budget_is_estimated_from_the_pace(now):
    budget = Budget(60.0, splits=3, began=0.0)
    assert budget.sufficient(6) is None
    budget.record(BASELINE, is_baseline=True)
    baseline = 4.0 + 3 * 0.5 + 1.0 + 2 * 0.1
    others = 2 * 4.0 + 3 * 20 * 0.5 + 2 * 1.0 + 2 * 0.1
    assert budget.sufficient(6) == pytest.approx(baseline + 5 * others)


# The clock of a fit


def test_without_a_budget_nothing_is_stopped(now):
    clock = Clock(None)
    now.seconds = 1e9
    assert not clock(event(10))
    assert clock.cut_short is None


def test_a_fit_is_cut_when_its_time_is_over(now):
    clock = Clock(share(30.0, splits=3))
    now.seconds = 9.0
    assert not clock(event(550))
    now.seconds = 10.0
    assert clock(event(600))
    assert clock.cut_short == "step 600 of 1000"


def test_compiling_counts(now):
    clock = Clock(share(30.0, splits=3))
    now.seconds = 21.0
    clock.hear_compilation(COMPILE, 21.0)
    assert clock.compiling == 21.0
    assert not clock(event(10))
    now.seconds = 24.0  # 9 s were left for three fits
    assert clock(event(100))


def test_nested_tracing_counts_once(now):
    clock = Clock(None)
    now.seconds = 2.0
    clock.hear_compilation("/jax/core/compile/jaxpr_trace_duration", 1.0)
    now.seconds = 5.0
    clock.hear_compilation("/jax/core/compile/jaxpr_trace_duration", 5.0)
    clock.hear_compilation("/jax/other", 100.0)
    assert clock.compiling == 5.0


def test_a_warm_start_is_cut_at_half_of_the_time(now):
    clock = Clock(share(10.0))
    now.seconds = 5.0
    assert clock(event(300, phase="main/warm start"))
    now.seconds = 6.0
    assert not clock(event(10))
    assert clock.cut_short == "warm start, step 300 of 1000"
    now.seconds = 10.0
    assert clock(event(700))
    assert clock.cut_short == "step 700 of 1000"  # the method itself comes first


def test_a_warm_start_is_given_up_where_the_method_could_not_be_compiled(now):
    expected = Cost(compiling=8.0, fit=1.0, first_scoring=1.0, scoring=0.0)
    clock = Clock(share(10.0, ends=12.0, expected=expected))
    now.seconds = 2.0
    assert not clock(event(10, phase="main/warm start"))
    now.seconds = 4.0
    with pytest.raises(OutOfBudget, match="ended in its warm start"):
        clock(event(20, phase="main/warm start"))


def test_the_baseline_is_never_given_up(now):
    expected = Cost(compiling=8.0, fit=1.0, first_scoring=1.0, scoring=0.0)
    clock = Clock(share(1.0, ends=2.0, expected=expected, is_baseline=True))
    now.seconds = 100.0
    assert clock(event(50))


def test_later_splits_end_where_the_first_did(now):
    clock = Clock(share(10.0), stop_at={"main": 600})
    assert not clock(event(550))
    assert clock(event(600))
    now.seconds = 900.0
    assert not Clock(share(10.0), stop_at={})(event(550))


def test_a_later_split_is_given_up_at_the_end_of_the_budget(now):
    clock = Clock(share(10.0, ends=1000.0), stop_at={"main": 600})
    now.seconds = 1001.0
    with pytest.raises(OutOfBudget, match="before its last split"):
        clock(event(550))
    clock = Clock(share(10.0, ends=1000.0, is_baseline=True), stop_at={"main": 600})
    assert not clock(event(550))


def test_a_fit_with_a_budget_of_its_own_is_only_given_up_at_the_end(now):
    clock = Deadline(share(10.0, ends=100.0, splits=2))
    assert clock.fit_seconds == 5.0
    now.seconds = 99.0
    assert not clock(event(550))
    now.seconds = 101.0
    with pytest.raises(OutOfBudget, match="ended in its candidate 2 of 8"):
        clock(event(550, phase="main/candidate 2 of 8"))


def test_a_fit_that_ends_by_itself_is_not_cut(now):
    clock = Clock(share(10.0))
    now.seconds = 11.0
    assert clock(event(1000))
    assert clock.cut_short is None


def test_a_sampler_is_given_up_in_a_warm_up_that_takes_too_long(now):
    clock = Clock(share(30.0), num_warmup=500)
    now.seconds = 44.0
    assert not clock(event(50, 1500))  # warm-up cannot be stopped
    now.seconds = 46.0
    with pytest.raises(OutOfBudget, match="30 s, was spent after 60 of 500 warm-up steps"):
        clock(event(60, 1500))
    now.seconds = 0.0
    clock = Clock(share(30.0, ends=20.0), num_warmup=500)
    now.seconds = 21.0
    with pytest.raises(OutOfBudget):
        clock(event(60, 1500))


def test_a_sampler_in_time_goes_on_to_its_draws(now):
    clock = Clock(share(30.0), num_warmup=500)
    now.seconds = 16.0
    assert not clock(event(500, 1500))
    now.seconds = 31.0
    assert clock(event(700, 1500))
    assert clock.cut_short == "step 700 of 1500"


def test_events_are_passed_on(now):
    heard = []
    clock = Clock(None, listener=heard.append)
    clock(event(10, phase="main/warm start"))
    clock(event(20))
    assert [e.phase for e in heard] == ["main/warm start", "main"]
    assert {phase: e.step for phase, e in clock.events.items()} == {
        "main/warm start": 10,
        "main": 20,
    }


# Samplers


def test_a_sampler_is_shortened_by_the_baselines_pace(monkeypatch):
    monkeypatch.setattr(budgets, "num_cores", lambda: 2)
    pace = Pace(gradient=1e-3, compiling=1.0)
    hmc = bl.HMC()
    assert shorten_sampler(bl.VOGN(), share(1.0), pace) == bl.VOGN()
    assert shorten_sampler(hmc, share(1e6, splits=3), pace) is hmc
    shorter = shorten_sampler(hmc, share(300.0, splits=3), pace)
    assert 100 <= shorter.num_warmup < 500
    assert 100 <= shorter.num_samples < 1000
    assert shorten_sampler(hmc, share(90.0, splits=3), pace).num_warmup == 100
    with pytest.raises(NotTried, match="its share of the budget allows"):
        shorten_sampler(hmc, share(3.0, splits=3), pace)


def test_the_pace_is_that_of_a_gradient_over_all_rows():
    pace = Pace.of(BASELINE, steps=1000, rows=300)
    assert pace.gradient == pytest.approx(0.5 / 1000)
    assert Pace.of(BASELINE, steps=1000, rows=100_000).gradient > 10 * pace.gradient
