"""Ordered classes and weights of classes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import bayeslearn as bl
from bayeslearn.errors import ArgumentError
from bayeslearn.models.likelihoods.ordinal import Ordinal
from bayeslearn.tabular import persistence

SMALL = {"hidden": (), "method": "map", "num_steps": 300, "random_state": 0}
LEVELS = ["low", "mid", "high"]


def rows(seed=0, number=300):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(number, 2))
    place = np.digitize(x[:, 0] + 0.7 * rng.logistic(size=number) / 1.8, [-0.5, 0.8])
    return x, np.array(LEVELS)[place]


def as_pandas(y, ordered=True):
    return pd.Series(pd.Categorical(y, categories=LEVELS, ordered=ordered))


def as_polars(y):
    polars = pytest.importorskip("polars")
    return polars.Series(y).cast(polars.Enum(LEVELS))


@pytest.mark.parametrize("make", [as_pandas, as_polars])
def test_ordered_categories_are_ordinal(make, tmp_path):
    x, y = rows()
    fitted = bl.BayesianNNClassifier(**SMALL).fit(x, make(y))
    assert fitted.classes_.tolist() == LEVELS
    assert isinstance(fitted.posterior_.target.likelihood, Ordinal)
    note = 'Ordered classes, low < mid < high: likelihood="ordinal".'
    assert note in fitted.posterior_.notes
    probs = fitted.predict_proba(x)
    assert np.mean(fitted.predict(x) == y) > 0.6
    # A step up in x can only move probability up.
    at = fitted.predict_proba([[-3.0, 0.0], [0.0, 0.0], [3.0, 0.0]])
    assert np.all(np.diff(at[:, 0]) < 0)
    assert np.all(np.diff(at[:, 2]) > 0)
    assert fitted.score(x, make(y)) == np.mean(fitted.predict(x) == y)
    fitted.save(tmp_path / "run")
    loaded = persistence.load(tmp_path / "run")
    np.testing.assert_array_equal(loaded.predict_proba(x), probs)
    assert loaded.classes_.tolist() == LEVELS
    assert loaded.log_likelihood(x, y) == pytest.approx(fitted.log_likelihood(x, y), abs=1e-12)


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA])
def test_a_missing_label_is_refused(missing):
    x, y = rows(number=20)
    y = y.astype(object)
    y[3] = missing
    with pytest.raises(ArgumentError, match=r"`y` must have a label in every row, .* in row 3"):
        bl.BayesianNNClassifier(**SMALL).fit(x, y)


def test_the_order_must_be_known():
    x, y = rows()
    unordered = bl.BayesianNNClassifier(**SMALL).fit(x, as_pandas(y, ordered=False))
    assert unordered.likelihood_ == "categorical"
    assert unordered.classes_.tolist() == sorted(LEVELS)
    with pytest.raises(ArgumentError, match=r"ordered type.*ordered=True"):
        bl.BayesianNNClassifier(**SMALL, likelihood="ordinal").fit(x, y)
    stars = np.searchsorted(LEVELS, y, sorter=np.argsort(LEVELS))
    numbers = bl.BayesianNNClassifier(**SMALL, likelihood="ordinal").fit(x, stars + 1)
    assert isinstance(numbers.posterior_.target.likelihood, Ordinal)
    with pytest.raises(ArgumentError, match="'categorical', 'ordinal' for classification"):
        bl.BayesianNNClassifier(likelihood="gamma").fit(x, y)


def test_class_weights_are_weights_of_rows(tmp_path):
    x, y = rows()
    weights = {"low": 1.0, "mid": 1.0, "high": 3.0}
    plain = bl.BayesianNNClassifier(**SMALL)
    by_class = bl.BayesianNNClassifier(**SMALL, class_weight=weights).fit(x, y)
    by_row = plain.fit(x, y, sample_weight=[weights[label] for label in y])
    np.testing.assert_array_equal(by_class.predict_proba(x), by_row.predict_proba(x))
    assert any("weighted by class_weight" in note for note in by_class.posterior_.notes)
    by_class.save(tmp_path / "run")
    assert persistence.load(tmp_path / "run").class_weight == weights


def test_balanced_weights():
    x, y = rows()
    rare = np.flatnonzero(y != "high").tolist() + np.flatnonzero(y == "high")[:6].tolist()
    x, y = x[rare], y[rare]
    found = {
        name: bl.BayesianNNClassifier(**SMALL, class_weight=name).fit(x, y)
        for name in (None, "balanced")
    }
    recall = {name: np.mean(one.predict(x)[y == "high"] == "high") for name, one in found.items()}
    assert recall["balanced"] > recall[None]
    counts = {label: np.sum(y == label) for label in LEVELS}
    weights = {label: len(y) / 3 / number for label, number in counts.items()}
    same = bl.BayesianNNClassifier(**SMALL, class_weight=weights).fit(x, y)
    np.testing.assert_allclose(same.predict_proba(x), found["balanced"].predict_proba(x), atol=1e-9)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("even", "be None, 'balanced' or a dict"),
        ({"low": -1}, "numbers from 0"),
        ({7: 1.0}, "name"),
    ],
)
def test_refused_weights(weights, message):
    with pytest.raises(ArgumentError, match=message):
        bl.BayesianNNClassifier(**SMALL, class_weight=weights).fit(*rows())


def test_groups_and_joint_calibration():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(900, 1))
    group = np.arange(900) % 2
    noise = np.where(group, 3.0, 0.5)[:, None] * rng.normal(size=(900, 2))
    y = x + noise
    fitted = bl.BayesianNNRegressor(**SMALL).fit(x[:300], y[:300])
    fitted.calibrate(x[300:600], y[300:600], groups=group[300:600], joint=True)
    lower, upper = fitted.predict_interval(x[600:], 0.9, groups=group[600:])
    inside = np.all((lower <= y[600:]) & (y[600:] <= upper), axis=1)
    for name in (0, 1):
        assert abs(np.mean(inside[group[600:] == name]) - 0.9) < 0.08
    with pytest.raises(ArgumentError, match="`groups` must have the group of each row"):
        fitted.predict_interval(x[600:])
    classes = bl.BayesianNNClassifier(**SMALL).fit(*rows())
    classes.calibrate(*rows(1), groups="class")
    assert classes.predict_set(rows(2)[0], 0.8).any(axis=1).all()
