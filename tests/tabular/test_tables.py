"""Tables from files: what is read, how it is encoded, and what is refused with its line."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pandas as pd
import pytest

from bayeslearn.errors import ArgumentError
from bayeslearn.tabular import encoding, files
from bayeslearn.tabular.schema import Schema
from bayeslearn.tabular.task import detect_task

HEADER = "size,colour,price\n"
ROWS = "".join(f"{i},{'red' if i % 3 else 'blue'},{i / 7:.3f}\n" for i in range(60))


def written(folder, content, name="data.csv"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def learned(folder, content, target="price", name="data.csv", **options):
    raw = files.read(written(folder, content, name))
    found = encoding.learn(raw, target, **options)
    return raw, found, found.schema.with_fill_values(raw, found.rows)


def test_numbers_and_categories(tmp_path):
    raw, found, table = learned(tmp_path, HEADER + ROWS)
    x = table.encode(raw)
    assert list(x.columns) == ["size", "colour=blue", "colour=red"]
    assert np.array_equal(x["size"], np.arange(60))
    assert np.array_equal(x["colour=red"], np.arange(60) % 3 > 0)
    assert np.array_equal(x["colour=red"] + x["colour=blue"], np.ones(60))
    assert np.allclose(found.y, np.arange(60) / 7, atol=5e-4)
    assert found.schema.task == "regression"
    assert any("regression" in note for note in found.notes)
    assert Schema.from_dict(json.loads(json.dumps(table.to_dict()))) == table


@pytest.mark.parametrize(
    "name", ["data.csv", "data.tsv", "data.csv.gz", "semicolons.csv", "bars.txt"]
)
def test_formats_agree(tmp_path, name):
    content = HEADER + ROWS
    if name == "data.tsv":
        content = content.replace(",", "\t")
    elif name == "semicolons.csv":  # with the comma in its numbers
        content = content.replace(",", ";").replace(".", ",")
    elif name == "bars.txt":
        content = content.replace(",", "|")
    content = gzip.compress(content.encode()) if name.endswith(".gz") else content
    raw, found, table = learned(tmp_path, content, name=name)
    plain_raw, plain, plain_table = learned(tmp_path, HEADER + ROWS, name="plain.csv")
    assert [(c.name, c.categories, c.fill) for c in table.columns] == [
        (c.name, c.categories, c.fill) for c in plain_table.columns
    ]
    assert np.array_equal(found.y, plain.y)
    pd.testing.assert_frame_equal(table.encode(raw), plain_table.encode(plain_raw))


def test_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame(
        {"a": [1, 2, None, 4, 5], "b": [True, False, True, True, False], "y": np.arange(5) / 3}
    )
    frame.to_parquet(tmp_path / "data.parquet")
    raw = files.read(tmp_path / "data.parquet")
    with pytest.raises(ArgumentError, match=r"column 'a'.*row 3"):
        encoding.learn(raw, "y")
    found = encoding.learn(raw, "y", impute=True)
    x = found.schema.with_fill_values(raw, found.rows).encode(raw)
    assert x["a"].tolist() == [1, 2, 3, 4, 5]
    assert x["b=True"].tolist() == [1, 0, 1, 1, 0]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "latin-1"])
def test_text_encodings(tmp_path, encoding):
    content = (HEADER + ROWS).replace("red", "rosé").encode(encoding)
    path = written(tmp_path, content)
    raw = files.read(path, encoding="utf-8" if encoding == "utf-8-sig" else encoding)
    assert list(raw.cells.columns) == ["size", "colour", "price"]
    assert set(raw.cells["colour"]) == {"rosé", "blue"}


def test_ordinal_and_unseen_categories(tmp_path):
    _, _, one_hot = learned(tmp_path, HEADER + ROWS)
    _, _, ordinal = learned(tmp_path, HEADER + ROWS, encoding="ordinal")
    new = files.read(written(tmp_path, "colour,size\nred,1\ngreen,2\nblue,3\n", "new.csv"))
    notes: list[str] = []
    x = one_hot.encode(new, notes.append)
    assert x[["colour=blue", "colour=red"]].to_numpy().tolist() == [[0, 1], [0, 0], [1, 0]]
    (note,) = notes
    assert "'green'" in note
    assert "line 3" in note
    assert ordinal.encode(new)["colour"].tolist() == [1, 0.5, 0]


def test_codes_do_not_depend_on_the_new_file(tmp_path):
    """A new file whose categories happen to be all numbers, or of which some are missing."""
    content = "code,y\n" + "".join(f"{'12ab'[i % 4]},{i / 7}\n" for i in range(60))
    _, _, table = learned(tmp_path, content, "y", categorical=["code"], impute=True)
    new = files.read(written(tmp_path, "code,y\n1,\n2,\n,\n", "new.csv"))
    x = table.encode(new)
    assert list(x.columns) == ["code=1", "code=2", "code=a", "code=b"]
    assert x.to_numpy()[:2].tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]
    assert x.to_numpy()[2].sum() == 1  # the most frequent, here all alike


def test_imputing(tmp_path):
    """What fills in comes from the training rows alone; Inf is as good as missing."""
    rows = ROWS.replace("\n7,red", "\n,red").replace("\n8,red", "\n-inf,red")
    rows = rows.replace("\n9,blue,1.286", "\n9,NA,1.286").replace("\n10,red,1.429", "\n10,red,")
    raw = files.read(written(tmp_path, HEADER + rows))
    found = encoding.learn(raw, "price", impute=True)
    assert 10 not in found.rows
    assert len(found.y) == 59
    train = np.arange(20, 41)
    notes: list[str] = []
    x = found.schema.with_fill_values(raw, train).encode(raw, notes.append)
    assert x["size"][7] == x["size"][8] == 30
    assert x["colour=red"][9] == 1
    assert any("'size' (2), 'colour' (1)" in note for note in notes)


@pytest.mark.parametrize(
    ("values", "task", "kind"),
    [
        ([f"{i / 7}" for i in range(60)], "regression", "f"),
        (["yes", "no", "no"] * 20, "classification", "U"),
        (["True", "False"] * 30, "classification", "U"),
        (["-1", "1"] * 30, "classification", "i"),
        (["0", "1", "2"] * 20, "classification", "i"),
        (["1", "2", "3", "4", "5"] * 12, "classification", "i"),
        (["3", "4", "5", "6"] * 15, "regression", "f"),  # grades that do not begin at 0 or 1
        ([str(i) for i in range(60)], "regression", "f"),
        ([str(i % 15) for i in range(16)], "regression", "f"),  # most of them once
        (["0.5", "1.5"] * 30, "classification", "U"),
    ],
)
def test_what_a_target_is(tmp_path, values, task, kind):
    content = "x,y\n" + "".join(f"{i},{value}\n" for i, value in enumerate(values))
    _, found, _ = learned(tmp_path, content, "y")
    assert found.schema.task == task
    assert found.y.dtype.kind == kind
    assert any(f": {task}" in note for note in found.notes)


def test_a_task_can_be_given(tmp_path):
    content = "x,y\n" + "".join(f"{i},{i % 3}\n" for i in range(60))
    _, found, _ = learned(tmp_path, content, "y", task="regression")
    assert found.schema.task == "regression"
    assert found.y.dtype.kind == "f"
    content = "x,y\n" + "".join(f"{i},{3 + i % 4}\n" for i in range(60))
    _, found, _ = learned(tmp_path, content, "y", task="classification")
    assert found.y.dtype.kind == "i"
    with pytest.raises(ArgumentError, match=r"column 'y'.*'a' in line 2"):
        learned(tmp_path, "x,y\n1,a\n2,b\n3,a\n4,b\n", "y", task="regression")
    with pytest.raises(ArgumentError, match="60 classes in 60 rows"):
        learned(tmp_path, HEADER + ROWS, task="classification")


def test_an_index_column_is_dropped(tmp_path):
    content = "," + HEADER + "".join(f"{i},{row}\n" for i, row in enumerate(ROWS.splitlines()))
    raw, found, _ = learned(tmp_path, content)
    assert list(raw.cells.columns) == ["size", "colour", "price"]
    assert any("counts the rows" in note for note in found.notes)


def test_lines_are_counted_as_an_editor_does(tmp_path):
    """Blank lines and cells of several lines are lines too."""
    content = 'a,b,y\n\n1,"two\nlines",3\n\n2,x,5\n3,x,4\noops,x,4\n5,x,3\n\n'
    for ends in ("\n", "\r\n"):
        with pytest.raises(ArgumentError, match=r"'oops' in line 8\."):
            learned(tmp_path, content.replace("\n", ends), "y")
    with pytest.raises(ArgumentError, match=r"missing value in line 8;"):  # which is not blank
        learned(tmp_path, content.replace("oops,x,4", ",,"), "y")


def test_warnings_of_few_rows_and_many_columns(tmp_path):
    names = ",".join(f"x{i}" for i in range(1000))
    rows = np.random.default_rng(0).normal(size=(10, 1001)).round(3)
    content = f"{names},y\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)
    raw, found, table = learned(tmp_path, content, "y")
    assert table.encode(raw).shape == (10, 1000)
    assert any("only 10 rows" in note for note in found.notes)
    assert any("1000 columns for 10 rows" in note for note in found.notes)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (ROWS.replace("\n7,red", "\nseven,red"), "column 'size', got .*'seven' in line 9"),
        (ROWS.replace("\n7,red", "\n,red"), "column 'size', got .*missing value in line 9"),
        (ROWS.replace("\n7,red", "\n7,"), "column 'colour', got .*missing value in line 9"),
        (
            ROWS.replace("\n7,red,1.000", "\n7,red,"),
            "column 'price', got .*missing value in line 9",
        ),
        (ROWS.replace("\n7,red", "\ninf,red"), "column 'size', got .*'inf' in line 9"),
        (ROWS.replace("\n7,red,1.000", "\n7,red,-inf"), "column 'price', got .*'-inf' in line 9"),
        (ROWS.replace("\n7,red,1.000", "\n7,red,1,0"), "line 9"),
        (ROWS.replace("red", "").replace("blue", ""), "column 'colour' is empty"),
    ],
)
def test_bad_cells_are_named(tmp_path, content, message):
    with pytest.raises(ArgumentError, match=message):
        learned(tmp_path, HEADER + content)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"target": "cost"},
            "`target` must be a column of .*'size', 'colour', 'price', got 'cost'",
        ),
        ({"drop": ["cost"]}, "`drop` must be a column"),
        ({"categorical": ["cost"]}, "`categorical` must be a column"),
        ({"drop": ["price"]}, "`drop` must leave the target"),
        ({"drop": ["size", "colour"]}, "at least one other column"),
        ({"task": "guess"}, "`task` must be"),
    ],
)
def test_bad_options(tmp_path, options, message):
    with pytest.raises(ArgumentError, match=message):
        learned(tmp_path, HEADER + ROWS, **options)


def test_names_are_not_categories(tmp_path):
    content = "name,y\n" + "".join(f"n{i},{i / 7}\n" for i in range(60))
    with pytest.raises(ArgumentError, match=r"60 different texts.*--drop name"):
        learned(tmp_path, content, "y")
    _, _, table = learned(tmp_path, content, "y", categorical=["name"])
    assert len(table.columns[0].categories) == 60


def test_a_column_called_like_a_category(tmp_path):
    content = "a,a=x,y\n" + "".join(f"{'xz'[i % 2]},{i},{i / 7}\n" for i in range(60))
    raw, _, table = learned(tmp_path, content, "y")
    x = table.encode(raw)
    assert x.shape == (60, 3)
    assert np.array_equal(x.iloc[:, 2], np.arange(60))


def test_a_new_file_must_have_the_columns(tmp_path):
    _, _, table = learned(tmp_path, HEADER + ROWS)
    new = files.read(written(tmp_path, "size,shape\n1,round\n", "new.csv"), argument="new")
    with pytest.raises(ArgumentError, match=r"`new` must have the 2 columns .*'colour' is missing"):
        table.encode(new)


@pytest.mark.parametrize(
    ("y", "task"),
    [
        (["a", "b"] * 10, "classification"),
        ([True, False] * 10, "classification"),
        ([0.0, 1.0] * 10, "classification"),
        (list(range(10)) * 3, "classification"),
        (list(range(30)), "regression"),
        ([5.0, 6.0, 7.0] * 10, "regression"),
        ([3, 4, 5, 6, 7, 8] * 5, "regression"),
    ],
)
def test_the_task_follows_from_the_target(y, task):
    y = np.asarray(y)
    assert detect_task(y if y.dtype.kind in "iuf" else None, np.unique(y))[0] == task
