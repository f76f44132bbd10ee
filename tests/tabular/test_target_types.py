"""What y holds is recognised, and gets a likelihood of its own."""

from __future__ import annotations

import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn import report
from bayeslearn.errors import ArgumentError
from bayeslearn.tabular import persistence
from bayeslearn.tabular.target_types import choose, recognize

SMALL = {"hidden": (4,), "method": "map", "num_steps": 300, "random_state": 0, "num_samples": 8}


def rows(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(200, 2))
    return rng, x, x[:, 0]


def targets():
    rng, _, signal = rows()
    return {
        "negative-binomial": rng.poisson(np.exp(1.0 + 0.7 * signal)).astype(float),
        "beta": rng.beta(5 / (1 + np.exp(-signal)), 5 / (1 + np.exp(signal))),
        "log-normal": np.exp(signal + 0.5 * rng.normal(size=200)) * 1e4,
        "gamma": 50 * rng.gamma(0.5, size=200) * np.exp(0.3 * signal),
        "gaussian": signal + rng.normal(size=200),
    }


@pytest.mark.parametrize("name", targets())
def test_numbers_are_recognised(name):
    assert recognize(targets()[name])[0] == name


def test_what_is_not_clear_is_gaussian():
    rng = np.random.default_rng(0)
    for y in (
        rng.integers(0, 2, size=100).astype(float),  # labels
        rng.integers(1000, 2000, size=100).astype(float),  # years
        np.round(rng.normal(size=100)),  # either sign
        np.arange(5.0),  # too few
        20 + rng.normal(size=100),  # not skewed
    ):
        assert recognize(y)[0] == "gaussian"


def test_zero_inflation_is_recognised():
    rng = np.random.default_rng(0)
    y = (rng.poisson(3, 200) * (rng.uniform(size=200) < 0.4)).astype(float)
    assert recognize(y)[0] == "zero-inflated-poisson"
    for seed in range(20):  # and not of counts that are only dispersed
        rng = np.random.default_rng(seed)
        dispersed = rng.negative_binomial(0.8, 0.3, 200).astype(float)
        assert recognize(dispersed)[0] == "negative-binomial"
        counts = rng.poisson(np.exp(0.5 + rng.normal(size=200))).astype(float)
        assert recognize(counts)[0] == "negative-binomial"


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (np.arange(15.0) ** 2, "15 rows, too few"),
        (np.linspace(0.0, 1.0, 60), "proportions with exact 0 or 1"),
        (np.where(np.arange(60) % 3, np.exp(np.arange(60) / 9), 0.0), "skewed numbers with zeros"),
        (np.arange(60.0) % 3, "whole numbers up to 2"),
    ],
)
def test_what_is_taken_as_real_numbers_is_said(y, words):
    name, note = choose("auto", y)
    assert name == "gaussian"
    assert words in note
    assert 'taken as real numbers: likelihood="gaussian"' in note


@pytest.mark.parametrize("name", [name for name in targets() if name != "gaussian"])
def test_auto_predicts_better_than_a_gaussian_and_says_what_it_is(name, tmp_path):
    _, x, _ = rows()
    y = targets()[name]
    fitted = {
        likelihood: bl.BayesianNNRegressor(**SMALL, likelihood=likelihood).fit(x, y)
        for likelihood in ("auto", "gaussian")
    }
    auto = fitted["auto"]
    assert auto.likelihood_ == name
    assert any(f'likelihood="{name}"' in note for note in auto.posterior_.notes)
    assert any("taken as real numbers" in note for note in fitted["gaussian"].posterior_.notes)
    if name != "negative-binomial":  # a probability is not a density
        assert auto.log_likelihood(x, y) > fitted["gaussian"].log_likelihood(x, y)
    lower, upper = auto.predict_interval(x, level=0.9)
    assert np.all(lower >= 0)
    assert 0.8 < np.mean((lower <= y) & (y <= upper)) <= 1.0
    assert np.mean((auto.predict(x) - y) ** 2) < 1.05 * np.var(y)
    auto.save(tmp_path / "run")
    loaded = persistence.load(tmp_path / "run")
    np.testing.assert_array_equal(loaded.predict(x), auto.predict(x))
    assert loaded.likelihood_ == name


@pytest.mark.parametrize("name", ["negative-binomial", "beta", "gamma"])
def test_the_report_draws_distributions_that_do_not_reach_below_zero(name):
    _, x, _ = rows()
    y = targets()[name]
    regressor = bl.BayesianNNRegressor(**SMALL, likelihood=name).fit(x, y)
    contents = report.from_fit(regressor, x[:40], y[:40], x[40:60], y[40:60])
    bins = np.array(contents["fits"][0]["rows"]["bins"])
    assert np.all(np.abs(bins.sum(axis=1) - 1000) < 60)  # nearly all of each distribution


@pytest.mark.parametrize(
    ("y", "shown"),
    [
        (np.arange("2024-01-01", "2024-02-10", dtype="datetime64[D]"), "got dates"),
        (np.arange(40).astype("timedelta64[h]"), "got durations"),
        (np.array(["1.5", "much"] * 20), "got 'much' in row 1"),
        (np.array([1.0, "b"] * 20, object), "got 'b' in row 1"),
    ],
)
def test_dates_and_text_are_no_numbers(y, shown):
    with pytest.raises(ArgumentError, match=f"`y` must hold numbers, {shown}. Convert dates"):
        bl.BayesianNNRegressor(**SMALL).fit(np.ones((40, 1)), y)


@pytest.mark.parametrize(("number", "words"), [(1, "in its only row"), (30, "in every row")])
def test_a_constant_target_warns(number, words):
    with pytest.warns(bl.DataWarning, match=f"y is 7 {words}: there is nothing to learn"):
        bl.BayesianNNRegressor(**SMALL).fit(np.arange(float(number))[:, None], np.full(number, 7.0))


def test_real_numbers_are_as_before():
    _, x, _ = rows()
    y = targets()["gaussian"]
    left, right = (
        bl.BayesianNNRegressor(**SMALL, likelihood=name).fit(x, y) for name in ("auto", "gaussian")
    )
    np.testing.assert_array_equal(left.predict(x), right.predict(x))
    assert left.posterior_.notes == right.posterior_.notes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"likelihood": "weird"}, "`likelihood` must be one of 'auto', 'gaussian', 'log-normal'"),
        ({"likelihood": "gamma", "noise": "learned"}, '`noise` must be "auto" with likelihood='),
        ({"likelihood": "auto", "noise": 0.5}, '`noise` must be "auto" with likelihood="auto"'),
        ({"likelihood": "gamma"}, "`y` must hold only positive numbers"),
    ],
)
def test_refusals(settings, message):
    _, x, signal = rows()
    with pytest.raises(ArgumentError, match=message):
        bl.BayesianNNRegressor(**SMALL, **settings).fit(x, signal)
