"""How long trials and fits of `method="auto"` are."""

from __future__ import annotations

import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn.data.rows import Rows
from bayeslearn.tabular import candidates, timing
from bayeslearn.tabular.candidates import Method, method_for
from bayeslearn.tabular.timing import Costs, Deadline, within_budget
from bayeslearn.tabular.trials import Problem


def test_trials_are_shorter_where_they_are_more_work():
    assert candidates.trial_steps(1e5, None) == (3000, "auto")
    chain, training = candidates.trial_steps(2e7, None)
    assert 4 * 2e7 * chain <= candidates.TRIAL_WORK
    assert 2 * 2e7 * training <= candidates.TRIAL_WORK
    assert candidates.trial_steps(1e9, None) == (500, 500)
    assert candidates.trial_steps(1e7, 30.0)[0] == pytest.approx(
        candidates.trial_steps(1e7, None)[0] / 2, abs=1
    )


def test_trials_of_wide_tables_have_fewer_rows():
    rows = Rows(np.zeros((3000, 1)), np.zeros(3000), np.ones(3000))

    def number(num_weights):
        work = lambda candidate: 3000.0 * num_weights  # noqa: E731
        return len(
            Problem(rows, False, ((4,),), (3.0,), (None,), None, work, None, 0).trial_rows()[0].y
        )

    assert [number(n) for n in (1e3, 1e5, 1e7)] == [2048, 1000, 256]


def test_draws_of_wide_networks_fit_into_memory():
    for num_weights in (1e3, 3e5, 1e7):
        method = method_for("mile", 1e7, 1.0, num_weights)
        algorithm = method.algorithm()
        drawn = algorithm.num_members * algorithm.sampler.num_samples
        assert drawn * num_weights <= max(candidates.MAX_DRAWN, method.num_members * num_weights)


@pytest.mark.parametrize("rate", [1e7, 1e9, 1e11])
@pytest.mark.parametrize("left", [3.0, 30.0, 300.0])
def test_a_fit_within_a_budget_is_as_long_as_it_allows(rate, left, monkeypatch):
    monkeypatch.setattr(timing, "num_cores", lambda: 2)
    costs = Costs(rate, member=2.0, compiling=4.0)
    method = within_budget("mile", 1e6, 1e3, costs, 0.8, left)
    training = method.num_members * 2.0 / 0.8 / 2
    sampling = 2 * method.num_members * method.num_steps * 1e6 / rate
    assert method.num_members == 2 or training <= 0.5 * max(left - 4.0, 0.0)
    assert sampling <= max(left - 4.0, 0.0) + 1e-9
    if method.name == "ensemble":
        assert 2 * method.num_members * 500 * 1e6 / rate > left - 4.0 - training
    elif method.num_steps < 16000:
        assert sampling + training == pytest.approx(left - 4.0, rel=0.01)


def test_members_have_equal_parts_of_the_time(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    deadline = Deadline(Method("mile", 4, 1000), 80.0, 2, None)

    def stops(phase, at):
        now[0] = at
        return deadline(bl.FitEvent("map", 1, 10, {}, phase))

    assert [stops("main/member 1", at) for at in (19.0, 21.0)] == [False, True]
    assert [stops("main/member 2/warm start", at) for at in (39.0, 41.0)] == [False, True]
    assert [stops("main", at) for at in (79.0, 81.0)] == [False, True]
