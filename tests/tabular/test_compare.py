"""Comparisons: the same rows for all, a choice that never sees the test rows, failures as rows."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import bayeslearn as bl
from bayeslearn.errors import ArgumentError
from bayeslearn.tabular.compare import run as running
from bayeslearn.tabular.compare.plan import separate_test_rows
from bayeslearn.tabular.score_table import FAILED, NOT_TRIED, OK, write_score

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
    contents = found.to_dict()
    for row in contents["table"]:
        del row["seconds"], row["compile_seconds"], row["pareto"]
    return {"recommended": contents["recommended"], "table": contents["table"]}


def test_all_methods_are_rows_and_the_baseline_is_first(found):
    rows = found.to_dict()["table"]
    assert [row["method"] for row in rows] == ["map", "mc-dropout", "conjugate"]
    for row in rows[:2]:
        assert row["status"] == OK
        assert set(row["metrics"]) == {"rmse", "log_likelihood", "coverage90", "crps", "ood_auroc"}
        assert all(np.isfinite([*pair]).all() for pair in row["metrics"].values())
        assert row["seconds"][0] > 0
        assert row["memory_mb"] > 0
        assert row["cut_short"] is None


def test_a_method_that_fails_is_a_row_with_a_sentence(found):
    row = by_name(found)["conjugate"]
    assert row["status"] == FAILED
    assert row["reason"].endswith(".")
    assert ". " not in row["reason"]
    assert row["metrics"] == {}
    assert "conjugate" not in found.fitted
    assert f"conjugate: failed. {row['reason']}" in " ".join(str(found).split())


def test_scores_are_those_of_the_fitted_estimators_in_units_of_y(data):
    once = bl.compare(*data, methods=["map"], num_steps=400, splits=1, seed=3, **SMALL)
    _, y_train, X_test, y_test = once.first_split
    estimator, row = once.fitted["map"], by_name(once)["map"]
    assert len(X_test) == 16
    assert len(y_train) == 52  # 64 are left, of which one fold of 12
    expected = np.sqrt(np.mean((estimator.predict(X_test) - y_test) ** 2))
    assert row["metrics"]["rmse"] == [pytest.approx(expected), None]
    expected = estimator.log_likelihood(X_test, y_test)
    assert row["metrics"]["log_likelihood"][0] == pytest.approx(expected)
    lower, upper = estimator.predict_interval(X_test, 0.9)
    inside = np.mean((lower <= y_test) & (y_test <= upper))
    assert row["metrics"]["coverage90"][0] == pytest.approx(inside)
    assert row["metrics"]["ood_auroc"][0] == 0.5  # a point has no epistemic uncertainty
    assert once.recommended is None
    assert once.recommendation.startswith("No recommendation: only map was fitted, and")


def test_shifted_and_shuffled_rows_are_more_uncertain(found):
    assert by_name(found)["mc-dropout"]["metrics"]["ood_auroc"][0] > 0.6


def test_the_dict_is_json_and_says_how_to_repeat_it(found):
    contents = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert contents["kind"] == "comparison"
    assert contents["task"] == "regression"
    assert contents["recommended"] in ("map", "mc-dropout")
    assert contents["settings"]["rows"] == 80
    assert contents["settings"]["seed"] == 3
    assert contents["settings"]["by"] == "log-likelihood"
    assert contents["settings"]["options"]["hidden"] == [4]
    assert {"bayeslearn", "jax", "python", "device"} <= set(contents["versions"])
    assert contents["recommendation"] in " ".join(str(found).split())
    assert f"Recommended: {contents['recommended']}" in str(found)


def test_the_same_seed_gives_the_same_comparison(found, data):
    options = {"methods": METHODS, "num_steps": 400, "splits": 2}
    again = bl.compare(*data, seed=3, **options, **SMALL)
    assert without_seconds(again) == without_seconds(found)
    other = bl.compare(*data, seed=4, **options, **SMALL)
    assert without_seconds(other) != without_seconds(found)


def test_the_choice_never_sees_the_test_rows(found, data):
    X, y = data
    test, _ = separate_test_rows(y, "regression", 0.2, seed=3)
    assert len(test) == 16
    changed = y.copy()
    changed[test] = 1e6
    again = bl.compare(X, changed, methods=METHODS, num_steps=400, splits=2, seed=3, **SMALL)
    assert again.recommended == found.recommended
    for name in ("map", "mc-dropout"):
        mine, before = by_name(again)[name], by_name(found)[name]
        assert mine["validation"] == before["validation"]
        assert mine["metrics"]["rmse"][0] > 1e5 > before["metrics"]["rmse"][0]


def test_methods_can_be_ranked_by_crps(data):
    options = {"methods": ["map", "map"], "num_steps": 50, "splits": 1, "by": "crps"}
    found = bl.compare(*data, **options, **SMALL)
    assert "Best held-out CRPS: map" in found.recommendation
    row = by_name(found)["map"]
    # Quantiles of other rows than the test rows, on the same scale.
    assert row["validation"]["crps"][0] == pytest.approx(row["metrics"]["crps"][0], rel=0.7)


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


def test_a_budget_cuts_fits_short_and_says_where(found, data):
    assert found.recommended  # what is needed is compiled
    began = time.perf_counter()
    quick = bl.compare(
        *data, methods=METHODS[:1], num_steps=300_000, splits=2, budget="4s", seed=3, **SMALL
    )
    assert time.perf_counter() - began < 2.5 * 4
    for row in quick.to_dict()["table"]:
        if row["status"] == OK:
            assert 0 < row["chosen"]["num_steps"] < 300_000
            step, total = row["cut_short"].removeprefix("step ").split(" of ")
            assert int(step) < int(total) == 300_000
            assert f"cut at step {step}" in str(quick)
            assert row["notes"][0].startswith(f"Stopped by the budget at step {step}")
    assert by_name(quick)["map"]["status"] == OK
    assert quick.settings["budget"] == 4.0


def test_what_finds_no_time_is_not_tried_and_the_baseline_is_there(found, data):
    options = {"methods": METHODS, "num_steps": 400, "splits": 2, "budget": 1e-3}
    quick = bl.compare(*data, seed=3, **options, **SMALL)
    rows = by_name(quick)
    assert rows["map"]["status"] == OK
    assert [rows[name]["status"] for name in METHODS] == [NOT_TRIED, NOT_TRIED]
    assert "spent before its turn" in rows["mc-dropout"]["reason"]
    assert quick.recommended is None
    assert "only map was fitted within the budget of 0.001 s. A budget of" in quick.recommendation


def test_a_sampler_whose_chains_disagree_is_marked(data):
    short = bl.MetropolisHastings(num_warmup=0, num_samples=20)
    found = bl.compare(*data, methods=[short], num_steps=50, splits=1, **SMALL)
    row = by_name(found)["metropolis-hastings"]
    assert row["rhat"] > 1.2
    assert "have not mixed" in " ".join(row["notes"])


def test_an_interrupt_is_not_swallowed(data, monkeypatch):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(running.BayesianNNRegressor, "fit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        bl.compare(*data, methods=["map"], **SMALL)


# The table on a terminal


@pytest.mark.parametrize("width", [60, 80, 100, 130])
def test_a_narrow_table_drops_columns_but_never_digits(found, width):
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(found, markup=False, highlight=False)
    text = capture.get()
    lines = text.split("\n\n")[0].splitlines()
    assert all(len(part) <= width for part in text.splitlines())
    assert "…" not in text
    for row in found.rows[:2]:
        (shown,) = (part for part in lines if part.split()[:1] == [row["method"]])
        names = ("log_likelihood",) if width < 80 else ("rmse", "log_likelihood", "coverage90")
        for name in names:
            assert str(write_score(name, *row["metrics"][name])) in shown
    assert ("Not shown for want of width" in text) == (width < 130)


# Refusals


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"methods": "fast"}, "methods"),
        ({"methods": ["magic"]}, "be one of"),
        ({"budget": "soon"}, "budget"),
        ({"budget": 0}, "budget"),
        ({"budget": True}, "budget"),
        ({"by": "rmse"}, "`by` must be"),
        ({"by": "crps", "task": "classification"}, "`by` must be"),
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


# Without pandas

WITHOUT_PANDAS = """
import sys

class NoPandas:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pandas":
            raise ImportError("There is no pandas.")

sys.meta_path.insert(0, NoPandas())
import numpy as np
import bayeslearn as bl
x = np.random.default_rng(0).normal(size=(40, 2))
found = bl.compare(x, x[:, 0], methods=["map"], num_steps=20, splits=1, hidden=(2,))
contents = bl.report.from_fit(found.fitted["map"], *found.first_split)
assert len(bl.report.render(contents)) > 10_000
assert len(bl.report.render(bl.report.from_comparison(found))) > 10_000
print(found.task, "pandas" in sys.modules)
"""


def test_comparison_and_report_do_not_need_pandas():
    command = [sys.executable, "-c", WITHOUT_PANDAS]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stdout.strip() == "regression False", ended.stderr
