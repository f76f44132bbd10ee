"""Runs on batches: from sources and other people's loaders, read ahead of the steps."""

from __future__ import annotations

import itertools
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from interruption import Killed, assert_same, kill_after

import bayeslearn as bl
from bayeslearn.data import host_memory, memory_maps, streams
from bayeslearn.errors import ArgumentError, DataError

ROWS, BATCH = 60, 8
RUN = {"seed": 0, "num_steps": 60, "options": bl.FitOptions(eval_every=20)}
COUNTED = RUN | {"options": bl.FitOptions(eval_every=20, num_data=ROWS)}


@pytest.fixture(scope="module")
def problem():
    return problems.regression()


def source_of(problem, **options):
    """Blocks of two rows, four of them in the buffer."""
    options = {"batch_size": BATCH, "seed": 3, "buffer_bytes": 4 * 2 * 40, **options}
    return bl.sources.arrays(problem.x, problem.y, **options)


@pytest.fixture(scope="module")
def whole(problem):
    return bl.fit(problem.model, "map", source_of(problem), **RUN)


def readers():
    return [t for t in threading.enumerate() if t.name == "bayeslearn batches"]


# Sources


@pytest.mark.parametrize("is_kept", [True, False])
def test_memory_is_used_again_but_not_while_it_is_read(is_kept, monkeypatch):
    """Batches of 30 calls that are kept; or that computations under way are the last to need."""
    x = np.random.default_rng(0).normal(size=(5000, 64)).astype(np.float32)
    source = bl.sources.arrays(x, x[:, 0], 500, buffer_bytes=x.nbytes)
    model = bl.Model(bl.networks.MLP([2]), bl.likelihoods.Gaussian(noise_scale=1.0))
    stream = streams.Stream(source)
    target, _ = model.bind(stream.first(100), jax.random.key(0), num_data=5000)
    made, empty = 0, np.empty

    def count(shape, dtype=float):
        nonlocal made
        made += shape == 2 * 500 * 64 * 4 + host_memory.ALIGNMENT
        return empty(shape, dtype)

    monkeypatch.setattr(np, "empty", count)

    @jax.jit
    def late(leaf):
        slow = jax.lax.fori_loop(0, 30, lambda i, a: jnp.tanh(a @ a.T @ a), leaf[0])
        return leaf + 0 * slow[0, 0]

    found = []
    for number in range(30):
        batch, _ = stream.chunk(target, [2, 2], 2)
        found.append(batch.x if is_kept else late(batch.x))
        del batch
        if not is_kept and number % 10 == 9:
            jax.block_until_ready(found)
    stream.close()
    wanted = np.stack([one for one, _ in itertools.islice(source.skip_to(0), 60)])
    np.testing.assert_array_equal(np.concatenate(found), wanted)
    assert made == 31 if is_kept else made < 20  # with the one that is read ahead


def test_a_run_on_a_source_is_one_on_its_batches(problem, whole):
    """Of an epoch in file order, as a list of them; the bound is measured on all rows of both."""
    listed = list(itertools.islice(source_of(problem).skip_to(0), 60))
    same = bl.fit(problem.model, "map", iter(listed), **COUNTED)
    np.testing.assert_array_equal(same.trace["log_joint"], whole.trace["log_joint"])
    assert whole.target.data.y.shape == (ROWS, 1)
    assert same.target.data.y.shape == (BATCH, 1)
    assert float(whole.target.num_data) == ROWS
    assert not whole.notes
    assert not readers()


@pytest.mark.parametrize("occasions", [2, 5])
def test_a_source_resumes_to_the_same_bits_without_reading_again(
    problem, whole, tmp_path, monkeypatch, occasions
):
    kill_after(occasions, monkeypatch)
    with pytest.raises(Killed):
        bl.fit(
            problem.model,
            "map",
            source_of(problem),
            checkpoint=bl.Checkpoint(tmp_path, every=10),
            **RUN,
        )
    monkeypatch.undo()
    source = source_of(problem)
    original, positions = source.skip_to, []
    source.skip_to = lambda position: positions.append(position) or original(position)
    assert_same(whole, bl.resume(tmp_path, source))
    assert positions == [0, 10 * (occasions - 1)]
    assert not readers()


def test_another_source_is_refused(problem, tmp_path, monkeypatch):
    kill_after(3, monkeypatch)
    with pytest.raises(Killed):
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


def test_nonfinite_batches_of_a_source_are_counted_across_a_resume(problem, tmp_path, monkeypatch):
    x = problem.x.copy()
    x[[5, 33]] = np.nan
    damaged = problem._replace(x=x)
    whole = bl.fit(problem.model, "map", source_of(damaged), **RUN)
    assert "batches held NaN" in whole.notes[0]
    kill_after(4, monkeypatch)
    options = {"checkpoint": bl.Checkpoint(tmp_path, every=10), **RUN}
    with pytest.raises(Killed):
        bl.fit(problem.model, "map", source_of(damaged), **options)
    monkeypatch.undo()
    assert_same(whole, bl.resume(tmp_path, source_of(damaged)))


def test_a_large_memory_map_is_read_in_batches(problem, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(memory_maps, "MAPPED_BYTES", problem.x.nbytes)
    np.save(tmp_path / "x.npy", problem.x)
    data = (np.load(tmp_path / "x.npy", mmap_mode="r"), problem.y)
    options = {"batch_size": BATCH, **RUN}
    mapped = bl.fit(problem.model, "map", data, **options)
    assert mapped.notes[0].startswith("The memory map was not copied but read in batches of 8 rows")
    source = bl.sources.arrays(problem.x, problem.y, BATCH, RUN["seed"])
    direct = bl.fit(problem.model, "map", source, **RUN)
    np.testing.assert_array_equal(mapped.trace["log_joint"], direct.trace["log_joint"])
    kill_after(3, monkeypatch)
    with pytest.raises(Killed):
        bl.fit(
            problem.model,
            "map",
            data,
            checkpoint=bl.Checkpoint(tmp_path / "run", every=10),
            **options,
        )
    kill_after(10**9, monkeypatch)
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
    return bl.fit(problem.model, "map", parts, **COUNTED)


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


def test_the_loader_of_pytorch(problem, listed):
    torch = pytest.importorskip("torch")
    rows = torch.utils.data.TensorDataset(torch.tensor(problem.x), torch.tensor(problem.y))
    loader = torch.utils.data.DataLoader(rows, batch_size=BATCH)
    posterior = bl.fit(problem.model, "map", loader, **RUN)
    np.testing.assert_array_equal(posterior.trace["log_joint"], listed.trace["log_joint"])


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
    posterior = bl.fit(
        problem.model, "map", watched, callback=lambda event: ahead.append(watched.given), **COUNTED
    )
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

    def wait(event):
        began = time.monotonic()
        while watched.given < min(60, event.step + 40) and time.monotonic() - began < 20:
            time.sleep(0.001)
        found.append(watched.given)

    bl.fit(problem.model, "map", watched, callback=wait, **COUNTED)
    assert found == [60, 60, 60]


@pytest.mark.parametrize("chunk_size", [7, None])
def test_what_the_iterator_raises_comes_after_the_steps_before_it(
    problem, parts, listed, tmp_path, chunk_size
):
    fault = ZeroDivisionError("mine")
    chunks = bl.FitOptions(eval_every=20, num_data=ROWS, chunk_size=chunk_size)
    with pytest.raises(ZeroDivisionError, match="mine"):
        bl.fit(
            problem.model,
            "map",
            Watched(parts, (33, fault)),
            checkpoint=bl.Checkpoint(tmp_path / "run", every="1h"),
            **RUN | {"options": chunks},
        )
    assert not readers()
    calls = []
    again = bl.resume(tmp_path / "run", Watched(parts), callback=calls.append)
    assert [event.step for event in calls] == [40, 60]
    for name in listed.trace:
        np.testing.assert_array_equal(again.trace[name], listed.trace[name])


def test_an_interrupt_ends_the_thread(problem, parts):
    def throw(event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bl.fit(
            problem.model,
            "map",
            Watched(parts),
            callback=throw,
            **COUNTED,
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
    for bad, message in (
        ((x[:, :3], y), r"rows of shape \(3,\), not \(4,\)"),
        ((x[:7], y), "a batch of 7 inputs and 8 observations"),
        ((np.ones((9, 4)), np.ones(9)), "at most 8 rows, as the first"),
        (x, "not a pair"),
    ):
        with pytest.raises(DataError, match=message):
            bl.fit(problem.model, "map", iter([parts[0], bad]), **COUNTED)
    with pytest.raises(DataError, match="numbers of type float64, and int64 in the first batch"):
        bl.fit(problem.model, "map", [counts, parts[0]], **COUNTED)


def test_chunks_of_large_batches_are_short(problem):
    rows = 10_000
    target, _ = problem.model.bind((np.ones((rows, 4)), np.ones(rows)), jax.random.key(0))
    stream = streams.Stream([])
    assert stream.length(target) == 20
    stream.batch_size = 400_000  # 16 MB
    assert stream.length(target) == 6
    assert streams.planned_counts(0, 50, 50, 50, most=6) == [
        6,
        6,
    ]  # the others fill two calls ahead
    assert streams.planned_counts(0, 90, 90, 90, most=20) == [20, 20, 20]
    stream.batch_size = 10**9
    assert stream.length(target) == 1
    stream.close()
