"""Data frames with any columns: pandas, Polars and files give the same numbers."""

from __future__ import annotations

import datetime
import pickle
from dataclasses import replace

import narwhals.stable.v1 as nw
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.utils import get_tags

import bayeslearn as bl
from bayeslearn.errors import ArgumentError, DataWarning
from bayeslearn.tabular import dates, encoding, files, persistence
from bayeslearn.tabular.schema import Schema

ROWS = 120
SMALL = {"hidden": (), "method": "conjugate", "random_state": 0}
CLASSES = {"hidden": (), "method": "map", "num_steps": 200, "random_state": 0}
DAYS = [datetime.datetime(2023, 1, 1) + datetime.timedelta(days=5 * i) for i in range(ROWS)]


def columns():
    rng = np.random.default_rng(0)
    return {
        "size": rng.normal(size=ROWS).tolist(),
        "kind": [("red", "blue", "green")[i % 3] for i in range(ROWS)],
        "flag": [i % 2 == 0 for i in range(ROWS)],
        "sold": DAYS,
        "listed": [str(day.date()) for day in DAYS],
        "money": [f"${1000 + 13 * (i % 17):,}.50" for i in range(ROWS)],
        "count": [i % 7 for i in range(ROWS)],
    }


def target():
    made = columns()
    return np.array(made["size"]) + np.array([kind == "red" for kind in made["kind"]])


def pandas_frame():
    return pd.DataFrame(columns()).astype({"kind": "category"})


def polars_frame():
    pl = pytest.importorskip("polars")
    return pl.DataFrame(columns()).with_columns(pl.col("kind").cast(pl.Categorical))


@pytest.fixture(scope="module")
def fitted():
    return bl.BayesianNNRegressor(**SMALL).fit(pandas_frame(), target())


def test_columns_become_what_they_are(fitted):
    stored = Schema.from_dict(fitted.encoding_)
    assert {c.name: c.categories for c in stored.columns if c.categories} == {
        "kind": ("blue", "green", "red")
    }
    assert {c.name: c.cycles for c in stored.columns if c.cycles is not None} == {
        "sold": ("year", "week"),
        "listed": ("year", "week"),
    }
    assert fitted.feature_names_in_.tolist() == list(columns())
    assert fitted.n_features_in_ == 7
    # 3 columns of 0 and 1, 5 of each date, and 4 of numbers
    assert fitted.posterior_.target.data.x.shape[1] == 17
    assert fitted.score(pandas_frame(), target()) > 0.9
    assert any("'sold' (sold, sold:year_sin" in note for note in fitted.posterior_.notes)


def test_polars_gives_the_same_numbers(fitted):
    frame = polars_frame()
    pl = pytest.importorskip("polars")
    other = bl.BayesianNNRegressor(**SMALL).fit(frame, pl.Series(target()))
    assert other.encoding_ == fitted.encoding_
    np.testing.assert_array_equal(other.predict(frame), fitted.predict(pandas_frame()))
    np.testing.assert_array_equal(fitted.predict(frame), fitted.predict(pandas_frame()))
    labels = pl.Series(columns()["kind"])
    weight = np.array([0.0] * 3 + [1.0] * (ROWS - 3))
    classifier = bl.BayesianNNClassifier(**CLASSES).fit(frame, labels, sample_weight=weight)
    assert np.mean(classifier.predict(frame) == labels.to_numpy()) > 0.9
    assert any("follow from the target" in note for note in classifier.column_notes_)


def test_files_give_the_same_numbers(fitted, tmp_path):
    """What a CSV file holds is encoded as the frame is."""
    frame = pd.DataFrame(columns()).drop(columns="flag")
    frame.assign(y=target()).to_csv(tmp_path / "data.csv", index=False)
    raw = files.read(tmp_path / "data.csv")
    from_file = encoding.learn(raw, "y").schema.encode(raw)
    other = bl.BayesianNNRegressor(**SMALL).fit(frame, target())
    from_frame = Schema.from_dict(other.encoding_)
    of_file = encoding.learn(raw, "y").schema.columns  # text, which has a decimal separator
    both = (from_frame.columns, of_file)
    first, second = ([replace(column, decimal="") for column in columns] for columns in both)
    assert first == second
    plain = bl.BayesianNNRegressor(**SMALL).fit(from_file, target())
    np.testing.assert_allclose(plain.predict(from_file), other.predict(frame), rtol=1e-9)


def test_the_encoding_is_saved(fitted, tmp_path):
    frame = pandas_frame()
    fitted.save(tmp_path / "saved")
    for loaded in (persistence.load(tmp_path / "saved"), pickle.loads(pickle.dumps(fitted))):
        np.testing.assert_array_equal(loaded.predict(frame), fitted.predict(frame))
        assert loaded.column_notes_ == fitted.column_notes_
    # Rows in another order, and columns that are objects, are the same rows.
    order = np.random.default_rng(0).permutation(ROWS)
    found = fitted.predict(frame.astype({"kind": object}).iloc[order])
    np.testing.assert_allclose(found, fitted.predict(frame)[order], rtol=1e-12)


def test_missing_values():
    frame = pandas_frame()
    frame.loc[5::20, "size"] = np.nan
    frame.loc[7::20, "kind"] = None
    frame.loc[9::20, "sold"] = pd.NaT
    with pytest.raises(ArgumentError, match="3 problems") as refused:
        bl.BayesianNNRegressor(**SMALL).fit(frame, target())
    assert str(refused.value).count('missing="impute"') == 3
    imputed = bl.BayesianNNRegressor(**SMALL, missing="impute").fit(frame, target())
    (size,) = (c for c in imputed.encoding_["columns"] if c["name"] == "size")
    assert size["fill"] == frame["size"].median()
    filled = frame.fillna({"size": size["fill"], "kind": frame["kind"].mode()[0]})
    filled["sold"] = filled["sold"].fillna(frame["sold"].dropna().median())
    np.testing.assert_allclose(imputed.predict(filled), imputed.predict(frame), rtol=1e-9)
    marked = clone(imputed).set_params(missing="indicator").fit(frame, target())
    assert np.any(np.abs(marked.predict(filled) - marked.predict(frame)) > 1e-6)
    assert np.all(np.isfinite(cross_val_score(marked, frame, target(), cv=2)))


def test_arrays_with_missing_values():
    x = np.random.default_rng(0).normal(size=(60, 2))
    y = x[:, 0].copy()
    x[::7, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        bl.BayesianNNRegressor(**SMALL).fit(x, y)
    estimator = bl.BayesianNNRegressor(**SMALL, missing="impute").fit(x, y)
    filled = np.where(np.isnan(x), np.nanmedian(x, axis=0), x)
    np.testing.assert_array_equal(estimator.predict(x), estimator.predict(filled))
    assert get_tags(estimator).input_tags.allow_nan
    assert not get_tags(clone(estimator).set_params(missing=None)).input_tags.allow_nan


def test_frames_of_numbers_are_left_alone():
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 2)), columns=["a", "b"])
    plain = bl.BayesianNNRegressor(**SMALL).fit(frame, frame["a"])
    assert not hasattr(plain, "encoding_")
    array = bl.BayesianNNRegressor(**SMALL).fit(frame.to_numpy(), frame["a"])
    np.testing.assert_array_equal(plain.predict(frame), array.predict(frame.to_numpy()))
    assert plain.column_notes_ == [
        "Columns that follow from the target 'y', to be dropped unless they are known when"
        " predicting: 'a'."
    ]
    two = bl.BayesianNNRegressor(**SMALL).fit(frame, np.c_[frame["a"] ** 2, frame["b"]])
    assert "'b'" in two.column_notes_[0]
    # What was learned of an earlier frame is forgotten.
    again = bl.BayesianNNRegressor(**SMALL).fit(frame.assign(c="x"), frame["a"])
    assert not hasattr(again.fit(frame, frame["a"]), "encoding_")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda frame: frame.assign(note=[f"text {i}" for i in range(ROWS)]),
            "120 different texts",
        ),
        (lambda frame: frame.assign(size=["1,234"] * ROWS), "'1,234' in row 0.*Convert the column"),
        (lambda frame: frame.assign(size=["1.5"] * 119 + ["much"]), "'much' in row 119"),
        (
            lambda frame: pd.concat([frame, frame[["size"]]], axis=1),
            "`X` must have distinct column names, got 'size' more than once",
        ),
        (lambda frame: frame[[]], "`X` must have at least one column"),
        (
            lambda frame: frame[["kind"]].astype(str).to_numpy(),
            "the text '.*'. Text and categories need a pandas or Polars data frame",
        ),
        (
            lambda frame: nw.from_native(frame).lazy("polars").to_native(),
            "a lazy frame. Collect it first",
        ),
    ],
)
def test_refusals(change, message):
    with pytest.raises(ArgumentError, match=message):
        bl.BayesianNNRegressor(**SMALL).fit(change(pandas_frame()), target())


def test_new_rows(fitted):
    frame = pandas_frame()
    with pytest.warns(DataWarning, match="'violet', not seen in training"):
        found = fitted.predict(frame.head(3).assign(kind="violet"))
    assert np.all(np.isfinite(found))
    with pytest.raises(ArgumentError, match="be a data frame with the columns 'size', 'kind'"):
        fitted.predict(np.zeros((3, 7)))
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(frame.drop(columns="flag"))
    with pytest.raises(ArgumentError, match=r"must be a data frame .*, got an object of type Ser"):
        fitted.predict(frame["size"])
    regressor = bl.BayesianNNRegressor(**SMALL).fit(frame.dropna(), target()[: len(frame.dropna())])
    with pytest.raises(ArgumentError, match='or fit again with missing="impute"'):
        regressor.predict(frame.head(3).assign(size=np.nan))
    for name, value in (("categories", "x"), ("missing", "median")):
        with pytest.raises(ArgumentError, match=f"`{name}` must be"):
            bl.BayesianNNRegressor(**SMALL, **{name: value}).fit(frame, target())


def test_columns_of_any_size_and_counts_have_no_odd_notes():
    """Correlations of huge and tiny numbers do not overflow; counts are no classes."""
    x = np.random.default_rng(0).normal(size=(40, 1))
    frame = pd.DataFrame(x, columns=["a"])
    counts = np.arange(40) // 3
    for y in (1e300 * x[:, 0] ** 3, 1e-300 * x[:, 0] ** 3, counts):
        assert bl.BayesianNNRegressor(**SMALL).fit(frame, y).column_notes_ == []


@pytest.mark.parametrize(
    ("cell", "day_first", "expected"),
    [
        *(("2024-02-29", None, "2024-02-29"), ("2024/3/1", None, "2024-03-01")),
        *(("31.12.1969", None, "1969-12-31"), ("03/04/2024", True, "2024-04-03")),
        *(("03/04/2024", False, "2024-03-04"), ("13/04/2024", False, "2024-04-13")),
        *(
            ("2024-01-01T06:00:00", None, "2024-01-01T06"),
            ("2024-01-01 7:30", None, "2024-01-01T07:30"),
        ),
        *(("2024-01-01T01:00:00+02:00", None, "2023-12-31T23"), ("2024-02-30", None, "NaT")),
        *(("12345", None, "NaT"), ("1.2.3", None, "NaT")),
    ],
)
def test_dates_are_days(cell, day_first, expected):
    found = dates.read_dates(np.array([cell], object), day_first).days
    days = (np.datetime64(expected, "m") - np.datetime64(0, "m")) / np.timedelta64(1, "D")
    np.testing.assert_allclose(found[0], days, atol=1e-9)


def test_cycles_close():
    """A week and a year later a date is where it was."""
    days = np.array([19000.0, 19000.0 + 7, 19000.0 + dates.YEAR])
    found = dates.features("d", days, ("year", "week"))
    np.testing.assert_allclose(found["d:week_sin"][0], found["d:week_sin"][1], atol=1e-9)
    np.testing.assert_allclose(found["d:year_cos"][0], found["d:year_cos"][2], atol=1e-9)
    monday = (np.datetime64("2024-01-01") - np.datetime64(0, "D")).astype(float)
    np.testing.assert_allclose(dates.features("d", monday, ("week",))["d:week_sin"], 0, atol=1e-9)
