"""How the command line refuses: one sentence, an exit code, and nothing written."""

from __future__ import annotations

import re
import shutil

import pytest
from click.testing import CliRunner
from command_line import QUICK, run, run_json

import bayeslearn as bl
from bayeslearn.cli import app, runs
from bayeslearn.errors import DivergenceError
from bayeslearn.storage import sealed

GOOD = "".join(f"{i},{i * i},{i / 7:.3f}\n" for i in range(30))
BAD_FILES = {
    "empty": (b"", "the file is empty"),
    "one column": (b"y\n1\n2\n3\n4\n5\n", "at least one other column"),
    "header only": (b"a,b,y\n", "no rows"),
    "text": (f"a,b,y\n{GOOD}".replace("5,25", "5,much").encode(), "'b'.*'much' in line 7"),
    "constant": (b"a,y\n1,2\n2,2\n3,2\n4,2\n5,2\n", "the target 'y' is '2' in every row"),
    "nan": (f"a,b,y\n{GOOD}".replace("5,25", "5,nan").encode(), "'b'.*missing value in line 7"),
    "inf": (f"a,b,y\n{GOOD}".replace("5,25", "5,inf").encode(), "'b'.*'inf' in line 7"),
    "names": (f"a,a,y\n{GOOD}".encode(), "duplicate column name 'a'"),
    "encoding": (f"a,b,y\n{GOOD}Z\xfcrich,1,2\n".encode("latin-1"), "not text in utf-8.*line 32"),
    "no such file": (None, "File not found: .*bad.csv"),
    "folder": ("folder", "it is a folder"),
    "no header": (GOOD.encode(), "names the columns"),
    "spreadsheet": (b"PK\x03\x04 and so on", "spreadsheet"),
    "old spreadsheet": (b"\xd0\xcf\x11\xe0 and so on", "spreadsheet"),
    "JSON": (b'[{"a": 1, "y": 2}]', "it is JSON. Save the table as CSV"),
    "a page": (b"<!DOCTYPE html>\n<html>", "it is an HTML or XML page"),
    "dates": (
        ("a,y\n" + "".join(f"{i},2024-01-{i + 10}\n" for i in range(20))).encode(),
        "the target 'y' holds dates. Convert it to numbers",
    ),
    "damaged gzip": (b"\x1f\x8b\x08\x00nonsense", "gzip file is damaged"),
    "damaged parquet": (b"PAR1 and nonsense", "could not be parsed as Parquet|needs pyarrow"),
    "ragged": (
        f"a,b,y\n{GOOD}1,2,3,4\n".encode(),
        "could not be parsed .Expected 3 fields in line 32, saw 4",
    ),
}


@pytest.mark.parametrize("command", ["fit", "compare"])
@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_files(tmp_path, kind, command):
    """One sentence, exit code 2, and nothing written."""
    content, message = BAD_FILES[kind]
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
    assert line.startswith(("Error: `data` must ", "Error: File not found: "))
    assert re.search(message, line), line
    assert run_json(*args, code=2) == {"error": line.removeprefix("Error: "), "exit_code": 2}
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "File not found: .*new.csv"),
        ("town,area\nUlm,1\n", "'year' is missing"),
        ("town,area,year\nUlm,,1990\n", "column 'area'.*line 2.*--impute"),
        ("town,area,year\nUlm,big,1990\n", "column 'area'.*'big' in line 2"),
        ("town,area,year\n", "no rows"),
    ],
)
def test_bad_new_files(fitted, tmp_path, content, message):
    if content is not None:
        (tmp_path / "new.csv").write_text(content)
    before = sorted(tmp_path.iterdir())
    refused = run("predict", fitted[0], tmp_path / "new.csv", "--out", tmp_path / "p.csv", code=2)
    assert re.search(message, refused.stderr)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--method", "nonsense"], "`--method` must be one of auto, map, .*'nonsense'"),
        (["--method", "nonsense", "--learning-rate", "1"], "`--method` must be one of"),
        (["--lerning-rate", "1"], "`--lerning-rate` is not an option of --method auto. Choose"),
        (
            ["--method", "vogn", "--lerning-rate", "1"],
            "setting of vogn .*--learning-rate.*Did you mean",
        ),
        (["--method", "hmc", "--beta1", "1"], "setting of hmc .*--num-warmup"),
        (["--method=vogn", "--learning-rate", "-1"], "`learning_rate` must be greater than 0"),
        (
            ["--method=vogn", "--num-draws", "2.5"],
            "`--num-draws` must be a whole number, got '2.5'",
        ),
        (["--method=vadam", "--bias-correction", "x"], "must be true or false, got 'x'"),
        (["--method", "vogn", "--learning-rate"], "`--learning-rate` needs a value"),
        (["--hidden", "x"], "'x' is not like 50"),
        (["--num-steps", "x"], "'x' is not a whole number or auto"),
        (["--test-fraction", "1"], "not in the range"),
        (["--target", "nonsense"], "`--target` must be a column"),
        (["--target", "Price"], "`--target` must be a column.*Did you mean price"),
        (["--drop", "area,town"], "Repeat the option: --drop area --drop town"),
        (["--drop", "aera"], "Did you mean area"),
        (["--groups", "twon"], "Did you mean town"),
        (["--time-order", "town"], "a column of dates or numbers, got 'town', which holds text"),
        (["--out", "no/such/place"], "`--out` must be in a folder that exists"),
    ],
)
def test_bad_options(folder, tmp_path, args, message):
    given = ["fit", folder / "homes.csv", "--target", "price", "--out", tmp_path / "run", *args]
    refused = run(*given, "--no-cache", code=2)
    assert re.search(message, refused.stderr), refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_mistyped_option_alone_is_named():
    assert "Did you mean --help?" in run("fit", "--hlep", code=2).stderr


def test_a_folder_that_cannot_be_written_is_refused_before_the_fit(folder, tmp_path, monkeypatch):
    def refuses(*args, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(runs.tempfile, "TemporaryDirectory", refuses)
    args = ("fit", folder / "homes.csv", "--target", "price", "--out", tmp_path / "run")
    refused = run(*args, code=2).stderr
    assert re.search(
        r"`--out` must be in a folder that can be written, got .*\(Permission", refused
    )


def test_what_is_not_a_run(folder, tmp_path):
    for args in (("predict", tmp_path, folder / "new.csv"), ("report", tmp_path)):
        assert re.search("`run` must be a folder", run(*args, code=2).stderr)
    (tmp_path / runs.TABLE).write_text("[]")
    refused = run("predict", tmp_path, folder / "new.csv", code=2)
    assert "it is not a mapping" in refused.stderr
    (tmp_path / runs.TABLE).write_text(sealed.dumps({}))
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
    assert "without other files in it" in run(*args, mine, "--overwrite", code=2).stderr
    assert "it is a file" in run(*args, data, "--overwrite", code=2).stderr
    assert (mine / "thesis.tex").read_text() == "years of work"
    again = ("predict", fitted[0], folder / "new.csv", "--out")
    assert "another file" in run(*again, folder / "new.csv", "--overwrite", code=2).stderr
    (tmp_path / "p.csv").write_text("old")
    assert re.search("it exists.*--overwrite", run(*again, tmp_path / "p.csv", code=2).stderr)
    run(*again, tmp_path / "p.csv", "--overwrite", "--no-cache")
    assert (tmp_path / "p.csv").read_text().startswith("mean,")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "Interrupted; nothing was written."),
        (DivergenceError("It met non-finite numbers."), 1, "It met non-finite numbers."),
        (OSError(28, "No space left on device"), 1, "No space left"),
        (ZeroDivisionError("division by zero"), 1, "ZeroDivisionError: division by zero .*--debug"),
    ],
)
def test_a_run_that_ends_badly_leaves_nothing(
    folder, tmp_path, monkeypatch, stand_in, error, code, message
):
    """The last moment: model and table are there already, the page is being written."""

    def write(contents, path):
        raise error

    monkeypatch.setattr(stand_in, "write", write)
    args = ("fit", folder / "homes.csv", "--target", "price", "--out", tmp_path / "run", *QUICK)
    ended = run(*args, code=code)
    assert re.search(message, ended.stderr)
    assert list(tmp_path.iterdir()) == []


def test_debug_raises_the_error(folder, tmp_path):
    ended = CliRunner().invoke(
        app.main, ["fit", "none.csv", "--target", "y", "--out", str(tmp_path / "r"), "--debug"]
    )
    assert isinstance(ended.exception, bl.ArgumentError)
