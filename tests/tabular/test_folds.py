"""Splits inside a fit keep classes, groups and the order of time."""

from __future__ import annotations

import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn.data import scaling
from bayeslearn.data.rows import Rows
from bayeslearn.errors import ArgumentError
from bayeslearn.tabular import base, folds, trials
from bayeslearn.tabular.folds import KeyedRows, Keys

EXACT = {"hidden": (), "method": "conjugate", "random_state": 0}


def keyed(y, keys=None):
    y = np.asarray(y)
    return KeyedRows(Rows(np.arange(len(y))[:, None], y, np.ones(len(y))), keys)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("fraction", [0.1, 0.3, 0.5, 0.9])
def test_every_class_is_left_and_held_out_in_proportion(seed, fraction):
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat([0, 1, 2, 3], [1, 2, 30, 100]))
    rest, other = folds.hold_out(keyed(labels), fraction, True, "f")
    assert set(rest.rows.y) == {0, 1, 2, 3}
    together = np.sort(np.concatenate([rest.rows.x, other.rows.x])[:, 0])
    np.testing.assert_array_equal(together, np.arange(133))
    for label, count in ((2, 30), (3, 100)):
        assert abs(np.sum(other.rows.y == label) - fraction * count) <= 1


def test_without_classes_rows_are_taken_from_either_end():
    rest, other = folds.hold_out(keyed(np.arange(10.0)), 0.3, False, "f")
    assert other.rows.y.tolist() == [0, 1, 2]
    rest, other = folds.hold_out(keyed(np.arange(10.0)), 0.3, False, "f", at_end=True)
    assert (rest.rows.y.tolist(), other.rows.y.tolist()) == (list(range(7)), [7, 8, 9])


@pytest.mark.parametrize("at_end", [False, True])
def test_groups_stay_together(at_end):
    groups = np.random.default_rng(0).integers(0, 12, 100)
    table = keyed(np.zeros(100), folds.keys_of(groups.astype(str), None, 100))
    rest, other = folds.hold_out(table, 0.2, False, "f", at_end)
    assert not set(rest.keys.values) & set(other.keys.values)
    assert 20 <= len(other.rows.y) <= 20 + np.bincount(groups).max()
    fold = folds.fold_of(np.zeros(100), 5, False, table.keys)
    for group in range(12):
        assert len(set(fold[groups == group])) == 1
    assert np.ptp(np.bincount(fold)) <= np.bincount(groups).max()


def test_time_is_predicted_from_what_was_before():
    times = np.random.default_rng(0).permutation(np.repeat(np.arange(40), 3))
    dates = np.datetime64("2024-01-01") + times
    table = keyed(np.zeros(120), folds.keys_of(None, dates, 120))
    rest, other = folds.hold_out(table, 0.25, False, "f")
    assert rest.keys.values.max() < other.keys.values.min()
    assert len(other.rows.y) == 30
    fold = folds.fold_of(np.zeros(120), 5, False, table.keys)
    for k in range(5):
        learned = ~folds.left_out(fold, k, table.keys)
        assert 0 < times[learned].max() < times[fold == k].min()
        assert abs(np.sum(fold == k) - 20) <= 3


def test_a_single_row_of_a_class_is_always_learned_from():
    labels = np.array([0] * 20 + [1] * 3 + [2])
    fold = folds.fold_of(labels, 5, True, None)
    assert fold[-1] == folds.NEVER
    assert len(set(fold[20:23])) == 3
    assert np.bincount(fold[:20]).tolist() == [4] * 5


@pytest.mark.parametrize(
    ("groups", "time_order", "message"),
    [
        (np.zeros(4), None, "`groups` must hold at least two groups"),
        (None, np.zeros(4), "`time_order` must hold at least two times"),
        (np.zeros(3), None, "have one entry for each of 4 rows, got shape"),
        (np.arange(4), True, "`time_order` must be left out where `groups` are given"),
    ],
)
def test_refusals(groups, time_order, message):
    with pytest.raises(ArgumentError, match=message):
        folds.hold_out(keyed(np.zeros(4), folds.keys_of(groups, time_order, 4)), 0.5, False, "f")


@pytest.mark.parametrize("has_classes", [False, True])
@pytest.mark.parametrize("number", range(1, 11))
def test_no_fold_of_few_rows_is_empty(number, has_classes):
    y = np.arange(number) % 2 if has_classes else np.arange(float(number))
    fold = folds.fold_of(y, 5, has_classes, None)
    fewest = 4 if has_classes else 2  # of a class with one row none is left to learn from
    sizes = np.bincount(fold[fold >= 0], minlength=1)
    assert np.all(sizes > 0) == (number >= fewest - has_classes)
    if number >= fewest:
        assert len(sizes) == min(5, number)
        assert sizes.sum() == number
    if has_classes and np.all(sizes > 0):
        for k in range(len(sizes)):
            assert set(y[fold != k]) == set(y)


@pytest.mark.parametrize("is_time", [False, True])
@pytest.mark.parametrize("counts", [[7], [10, 10], [10, 10, 2000], [2000, 10, 10], [3, 1, 1, 4]])
def test_few_groups_or_times_make_as_many_folds_as_they_can(counts, is_time):
    values = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    keys = Keys(is_time, values)
    fold = folds.fold_of(np.zeros(len(values)), 5, False, keys)
    number = len(counts) - is_time
    if len(counts) == 1:
        assert np.all(fold == folds.NEVER)
        return
    assert np.all(np.bincount(fold[fold >= 0], minlength=number) > 0)
    assert fold.max() == number - 1
    for k in range(number):
        learned = ~folds.left_out(fold, k, keys)
        assert np.any(learned)
        assert not set(values[learned]) & set(values[fold == k])
        assert not is_time or values[learned].max() < values[fold == k].min()


def test_blocks_of_time_have_about_as_many_rows():
    counts = np.array([1, 1, 1, 50, 1, 1, 30, 30, 30, 20, 40, 1, 1])
    keys = Keys(True, np.repeat(np.arange(len(counts)), counts))
    sizes = np.bincount(folds.fold_of(np.zeros(counts.sum()), 5, False, keys) + 1)
    assert len(sizes) == 6
    # Each end of a block is at most half a time from where it should be.
    assert np.all(np.abs(sizes - counts.sum() / 6) <= counts.max())


def test_some_rows_hold_every_class():
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2, 3], [6000, 1990, 7, 3]))
    index = folds.first_rows(labels, 500, True)
    assert len(set(index)) == len(index) == 500
    counts = np.bincount(labels[index])
    assert counts[2:].tolist() == [5, 3]  # 0.4 and 0.2 by their share
    assert abs(counts[0] - 0.75 * 492) <= 3
    assert np.array_equal(folds.first_rows(labels, 500, False), np.arange(500))
    assert np.array_equal(folds.first_rows(labels[:90], 500, True), np.arange(90))


def test_estimators_calibrate_on_whole_groups_and_on_the_latest_rows():
    """Rows of a group share an offset: intervals that know of it are wider."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(40), 10)
    x = np.c_[groups / 40, rng.normal(size=400)]
    y = x[:, 1] + rng.normal(size=40)[groups] + 0.1 * rng.normal(size=400)
    estimator = bl.BayesianNNRegressor(**EXACT, calibration="conformal")
    estimator.fit(x, y, groups=groups)
    assert estimator.posterior_.calibrator.num_rows == 80  # 8 groups of 10
    # Time: the level shifts at the end, and only the latest rows show it.
    shifted = x[:, 1] + np.where(np.arange(400) >= 320, 5.0, 0.0) + 0.1 * rng.normal(size=400)
    plain = bl.BayesianNNRegressor(**EXACT, calibration="conformal").fit(x[:, 1:], shifted)
    ordered = bl.BayesianNNRegressor(**EXACT, calibration="conformal")
    ordered.fit(x[:, 1:], shifted, time_order=True)
    assert abs(ordered.predict([[0.0]])[0]) < 0.1  # learned from the first 320 rows
    assert plain.predict([[0.0]])[0] > 0.8
    lower, upper = ordered.predict_interval([[0.0]])
    assert lower[0] < -4
    assert upper[0] > 4


def test_labels_of_weight_zero_take_their_groups_with_them():
    x = np.random.default_rng(0).normal(size=(30, 1))
    labels = np.array(["a", "b", "c"])[np.arange(30) % 3]
    settings = {"hidden": (), "method": "map", "num_steps": 20, "validation_fraction": 0.2}
    estimator = bl.BayesianNNClassifier(**settings, random_state=0)
    weight = np.where(labels == "c", 0.0, 1.0)
    estimator.fit(x, labels, sample_weight=weight, groups=np.arange(30) // 3)
    assert estimator.classes_.tolist() == ["a", "b"]
    assert float(estimator.posterior_.target.num_data) in (16.0,)  # 8 of 10 groups


@pytest.mark.parametrize(
    ("groups", "time_order", "expected"),
    [
        (None, None, range(0, 60, 5)),
        (np.arange(60) // 6, None, [*range(6), *range(30, 36)]),
        (None, True, range(50, 60)),
    ],
)
def test_candidates_are_scored_on_whole_groups_and_on_the_latest_rows(
    groups, time_order, expected, monkeypatch
):
    monkeypatch.setattr(trials, "SHORT", trials.Method("ensemble", num_members=2, num_steps=20))
    x = np.random.default_rng(0).normal(size=(60, 1))
    problem = trials.Problem(
        *(Rows(x, x[:, 0], np.ones(60)), False, ((2,),), (1.0,), ("learned",)),
        lambda _: bl.Model(bl.networks.MLP([2]), bl.likelihoods.Gaussian(), bl.priors.Normal()),
        *(lambda _: 1e9, np.ones(()), 0, folds.keys_of(groups, time_order, 60)),
    )
    trial = trials.run_trial(problem, trials.Candidate((2,), 1.0, "learned"), range(1), None)
    scored = np.flatnonzero(np.isin(x, trial.folds[0].rows.x))
    np.testing.assert_array_equal(scored, expected)


class Called(Exception):
    """`fit` was called."""


@pytest.fixture
def fit_calls(monkeypatch):
    """What `fit` is called with, in place of fits."""
    calls = []

    def fit(model, algorithm, data, *, validation, **options):
        calls.append((data, validation))
        raise Called

    monkeypatch.setattr(trials, "fit", fit)
    monkeypatch.setattr(base, "fit", fit)
    return calls


KEYED = {"groups": {"groups": np.arange(60) // 6}, "time_order": {"time_order": np.arange(60) // 6}}


def check_held_out(data, validation, name):
    """Groups of six rows, or the latest rows, decide when members stop."""
    trained, stopping = (
        np.round(part[0][part[2] > 0, -1] * 60).astype(int) // 6 for part in (data, validation)
    )
    assert not set(trained) & set(stopping)
    assert len(stopping) in (6, 12)
    assert name == "groups" or trained.max() < stopping.min()
    return len(trained) + len(stopping)


@pytest.mark.parametrize("name", KEYED)
def test_members_of_candidates_stop_by_whole_groups_and_the_latest_rows(name, fit_calls):
    order = np.random.default_rng(0).permutation(60)
    x = np.arange(60.0)[order, None] / 60
    keys = folds.keys_of(**{"groups": None, "time_order": None} | KEYED[name], num_rows=60)
    problem = trials.Problem(
        *(Rows(x, x[:, 0], np.ones(60)), False, ((2,),), (1.0,), ("learned",)),
        *(lambda _: None, lambda _: 1e9, np.ones(()), 0, keys.take(order)),
    )
    with pytest.raises(Called):
        trials.run_trial(problem, trials.Candidate((2,), 1.0, "learned"), range(1), None)
    ((data, validation),) = fit_calls
    assert check_held_out(data, validation, name) == 48  # a fold of two groups, or times, is out


@pytest.mark.parametrize("name", KEYED)
@pytest.mark.parametrize("method", ["mile", bl.Ensemble(validation_fraction=0.15)])
def test_members_stop_by_whole_groups_and_the_latest_rows(name, method, fit_calls, monkeypatch):
    monkeypatch.setattr(scaling.RankScaling, "apply", lambda self, x: x)
    x = np.arange(60.0)[:, None] / 60
    with pytest.raises(Called):
        bl.BayesianNNRegressor(method=method, random_state=0).fit(x, x[:, 0], **KEYED[name])
    ((data, validation),) = fit_calls
    assert check_held_out(data, validation, name) == 60


def test_members_stop_by_any_rows_where_there_is_one_group(fit_calls):
    x = np.arange(60.0)[:, None]
    with pytest.raises(Called):
        bl.BayesianNNRegressor(method="mile", random_state=0).fit(x, x[:, 0], groups=np.ones(60))
    assert fit_calls[0][1] is None
