"""The command line: its answers, its files, and how it refuses.

The report and the comparison have tests of their own; here small stand-ins take their place.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
import types

import jax
import numpy as np
import pandas as pd
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

import bayeslearn as bl
from bayeslearn.algorithms.facts import FACTS, needs
from bayeslearn.cli import app, cache, flags, inputs, runs
from bayeslearn.errors import DivergenceError
from bayeslearn.storage.checkpoints import Keeper
from bayeslearn.tabular import encoding, files, persistence
from bayeslearn.tabular.compare import api as comparing

pass

QUICK = ("--method", "map", "--hidden", "4", "--num-steps", "20", "--no-cache")


def run(*args, code=0):
    """The result of a command that ends with `code`."""
    told = CliRunner().invoke(app.main, [str(arg) for arg in args], prog_name="bayeslearn")
    assert told.exit_code == code, told.output + repr(told.exception)
    return told


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


@pytest.fixture(autouse=True, scope="module")
def stand_in():
    module = fake_report()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "bayeslearn.report", module)
        patch.setattr(bl, "report", module, raising=False)
        yield module


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tables, a fitted regression (`run`) and a fitted classification (`kinds`)."""
    place = tmp_path_factory.mktemp("cli")
    frame = homes()
    frame.to_csv(place / "homes.csv", index=False)
    frame.drop(columns="price").head(7).to_csv(place / "new.csv", index=False)
    frame.assign(kind=np.where(frame["area"] > 120, "large", "small")).drop(columns="price").to_csv(
        place / "kinds.csv", index=False
    )
    return place


@pytest.fixture(scope="module")
def fitted(folder):
    told = run(
        *("fit", folder / "homes.csv", "--target", "price", "--out", folder / "run"),
        *("--predict", folder / "new.csv", "--learning-rate=0.02", *QUICK),
    )
    return folder / "run", told


@pytest.fixture(scope="module")
def classified(folder):
    told = run(
        *("fit", folder / "kinds.csv", "--target", "kind", "--out", folder / "kinds"), *QUICK
    )
    return folder / "kinds", told


# Fitting and predicting


def test_a_fit_writes_a_whole_folder(fitted):
    place, told = fitted
    assert {entry.name for entry in place.iterdir()} == runs.RUN_FILES
    assert "regression" in told.stderr
    assert "'town' (2)" in told.stderr
    assert "48 rows and 4 columns" in told.stdout
    assert "On 12 rows kept back: RMSE" in told.stdout
    contents = json.loads((place / runs.CONTENTS).read_text())
    assert contents["settings"]["target"] == "price"
    estimator = persistence.load(place / runs.MODEL)
    assert estimator.method.learning_rate == 0.02
    assert estimator.hidden == (4,)
    assert [f for f in place.parent.iterdir() if f.name.startswith(".")] == []


def test_predictions_are_those_of_the_estimator(fitted, folder):
    place, _ = fitted
    out = folder / "predictions.csv"
    told = run("predict", place, folder / "new.csv", "--out", out, "--level", 0.5, "--no-cache")
    assert "7 rows" in told.stdout
    made = pd.read_csv(out)
    assert list(made.columns) == ["mean", "std", "epistemic", "aleatoric", "lower", "upper"]
    estimator = persistence.load(place / runs.MODEL)
    table = encoding.Table.from_dict(json.loads((place / runs.TABLE).read_text()))
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
    whole = run("predict", place, folder / "new.csv", "--no-cache").stdout
    monkeypatch.setattr(runs, "ROWS_AT_ONCE", 5)
    assert run("predict", place, folder / "new.csv", "--no-cache").stdout == whole


def test_predictions_beside_their_rows(fitted, folder):
    told = run_json(
        "predict", fitted[0], folder / "homes.csv", "--with-input", "--no-cache", "--quiet"
    )
    assert told["rows"] == len(told["predictions"]) == 60
    assert {"town", "price", "mean", "upper"} <= set(told["predictions"][0])
    assert any("'price'" in note for note in told["notes"])


def test_classes(classified, folder):
    place, told = classified
    assert "classification" in told.stderr
    made = pd.DataFrame(run_json("predict", place, folder / "new.csv", "--no-cache")["predictions"])
    assert list(made.columns) == ["predicted", "p_large", "p_small", "epistemic", "aleatoric"]
    np.testing.assert_allclose(made["p_large"] + made["p_small"], 1.0, rtol=1e-9)
    assert (made["predicted"] == np.where(made["p_large"] > 0.5, "large", "small")).all()


def test_unseen_categories_are_spoken_of(fitted, folder):
    path = folder / "unseen.csv"
    path.write_text("town,area,year\nBonn,100,1990\nKiel,100,1990\n")
    told = run("predict", fitted[0], path, "--no-cache")
    assert "'Bonn'" in told.stderr
    assert len(told.stdout.splitlines()) == 3
    assert run("predict", fitted[0], path, "--no-cache", "--quiet").stderr == ""


def test_classes_are_shared_out_evenly():
    y = np.array(["a"] * 50 + ["b"] * 10 + ["c"])
    table = encoding.Table("y", "classification", ())
    rows = inputs._split(encoding.Learned(table, y, np.arange(61), ()), 0.2, 0)
    assert sorted([*rows.train, *rows.test]) == list(range(61))
    assert [np.sum(y[rows.test] == name) for name in "abc"] == [10, 2, 0]


def test_few_rows_and_many_columns_are_fitted_with_a_warning(tmp_path):
    """All of them, since none are to be kept back; there is no report then."""
    x = np.random.default_rng(0).normal(size=(10, 1001))
    names = [*(f"x{i}" for i in range(1000)), "y"]
    pd.DataFrame(x, columns=names).to_csv(tmp_path / "wide.csv", index=False)
    told = run_json(
        *("fit", tmp_path / "wide.csv", "--target", "y", "--out", tmp_path / "run"),
        *("--test-fraction", 0, *QUICK),
    )
    assert any("only 10 rows" in note for note in told["notes"])
    assert any("1000 columns" in note for note in told["notes"])
    assert told["train_rows"] == 10
    assert told["metrics"] == {}
    assert {entry.name for entry in (tmp_path / "run").iterdir()} == {runs.MODEL, runs.TABLE}


@pytest.mark.parametrize("name", ["p.tsv", "p.csv.gz", "p.parquet"])
def test_predictions_in_the_format_of_their_name(fitted, folder, tmp_path, name):
    run("predict", fitted[0], folder / "new.csv", "--out", tmp_path / name, "--no-cache")
    made = files.read(tmp_path / name)
    assert list(made.cells.columns)[:2] == ["mean", "std"]
    assert made.cells.shape == (7, 6)


# Refusals

GOOD = "".join(f"{i},{i * i},{i / 7:.3f}\n" for i in range(30))
BAD_FILES = {
    "empty": (b"", "it is empty"),
    "one column": (b"y\n1\n2\n3\n4\n5\n", "at least one other column"),
    "header only": (b"a,b,y\n", "no rows"),
    "text": (f"a,b,y\n{GOOD}".replace("5,25", "5,much").encode(), "'b'.*'much' in line 7"),
    "constant": (b"a,y\n1,2\n2,2\n3,2\n4,2\n5,2\n", "the target 'y' is '2' in every row"),
    "nan": (f"a,b,y\n{GOOD}".replace("5,25", "5,nan").encode(), "'b'.*missing value in line 7"),
    "inf": (f"a,b,y\n{GOOD}".replace("5,25", "5,inf").encode(), "'b'.*'inf' in line 7"),
    "names": (f"a,a,y\n{GOOD}".encode(), "'a' stands there more than once"),
    "encoding": (f"a,b,y\n{GOOD}Z\xfcrich,1,2\n".encode("latin-1"), "not text in utf-8.*line 32"),
    "no such file": (None, "there is no such file"),
    "folder": ("folder", "it is a folder"),
    "no header": (GOOD.encode(), "names the columns"),
    "spreadsheet": (b"PK\x03\x04 and so on", "spreadsheet"),
    "damaged gzip": (b"\x1f\x8b\x08\x00nonsense", "gzipped and damaged"),
    "damaged parquet": (b"PAR1 and nonsense", "not sound Parquet|needs pyarrow"),
    "ragged": (f"a,b,y\n{GOOD}1,2,3,4\n".encode(), "Expected 3 fields in line 32, saw 4"),
}


@pytest.mark.parametrize("command", ["fit", "compare"])
@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_files(tmp_path, kind, command):
    """One sentence, exit code 2, and nothing written."""
    content, told = BAD_FILES[kind]
    path = tmp_path / "bad.csv"
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    before = sorted(tmp_path.iterdir())
    args = (command, path, "--target", "y", "--out", tmp_path / "run")
    refused = run(*args, code=2)
    assert refused.stdout == ""
    (line,) = refused.stderr.splitlines()
    assert line.startswith("Error: `data` must ")
    assert re.search(told, line), line
    assert run_json(*args, code=2) == {"error": line.removeprefix("Error: "), "exit_code": 2}
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "`new` must .*no such file"),
        ("town,area\nUlm,1\n", "'year' is missing"),
        ("town,area,year\nUlm,,1990\n", "column 'area'.*line 2.*--impute"),
        ("town,area,year\nUlm,big,1990\n", "column 'area'.*'big' in line 2"),
        ("town,area,year\n", "no rows"),
    ],
)
def test_bad_new_files(fitted, tmp_path, content, told):
    if content is not None:
        (tmp_path / "new.csv").write_text(content)
    before = sorted(tmp_path.iterdir())
    refused = run("predict", fitted[0], tmp_path / "new.csv", "--out", tmp_path / "p.csv", code=2)
    assert re.search(told, refused.stderr)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--method", "nonsense"], "`method` must be one of map, .*'nonsense'"),
        (["--method", "nonsense", "--learning-rate", "1"], "`method` must be one of"),
        (["--lerning-rate", "1"], "setting of bayes-by-backprop .*--learning-rate.*Did you mean"),
        (["--method", "hmc", "--beta1", "1"], "setting of hmc .*--num-warmup"),
        (["--method=vogn", "--learning-rate", "-1"], "`learning_rate` must be greater than 0"),
        (
            ["--method=vogn", "--num-draws", "2.5"],
            "`--num-draws` must be a whole number, got '2.5'",
        ),
        (["--method=vadam", "--bias-correction", "x"], "must be true or false, got 'x'"),
        (["--learning-rate"], "`--learning-rate` needs a value"),
        (["--hidden", "x"], "'x' is not like 50"),
        (["--num-steps", "x"], "'x' is not a whole number or auto"),
        (["--test-fraction", "1"], "not in the range"),
        (["--target", "nonsense"], "`target` must be a column"),
        (["--out", "no/such/place"], "`out` must be in a folder that exists"),
    ],
)
def test_bad_options(folder, tmp_path, args, told):
    given = ["fit", folder / "homes.csv", "--target", "price", "--out", tmp_path / "run", *args]
    refused = run(*given, "--no-cache", code=2)
    assert re.search(told, refused.stderr), refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_a_run(folder, tmp_path):
    for args in (("predict", tmp_path, folder / "new.csv"), ("report", tmp_path)):
        assert re.search("`run` must be a folder", run(*args, code=2).stderr)
    (tmp_path / runs.TABLE).write_text("[]")
    refused = run("predict", tmp_path, folder / "new.csv", code=2)
    assert "does not describe a table" in refused.stderr


def test_a_damaged_model_is_refused(fitted, folder, tmp_path):
    shutil.copytree(fitted[0], tmp_path / "run")
    (tmp_path / "run" / runs.MODEL / "arrays.safetensors").write_bytes(b"nonsense")
    refused = run("predict", tmp_path / "run", folder / "new.csv", "--no-cache", code=2)
    assert "cannot be loaded" in refused.stderr


def test_nothing_of_the_users_is_replaced(fitted, folder, tmp_path):
    data = folder / "homes.csv"
    args = ("fit", data, "--target", "price", "--no-cache", "--out")
    assert re.search("it exists.*--overwrite", run(*args, fitted[0], code=2).stderr)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("years of work")
    assert "nothing was added to" in run(*args, mine, "--overwrite", code=2).stderr
    assert "nothing was added to" in run(*args, data, "--overwrite", code=2).stderr
    assert (mine / "thesis.tex").read_text() == "years of work"
    again = ("predict", fitted[0], folder / "new.csv", "--out")
    assert "another file" in run(*again, folder / "new.csv", "--overwrite", code=2).stderr
    (tmp_path / "p.csv").write_text("old")
    assert re.search("it exists.*--overwrite", run(*again, tmp_path / "p.csv", code=2).stderr)
    run(*again, tmp_path / "p.csv", "--overwrite", "--no-cache")
    assert (tmp_path / "p.csv").read_text().startswith("mean,")


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (KeyboardInterrupt(), 130, "Interrupted; nothing was written."),
        (DivergenceError("It met non-finite numbers."), 1, "It met non-finite numbers."),
        (OSError(28, "No space left on device"), 1, "No space left"),
        (ZeroDivisionError("division by zero"), 1, "ZeroDivisionError: division by zero .*--debug"),
    ],
)
def test_a_run_that_ends_badly_leaves_nothing(
    folder, tmp_path, monkeypatch, stand_in, error, code, told
):
    """The last moment: model and table are there already, the page is being written."""

    def write(contents, path):
        raise error

    monkeypatch.setattr(stand_in, "write", write)
    args = ("fit", folder / "homes.csv", "--target", "price", "--out", tmp_path / "run", *QUICK)
    ended = run(*args, code=code)
    assert re.search(told, ended.stderr)
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_where(folder, tmp_path):
    ended = CliRunner().invoke(
        app.main, ["fit", "none.csv", "--target", "y", "--out", str(tmp_path / "r"), "--debug"]
    )
    assert isinstance(ended.exception, bl.ArgumentError)


# Comparison, report, demo


class FakeComparison:
    task, recommended = "regression", "map"

    def __init__(self, estimator, asked):
        self.fitted, self.asked = {"map": estimator}, asked

    def to_dict(self):
        return {"kind": "comparison", "recommended": self.recommended, "settings": {}}

    def __rich__(self):
        return "the table [of all]"


@pytest.fixture
def asked(fitted, monkeypatch):
    """What `compare` was called with; it answers with the fit there is."""
    calls = []
    estimator = persistence.load(fitted[0] / runs.MODEL)

    def compare(x, y, **options):
        calls.append({"x": x, "y": y, **options})
        return FakeComparison(estimator, options)

    monkeypatch.setattr(comparing, "compare", compare)
    return calls


def test_a_comparison_can_predict(folder, tmp_path, asked):
    out = tmp_path / "comparison"
    told = run(
        *("compare", folder / "homes.csv", "--target", "price", "--out", out, "--no-cache"),
        *("--methods", "map,vogn", "--budget", "2m", "--hidden", "4,4", "--seed", 3, "--quiet"),
    )
    assert told.stdout == ""
    (call,) = asked
    assert call["methods"] == ["map", "vogn"]
    expected = {"task": "regression", "budget": "2m", "hidden": (4, 4), "seed": 3, "splits": 3}
    assert expected.items() <= call.items()
    assert call["x"].shape == (60, 4)
    assert (out / runs.PAGE).read_text() == "<html>comparison</html>"
    assert len(run("predict", out, folder / "new.csv", "--no-cache").stdout.splitlines()) == 8


def test_a_comparison_is_shown(folder, asked):
    args = ("compare", folder / "homes.csv", "--target", "price", "--no-cache")
    assert "the table [of all]" in run(*args).stdout
    assert run_json(*args)["recommended"] == "map"


def test_the_page_is_written_again(fitted):
    page = fitted[0] / runs.PAGE
    page.unlink()
    assert run_json("report", fitted[0])["page"] == str(page)
    assert page.read_text() == "<html>fit</html>"


def test_demo(tmp_path, asked):
    told = run_json("demo", "--out", tmp_path / "demo", "--methods", "default", "--no-cache")
    assert len(told["comparisons"]) == 2
    assert [call["task"] for call in asked] == ["regression", "classification"]
    assert [call["x"].shape for call in asked] == [(442, 10), (569, 30)]
    assert (tmp_path / "demo" / "diabetes" / runs.PAGE).exists()


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
    told = run_json("algorithms")["algorithms"]
    assert [row["name"] for row in told] == list(bl.ALGORITHMS)


@pytest.mark.parametrize("name", bl.ALGORITHMS)
def test_settings_are_the_fields(name):
    """Each is listed with its default, and the default typed as text is the default."""
    fields = bl.algorithms.hyper_parameters(bl.ALGORITHMS[name])
    shown = run("algorithms", name).stdout
    for field, metadata in fields.items():
        flag = "--" + field.replace("_", "-")
        assert flag in shown
        if not metadata["check"]["free"]:
            assert flags._value(flag, str(metadata["default"]), metadata) == metadata["default"]


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
    told = subprocess.run(
        [*args, "fit", str(tmp_path), "--target", "y", "--out", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 2
    assert "it is a folder" in told.stderr.splitlines()[-1]
    assert "| jax\n" not in told.stderr


@pytest.mark.slow
def test_the_newcomers_path(folder, tmp_path):
    """As a program, with the real report: a fit, predictions, and the page again; the second fit
    finds what the first one compiled and gives the same bits."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")

    def bayeslearn(*args):
        told = subprocess.run(
            [sys.executable, "-m", "bayeslearn", *map(str, args)],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
        return told.stdout

    fit = ("fit", folder / "homes.csv", "--target", "price", *QUICK[:-1], "--out")
    told = bayeslearn(*fit, tmp_path / "run", "--predict", folder / "new.csv")
    assert "On 12 rows kept back: RMSE" in told
    assert any((tmp_path / "cache" / "bayeslearn" / "jax").iterdir())
    first = json.loads(bayeslearn(*fit, tmp_path / "again", "--json"))
    assert {"rmse", "log_likelihood", "coverage90", "crps"} <= first["metrics"].keys()
    predictions = (tmp_path / "run" / runs.PREDICTIONS).read_text()
    assert bayeslearn("predict", tmp_path / "again", folder / "new.csv") == predictions
    page = (tmp_path / "run" / runs.PAGE).read_text()
    bayeslearn("report", tmp_path / "run")
    assert (tmp_path / "run" / runs.PAGE).read_text() == page


# Killed and resumed


class Cut(BaseException):
    """The power is gone."""


def cut_after(looks, patch, happens=None):
    """At the `looks`-th occasion for a checkpoint the process dies, or something happens."""
    original, count = Keeper.look, [0]

    def look(self, *args):
        count[0] += 1
        if count[0] == looks and happens is not None:
            happens()
        original(self, *args)
        if count[0] == looks and happens is None:
            raise Cut

    patch.setattr(Keeper, "look", look)


def fit_command(folder, out, *options):
    return (
        *("fit", folder / "homes.csv", "--target", "price", "--out", out, "--predict"),
        *(folder / "new.csv", "--learning-rate=0.02", *QUICK, *options),
    )


def test_a_run_that_was_cut_is_resumed_to_the_same_predictions(fitted, folder, tmp_path):
    expected = (fitted[0] / runs.PREDICTIONS).read_bytes()
    out, kept = tmp_path / "run", tmp_path / "run.checkpoint"
    with pytest.MonkeyPatch.context() as patch:
        cut_after(3, patch)
        with pytest.raises(Cut):
            run(*fit_command(folder, out, "--checkpoint", "--every=5"))
    assert kept.is_dir()
    assert not out.exists()
    told = run(*fit_command(folder, out, "--checkpoint"), code=2).stderr
    assert "it holds a run. Go on with --resume" in told
    told = run(*fit_command(folder, out, "--resume", "--seed=1"), code=2).stderr
    assert "must be that of the first run" in told or "must be as in the first run" in told
    told = run(*fit_command(folder, out, "--resume", "--num-steps=30"), code=2).stderr
    assert "`options` must be as in the first run" in told
    run(*fit_command(folder, out, "--resume"))
    assert (out / runs.PREDICTIONS).read_bytes() == expected
    assert not kept.exists()


def test_resuming_needs_a_run_or_leave_to_begin_one(fitted, folder, tmp_path):
    out = tmp_path / "run"
    told = run(*fit_command(folder, out, "--resume"), code=2).stderr
    assert "Begin one with --checkpoint" in told
    told = run(*fit_command(folder, out, "--checkpoint", "--every=soon"), code=2).stderr
    assert "`every` must be a number of steps, or a time" in told
    run(*fit_command(folder, out, "--resume", "--checkpoint"))
    expected = (fitted[0] / runs.PREDICTIONS).read_bytes()
    assert (out / runs.PREDICTIONS).read_bytes() == expected
    assert os.listdir(tmp_path) == ["run"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_says_how_to_go_on(folder, tmp_path, number, code):
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        cut_after(2, patch, lambda: os.kill(os.getpid(), number))
        told = run(*fit_command(folder, out, "--checkpoint"), code=code)
    assert "--resume goes on from the last checkpoint" in told.stderr
    assert not out.exists()
    run(*fit_command(folder, out, "--resume"))


@pytest.mark.slow
def test_a_process_killed_with_9_is_resumed_to_the_same_predictions(folder, tmp_path):
    def start(out, *options):
        words = fit_command(folder, tmp_path / out, "--num-steps=4000", "--quiet", *options)
        return subprocess.Popen([sys.executable, "-m", "bayeslearn", *map(str, words)])

    assert start("whole").wait() == 0
    process, kept = start("cut", "--checkpoint", "--every=50"), tmp_path / "cut.checkpoint"
    while process.poll() is None and not list(kept.glob("checkpoint-*")):
        time.sleep(0.001)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "cut").exists()
    assert start("cut", "--resume").wait() == 0
    whole, cut = (tmp_path / name / runs.PREDICTIONS for name in ("whole", "cut"))
    assert whole.read_bytes() == cut.read_bytes()
    assert not kept.exists()
