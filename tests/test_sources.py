"""Data that do not fit: where batches come from, in which order, and ahead of the steps."""

from __future__ import annotations

import itertools
import threading
import time
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from test_checkpoints import Cut, assert_same, cut_after

import bayeslearn as bl
from bayeslearn.data import streams
from bayeslearn.errors import ArgumentError, DataError

ROWS, BATCH = 60, 8
RUN = {"seed": 0, "num_steps": 60, "options": bl.FitOptions(eval_every=20)}


@pytest.fixture(scope="module")
def problem():
    return problems.regression()


def source_of(problem, **options):
    """Blocks of two rows, four of them in the buffer."""
    options = {"batch_size": BATCH, "seed": 3, "buffer_bytes": 4 * 2 * 40, **options}
    source = bl.sources.arrays(problem.x, problem.y, **options)
    return source


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(bl.sources, "BLOCKS", 4)


@pytest.fixture(scope="module")
def whole(problem):
    return bl.fit(problem.model, "map", source_of(problem), **RUN)


def epoch(source, number):
    return list(itertools.islice(source.skip_to(number * len(source)), len(source)))


def readers():
    return [t for t in threading.enumerate() if t.name == "bayeslearn batches"]


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


def test_a_sample_is_spread_over_all_rows(small):
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
    for options, told in (
        ({"target": "z"}, "`target` must be among the columns of .*got 'z'"),
        ({"target": "y"}, "`columns` must hold numbers, got 'name', which is string"),
        ({"target": "y", "columns": []}, "`columns` must name at least one column"),
        ({"target": "y", "columns": ["one"], "batch_size": 101}, "`batch_size` must be at most"),
    ):
        with pytest.raises(ArgumentError, match=told):
            bl.sources.parquet(folder, **options)
    with pytest.raises(ArgumentError, match=r"`path` must hold \.parquet files"):
        bl.sources.parquet(tmp_path, "y")
    with pytest.raises(ArgumentError, match="`path` must be a Parquet file"):
        bl.sources.parquet(tmp_path / "nothing", "y")
    with pytest.raises(DataError, match=r"1 missing value.* column 'one' of row group 0"):
        list(bl.sources.parquet(folder / "gaps.txt", "y", batch_size=1))


def test_what_arrays_refuse():
    x, y = np.zeros((5, 2)), np.zeros(5)
    for given, told in (
        ((x, y[:4]), "`x` must have as many rows as y"),
        (({"a": x, "b": [1.0]}, y), "`x.b.0` must be an array"),
        ((x, y, 6), "`batch_size` must be at most the number of rows"),
        ((x, y, 0), "`batch_size` must be a whole number"),
        ((x, y, 2, -1), "`seed` must be a whole number"),
    ):
        with pytest.raises(ArgumentError, match=told):
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


# In a run


@pytest.mark.parametrize("held", [True, False])
def test_memory_is_used_again_but_not_while_it_is_read(held, monkeypatch):
    """Batches of 30 calls that are kept; or that computations under way are the last to need."""
    x = np.random.default_rng(0).normal(size=(5000, 64)).astype(np.float32)
    source = bl.sources.arrays(x, x[:, 0], 500, buffer_bytes=x.nbytes)
    model = bl.Model(bl.networks.MLP([2]), bl.likelihoods.Gaussian(noise_scale=1.0))
    stream = streams.Stream(source)
    target, _ = model.bind(stream.first(100), jax.random.key(0), num_data=5000)
    made, empty = 0, np.empty

    def count(shape, dtype=float):
        nonlocal made
        made += shape == 2 * 500 * 64 * 4 + streams.ALIGNMENT
        return empty(shape, dtype)

    monkeypatch.setattr(np, "empty", count)

    @jax.jit
    def late(leaf):
        slow = jax.lax.fori_loop(0, 30, lambda i, a: jnp.tanh(a @ a.T @ a), leaf[0])
        return leaf + 0 * slow[0, 0]

    found = []
    for number in range(30):
        batch, _ = stream.chunk(target, [2, 2], 2)
        found.append(batch.x if held else late(batch.x))
        del batch
        if not held and number % 10 == 9:
            jax.block_until_ready(found)
    stream.close()
    wanted = np.stack([one for one, _ in itertools.islice(source.skip_to(0), 60)])
    np.testing.assert_array_equal(np.concatenate(found), wanted)
    assert made == 31 if held else made < 20  # with the one that is read ahead


def test_a_run_on_a_source_is_one_on_its_batches(problem, whole):
    """Of an epoch in file order, as a list of them; the bound is measured on all rows of both."""
    listed = list(itertools.islice(source_of(problem).skip_to(0), 60))
    same = bl.fit(problem.model, "map", iter(listed), **RUN, options=bl.FitOptions(num_data=ROWS))
    np.testing.assert_array_equal(same.trace["log_joint"], whole.trace["log_joint"])
    assert whole.target.data.y.shape == (ROWS, 1)
    assert same.target.data.y.shape == (BATCH, 1)
    assert float(whole.target.num_data) == ROWS
    assert not whole.notes
    assert not readers()


@pytest.mark.parametrize("looks", [2, 5])
def test_a_source_resumes_to_the_same_bits_without_reading_again(
    problem, whole, tmp_path, monkeypatch, looks
):
    cut_after(looks, monkeypatch)
    with pytest.raises(Cut):
        bl.fit(
            problem.model,
            "map",
            source_of(problem),
            checkpoint=bl.Checkpoint(tmp_path, every=10),
            **RUN,
        )
    monkeypatch.undo()
    source = source_of(problem)
    original, asked = source.skip_to, []
    source.skip_to = lambda position: asked.append(position) or original(position)
    assert_same(whole, bl.resume(tmp_path, source))
    assert asked == [0, 10 * (looks - 1)]
    assert not readers()


def test_another_source_is_refused(problem, tmp_path, monkeypatch):
    cut_after(3, monkeypatch)
    with pytest.raises(Cut):
        bl.fit(
            problem.model,
            "map",
            source_of(problem),
            checkpoint=bl.Checkpoint(tmp_path, every=10),
            **RUN,
        )
    monkeypatch.undo()
    with pytest.raises(DataError, match="orders its rows in another way"):
        bl.resume(tmp_path, source_of(problem, seed=4))
    other = bl.sources.arrays(problem.x + 1, problem.y, BATCH, 3, buffer_bytes=320)
    with pytest.raises(ArgumentError, match="`data` must be that of the first run"):
        bl.resume(tmp_path, other)


def test_spoiled_batches_of_a_source_are_counted_across_a_resume(problem, tmp_path, monkeypatch):
    x = problem.x.copy()
    x[[5, 33]] = np.nan
    spoiled = problem._replace(x=x)
    whole = bl.fit(problem.model, "map", source_of(spoiled), **RUN)
    assert "batches held NaN" in whole.notes[0]
    cut_after(4, monkeypatch)
    options = {"checkpoint": bl.Checkpoint(tmp_path, every=10), **RUN}
    with pytest.raises(Cut):
        bl.fit(problem.model, "map", source_of(spoiled), **options)
    monkeypatch.undo()
    assert_same(whole, bl.resume(tmp_path, source_of(spoiled)))


def test_a_large_memory_map_is_read_in_batches(problem, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "MAPPED_BYTES", problem.x.nbytes)
    np.save(tmp_path / "x.npy", problem.x)
    data = (np.load(tmp_path / "x.npy", mmap_mode="r"), problem.y)
    options = {"batch_size": BATCH, **RUN}
    mapped = bl.fit(problem.model, "map", data, **options)
    assert mapped.notes[0].startswith("The memory map was not copied but read in batches of 8 rows")
    source = bl.sources.arrays(problem.x, problem.y, BATCH, RUN["seed"])
    direct = bl.fit(problem.model, "map", source, **RUN)
    np.testing.assert_array_equal(mapped.trace["log_joint"], direct.trace["log_joint"])
    cut_after(3, monkeypatch)
    with pytest.raises(Cut):
        bl.fit(
            problem.model,
            "map",
            data,
            checkpoint=bl.Checkpoint(tmp_path / "run", every=10),
            **options,
        )
    cut_after(10**9, monkeypatch)
    assert_same(mapped, bl.resume(tmp_path / "run", data))
    with pytest.raises(ArgumentError, match="`batch_size` must be at most the number of rows"):
        bl.fit(problem.model, "map", data, **{**options, "batch_size": 61})
    # Who needs all rows still gets them.
    laplace = bl.fit(problem.model, "laplace", data, seed=0, num_steps=20)
    assert len(laplace.target.data.y) == ROWS
    assert not laplace.notes


# Other people's loaders


class Tensor:
    """As PyTorch's: no NumPy array, but it can become one."""

    def __init__(self, values, how):
        self.values = values
        if how == "array":
            self.__class__ = ArrayTensor

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()

    def __len__(self):
        return len(self.values)


class ArrayTensor(Tensor):
    def __array__(self, dtype=None, copy=None):
        return self.values


class Loader:
    """As PyTorch's DataLoader: readable again, lists of tensors, its data set has a length."""

    def __init__(self, parts, how="array"):
        self.parts, self.how = parts, how
        self.dataset = range(sum(len(y) for _, y in parts))

    def __iter__(self):
        for part in self.parts:
            yield [Tensor(leaf, self.how) for leaf in part]


class Dataset:
    """As a tf.data.Dataset."""

    def __init__(self, parts):
        self.parts = parts

    def __iter__(self):
        raise AssertionError("as_numpy_iterator is there")

    def as_numpy_iterator(self):
        return iter(self.parts)


@pytest.fixture(scope="module")
def parts(problem):
    return [(problem.x[i : i + BATCH], problem.y[i : i + BATCH]) for i in range(0, ROWS, BATCH)]


@pytest.fixture(scope="module")
def listed(problem, parts):
    return bl.fit(problem.model, "map", parts, **RUN, options=bl.FitOptions(num_data=ROWS))


@pytest.mark.parametrize("make", [Loader, lambda p: Loader(p, "dlpack"), Dataset, list])
def test_loaders_are_their_batches(problem, parts, listed, make):
    data = make(parts)
    posterior = bl.fit(problem.model, "map", data, **RUN)
    np.testing.assert_array_equal(posterior.trace["log_joint"], listed.trace["log_joint"])
    assert float(posterior.target.num_data) == ROWS
    counted = ("num_data was counted in a pass over the data: 60 rows.",)
    assert posterior.notes == (() if isinstance(data, Loader) else counted)


def test_counting_does_not_go_on_for_ever(problem, parts, monkeypatch):
    class Endless:
        def __iter__(self):
            return itertools.cycle(parts)

    monkeypatch.setattr(streams, "MOST_SECONDS", 0.05)
    with pytest.raises(ArgumentError, match="`num_data` must be given where counting takes long"):
        bl.fit(problem.model, "map", Endless(), **RUN)


@pytest.mark.slow
def test_the_loader_of_pytorch(problem, listed):
    torch = pytest.importorskip("torch")
    rows = torch.utils.data.TensorDataset(torch.tensor(problem.x), torch.tensor(problem.y))
    loader = torch.utils.data.DataLoader(rows, batch_size=BATCH)
    posterior = bl.fit(problem.model, "map", loader, **RUN)
    np.testing.assert_array_equal(posterior.trace["log_joint"], listed.trace["log_joint"])


@pytest.mark.slow
def test_grain(problem, listed):
    grain = pytest.importorskip("grain")
    rows = list(zip(problem.x, problem.y, strict=True))
    data = grain.MapDataset.source(rows).batch(BATCH).to_iter_dataset()
    posterior = bl.fit(problem.model, "map", data, **RUN)
    np.testing.assert_array_equal(posterior.trace["log_joint"], listed.trace["log_joint"])


# Reading ahead


class Watched:
    """Batches without end, and who asked for them."""

    def __init__(self, parts, fault=None):
        self.parts, self.fault, self.given, self.threads = parts, fault, 0, set()

    def __iter__(self):
        self.threads.add(threading.get_ident())
        for part in itertools.cycle(self.parts):
            self.threads.add(threading.get_ident())
            if self.fault is not None and self.given == self.fault[0]:
                raise self.fault[1]
            self.given += 1
            yield part


def test_one_thread_reads_ahead_but_no_more_than_is_needed(problem, parts, listed):
    watched = Watched(parts)
    ahead = []
    options = {**RUN, "num_data": ROWS, "callback": lambda told: ahead.append(watched.given)}
    posterior = bl.fit(problem.model, "map", watched, **options)
    np.testing.assert_array_equal(posterior.trace["log_joint"], listed.trace["log_joint"])
    assert len(watched.threads) == 1
    assert watched.threads != {threading.get_ident()}
    assert watched.given == 60
    assert all(given >= 20 * k for k, given in enumerate(ahead, start=1))
    assert not readers()


def test_batches_are_read_while_steps_are_taken(problem, parts):
    """The callback holds the main thread until the reader has come further by itself."""
    watched = Watched(parts)
    found = []

    def wait(told):
        began = time.monotonic()
        while watched.given < min(60, told.step + 40) and time.monotonic() - began < 20:
            time.sleep(0.001)
        found.append(watched.given)

    bl.fit(
        problem.model, "map", watched, callback=wait, **RUN, options=bl.FitOptions(num_data=ROWS)
    )
    assert found == [60, 60, 60]


@pytest.mark.parametrize("chunk_size", [7, None])
def test_what_the_iterator_raises_comes_after_the_steps_before_it(
    problem, parts, listed, tmp_path, chunk_size
):
    fault = ZeroDivisionError("mine")
    options = {**RUN, "num_data": ROWS, "chunk_size": chunk_size}
    with pytest.raises(ZeroDivisionError, match="mine"):
        bl.fit(
            problem.model,
            "map",
            Watched(parts, (33, fault)),
            checkpoint=bl.Checkpoint(tmp_path / "run", every="1h"),
            **options,
        )
    assert not readers()
    calls = []
    again = bl.resume(tmp_path / "run", Watched(parts), callback=lambda told: calls.append(told))
    assert [told.step for told in calls] == [40, 60]
    for name in listed.trace:
        np.testing.assert_array_equal(again.trace[name], listed.trace[name])


def test_an_interrupt_ends_the_thread(problem, parts):
    def throw(told):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bl.fit(
            problem.model,
            "map",
            Watched(parts),
            callback=throw,
            **RUN,
            options=bl.FitOptions(num_data=ROWS),
        )
    assert not readers()


def test_steps_back_use_the_batches_that_were_read(problem):
    """Other counts than were foreseen: nothing is lost, nothing comes twice."""
    rows = [(problem.x[[i]], problem.y[[i]]) for i in range(ROWS)]
    target, _ = problem.model.bind((problem.x[:1], problem.y[:1]), jax.random.key(0))
    stream = streams.Stream(iter(rows))
    stream.first(1)
    seen = []
    with jax.enable_x64(True):
        length = stream.length(target)
        for counts in ([10, 10, 10], [7, 10, 10], [20, 5, 5], [5, 20, 1], [3, 3], [20]):
            chunk, count = stream.chunk(target, counts, length)
            assert chunk.y.shape == (length, 1, 1)
            seen.extend(np.asarray(chunk.y[:count, 0, 0]))
            assert stream.position.served == len(seen)
        assert count == 60 - 45
        assert stream.chunk(target, [20], length) == (None, 0)
    stream.close()
    np.testing.assert_array_equal(seen, problem.y)


def test_batches_that_change_are_refused(problem, parts):
    x, y = parts[0]
    counts = (np.ones((BATCH, 4), int), y)
    for bad, told in (
        ((x[:, :3], y), r"rows of shape \(3,\), not \(4,\)"),
        ((x[:7], y), "a batch of 7 inputs and 8 observations"),
        ((np.ones((9, 4)), np.ones(9)), "at most 8 rows, as the first"),
        (x, "not a pair"),
    ):
        with pytest.raises(DataError, match=told):
            bl.fit(
                problem.model, "map", [parts[0], bad], **RUN, options=bl.FitOptions(num_data=ROWS)
            )
    with pytest.raises(DataError, match="numbers of type float64, and int64 in the first batch"):
        bl.fit(
            problem.model, "map", [counts, parts[0]], **RUN, options=bl.FitOptions(num_data=ROWS)
        )


def test_chunks_of_large_batches_are_short(problem):
    rows = 10_000
    target, _ = problem.model.bind((np.ones((rows, 4)), np.ones(rows)), jax.random.key(0))
    stream = streams.Stream([])
    assert stream.length(target) == 20
    stream.batch_size = 400_000  # 16 MB
    assert stream.length(target) == 6
    assert streams.coming(0, 50, 50, 50, most=6) == [6, 6]  # the others fill two calls ahead
    assert streams.coming(0, 90, 90, 90, most=20) == [20, 20, 20]
    stream.batch_size = 10**9
    assert stream.length(target) == 1
    stream.close()
