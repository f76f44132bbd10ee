"""The command line: its answers and its files.

The report and the comparison have tests of their own; here small stand-ins take their place.
"""

from __future__ import annotations

import io
import json
import os
import re
import stat
import subprocess
import sys

import jax
import numpy as np
import pandas as pd
import pytest
from click.shell_completion import BashComplete
from command_line import QUICK, run, run_json

import bayeslearn as bl
from bayeslearn import cache
from bayeslearn.algorithms.facts import FACTS, needs
from bayeslearn.cli import app, inputs, runs, settings
from bayeslearn.storage import sealed
from bayeslearn.tabular import encoding, files, persistence
from bayeslearn.tabular.schema import Schema

# Fitting and predicting


def test_a_fit_writes_a_whole_folder(fitted):
    place, result = fitted
    assert {entry.name for entry in place.iterdir()} == runs.RUN_FILES
    assert "regression" in result.stderr
    assert "'town' (2)" in result.stderr
    assert "48 rows and 4 columns" in result.stdout
    assert "On 12 held-out rows: RMSE" in result.stdout
    assert re.search(r"Baseline \(predicting the mean\): RMSE [\d,]+\n", result.stdout)
    contents = json.loads((place / runs.CONTENTS).read_text())
    assert contents["settings"]["target"] == "price"
    estimator = persistence.load(place / runs.MODEL)
    assert estimator.method.learning_rate == 0.02
    assert estimator.hidden == (4,)
    assert [f for f in place.parent.iterdir() if f.name.startswith(".")] == []


def test_predictions_are_those_of_the_estimator(fitted, folder):
    place, _ = fitted
    out = folder / "predictions.csv"
    result = run("predict", place, folder / "new.csv", "--out", out, "--level", 0.5, "--no-cache")
    assert "7 rows" in result.stdout
    made = pd.read_csv(out)
    assert list(made.columns) == ["mean", "std", "epistemic", "aleatoric", "lower", "upper"]
    estimator = persistence.load(place / runs.MODEL)
    table = Schema.from_dict(sealed.loads((place / runs.TABLE).read_text()))
    x = table.encode(files.read(folder / "new.csv"))
    mean, std = estimator.predict(x, return_std=True)
    lower, _ = estimator.predict_interval(x, level=0.5)
    np.testing.assert_allclose(made["mean"], mean, rtol=1e-12)
    np.testing.assert_allclose(made["std"], std, rtol=1e-12)
    np.testing.assert_allclose(made["lower"], lower, rtol=1e-12)
    np.testing.assert_allclose(
        made["std"] ** 2, made["epistemic"] ** 2 + made["aleatoric"] ** 2, rtol=1e-9
    )
    along = pd.read_csv(place / runs.PREDICTIONS)
    np.testing.assert_allclose(along["mean"], mean, rtol=1e-12)


def test_predictions_in_pieces_are_the_same(fitted, folder, monkeypatch):
    place, _ = fitted
    """But for the order in which draws are summed: another one for fewer rows."""

    def predicted():
        text = run("predict", place, folder / "new.csv", "--no-cache").stdout
        return pd.read_csv(io.StringIO(text))

    whole = predicted()
    monkeypatch.setattr(runs, "ROWS_AT_ONCE", 5)
    pd.testing.assert_frame_equal(predicted(), whole, rtol=1e-12, atol=0)


def test_predictions_beside_their_rows(fitted, folder):
    result = run_json(
        "predict", fitted[0], folder / "homes.csv", "--with-input", "--no-cache", "--quiet"
    )
    assert result["rows"] == len(result["predictions"]) == 60
    assert {"town", "price", "mean", "upper"} <= set(result["predictions"][0])
    assert any("'price'" in note for note in result["notes"])


def test_classes(classified, folder):
    place, result = classified
    assert "classification" in result.stderr
    assert re.search("Baseline \\(predicting '(large|small)'\\): accuracy", result.stdout)
    made = pd.DataFrame(run_json("predict", place, folder / "new.csv", "--no-cache")["predictions"])
    assert list(made.columns) == ["predicted", "p_large", "p_small", "epistemic", "aleatoric"]
    np.testing.assert_allclose(made["p_large"] + made["p_small"], 1.0, rtol=1e-9)
    assert (made["predicted"] == np.where(made["p_large"] > 0.5, "large", "small")).all()


def test_unseen_categories_are_named(fitted, folder):
    path = folder / "unseen.csv"
    path.write_text("town,area,year\nBonn,100,1990\nKiel,100,1990\n")
    result = run("predict", fitted[0], path, "--no-cache")
    assert "'Bonn'" in result.stderr
    assert len(result.stdout.splitlines()) == 3
    assert run("predict", fitted[0], path, "--no-cache", "--quiet").stderr == ""


def test_the_split_is_stratified():
    y = np.array(["a"] * 50 + ["b"] * 10 + ["c"])
    schema = Schema("y", "classification", ())
    rows = inputs.split_rows(
        encoding.LearnedTable(schema, y, np.arange(61), ()), 0.2, 0, inputs.RowOrder()
    )
    assert sorted([*rows.train, *rows.test]) == list(range(61))
    assert [np.sum(y[rows.test] == name) for name in "abc"] == [10, 2, 0]


def test_few_rows_and_many_columns_are_fitted_with_a_warning(tmp_path):
    """All of them, since none are to be kept back; there is no report then."""
    x = np.random.default_rng(0).normal(size=(10, 1001))
    names = [*(f"x{i}" for i in range(1000)), "y"]
    pd.DataFrame(x, columns=names).to_csv(tmp_path / "wide.csv", index=False)
    result = run_json(
        *("fit", tmp_path / "wide.csv", "--target", "y", "--out", tmp_path / "run"),
        *("--test-fraction", 0, *QUICK),
    )
    assert any("only 10 rows" in note for note in result["notes"])
    assert any("1000 columns" in note for note in result["notes"])
    assert result["train_rows"] == 10
    assert result["metrics"] == {}
    assert {entry.name for entry in (tmp_path / "run").iterdir()} == {runs.MODEL, runs.TABLE}


@pytest.mark.parametrize("name", ["p.tsv", "p.csv.gz", "p.parquet"])
def test_predictions_in_the_format_of_their_name(fitted, folder, tmp_path, name):
    run("predict", fitted[0], folder / "new.csv", "--out", tmp_path / name, "--no-cache")
    made = files.read(tmp_path / name)
    assert list(made.cells.columns)[:2] == ["mean", "std"]
    assert made.cells.shape == (7, 6)


# Algorithms


@pytest.mark.parametrize("name", bl.ALGORITHMS)
def test_every_algorithm_has_its_facts(name):
    assert all(FACTS[name])
    cls = bl.ALGORITHMS[name]
    assert ("all rows" in needs(cls)) == (not cls.capabilities.takes_minibatches)
    assert ("draws" in FACTS[name].posterior) == cls.capabilities.is_sampler


def test_no_facts_of_what_is_not_there():
    assert FACTS.keys() == bl.ALGORITHMS.keys()


def test_the_table_of_algorithms():
    shown = run("algorithms").stdout
    assert all(name in shown for name in bl.ALGORITHMS)
    result = run_json("algorithms")["algorithms"]
    assert [row["name"] for row in result] == list(bl.ALGORITHMS)


@pytest.mark.parametrize("name", bl.ALGORITHMS)
def test_settings_are_the_fields(name):
    """Each is listed with its default, and the default typed as text is the default."""
    fields = bl.algorithms.hyper_parameters(bl.ALGORITHMS[name])
    shown = run("algorithms", name).stdout
    for field, metadata in fields.items():
        flag = "--" + field.replace("_", "-")
        assert flag in shown
        if not metadata["check"]["free"]:
            assert (
                settings.parse_value(flag, str(metadata["default"]), metadata)
                == metadata["default"]
            )


# The rest


@pytest.mark.parametrize("command", [None, *app.main.commands])
def test_help_has_an_example(command):
    shown = run(*([] if command is None else [command]), "--help").stdout
    assert f"\n  bayeslearn {command or 'fit'}" in shown
    if command is not None:
        assert "--json" in shown
        assert "--quiet" in shown


def test_no_arguments_show_the_help():
    assert run().stdout == run("--help").stdout


def test_completion():
    complete = BashComplete(app.main, {}, "bayeslearn", "_BAYESLEARN_COMPLETE")
    assert [c.value for c in complete.get_completions([], "f")] == ["fit"]
    names = [c.value for c in complete.get_completions(["fit", "--method"], "v")]
    assert names == ["von", "vadam", "vogn"]


def test_the_cache_is_private_and_takes_everything(tmp_path, monkeypatch):
    names = (
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
    )
    before = {name: jax.config.values[name] for name in names}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    try:
        jax.config.update(names[0], str(tmp_path / "own"))
        assert cache.use_compilation_cache() is None  # the user has one
        assert list(tmp_path.iterdir()) == []
        jax.config.update(names[0], None)
        place = cache.use_compilation_cache()
        assert place == tmp_path / "bayeslearn" / "jax"
        assert stat.S_IMODE(os.stat(place).st_mode) == 0o700
        assert [jax.config.values[name] for name in names] == [str(place), 0.0, -1]
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def test_without_the_extra_it_says_what_to_install(monkeypatch, capsys):
    from bayeslearn import __main__ as script

    monkeypatch.setattr(script.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        script.main()
    assert ended.value.code == 2
    assert "pip install 'bayeslearn[cli]'" in capsys.readouterr().err


def test_as_a_program(tmp_path):
    """A refusal comes before JAX is imported, so that it comes at once."""
    args = [sys.executable, "-X", "importtime", "-m", "bayeslearn"]
    result = subprocess.run(
        [*args, "fit", str(tmp_path), "--target", "y", "--out", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert "it is a folder" in result.stderr.splitlines()[-1]
    assert "| jax\n" not in result.stderr


@pytest.mark.slow(reason="several processes of the command line")
def test_the_newcomers_path(folder, tmp_path):
    """As a program, with the real report: a fit, predictions, and the page again; the second fit
    finds what the first one compiled and gives the same bits."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")

    def bayeslearn(*args):
        ended = subprocess.run(
            [sys.executable, "-m", "bayeslearn", *map(str, args)],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
        return ended.stdout

    fit = ("fit", folder / "homes.csv", "--target", "price", *QUICK[:-1], "--out")
    result = bayeslearn(*fit, tmp_path / "run", "--predict", folder / "new.csv")
    assert "On 12 held-out rows: RMSE" in result
    assert any((tmp_path / "cache" / "bayeslearn" / "jax").iterdir())
    first = json.loads(bayeslearn(*fit, tmp_path / "again", "--json"))
    assert {"rmse", "log_likelihood", "coverage90", "crps"} <= first["metrics"].keys()
    predictions = (tmp_path / "run" / runs.PREDICTIONS).read_text()
    assert bayeslearn("predict", tmp_path / "again", folder / "new.csv") == predictions
    page = (tmp_path / "run" / runs.PAGE).read_text()
    bayeslearn("report", tmp_path / "run")
    assert (tmp_path / "run" / runs.PAGE).read_text() == page
