"""Commands as tests give them, the table they are given, and a report that is quickly made."""

from __future__ import annotations

import json
import types

import numpy as np
import pandas as pd
from click.testing import CliRunner

from bayeslearn.cli import app

QUICK = ("--method", "map", "--hidden", "4", "--num-steps", "20", "--no-cache")


def run(*args, code=0):
    """The result of a command that ends with `code`."""
    result = CliRunner().invoke(app.main, [str(arg) for arg in args], prog_name="bayeslearn")
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


def run_json(*args, code=0):
    return json.loads(run(*args, "--json", code=code).stdout)


def fake_report():
    def from_fit(estimator, X_train, y_train, X_test, y_test, settings):
        error = estimator.score(X_test, y_test)
        row = {"method": "map", "metrics": {"rmse": [error, None]}}
        return {"kind": "fit", "table": [row], "settings": settings}

    def from_comparison(comparison):
        return comparison.to_dict()

    def write(contents, path):
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"<html>{contents['kind']}</html>")

    return types.SimpleNamespace(from_fit=from_fit, from_comparison=from_comparison, write=write)


def homes(rows=60):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "town": rng.choice(["Ulm", "Kiel"], rows),
            "area": rng.normal(120.0, 30.0, rows).round(1),
            "year": rng.integers(1900, 2020, rows),
        }
    )
    price = 1000 * frame["area"] + 5e4 * (frame["town"] == "Kiel") + rng.normal(0, 1e3, rows)
    return frame.assign(price=price.round())


def fit_command(folder, out, *options):
    return (
        *("fit", folder / "homes.csv", "--target", "price", "--out", out, "--predict"),
        *(folder / "new.csv", "--learning-rate=0.02", *QUICK, *options),
    )
