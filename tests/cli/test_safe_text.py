"""Files that would run as formulas, or write to the terminal."""

from __future__ import annotations

import csv

import pandas as pd
from command_line import QUICK, homes, run

from bayeslearn.cli.safe_text import visible, without_formulas

FORMULA = '=HYPERLINK("http://evil.example","town")'


def test_formulas_become_text():
    table = pd.DataFrame(
        {
            "text": [
                FORMULA,
                "+1+cmd|' /C calc'!A0",
                "-x",
                "@SUM(A1)",
                " =1",
                "\tx",
                "a=b",
                "-3,5",
            ],
            "number": [-1.5, 2, 3, 4, 5, 6, 7, 8],
            "=evil": list("abcdefgh"),
        }
    )
    found = without_formulas(table)
    assert list(found.columns) == ["text", "number", "'=evil"]
    assert all(cell.startswith("'") for cell in found["text"][:6])
    assert found["text"][6:].tolist() == ["a=b", "-3,5"]  # no formula, and a number
    assert found["number"].tolist() == table["number"].tolist()
    assert found["text"].str.removeprefix("'").tolist() == table["text"].tolist()


def test_predictions_hold_no_formula(tmp_path):
    frame = homes()
    frame["kind"] = ["=1+1" if i % 2 else "small" for i in range(len(frame))]
    frame.to_csv(tmp_path / "homes.csv", index=False)
    place = tmp_path / "run"
    run(
        *("fit", tmp_path / "homes.csv", "--target", "kind", "--out", place),
        *("--predict", tmp_path / "homes.csv", *QUICK),
    )

    def cells(path):
        with open(path, newline="") as file:
            return {cell for row in csv.reader(file) for cell in row}

    assert "'=1+1" in cells(place / "predictions.csv")
    assert not any(cell.startswith("=") for cell in cells(place / "predictions.csv"))
    new = ("predict", place, tmp_path / "homes.csv", "--with-input", "--out")
    run(*new, tmp_path / "p.csv")
    assert not any(cell.startswith("=") for cell in cells(tmp_path / "p.csv"))
    run(*new, tmp_path / "raw.csv", "--raw")
    assert "=1+1" in cells(tmp_path / "raw.csv")


def test_escapes_are_shown(tmp_path):
    assert (
        visible("caf\u00e9 \u2013 \u6771\u4eac, line\nand\ttab")
        == "caf\u00e9 \u2013 \u6771\u4eac, line\nand\ttab"
    )
    assert visible("\x1b[2Jx\x07\x9b\u202e") == "\\x1b[2Jx\\x07\\x9b\\u202e"
    name = tmp_path / "\x1b[31mred.csv"
    refused = run("fit", name, "--target", "y", "--out", tmp_path / "r", code=2)
    assert "\x1b" not in refused.stderr
    assert "\\x1b[31mred.csv" in refused.stderr
    name.write_text("a,y\n" + "".join(f"{i},\x1b]0;title\x07{i % 2}\n" for i in range(3)))
    refused = run("fit", name, "--target", "y", "--out", tmp_path / "r", code=2)
    assert "\x1b" not in refused.stderr
