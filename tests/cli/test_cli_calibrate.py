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
