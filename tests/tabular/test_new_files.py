"""New files beside the training table: the same reading of numbers and units, or a refusal."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bayeslearn.errors import ArgumentError
from bayeslearn.tabular import encoding, files
from bayeslearn.tabular.schema import Schema

ROWS = 20


def learned(folder, text, name="train.csv", target="y", **options):
    """The schema that a fit would store."""
    path = folder / name
    path.write_text(text)
    found = encoding.learn(files.read(path, **options), target, task="regression")
    return found, Schema.from_dict(json.loads(json.dumps(found.schema.to_dict())))


def read_new(folder, schema, text, name, **options):
    path = folder / name
    path.write_text(text)
    return files.read(path, argument="new", **options), schema


def column(cells, separator=";", name="km", y="{},5"):
    lines = [f"{name}{separator}y"]
    lines += [f"{cell}{separator}{y.format(i)}" for i, cell in enumerate(cells)]
    return "\n".join(lines) + "\n"


GERMAN = column([f"{1 + i}.234,{i % 9 + 1}" for i in range(ROWS)])
ENGLISH = column([f"{10 + i}.25" for i in range(ROWS)], ",", y="{}.5")


@pytest.mark.parametrize(("name", "separator"), [("new.tsv", "\t"), ("new.csv", ",")])
def test_a_column_with_one_reading_keeps_it(tmp_path, name, separator):
    _, schema = learned(tmp_path, GERMAN)
    assert schema.columns[0].decimal == ","
    new, schema = read_new(tmp_path, schema, f"km{separator}z\n12.334{separator}1\n", name)
    with pytest.raises(ArgumentError) as caught:
        schema.numbers(new)
    said = str(caught.value)
    for part in ("12.334 (decimal point)", "12334 (thousands", "training table has decimal commas"):
        assert part in said
    for option, value in (({"decimal": ","}, 12334.0), ({"decimal": "."}, 12.334)):
        new, _ = read_new(tmp_path, schema, f"km{separator}z\n12.334{separator}1\n", name, **option)
        assert schema.numbers(new)["km"].tolist() == [value]


def test_the_same_format_is_read_the_same_way(tmp_path):
    _, schema = learned(tmp_path, GERMAN)
    new, _ = read_new(tmp_path, schema, "km;z\n12.334;1\n", "new.csv")
    assert schema.numbers(new)["km"].tolist() == [12334.0]


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("km;z\n12.334;1\n", "new.csv", 12.334),  # the file alone does not decide
        ('km,z\n"12,334",1\n', "new.csv", 12334.0),
        ("km\tz\n12.334\t1\n", "new.tsv", 12.334),
        ("km;z\n12,334;1\n", "new.csv", None),  # as usual there, but not in training
        ("km;z\n12,5;1\n", "new.csv", 12.5),  # one reading
    ],
)
def test_points_are_remembered_too(tmp_path, text, name, value):
    _, schema = learned(tmp_path, ENGLISH)
    new, _ = read_new(tmp_path, schema, text, name)
    if value is None:
        with pytest.raises(ArgumentError, match="training table has decimal points"):
            schema.numbers(new)
    else:
        assert schema.numbers(new)["km"].tolist() == [value]


def test_whole_numbers_are_read_as_the_rest_of_their_table(tmp_path):
    _, schema = learned(tmp_path, column([str(100 + 7 * i) for i in range(ROWS)]))
    new, _ = read_new(tmp_path, schema, "km\tz\n12.334\t1\n", "new.tsv")
    with pytest.raises(ArgumentError, match="12334"):
        schema.numbers(new)


def test_a_schema_of_an_older_version_loads(tmp_path):
    _, schema = learned(tmp_path, GERMAN)
    stored = schema.to_dict()
    del stored["separator"], stored["target_column"]
    for entry in stored["columns"]:
        del entry["has_two_readings"]
        entry["decimal"] = ""
    old = Schema.from_dict(stored)
    assert old.separator is None
    new, _ = read_new(tmp_path, old, "km\tz\n12.334\t1\n", "new.tsv")
    assert old.numbers(new)["km"].tolist() == [12.334]
    with_target, _ = read_new(tmp_path, old, "km,y\n12.5,3%\n", "new.csv")
    assert old.read_target(with_target, None).tolist() == [3.0]


def test_the_unit_of_the_target_is_noted_and_checked(tmp_path):
    cells = [str(i) for i in range(ROWS)]
    found, schema = learned(tmp_path, column(cells, ",", y="{}.5 %"))
    assert "Read as numbers without their unit: 'y' (%)." in found.notes
    new, _ = read_new(tmp_path, schema, column(cells, ",", y="0.{}"), "new.csv")
    with pytest.raises(ArgumentError, match=r"with '%', got .*'y' has numbers without unit"):
        schema.read_target(new, None)
    new, _ = read_new(tmp_path, schema, column(cells, ",", y="{}.5%"), "new.csv")
    np.testing.assert_array_equal(schema.read_target(new, None), np.arange(ROWS) + 0.5)


def test_the_reading_of_the_target_is_remembered(tmp_path):
    text = column([str(i) for i in range(ROWS)], ",", y='"{},250"').replace('"0,', '"10,')
    found, schema = learned(tmp_path, text, thousands=",")
    assert any("Numbers with decimal points" in note and "'y'" in note for note in found.notes)
    new, _ = read_new(tmp_path, schema, text, "new.csv")
    assert schema.read_target(new, None)[1] == 1250.0


def test_two_currencies_are_not_one(tmp_path):
    cells = [f"${i}.50" for i in range(ROWS)]
    _, schema = learned(tmp_path, column(cells, ",", y="{}.5"))
    new, _ = read_new(tmp_path, schema, "km,z\n€12.50,1\n", "new.csv")
    with pytest.raises(ArgumentError, match=r"with '[$]', got .*'km' has numbers with '€'"):
        schema.numbers(new)
    new, _ = read_new(tmp_path, schema, "km,z\n12.50,1\n", "new.csv")
    assert schema.numbers(new)["km"].tolist() == [12.5]
