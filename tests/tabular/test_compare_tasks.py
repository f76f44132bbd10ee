"""Comparisons in worker processes, in parts and from files: the same table to the bit."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn.tabular.compare import budget, tasks
from bayeslearn.tabular.compare.plan import resolve_methods
from bayeslearn.tabular.score_table import NOT_TRIED, OK

METHODS = ["mc-dropout", "conjugate"]  # the first is refused: there are no hidden units
OPTIONS = {
    **{"methods": METHODS, "hidden": (), "num_samples": 32, "num_steps": 200},
    **{"splits": 1, "seed": 3, "progress": False},
}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    return x, 3.0 * x[:, 0] + np.sin(2.0 * x[:, 1]) + 0.3 * rng.normal(size=60) + 10.0


@pytest.fixture(scope="module")
def whole(data):
    return bl.compare(*data, **OPTIONS)


def numbers(found):
    """All that does not depend on the clock."""
    contents = found.to_dict()
    for row in contents["table"]:
        del row["seconds"], row["compile_seconds"], row["pareto"]
    return contents["table"], contents["recommended"]


def assert_same(found, whole, data):
    assert numbers(found) == numbers(whole)
    assert list(found.fitted) == list(whole.fitted)
    for name, estimator in whole.fitted.items():
        expected = estimator.predictive(data[0])
        other = found.fitted[name].predictive(data[0])
        np.testing.assert_array_equal(other.mean, expected.mean)
        np.testing.assert_array_equal(other.std, expected.std)


def test_worker_processes_find_the_same_and_leave_files(data, whole, tmp_path):
    found = bl.compare(*data, **OPTIONS, n_jobs=2, results=tmp_path)
    assert_same(found, whole, data)
    names = {"settings", "map", "mc-dropout", "conjugate"}
    assert {path.stem for path in tmp_path.glob("*.json")} == names
    stored = json.loads((tmp_path / "map.json").read_text())
    stored["scores"][0]["rmse"] = 123.0
    (tmp_path / "map.json").write_text(json.dumps(stored))
    again = bl.compare(*data, **OPTIONS, results=tmp_path)  # nothing is fitted
    assert again.rows[0]["metrics"]["rmse"] == [123.0, None]
    with pytest.raises(bl.ArgumentError, match=r"`results` must be a new folder.*seed differ"):
        bl.compare(*data, **OPTIONS | {"seed": 4}, results=tmp_path)


def test_the_jobs_of_an_array_and_what_they_gather(data, whole, tmp_path):
    first = bl.compare(*data, **OPTIONS, results=tmp_path, array_task=(0, 2))
    assert [row["status"] for row in first.rows] == [OK, NOT_TRIED, OK]
    assert first.rows[1]["reason"] == "It belongs to another job of the array."
    assert first.recommended is None
    with pytest.raises(bl.ArgumentError, match=r"without mc-dropout\. Run the missing jobs"):
        bl.compare(*data, **OPTIONS, results=tmp_path, gather=True)
    bl.compare(*data, **OPTIONS, results=tmp_path, array_task=(1, 2))
    assert_same(bl.compare(*data, **OPTIONS, results=tmp_path, gather=True), whole, data)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"gather": True}, "`results` must be given with `gather`"),
        ({"array_task": (0, 2)}, "`results` must be given with `array_task`"),
        ({"array_task": (2, 2), "results": "r"}, "`array_task` must be I/N with I from 0"),
        ({"array_task": (0, 2), "results": "r", "budget": 9}, "`budget` must be left out"),
        ({"array_task": (0, 2), "results": "r", "gather": True}, "`gather` must be left out"),
        ({"n_jobs": 0}, "`n_jobs` must be a number of processes"),
        ({"n_jobs": 2, "devices": "all"}, "`devices` must be left out with several jobs"),
    ],
)
def test_what_cannot_be_is_refused(data, options, match, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(bl.ArgumentError, match=match):
        bl.compare(*data, **OPTIONS | options)


def test_a_worker_keeps_to_the_end_of_the_budget():
    expected = budget.Cost(2.0, 1.0, 1.0, 1.0)
    share = tasks.Limit(10.0, time.time() + 60.0, 2, expected).share()
    assert share.seconds == 10.0
    assert share.allows(50.0)
    assert not share.allows(70.0)
    with pytest.raises(budget.NotTried, match=r"would take about 6 s, and (4|5|5\.\d) s were left"):
        tasks.Limit(10.0, time.time() + 5.0, 2, expected).share()


def test_auto_is_a_method_of_the_list():
    assert list(resolve_methods(["auto", "vogn", "conjugate", "auto"])) == [
        *("map", "auto", "vogn", "auto (2)", "conjugate")
    ]
