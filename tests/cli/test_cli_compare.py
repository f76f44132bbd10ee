"""`compare`, `report` and `demo` on the command line; the comparison itself has its own tests."""

from __future__ import annotations

import json

import numpy as np
import pytest
from command_line import homes, run, run_json

from bayeslearn.cli import runs
from bayeslearn.tabular.compare.plan import separate_test_rows


def test_a_comparison_can_predict(folder, tmp_path, compare_calls):
    out = tmp_path / "comparison"
    result = run(
        *("compare", folder / "homes.csv", "--target", "price", "--out", out, "--no-cache"),
        *("--methods", "map,vogn", "--budget", "2m", "--hidden", "4,4", "--seed", 3, "--quiet"),
    )
    assert result.stdout == ""
    (call,) = compare_calls
    assert call["methods"] == ["map", "vogn"]
    expected = {"task": "regression", "budget": "2m", "hidden": (4, 4), "seed": 3, "splits": 3}
    assert expected.items() <= call.items()
    assert call["by"] == "log-likelihood"
    assert call["progress"] is False
    assert call["x"].shape == (60, 4)
    assert (out / runs.PAGE).read_text() == "<html>comparison</html>"
    assert len(run("predict", out, folder / "new.csv", "--no-cache").stdout.splitlines()) == 8


def test_a_comparison_is_shown(folder, compare_calls):
    args = ("compare", folder / "homes.csv", "--target", "price", "--no-cache", "--by", "crps")
    assert "the table [of all]" in run(*args).stdout
    assert run_json(*args)["recommended"] == "map"
    assert [call["by"] for call in compare_calls] == ["crps", "crps"]
    assert compare_calls[0]["progress"] is True  # lines where there is no terminal


def test_without_a_recommendation_there_is_a_report_and_no_model(
    folder, tmp_path, compare_calls, monkeypatch
):
    monkeypatch.setattr(compare_calls.fake, "recommended", None)
    out = tmp_path / "comparison"
    args = ("compare", folder / "homes.csv", "--target", "price", "--out", out, "--no-cache")
    assert "Next:" not in run(*args).stdout
    assert {entry.name for entry in out.iterdir()} == {runs.TABLE, runs.CONTENTS, runs.PAGE}
    refused = run("predict", out, folder / "new.csv", "--no-cache", code=2)
    assert "`run` must hold a model, got" in refused.stderr
    assert "without a recommendation" in refused.stderr
    run(*args, "--overwrite")


@pytest.mark.parametrize("seed", [0, 1])
def test_imputed_values_do_not_come_from_test_rows(tmp_path, compare_calls, seed):
    """Medians and most frequent categories are those of the other rows."""
    frame = homes(40)
    test, others = separate_test_rows(frame["price"].to_numpy(), "regression", 0.2, seed)
    frame.loc[test, "area"] = 1e6
    frame.loc[test, "town"] = "Rome"
    missing = others[:2]
    frame.loc[missing, "area"] = np.nan
    frame.loc[missing, "town"] = None
    path = tmp_path / "missing.csv"
    frame.to_csv(path, index=False)
    run("compare", path, "--target", "price", "--impute", "--no-cache", "--seed", seed)
    x = compare_calls[0]["x"]
    assert x["area"][missing].tolist() == [frame.loc[others, "area"].median()] * 2
    assert x["town=Rome"][missing].tolist() == [0.0, 0.0]


def test_the_page_is_written_again(fitted):
    page = fitted[0] / runs.PAGE
    page.unlink()
    assert run_json("report", fitted[0])["page"] == str(page)
    assert page.read_text() == "<html>fit</html>"


def test_demo(tmp_path, compare_calls):
    result = run_json("demo", "--out", tmp_path / "demo", "--methods", "default", "--no-cache")
    assert len(result["comparisons"]) == 2
    assert [call["task"] for call in compare_calls] == ["regression", "classification"]
    assert [call["x"].shape for call in compare_calls] == [(442, 10), (569, 30)]
    assert (tmp_path / "demo" / "diabetes" / runs.PAGE).exists()
    contents = json.loads((tmp_path / "demo" / "tumours" / runs.CONTENTS).read_text())
    assert contents["settings"]["target"] == "diagnosis"
