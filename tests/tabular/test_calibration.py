"""Calibration of the estimators, and of `bayeslearn fit`, on rows that are set aside."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
from command_line import QUICK, homes, run
from sklearn.base import clone

import bayeslearn as bl
from bayeslearn.errors import ArgumentError
from bayeslearn.tabular import persistence

SMALL = {"hidden": (5,), "method": "map", "num_steps": 100, "random_state": 0}


def numbers(rows, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2))
    return x, 10 + 3 * x[:, 0] + rng.standard_t(3, size=rows)


def names(rows, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2))
    labels = np.digitize(x[:, 0] + rng.normal(size=rows), [-0.5, 0.5])
    return x, np.array(["high", "low", "middle"])[labels]


@pytest.fixture(scope="module")
def regressor():
    """Noise that is fixed at a fraction of what it is: intervals are far too narrow."""
    settings = SMALL | {"noise": 0.5, "calibration": "conformal"}
    return bl.BayesianNNRegressor(**settings).fit(*numbers(400))


@pytest.fixture(scope="module")
def classifier():
    return bl.BayesianNNClassifier(**SMALL, calibration="conformal").fit(*names(400))


def test_intervals_cover_new_rows(regressor):
    """80 rows set aside: coverage is Beta(73, 8), sd 0.033, and 4000 new rows add 0.005."""
    x, y = numbers(4000, seed=1)
    lower, upper = regressor.predict_interval(x, level=0.9)
    covered = np.mean((lower <= y) & (y <= upper))
    assert abs(covered - 0.9) < 5 * 0.034
    plain = regressor.posterior_.uncalibrated().predict(x)
    assert bl.metrics.coverage(plain, y) < 0.65
    assert regressor.posterior_.calibrator.num_rows == 80
    assert regressor.posterior_.notes[-1] == "Calibrated (conformal) on 80 held-out rows."


def test_rows_set_aside_are_not_fitted_to(regressor):
    assert float(regressor.posterior_.target.num_data) == 320


def test_sets_cover_new_rows(classifier):
    x, y = names(4000, seed=1)
    sets = classifier.predict_set(x, level=0.9)
    assert sets.shape == (4000, 3)
    assert sets.any(axis=1).all()
    covered = sets[np.arange(len(y)), np.searchsorted(classifier.classes_, y)]
    assert abs(covered.mean() - 0.9) < 5 * 0.034
    assert 1.0 < sets.sum(axis=1).mean() < 3.0


@pytest.mark.parametrize("method", ["scale", "isotonic"])
def test_the_others_cover_about_as_often(method):
    settings = SMALL | {"noise": 0.5, "calibration": method, "calibration_fraction": 0.3}
    fitted = bl.BayesianNNRegressor(**settings).fit(*numbers(400))
    x, y = numbers(1000, seed=1)
    assert abs(bl.metrics.coverage(fitted.predictive(x), y, 0.9) - 0.9) < 0.08
    assert fitted.log_likelihood(x, y) > np.mean(
        fitted.posterior_.uncalibrated().predict(x).log_prob(y)
    )


def test_estimators_come_back_from_disk_and_from_pickle(regressor, classifier, tmp_path):
    x, _ = numbers(20, seed=1)
    regressor.save(tmp_path / "numbers")
    classifier.save(tmp_path / "names")
    for loaded in (persistence.load(tmp_path / "numbers"), pickle.loads(pickle.dumps(regressor))):
        np.testing.assert_array_equal(loaded.predict_interval(x), regressor.predict_interval(x))
        assert clone(loaded).calibration == "conformal"
    loaded = persistence.load(tmp_path / "names")
    np.testing.assert_array_equal(loaded.predict_set(x), classifier.predict_set(x))


def test_partial_fit_calibrates_on_its_own_rows():
    settings = {"hidden": (), "method": "conjugate", "calibration": "conformal"}
    fitted = bl.BayesianNNRegressor(**settings).fit(*numbers(100))
    fitted.partial_fit(*numbers(50, seed=1))
    assert fitted.posterior_.calibrator.num_rows == 10
    assert sum(note.startswith("Calibrated") for note in fitted.posterior_.notes) == 1


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (bl.BayesianNNRegressor, {"calibration": "temperature"}, "`calibration` must be one of"),
        (bl.BayesianNNClassifier, {"calibration": "scale"}, "'isotonic' for classification"),
        (bl.BayesianNNRegressor, {"calibration_fraction": 1.5}, "be between 0 and 1, got 1.5"),
        (
            bl.BayesianNNRegressor,
            {"calibration": "scale", "calibration_fraction": 0.99},
            "`calibration_fraction` must leave rows to learn from: there are 10",
        ),
    ],
)
def test_refusals(cls, settings, message):
    with pytest.raises(ArgumentError, match=message):
        cls(**SMALL, **settings).fit(*(names if "Class" in cls.__name__ else numbers)(10))


def test_command_line(tmp_path):
    homes().to_csv(tmp_path / "homes.csv", index=False)
    place = tmp_path / "run"
    result = run(
        *("fit", tmp_path / "homes.csv", "--target", "price", "--out", place),
        *("--calibrate", "conformal", "--calibration-fraction", 0.4),
        *("--predict", tmp_path / "homes.csv", *QUICK),
    )
    assert "Calibrated (conformal) on 19 held-out rows" in result.stderr
    estimator = persistence.load(place / "model")
    assert estimator.posterior_.calibrator.num_rows == 19
    made = pd.read_csv(place / "predictions.csv")
    assert np.all(made["upper"] - made["mean"] > 0)
    np.testing.assert_allclose(made["upper"] - made["mean"], made["mean"] - made["lower"])


def test_command_line_writes_sets_of_classes(tmp_path):
    x, y = names(60)
    table = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "kind": y})
    table.to_csv(tmp_path / "kinds.csv", index=False)
    place = tmp_path / "run"
    run(
        *("fit", tmp_path / "kinds.csv", "--target", "kind", "--out", place),
        *("--calibrate", "conformal", "--predict", tmp_path / "kinds.csv", *QUICK),
    )
    made = pd.read_csv(place / "predictions.csv")
    sets = made["set"].str.split("|")
    assert all(best in labels for best, labels in zip(made["predicted"], sets, strict=True))
    assert set().union(*sets) <= {"high", "low", "middle"}


def test_command_line_refusals(tmp_path):
    homes().to_csv(tmp_path / "homes.csv", index=False)
    start = ("fit", tmp_path / "homes.csv", "--target", "price", "--out", tmp_path / "run")
    result = run(*start, "--calibrate", "temperature", *QUICK, code=2)
    assert "`--calibrate` must be one of 'auto', 'conformal', 'scale', 'isotonic'" in result.stderr
    result = run(*start, "--calibration-fraction", 0.3, *QUICK, code=2)
    assert "must be used with --calibrate" in result.stderr
