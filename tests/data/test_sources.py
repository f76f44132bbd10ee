"""Sources of rows that do not fit into memory: the order of rows, files, and refusals."""

from __future__ import annotations

import importlib
import itertools
import tracemalloc

import jax
import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn.errors import ArgumentError, DataError


@pytest.fixture
def small(monkeypatch):
    module = importlib.import_module("bayeslearn.data.sources.arrays")  # not the function
    monkeypatch.setattr(module, "BLOCKS", 4)


def epoch(source, number):
    return list(itertools.islice(source.skip_to(number * len(source)), len(source)))


# The order of rows


@pytest.mark.parametrize("batch_size", [1, 7, 8, 50, 103])
def test_every_row_comes_once_in_an_epoch(batch_size, small):
    x = np.arange(103.0)[:, None]
    source = bl.sources.arrays(x, 2 * x[:, 0], batch_size, seed=1, buffer_bytes=16 * 20)
    assert len(source) == -(-103 // batch_size)
    assert source.num_data == 103
    orders = []
    for number in (0, 1, 2):
        found = epoch(source, number)
        sizes = [len(y) for _, y in found]
        assert sizes[:-1] == [batch_size] * (len(source) - 1)
        assert all(np.array_equal(y, 2 * a[:, 0]) for a, y in found)
        orders.append(np.concatenate([a[:, 0] for a, _ in found]))
        np.testing.assert_array_equal(np.sort(orders[-1]), x[:, 0])
    assert not np.array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[1], orders[2])


def test_the_order_is_the_documented_one(small):
    """Blocks by 64-bit numbers of Philox, then the rows of four blocks at a time."""
    source = bl.sources.arrays(np.arange(20)[:, None], np.arange(20), 6, seed=5, buffer_bytes=128)

    def order(size, number):
        bits = np.random.Philox(np.random.SeedSequence([5, 2, number])).random_raw(size)
        return sorted(range(size), key=lambda i: bits[i])

    blocks = [list(range(b, b + 2)) for b in range(0, 20, 2)]
    expected = []
    for number, start in enumerate((0, 4, 8), start=1):
        group = sorted(order(10, 0)[start : start + 4])
        rows = [row for block in group for row in blocks[block]]
        expected += [rows[i] for i in order(len(rows), number)]
    assert [int(v) for _, y in epoch(source, 2) for v in y] == expected


def test_any_batch_is_found_without_those_before_it(small):
    x = np.arange(101.0)[:, None]
    source = bl.sources.arrays(x, x[:, 0], 9, seed=0, buffer_bytes=16 * 20)
    whole = list(itertools.islice(source.skip_to(0), 40))
    original, read = source.read, []
    source.read = lambda blocks: read.extend(blocks) or original(blocks)
    for position in (1, 7, 11, 12, 30):
        read.clear()
        rest = list(itertools.islice(source.skip_to(position), 2))
        for (_, a), (_, b) in zip(whole[position:], rest, strict=False):
            np.testing.assert_array_equal(a, b)
        assert len(read) < (len(source.edges) - 1) / 2  # two batches of twelve


def test_without_shuffling_rows_come_in_their_order():
    y = np.arange(30)
    source = bl.sources.arrays(y[:, None], y, 7, shuffle=False)
    np.testing.assert_array_equal(np.concatenate([b for _, b in source]), y)


def test_blocks_that_lie_apart_are_mixed(small):
    """Rows sorted by class: a batch holds several classes, and not those of one block alone."""
    y = np.repeat(np.arange(50), 20)
    source = bl.sources.arrays(y[:, None].astype(float), y, 40, seed=0, buffer_bytes=16 * 160)
    classes = [len(np.unique(batch)) for _, batch in source]
    assert np.median(classes) >= 4  # one or two without shuffling; a buffer has 4 blocks of 40


def test_a_sample_is_taken_from_all_rows(small):
    x = np.arange(1000.0)[:, None]
    x[500] = np.nan
    source = bl.sources.arrays(x, x[:, 0], 10, buffer_bytes=16 * 40)
    found, y = source.sample(16)
    np.testing.assert_array_equal(found[:, 0], y)
    assert 12 <= len(y) <= 16
    assert y.min() < 20
    assert y.max() > 980
    everything = bl.sources.arrays(x, x[:, 0], 10).sample(5000)[1]
    np.testing.assert_array_equal(everything, np.delete(x[:, 0], 500))  # NaN is left out


def test_trees_and_chunks_and_files(tmp_path):
    h5py = pytest.importorskip("h5py")
    x, y = np.arange(50.0).reshape(25, 2), np.arange(25)
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file.create_dataset("x", data=x, chunks=(4, 2))
        file["y"] = y
    with h5py.File(tmp_path / "data.h5", "r") as file:
        source = bl.sources.arrays({"a": file["x"], "b": y}, file["y"], 10, buffer_bytes=64)
        assert set(np.diff(source.edges)[:-1]) == {4}
        found = list(source)
    rows = np.concatenate([b for _, b in found])
    np.testing.assert_array_equal(np.sort(rows), y)
    np.testing.assert_array_equal(np.concatenate([a["a"] for a, _ in found]), x[rows])
    np.testing.assert_array_equal(np.concatenate([a["b"] for a, _ in found]), rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder = tmp_path_factory.mktemp("parquet")
    for name, rows in (("b", range(40, 100)), ("a", range(40))):
        numbers = np.asarray(rows)
        table = {"y": numbers, "one": numbers + 0.5, "two": -numbers, "name": ["t"] * len(rows)}
        pq.write_table(pa.table(table), folder / f"{name}.parquet", row_group_size=15)
    gaps = pa.table({"y": [1.0, 2.0], "one": [1, None]})
    pq.write_table(gaps, folder / "gaps.txt")
    return folder


def test_parquet(folder):
    source = bl.sources.parquet(
        folder, target="y", columns=["two", "one"], batch_size=16, seed=0, buffer_bytes=1
    )
    assert source.num_data == 100
    np.testing.assert_array_equal(source.edges, [0, 15, 30, 40, 55, 70, 85, 100])
    for number in (0, 3):
        found = epoch(source, number)
        y = np.concatenate([b for _, b in found])
        np.testing.assert_array_equal(np.sort(y), np.arange(100))
        x = np.concatenate([a for a, _ in found])
        np.testing.assert_array_equal(x, np.stack([-y, y + 0.5], axis=1))
    two = bl.sources.parquet(folder / "a.parquet", ["y", "two"], ["one"], shuffle=False)
    x, y = two.sample(100)
    np.testing.assert_array_equal(y, np.stack([np.arange(40), -np.arange(40)], axis=1))


def test_what_parquet_refuses(folder, tmp_path):
    for options, message in (
        ({"target": "z"}, "`target` must be among the columns of .*got 'z'"),
        ({"target": "y"}, "`columns` must hold numbers, got 'name', which is string"),
        ({"target": "y", "columns": []}, "`columns` must name at least one column"),
        ({"target": "y", "columns": ["one"], "batch_size": 101}, "`batch_size` must be at most"),
    ):
        with pytest.raises(ArgumentError, match=message):
            bl.sources.parquet(folder, **options)
    with pytest.raises(ArgumentError, match=r"`path` must hold \.parquet files"):
        bl.sources.parquet(tmp_path, "y")
    with pytest.raises(ArgumentError, match="`path` must be a Parquet file"):
        bl.sources.parquet(tmp_path / "nothing", "y")
    with pytest.raises(DataError, match=r"1 missing value.* column 'one' of row group 0"):
        list(bl.sources.parquet(folder / "gaps.txt", "y", batch_size=1))


def test_what_arrays_refuse():
    x, y = np.zeros((5, 2)), np.zeros(5)
    for given, message in (
        ((x, y[:4]), "`x` must have as many rows as y"),
        (({"a": x, "b": [1.0]}, y), "`x.b.0` must be an array"),
        ((x, y, 6), "`batch_size` must be at most the number of rows"),
        ((x, y, 0), "`batch_size` must be a whole number"),
        ((x, y, 2, -1), "`seed` must be a whole number"),
    ):
        with pytest.raises(ArgumentError, match=message):
            bl.sources.arrays(*given)


def test_rows_go_where_they_are_wanted(small):
    x = {"a": np.arange(50.0)[:, None], "b": np.arange(50)}
    source = bl.sources.arrays(x, 2 * x["b"], 8, seed=1, buffer_bytes=24 * 20)
    room = {"a": np.zeros((8, 1)), "b": np.zeros(8, int)}
    for unlike in (room["a"], {"a": room["a"]}, {**room, "a": np.zeros((8, 1), np.float32)}, room):
        given = source.skip_to(0)
        found = [next(given), *(given.send(unlike) for _ in range(6))]
        last, y = found[-1]  # of two rows, which are the room's first
        jax.tree.map(np.testing.assert_array_equal, (last, y), epoch(source, 0)[-1])
        assert len(y) == 2
        assert [np.shares_memory(last[k], room[k]) for k in "ab"] == [unlike is room] * 2


class Blocks(bl.sources.Source):
    """A source of one's own: every block is (x, y) as it is given."""

    def __init__(self, blocks, **options):
        self.blocks = blocks
        super().__init__(np.cumsum([0, *(len(y) for _, y in blocks)]), 8.0, **options)

    def read(self, blocks):
        return jax.tree.map(
            lambda *leaves: np.concatenate(leaves), *(self.blocks[b] for b in blocks)
        )


def test_a_batch_has_the_type_of_all_its_rows():
    whole = [(np.full((3, 1), i), np.zeros(3)) for i in range(4)]
    half = [(np.full((3, 1), i + 0.5), np.zeros(3)) for i in range(4)]
    source = Blocks([*whole, *half], batch_size=8, shuffle=False, buffer_bytes=48)
    first, second, third = source
    assert first[0].dtype == int  # of the first two buffers
    np.testing.assert_array_equal(second[0][:, 0], [2, 3, 3, 3, 0.5, 0.5, 0.5, 1.5])
    np.testing.assert_array_equal(third[0][:, 0], [1.5, 1.5, *[2.5] * 3, *[3.5] * 3])
    short = Blocks([(np.zeros((2, 1)), np.zeros(3)), *whole], batch_size=3, shuffle=False)
    with pytest.raises(DataError, match=r"Blocks.read gave \[14, 15\] rows"):
        next(iter(short))


def test_columns_of_a_map_are_read_where_they_lie(tmp_path):
    """`np.take` would bring all of an array with gaps into memory, for every batch."""
    table = np.random.default_rng(0).normal(size=(40_000, 20))
    np.save(tmp_path / "table.npy", table)
    mapped = np.load(tmp_path / "table.npy", mmap_mode="r")
    given = bl.sources.arrays(mapped[:, :-1], mapped[:, -1], 64).skip_to(0)
    plain = bl.sources.arrays(table[:, :-1].copy(), table[:, -1].copy(), 64).skip_to(0)
    next(given)
    tracemalloc.start()
    x, y = next(given)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 100_000
    next(plain)
    for found, wanted in zip((x, y), next(plain), strict=True):
        np.testing.assert_array_equal(found, wanted)
