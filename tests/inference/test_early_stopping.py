"""Which iterate of a run is returned: numbers alone, no run."""

from __future__ import annotations

import numpy as np
import pytest

from bayeslearn.inference.early_stopping import WINDOW, EarlyStopping

ROWS = 50


def run(scores, patience=None, weight=None):
    """The rule after evaluations with these scores of held-out rows: (evaluations, rows)."""
    rule, steps = EarlyStopping(patience), 0
    for step, row in enumerate(scores, start=1):
        mean = float(np.average(row, weights=weight))
        goes_on = rule.update(mean, 0.0, f"state {step}", None, step, row, weight)
        steps = step
        if not goes_on:
            break
    return rule, steps


def around(level, noise, rng, shared=None):
    """Scores of the rows at each evaluation, around its level."""
    level = np.asarray(level, float)[:, None]
    shared = np.zeros(ROWS) if shared is None else shared
    return level + shared + noise * rng.normal(size=(len(level), ROWS))


def test_the_luckiest_of_many_evaluations_does_not_win():
    """Two hundred iterates that are alike: a new best by chance stays rare, and the last is kept.

    The largest of 200 averages is a record nearly 6 times on average (the harmonic number), by
    less than the error of the difference in most cases (here 24 of 148 records are accepted).
    """
    news, records = 0, 0
    for seed in range(20):
        scores = around(np.zeros(200), 1.0, np.random.default_rng(seed))
        rule = EarlyStopping(None)
        averages = []
        for step, row in enumerate(scores, start=1):
            rule.update(float(row.mean()), 0.0, step, None, step, row)
            news += rule.num_since_best == 0
            averages.append(np.mean(scores[max(0, step - WINDOW) : step]))
        records += sum(a > max(averages[:i]) for i, a in enumerate(averages) if i)
    assert news < 0.4 * records


def test_rows_are_compared_one_by_one():
    """A gain of 0.02 in every row is seen beneath differences of 5 between rows."""
    rng = np.random.default_rng(1)
    shared = 5.0 * rng.normal(size=ROWS)
    level = np.repeat([0.0, 0.02], 40)
    rule, _ = run(around(level, 0.01, rng, shared))
    assert rule.step > 40
    assert rule.best == pytest.approx(shared.mean() + 0.02, abs=0.005)
    # The same gain where rows go their own ways is no new best.
    lucky = np.zeros((80, ROWS))
    lucky[40:] = np.where(np.arange(ROWS) % 2, 1.04, -1.0)
    rule, _ = run(lucky + shared)
    assert rule.best_scores is not None
    np.testing.assert_allclose(rule.best_scores, shared)


def test_a_weight_is_the_row_as_often():
    rng = np.random.default_rng(2)
    scores, weight = around(np.linspace(0, 0.3, 30), 0.2, rng), np.arange(ROWS) % 3 + 1
    once, _ = run(scores, weight=weight)
    twice, _ = run(np.repeat(scores, weight, axis=1), weight=np.ones(weight.sum()))
    assert once.step == twice.step
    assert once.best == pytest.approx(twice.best, rel=1e-9)
    assert once.num_since_best == twice.num_since_best
    assert run(scores)[0].best != pytest.approx(once.best, rel=1e-3)


def test_patience_counts_evaluations_after_the_best():
    rng = np.random.default_rng(3)
    level = np.concatenate([np.linspace(-1, 0, 20), np.linspace(0, -1, 200)])
    rule, steps = run(around(level, 0.01, rng), patience=15)
    assert 20 <= rule.step <= 30  # of a moving average
    assert steps <= rule.step + 15 + WINDOW
    assert run(around(level, 0.01, rng), patience=None)[1] == len(level)


def test_a_record_goes_on_as_if_it_had_not_been_interrupted():
    rng = np.random.default_rng(4)
    scores = around(np.linspace(-1, 0, 40), 0.1, rng)
    whole, _ = run(scores)
    half, _ = run(scores[:17])
    again = EarlyStopping(None)
    again.restore(half.record(), half.state, None)
    for step, row in enumerate(scores[17:], start=18):
        again.update(float(row.mean()), 0.0, f"state {step}", None, step, row)
    assert again.step == whole.step
    assert again.best == whole.best
    assert again.values == whole.values
