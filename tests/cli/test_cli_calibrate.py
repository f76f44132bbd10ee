"""`bayeslearn calibrate`: a fit that is calibrated on rows measured later."""

from __future__ import annotations

import shutil

import numpy as np
import pandas as pd
from command_line import homes, run, run_json

from bayeslearn.tabular import persistence


def test_calibrate(fitted, folder, tmp_path):
    place = tmp_path / "run"
    shutil.copytree(fitted[0], place)
    table = homes()
    table["price"] = table["price"] + np.random.default_rng(0).normal(0, 300, len(table))
    table.to_csv(tmp_path / "measured.csv", index=False)
    before = persistence.load(place / "model")
    found = run("calibrate", place, tmp_path / "measured.csv", "--no-cache")
    assert f"of these {len(table)} rows" in found.stdout
    assert "Not used" not in found.stderr
    after = persistence.load(place / "model")
    assert after.posterior_.calibrator.num_rows == len(table)
    run("predict", place, tmp_path / "measured.csv", "--out", tmp_path / "p.csv", "--no-cache")
    made = pd.read_csv(tmp_path / "p.csv")
    inside = np.sum((made["lower"] <= table["price"]) & (table["price"] <= made["upper"]))
    # of its own rows a conformal interval holds the ceil((n + 1) .9) smallest scores
    assert inside == np.ceil((len(table) + 1) * 0.9)
    assert before.posterior_.calibrator is None


def test_before_is_uncalibrated_and_after_cross_validated(fitted, folder, tmp_path):
    table = pd.concat([homes(), homes()], ignore_index=True)
    table["price"] += np.random.default_rng(0).normal(0, 3e4, len(table))
    table.to_csv(tmp_path / "measured.csv", index=False)
    arguments = (tmp_path / "measured.csv", "--no-cache")
    first = run_json("calibrate", fitted[0], *arguments, "--out", tmp_path / "one")
    assert persistence.load(fitted[0] / "model").posterior_.calibrator is None
    assert persistence.load(tmp_path / "one" / "model").posterior_.calibrator is not None
    assert (tmp_path / "one" / "report.html").exists()
    second = run_json("calibrate", tmp_path / "one", *arguments)  # before is before both
    assert second["inside_before"] == first["inside_before"]
    assert abs(first["inside_after"] - 0.9) < 0.12
    refused = run("calibrate", fitted[0], *arguments, "--out", tmp_path / "one", code=2)
    assert "--overwrite" in refused.stderr


def test_rows_in_another_unit_are_suspected(fitted, folder, tmp_path):
    table = homes()
    table["price"] = table["price"] / 1000
    table.to_csv(tmp_path / "thousands.csv", index=False)
    found = run(
        *("calibrate", fitted[0], tmp_path / "thousands.csv", "--no-cache"),
        *("--out", tmp_path / "odd"),
    )
    assert "check that their target has the unit of the training table" in found.stderr


def test_infinite_intervals_are_a_note(fitted, folder, tmp_path):
    homes(12).to_csv(tmp_path / "few.csv", index=False)
    run("calibrate", fitted[0], tmp_path / "few.csv", "--no-cache", "--out", tmp_path / "few")
    said = run_json("predict", tmp_path / "few", folder / "homes.csv", "--level=.99", "--no-cache")
    assert any("calibration rows" in note for note in said["notes"])
    assert "Ignored: the target 'price'." in said["notes"]


def test_options_are_named_as_flags(folder, tmp_path):
    fit = ("fit", folder / "homes.csv", "--target", "price", "--out", tmp_path / "x", "--no-cache")
    refused = run(*fit, "--calibrate", "temperature", code=2)
    assert "`--calibrate` must be one of 'auto', 'conformal'" in refused.stderr
    refused = run(*fit, "--likelihood", "gama", code=2)
    assert "`--likelihood` must be one of" in refused.stderr
    refused = run(*fit, "--method", "vogm", code=2)
    assert "Did you mean vogn?" in refused.stderr
    notes = run_json(
        *(*fit, "--method", "map", "--hidden", "none", "--num-steps", "5"),
        *("--likelihood", "auto", "--test-fraction", "0"),
    )["notes"]
    assert not any("likelihood=" in note for note in notes)


def test_ratings(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2)).round(3)
    stars = np.clip(np.round(3 + x[:, 0] + 0.3 * rng.normal(size=80)), 1, 5).astype(int)
    pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "stars": stars}).to_csv(
        tmp_path / "r.csv", index=False
    )
    fit = ("fit", tmp_path / "r.csv", "--target", "stars", "--no-cache", "--method", "map")
    fit += ("--hidden", "none", "--num-steps", "50", "--test-fraction", "0")
    said = run_json(*fit, "--out", tmp_path / "o", "--likelihood", "ordinal")
    assert "Ordered classes, 1 < 2 < 3 < 4 < 5: --likelihood ordinal." in said["notes"]
    said = run_json(*fit, "--out", tmp_path / "c", "--likelihood", "negative-binomial")
    assert said["task"] == "regression"
    said = run_json(*fit, "--out", tmp_path / "w", "--class-weight", "balanced")
    assert any("--likelihood ordinal" in note for note in said["notes"])


def test_classes(classified, folder, tmp_path):
    place = tmp_path / "run"
    shutil.copytree(classified[0], place)
    said = run_json("calibrate", place, folder / "kinds.csv", "--no-cache")
    assert 0 <= said["inside_before"] <= 1
    run("predict", place, folder / "kinds.csv", "--out", tmp_path / "p.csv", "--no-cache")
    assert set("|".join(pd.read_csv(tmp_path / "p.csv")["set"]).split("|")) <= {"large", "small"}


def test_refusals(fitted, folder, tmp_path):
    refused = run("calibrate", fitted[0], folder / "new.csv", code=2)
    assert "'price' is missing" in refused.stderr
    refused = run(
        *("calibrate", fitted[0], folder / "homes.csv", "--method", "temperature"), code=2
    )
    assert "must be one of 'conformal', 'scale', 'isotonic'" in refused.stderr
