"""Defects of files, and what is said about each; tests the table in docs/messy_tables.md too."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bayeslearn.errors import ArgumentError
from bayeslearn.tabular import dates, encoding, files, number_formats

ROWS = 60
PAGE = Path(__file__).parents[2] / "docs" / "messy_tables.md"


def table(**columns):
    """A sound table; a defect replaces or adds columns."""
    steps = range(ROWS)
    sound = {
        "area": [f"{50 + 7 * (i % 11)}.{i % 9 + 1}" for i in steps],
        "town": [("Ulm", "Bonn", "Kiel")[i % 3] for i in steps],
        "price": [f"{100 + 3 * (i * 7 % 23)}.{i % 10}" for i in steps],
    }
    return {name: list(cells) for name, cells in (sound | columns).items()}


def with_cell(column, row, text, **columns):
    made = table(**columns)
    made[column][row] = text
    return made


def as_csv(columns, separator=","):
    quoted = [[f'"{cell}"' if separator in cell else cell for cell in c] for c in columns.values()]
    lines = [
        separator.join(columns),
        *(separator.join(cells) for cells in zip(*quoted, strict=True)),
    ]
    return "\n".join(lines) + "\n"


def numbered(template, first=1):
    return [template.format(i) for i in range(first, first + ROWS)]


CODES = [("-999" if i % 8 == 0 else f"{i % 7}.5") for i in range(ROWS)]
SOUND = as_csv(table())
# name: content, and options
DEFECTS: dict[str, tuple[str | bytes, dict]] = {
    "empty cell": (as_csv(with_cell("area", 4, "")), {}),
    "n/a, NULL or ?": (as_csv(with_cell("area", 4, "n/a")), {}),
    "a word among numbers": (as_csv(with_cell("area", 4, "much")), {}),
    "an infinite number": (as_csv(with_cell("area", 4, "inf")), {}),
    "an empty column": (as_csv(table(note=[""] * ROWS)), {}),
    "free text": (as_csv(table(note=numbered("text {}"))), {}),
    "a row without target": (as_csv(with_cell("price", 4, "")), {}),
    "a constant target": (as_csv(table(price=["7"] * ROWS)), {}),
    "a number with two readings": (
        as_csv(table(area=numbered("{}.087", 11), price=numbered("{},64")), ";"),
        {},
    ),
    "thousands in a quoted cell": (as_csv(table(area=numbered("{},250", 11))), {}),
    "two currencies": (as_csv(with_cell("area", 4, "$5", area=numbered("€{}.5"))), {}),
    "per cent beside fractions": (as_csv(with_cell("area", 4, "0.3", area=numbered("{} %"))), {}),
    "a date with two readings": (
        as_csv(table(sold=[f"0{i % 9 + 1}/0{i % 7 + 1}/2024" for i in range(ROWS)])),
        {},
    ),
    "a broken date": (as_csv(with_cell("sold", 4, "2024-02-31", sold=["2024-01-30"] * ROWS)), {}),
    "the same name twice": (SOUND.replace("area,town", "town,town", 1), {}),
    "a column without name": (SOUND.replace("area,town", "area,", 1), {}),
    "no header": (
        SOUND.split("\n", 1)[1].replace("Ulm", "1").replace("Bonn", "2").replace("Kiel", "3"),
        {},
    ),
    "a row that is too long": (SOUND + "1,2,3,4\n", {}),
    "another text encoding": (SOUND.replace("Ulm", "Köln").encode("latin-1"), {}),
    "a spreadsheet": (b"PK\x03\x04" + bytes(99), {}),
    "a damaged gzip": (gzip.compress(SOUND.encode())[:-20], {}),
    "a gzip of zeros": (gzip.compress(bytes(20_000_000)), {"max_bytes": 10**6}),
    "an identifier": (as_csv(table(house_id=numbered("{}", 700))), {}),
    "a constant column": (as_csv(table(country=["DE"] * ROWS)), {}),
    "a copy of the target": (
        as_csv(table() | {"cents": [f"{100 * float(p):.0f}" for p in table()["price"]]}),
        {},
    ),
    "codes with leading zeros": (as_csv(table(code=[f"0{i % 7}2" for i in range(ROWS)])), {}),
    "-999 for missing": (as_csv(table(floor=CODES)), {}),
    "categories that differ in case": (as_csv(with_cell("town", 4, "ulm")), {}),
    "a rare category": (as_csv(with_cell("town", 4, "Rom")), {}),
    "repeated rows": (SOUND + "\n".join(SOUND.splitlines()[1:4]) + "\n", {}),
    "currency and thousands": (as_csv(table(area=[f"${1000 + i:,}.50" for i in range(ROWS)])), {}),
    "dates": (
        as_csv(table(sold=[str(np.datetime64("2023-01-01") + 20 * i) for i in range(ROWS)])),
        {},
    ),
    "dates with the name of the month": (
        as_csv(table(sold=[f"{i % 28 + 1} {('Jan', 'March')[i % 2]} 2024" for i in range(ROWS)])),
        {},
    ),
    "accountants' negative numbers": (
        as_csv(table(area=[f"({i}.07)" if i % 3 else f"{i}.5" for i in range(1, ROWS + 1)])),
        {},
    ),
    "a line above the header": ("# exported today\n" + SOUND, {}),
    "ratings as target": (as_csv(table(price=[str(i % 5 + 1) for i in range(ROWS)])), {}),
    "an index column": (pd.DataFrame(table()).to_csv(), {}),
}


def said_about(folder, content, **options):
    """The refusal, or all notes."""
    path = folder / "data.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    try:
        raw = files.read(path, **options)
        return "\n".join(encoding.learn(raw, "price").notes)
    except ArgumentError as error:
        return str(error)


def documented():
    """Rows of the table in the documentation."""
    rows = re.findall(r"^\| (.+?) \| (refused|noted|read): `(.+?)` \|$", PAGE.read_text(), re.M)
    return {defect: (kind, said) for defect, kind, said in rows}


def test_a_sound_file_has_no_notes_but_its_reading(tmp_path):
    notes = said_about(tmp_path, SOUND).splitlines()
    assert [note.split()[0] for note in notes] == ["The", "Categorical"]


@pytest.mark.parametrize("defect", DEFECTS)
def test_what_is_said(tmp_path, defect):
    content, options = DEFECTS[defect]
    kind, expected = documented()[defect]
    said = said_about(tmp_path, content, **options)
    assert expected in said, said
    assert said.startswith("`data` must ") == (kind == "refused")


def test_the_page_has_all():
    assert documented().keys() == DEFECTS.keys()
    assert len(DEFECTS) >= 30


def test_all_problems_are_listed_at_once(tmp_path):
    made = with_cell("area", 4, "much", empty=[""] * ROWS, note=numbered("text {}"))
    made["area"][7] = ""
    made["price"][9] = ""
    made["rate"] = ["0.5", *numbered("{} %")[1:]]
    lines = said_about(tmp_path, as_csv(made)).splitlines()
    assert lines[0].endswith("data.csv: 6 problems:")
    assert [line.split(".")[0].strip() for line in lines[1:]] == list("123456")
    for part in ("line 11", "line 9", "'much' in line 6", "'empty'", "'note'", "'%'"):
        assert any(part in line for line in lines[1:]), part


def test_problems_of_the_header_are_in_the_list(tmp_path):
    """Beside those of the cells and a target that is not there."""
    made = as_csv(with_cell("area", 4, "much", note=numbered("text {}")))
    content = made.replace("area,town,price,note", "area,town,town,note", 1)
    lines = said_about(tmp_path, content).splitlines()
    assert lines[0].endswith("data.csv: 4 problems:")
    for part in ("duplicate column name 'town'", "'much'", "'note' holds", "no column 'price'"):
        assert any(part in line for line in lines[1:]), part
    (tmp_path / "one.csv").write_text(SOUND)
    with pytest.raises(ArgumentError, match=r"`target` must be a column of .*one.csv: 'area'"):
        encoding.learn(files.read(tmp_path / "one.csv"), "cost")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(
            ("5 Jan 2024", "2024-01-05"),
            ("05-Jan-2024", "2024-01-05"),
            ("5. May 2024", "2024-05-05"),
        ),
        *(("January 5, 2024", "2024-01-05"), ("Sept 30 2023", "2023-09-30")),
        *(
            ("5 January 2024 13:30", "2024-01-05T13:30"),
            ("31 Feb 2024", None),
            ("5 Foo 2024", None),
        ),
    ],
)
def test_dates_with_names_of_months(text, expected):
    found = dates.read_dates(np.array([text], object), None)
    assert not found.is_ambiguous
    if expected is None:
        assert np.isnan(found.days[0])
    else:
        moment = np.datetime64(expected, "m") - np.datetime64(0, "m")
        assert found.days[0] == moment / np.timedelta64(1, "D")


@pytest.mark.parametrize(
    ("option", "first"),
    [({"decimal": "."}, 11.087), ({"thousands": "."}, 11087.0), ({"decimal": ","}, 11087.0)],
)
def test_a_flag_decides_between_two_readings(tmp_path, option, first):
    """The column with one reading alone is read so, whatever the flag says."""
    content = DEFECTS["a number with two readings"][0]
    (tmp_path / "data.csv").write_text(content)
    raw = files.read(tmp_path / "data.csv", **option)
    learned = encoding.learn(raw, "price")
    assert learned.schema.encode(raw)["area"][0] == first
    assert learned.y[0] == 1.64
    # A new file is read as the training table was, without the flag.
    (tmp_path / "new.csv").write_text("area;town\n17.087;Ulm\n")
    new = learned.schema.encode(files.read(tmp_path / "new.csv"))
    assert new["area"][0] == (17.087 if first < 12 else 17087.0)


@pytest.mark.parametrize(
    ("cell", "point", "comma"),
    [
        *(("12", 12, 12), ("-1.5e3", -1500, None), ("1,5", None, 1.5), ("17.087", 17.087, 17087)),
        *(("1,234", 1234, 1.234), ("1,234,567.5", 1234567.5, None), ("1.234.567", None, 1234567)),
        *(("0.143", 0.143, None), ("12 345,5", None, 12345.5), ("1'234'567", 1234567, 1234567)),
        *(("$ 1,234.50", 1234.5, None), ("-€3", -3, -3), ("45 %", 45, 45), ("3 EUR", 3, 3)),
        *(("\u22125", -5, -5), ("1234,567", None, 1234.567), ("12,34,567", None, None)),
        *(("(1.07)", -1.07, None), ("($1,234.50)", -1234.5, None), ("$(3)", -3, -3)),
        *(("(-5)", None, None), ("()", None, None), ("(5", None, None)),
        *(("1.2.3", None, None), ("10 11", None, None), ("x", None, None), ("", None, None)),
    ],
)
def test_both_readings_of_a_cell(cell, point, comma):
    for decimal, expected in ((".", point), (",", comma)):
        found = number_formats.read_cell(cell, decimal)
        assert np.isnan(found) if expected is None else found == expected


def test_per_cent_of_a_new_file_must_be_that_of_the_training_table(tmp_path):
    content = as_csv(table(rate=numbered("{} %")))
    (tmp_path / "data.csv").write_text(content)
    raw = files.read(tmp_path / "data.csv")
    schema = encoding.learn(raw, "price").schema
    (tmp_path / "new.csv").write_text("area,town,rate\n5,Ulm,0.12\n")
    with pytest.raises(ArgumentError, match="'rate' has numbers without unit"):
        schema.encode(files.read(tmp_path / "new.csv"))


def test_a_parquet_file_is_refused_by_its_size(tmp_path):
    pytest.importorskip("pyarrow")
    zeros = pd.DataFrame({"a": np.zeros(10**6), "y": np.zeros(10**6)})
    zeros.to_parquet(tmp_path / "zeros.parquet")
    with pytest.raises(ArgumentError, match=r"when it is decompressed.*--max-bytes"):
        files.read(tmp_path / "zeros.parquet", max_bytes=100)
