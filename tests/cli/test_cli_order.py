"""`bayeslearn fit` with --groups and --time-order: which rows are held out, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from command_line import QUICK, homes, run, run_json

import bayeslearn as bl
from bayeslearn.cli import runs
from bayeslearn.storage import sealed


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Sixty homes in twelve streets, sold on as many days."""
    place = tmp_path_factory.mktemp("order")
    rng = np.random.default_rng(0)
    frame = homes()
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.permutation(len(frame)), unit="D")
    frame = frame.assign(
        street=[f"street {n}" for n in rng.integers(0, 12, size=len(frame))],
        sold=days.strftime("%Y-%m-%d"),
        number=np.argsort(np.argsort(days)) * 0.5,
    )
    frame.to_csv(place / "homes.csv", index=False)
    return place / "homes.csv", frame


@pytest.fixture
def seen(monkeypatch):
    """What the estimator was fitted with."""
    found = {}
    fit = bl.BayesianNNRegressor.fit

    def spy(self, X, y, **options):
        found.update(X=X, y=y, **options)
        return fit(self, X, y, **options)

    monkeypatch.setattr(bl.BayesianNNRegressor, "fit", spy)
    return found


def test_whole_groups_are_held_out(table, seen, tmp_path):
    path, frame = table
    out = tmp_path / "run"
    command = ("fit", path, "--target", "price", "--drop", "sold", "--drop", "number")
    result = run_json(*command, "--groups", "street", "--out", out, *QUICK)
    train = frame.loc[seen["X"].index]
    assert seen["groups"].tolist() == train["street"].tolist()
    assert seen["time_order"] is None
    streets = set(frame["street"]) - set(train["street"])
    assert set(frame.loc[~frame.index.isin(train.index), "street"]) == streets
    assert result["test_rows"] == len(frame) - len(train)
    assert 12 <= result["test_rows"] < 12 + frame["street"].value_counts().max()  # a fifth of 60
    assert not [name for name in result["columns"] if "street" in name]
    columns = sealed.loads((out / runs.TABLE).read_text())["columns"]
    assert "street" not in {column["name"] for column in columns}
    assert json.loads((out / runs.CONTENTS).read_text())["settings"]["groups"] == "street"


@pytest.mark.parametrize("column", ["sold", "number"])
def test_the_latest_rows_are_held_out(table, seen, tmp_path, column):
    path, frame = table
    drop = {"street", "sold", "number"} - {column}
    command = ("fit", path, "--target", "price", *(f"--drop={name}" for name in drop))
    run(*command, "--time-order", column, "--out", tmp_path / "run", *QUICK)
    latest = frame.sort_values("sold").index
    assert sorted(seen["X"].index) == sorted(latest[:48])
    order = np.argsort(seen["time_order"])
    assert seen["X"].index[order].tolist() == latest[:48].tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--groups", "road"), "`--groups` must be a column of"),
        (("--groups", "price"), "`--groups` must be another column than the target"),
        (("--groups", "street", "--time-order", "sold"), "`time-order` must be left out where"),
        (
            ("--time-order", "street"),
            "`time-order` must be a column of dates or numbers, got 'street'",
        ),
    ],
)
def test_columns_that_give_no_order_are_refused(table, tmp_path, options, message):
    result = run("fit", table[0], "--target", "price", "--out", tmp_path / "r", *options, code=2)
    assert message in " ".join(result.stderr.split())


def test_a_class_may_not_be_held_out_as_a_whole(tmp_path):
    frame = pd.DataFrame({"x": np.arange(40.0), "day": np.arange(40)})
    frame["kind"] = np.where(frame["day"] < 36, np.where(frame["day"] % 2, "a", "b"), "late")
    frame.to_csv(tmp_path / "kinds.csv", index=False)
    command = ("fit", tmp_path / "kinds.csv", "--target", "kind", "--time-order", "day")
    result = run(*command, "--out", tmp_path / "run", code=2)
    assert "held-out rows with all of the class 'late'" in " ".join(result.stderr.split())
