"""Comparisons: the same rows for all, a choice that never sees the test rows, failures as rows."""

from __future__ import annotations

import json
import time

import numpy as np
import pandas as pd
import pytest

import bayeslearn as bl
from bayeslearn.errors import ArgumentError, BayesLearnError
from bayeslearn.tabular.compare import api, budget, recommend, result, run

METHODS = ["mc-dropout", "conjugate"]  # the second is refused: the network is not linear
SMALL = {"hidden": (4,), "num_samples": 32, "progress": False}


def line(rows=80):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 2))
    return x, 3.0 * x[:, 0] + np.sin(2.0 * x[:, 1]) + 0.3 * rng.normal(size=rows) + 10.0


@pytest.fixture(scope="module")
def data():
    return line()


@pytest.fixture(scope="module")
def found(data):
    return bl.compare(*data, methods=METHODS, num_steps=400, splits=2, seed=3, **SMALL)


def by_name(found):
    return {row["method"]: row for row in found.to_dict()["table"]}


def without_seconds(found):
    told = found.to_dict()
    for row in told["table"]:
        del row["seconds"], row["compile_seconds"], row["pareto"]
    return {"recommended": told["recommended"], "table": told["table"]}


def test_all_methods_are_rows_and_the_baseline_is_first(found):
    rows = found.to_dict()["table"]
    assert [row["method"] for row in rows] == ["map", "mc-dropout", "conjugate"]
    for row in rows[:2]:
        assert row["status"] == "ok"
        assert set(row["metrics"]) == {"rmse", "log_likelihood", "coverage90", "crps", "ood_auroc"}
        assert all(np.isfinite([*pair]).all() for pair in row["metrics"].values())
        assert row["seconds"][0] > 0
        assert row["memory_mb"] > 0


def test_a_method_that_fails_is_a_row_with_a_sentence(found):
    row = by_name(found)["conjugate"]
    assert row["status"] == "failed"
    assert row["reason"].endswith(".")
    assert ". " not in row["reason"]
    assert row["metrics"] == {}
    assert "conjugate" not in found.fitted
    assert row["reason"] in str(found)


def test_scores_are_those_of_the_fitted_estimators_in_units_of_y(data):
    once = bl.compare(*data, methods=["map"], num_steps=400, splits=1, seed=3, **SMALL)
    _, y_train, X_test, y_test = once.first_split
    estimator, row = once.fitted["map"], by_name(once)["map"]
    assert len(X_test) == 16
    assert len(y_train) == 52  # 64 are left, of which one fold of 12
    wanted = np.sqrt(np.mean((estimator.predict(X_test) - y_test) ** 2))
    assert row["metrics"]["rmse"] == [pytest.approx(wanted), None]
    wanted = estimator.log_likelihood(X_test, y_test)
    assert row["metrics"]["log_likelihood"][0] == pytest.approx(wanted)
    lower, upper = estimator.predict_interval(X_test, 0.9)
    inside = np.mean((lower <= y_test) & (y_test <= upper))
    assert row["metrics"]["coverage90"][0] == pytest.approx(inside)
    assert row["metrics"]["ood_auroc"][0] == 0.5  # a point has no epistemic doubt


def test_shifted_and_shuffled_rows_are_in_more_doubt(found):
    assert by_name(found)["mc-dropout"]["metrics"]["ood_auroc"][0] > 0.6


def test_the_dict_is_json_and_says_how_to_repeat_it(found):
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert told["kind"] == "comparison"
    assert told["task"] == "regression"
    assert told["recommended"] in ("map", "mc-dropout")
    assert told["settings"]["rows"] == 80
    assert told["settings"]["seed"] == 3
    assert told["settings"]["options"]["hidden"] == [4]
    assert {"bayeslearn", "jax", "python", "device"} <= set(told["versions"])
    assert told["recommended"] in told["recommendation"]
    assert told["recommendation"] in " ".join(str(found).split())


def test_the_same_seed_gives_the_same_comparison(found, data):
    options = {"methods": METHODS, "num_steps": 400, "splits": 2}
    again = bl.compare(*data, seed=3, **options, **SMALL)
    assert without_seconds(again) == without_seconds(found)
    other = bl.compare(*data, seed=4, **options, **SMALL)
    assert without_seconds(other) != without_seconds(found)


def test_the_choice_never_sees_the_test_rows(found, data):
    X, y = data
    test = np.array([np.any(np.all(X[i] == found.first_split[2], axis=1)) for i in range(len(X))])
    assert test.sum() == 16
    spoiled = np.where(test, 1e6, y)
    again = bl.compare(X, spoiled, methods=METHODS, num_steps=400, splits=2, seed=3, **SMALL)
    assert again.recommended == found.recommended
    for name in ("map", "mc-dropout"):
        mine, before = by_name(again)[name], by_name(found)[name]
        assert mine["validation"] == before["validation"]
        assert mine["metrics"]["rmse"][0] > 1e5 > before["metrics"]["rmse"][0]


def test_classes_with_names_and_a_data_frame():
    rng = np.random.default_rng(1)
    X = pd.DataFrame(rng.normal(size=(80, 2)), columns=["height", "width"])
    y = pd.Series(np.where(X["height"] + 0.3 * rng.normal(size=80) > 0, "tall", "low"), name="kind")
    found = bl.compare(X, y, methods=["map"], num_steps=100, splits=1, **SMALL)
    row = by_name(found)["map"]
    assert found.task == "classification"
    assert set(row["metrics"]) == {"accuracy", "log_likelihood", "ece", "brier", "ood_auroc"}
    assert row["metrics"]["accuracy"][0] > 0.8
    assert found.settings["column_names"] == ["height", "width"]
    assert found.settings["target"] == "kind"
    assert found.settings["classes"] == ["low", "tall"]
    assert list(found.fitted["map"].feature_names_in_) == ["height", "width"]
    assert np.mean(found.first_split[3] == "tall") == pytest.approx(np.mean(y == "tall"), abs=0.1)


def test_a_budget_is_kept_and_the_length_it_allowed_is_told(found, data):
    assert found.recommended  # what is needed is compiled
    began = time.perf_counter()
    quick = bl.compare(
        *data, methods=METHODS[:1], num_steps=300_000, splits=2, budget="4s", seed=3, **SMALL
    )
    assert time.perf_counter() - began < 2.5 * 4
    for row in quick.to_dict()["table"]:
        assert row["status"] == "ok"
        assert 0 < row["chosen"]["num_steps"] < 300_000
    assert quick.settings["budget"] == 4.0


def test_what_does_not_fit_into_the_budget_is_a_row_and_the_baseline_is_there(found, data):
    options = {"methods": METHODS, "num_steps": 400, "splits": 2, "budget": 1e-3}
    rows = by_name(bl.compare(*data, seed=3, **options, **SMALL))
    assert rows["map"]["status"] == "ok"
    assert rows["map"]["chosen"]["num_steps"] < 400
    assert "spent before its turn" in rows["mc-dropout"]["reason"]


def test_a_sampler_is_shortened_by_the_baselines_pace(monkeypatch):
    monkeypatch.setattr(budget.os, "cpu_count", lambda: 2)
    pace = budget._Pace(gradient=1e-3, compiling=1.0)
    hmc = bl.HMC()
    assert budget._shortened(hmc, 1e6, 3, pace) is hmc
    shorter = budget._shortened(hmc, 300.0, 3, pace)
    assert 100 <= shorter.num_warmup < 500
    assert 100 <= shorter.num_samples < 1000
    assert budget._shortened(hmc, 60.0, 3, pace).num_warmup == 100
    with pytest.raises(BayesLearnError, match="its share of the budget allows"):
        budget._shortened(hmc, 3.0, 3, pace)


# The choice, on made-up folds


def regression_fold(shift, covered, rows=1000):
    noise = np.random.default_rng(0).normal(size=rows)
    return run._HeldOut(noise + shift, np.arange(rows) < covered * rows, None)


def class_fold(shift, confidence, rows=1000):
    noise = np.random.default_rng(0).normal(size=rows)
    is_right = np.arange(rows) < 0.85 * rows
    return run._HeldOut(noise + shift, is_right, np.full(rows, confidence))


def test_the_best_of_the_calibrated_is_chosen():
    told = {
        "map": regression_fold(0.0, 0.7),
        "sure": regression_fold(1.0, 0.75),
        "good": regression_fold(0.5, 0.93),
        "fair": regression_fold(0.2, 0.9),
    }
    choice = recommend._choose("regression", told, "map")
    assert choice.name == "good"
    assert choice.calibrated == ["good", "fair"]


def test_a_sampler_that_has_not_mixed_is_not_chosen(data, monkeypatch):
    seen = []
    choose = recommend._choose
    monkeypatch.setattr(
        api,
        "_choose",
        lambda task, told, base: seen.append(set(told)) or choose(task, told, base),
    )
    short = bl.MetropolisHastings(num_warmup=0, num_samples=20)
    for most in (run.MOST_RHAT, np.inf):
        monkeypatch.setattr(run, "MOST_RHAT", most)
        found = bl.compare(*data, methods=[short], num_steps=50, splits=1, **SMALL)
        assert "have not mixed" in " ".join(by_name(found)["metropolis-hastings"]["notes"])
    assert seen == [{"map"}, {"map", "metropolis-hastings"}]


def test_where_none_is_calibrated_the_nearest_is():
    told = {"map": regression_fold(1.0, 0.6), "wide": regression_fold(0.0, 0.99)}
    assert recommend._choose("regression", told, "map").name == "wide"


def test_a_tie_goes_to_the_better_calibrated():
    near = np.random.default_rng(1).normal(size=1000)
    told = {"map": regression_fold(0.5, 0.86), "other": regression_fold(0.5, 0.9)}
    told["other"] = told["other"]._replace(
        log_prob=told["other"].log_prob + near - near.mean() - 0.01
    )
    choice = recommend._choose("regression", told, "map")
    assert choice.name == "other"
    assert set(choice.ties) == {"map", "other"}


def test_a_classifier_less_calibrated_than_the_baseline_is_not_chosen():
    told = {"map": class_fold(0.0, 0.95), "worse": class_fold(2.0, 0.99)}
    assert recommend._choose("classification", told, "map").name == "map"
    told["no better"] = class_fold(2.0, 0.95)
    assert recommend._choose("classification", told, "map").name == "map"
    told["better"] = class_fold(1.0, 0.9)
    assert recommend._choose("classification", told, "map").name == "better"


def test_the_front_has_what_no_other_method_beats():
    rows = [
        {"status": "ok", "metrics": {"log_likelihood": [value, 0.0]}, "seconds": [time, 0.0]}
        for value, time in ((-1.0, 1.0), (-0.5, 5.0), (-0.7, 6.0), (None, 0.5))
    ]
    result._mark_front(rows)
    assert [row["pareto"] for row in rows] == [True, True, False, True]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"methods": "fast"}, "methods"),
        ({"methods": ["magic"]}, "be one of"),
        ({"budget": "soon"}, "budget"),
        ({"budget": 0}, "budget"),
        ({"splits": 0}, "splits"),
        ({"splits": 70}, "splits"),
        ({"test_fraction": 1.0}, "test_fraction"),
        ({"test_fraction": 0.99}, "leave at least"),
        ({"task": "ranking"}, "task"),
        ({"hiden": (3,)}, "hiden"),
        ({"method": "map"}, "methods"),
    ],
)
def test_bad_arguments_are_refused_before_any_work(data, options, match):
    with pytest.raises(ArgumentError, match=match):
        bl.compare(*data, **options)


def test_tables_that_cannot_be_compared_are_refused(data):
    X, y = data
    with pytest.raises(ArgumentError, match="at least 10 rows"):
        bl.compare(X[:9], y[:9])
    with pytest.raises(ArgumentError, match="one column"):
        bl.compare(X, np.column_stack([y, y]))
    with pytest.raises(ArgumentError, match="two values"):
        bl.compare(X, np.ones(80))
    with pytest.raises(ArgumentError, match="as many rows"):
        bl.compare(X, y[:-1])
    with pytest.raises(ValueError, match="NaN"):
        bl.compare(np.where(X > 2, np.nan, X), y)
