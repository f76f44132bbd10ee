"""Data larger than memory: files read in blocks, shuffled by a rule, from any batch on.

    x = np.load("x.npy", mmap_mode="r")
    source = bl.sources.arrays(x, y, batch_size=1024, seed=0)
    posterior = bl.fit(model, bl.VOGN(), source, seed=0)

The order of the rows in an epoch is a function of `seed` and the epoch's number alone:

1. rows lie in blocks, of a 64th of the buffer each (for Parquet: the files' row groups);
2. every epoch permutes the blocks, and reads as many of them at a time, in that order, as fill the
   buffer (two at least);
3. the rows in the buffer are permuted, and batches cut from the rows so ordered. The last batch of
   an epoch has what is left, so that an epoch holds every row exactly once.

What fits in the buffer is shuffled perfectly; of more, each batch holds rows of the blocks that
were in the buffer with it. A permutation of n things orders n numbers of NumPy's `Philox`, whose
seed is `SeedSequence([seed, epoch, number])` with number 0 for the blocks and 1, 2, ... for the
buffers: these are the same in every version of NumPy. Any batch can be found without those before
it being read, so that a resumed run goes on at once.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bayeslearn import tree
from bayeslearn.errors import DataError, Shown, check_whole, refuse
from bayeslearn.tree import PyTree

AUTO_BATCH = 256
BUFFER_BYTES = 64 * 2**20
BLOCKS = 64  # in a buffer, where blocks can be chosen
SAMPLE_BYTES = 256e6  # read at most, for a sample

Rows = tuple[PyTree, np.ndarray]


class Source:
    """Batches (x, y) of rows that are read in blocks; a subclass says how, in `read`.

    `for x, y in source` is the first epoch. `fit` reads one epoch after the other, and knows
    `num_data`.

    Args:
        edges: where the blocks begin, and the number of rows: block b holds the rows edges[b] to
            edges[b + 1].
        row_bytes: of one row.
        batch_size: rows in a batch; "auto": 256, or all where there are fewer.
        seed: of the shuffling.
        shuffle: False: rows come in their order.
        buffer_bytes: of the rows that are shuffled among each other.
    """

    def __init__(
        self,
        edges: Sequence[int] | np.ndarray,
        row_bytes: float,
        batch_size: int | str = "auto",
        seed: int = 0,
        *,
        shuffle: bool = True,
        buffer_bytes: int = BUFFER_BYTES,
    ):
        self.edges = np.asarray(edges, np.int64)
        self.num_data = int(self.edges[-1])
        if batch_size == "auto":
            batch_size = min(AUTO_BATCH, self.num_data)
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("seed", seed, 0),
            ("buffer_bytes", buffer_bytes, 1),
        ):
            check_whole(name, value, least)
        if int(batch_size) > self.num_data:
            refuse("batch_size", batch_size, f"be at most the number of rows ({self.num_data})")
        self.batch_size, self.seed, self.shuffle = int(batch_size), int(seed), bool(shuffle)
        self._block_bytes = max(1.0, float(np.max(np.diff(self.edges))) * row_bytes)
        self._at_a_time = max(2, int(buffer_bytes / self._block_bytes))

    def read(self, blocks: Sequence[int]) -> Rows:
        """The rows (x, y) of some blocks, one block after the other."""
        raise NotImplementedError

    def window(self, blocks: Sequence[int]) -> tuple[Rows, np.ndarray]:
        """Arrays that hold the rows of some blocks, and where in them these are, in order."""
        rows = self.read(blocks)
        counts = [len(leaf) for leaf in jax.tree.leaves(rows)]
        if min(counts) != max(counts):
            raise DataError(f"{type(self).__name__}.read gave {counts} rows for the same blocks.")
        return rows, np.arange(counts[-1])

    def expect(self, blocks: Sequence[int]) -> None:
        """These will be read next: an occasion to have them fetched meanwhile."""

    def __len__(self) -> int:
        """Batches in an epoch."""
        return -(-self.num_data // self.batch_size)

    def __iter__(self) -> Iterator[Rows]:
        return self._epoch(0, 0)

    def skip_to(self, position: int) -> Generator[Rows, PyTree, None]:
        """Batches from number `position` on, counted over epochs, without end.

        Arrays sent to it (`.send(x)`) are where it puts the x of the next batch, if they are of
        its kind.
        """
        epoch, first = divmod(position, len(self))
        while True:
            yield from self._epoch(epoch, first)
            epoch, first = epoch + 1, 0

    def sample(self, most: int) -> Rows:
        """Up to `most` rows, evenly spaced in blocks that are evenly spaced themselves."""
        number = len(self.edges) - 1
        count = int(min(number, BLOCKS, max(1, SAMPLE_BYTES // self._block_bytes)))
        blocks = np.unique(np.linspace(0, number - 1, count).round().astype(int))
        ends = np.cumsum(np.diff(self.edges)[blocks])
        rows = np.unique(np.linspace(0, ends[-1] - 1, min(most, int(ends[-1]))).round().astype(int))
        found = []
        for block, end in zip(blocks, ends, strict=True):  # one at a time is in memory
            begin = end - (self.edges[block + 1] - self.edges[block])
            own = rows[(rows >= begin) & (rows < end)] - begin
            if len(own):
                found.append(_picked(self.read([block]), own))
        x, y = jax.tree.map(lambda *parts: np.concatenate(parts), *found)
        # Rows that are not finite spoil a batch, and not the whole.
        is_good = np.ones(len(y), bool)
        for leaf in jax.tree.leaves((x, y)):
            if leaf.dtype.kind == "f" and not tree.is_finite(leaf):
                is_good &= np.isfinite(leaf).reshape(len(y), -1).all(axis=1)
        return _picked((x, y), np.flatnonzero(is_good)) if is_good.any() else (x, y)

    @property
    def fingerprint(self) -> str:
        """What the order of the rows depends on."""
        told = (self.batch_size, self.seed, self.shuffle, self._at_a_time)
        return hashlib.sha256(repr(told).encode() + self.edges.tobytes()).hexdigest()

    def _permutation(self, size: int, *numbers: int) -> np.ndarray:
        if not self.shuffle:
            return np.arange(size)
        bits = np.random.Philox(np.random.SeedSequence([self.seed, *numbers])).random_raw(size)
        return np.argsort(bits, kind="stable")

    def _epoch(self, epoch: int, first: int) -> Generator[Rows, PyTree, None]:
        """One epoch's batches from number `first` on; buffers before it are not read."""
        order = self._permutation(len(self.edges) - 1, epoch, 0)
        sizes = np.diff(self.edges)
        skipped = first * self.batch_size
        left = self.num_data - skipped
        room, filled = None, 0  # of the batch under way
        into: PyTree = None
        for number, start in enumerate(range(0, len(order), self._at_a_time), start=1):
            blocks = np.sort(order[start : start + self._at_a_time])
            size = int(np.sum(sizes[blocks]))
            if skipped >= size:
                skipped -= size
                continue
            rows = self._permutation(size, epoch, number)[skipped:]
            skipped = 0
            buffer, places = self.window([int(block) for block in blocks])
            buffer = jax.tree.map(np.asarray, buffer)
            self.expect(np.sort(order[start + self._at_a_time :][: self._at_a_time]).tolist())
            while len(rows):
                batch_size = min(self.batch_size, left)
                if room is None:
                    room = _room(buffer, batch_size, into)
                chosen = places[rows[: batch_size - filled]]
                room = jax.tree.map(partial(_put, chosen, filled), room, buffer)
                filled += len(chosen)
                rows = rows[len(chosen) :]
                if filled == batch_size:
                    left -= filled
                    into = yield room
                    room, filled = None, 0
            del buffer  # before the next is read


def _room(rows: Rows, size: int, into: PyTree) -> Rows:
    """Arrays for so many rows; `into` for x, where it is like these."""
    x, y = jax.tree.map(lambda leaf: np.empty((size, *leaf.shape[1:]), leaf.dtype), rows)
    given = jax.tree.map(lambda leaf: leaf[:size], into)
    if _kinds(given) == _kinds(x):
        x = given
    return x, y


def _kinds(x: PyTree) -> Any:
    return jax.tree.structure(x), [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(x)]


def _put(which: np.ndarray, start: int, room: np.ndarray, leaf: np.ndarray) -> np.ndarray:
    """Rows of an array into a room from `start` on: the room, or one of a type that holds both."""
    if leaf.dtype != room.dtype:
        room = room.astype(np.promote_types(room.dtype, leaf.dtype))
    part = room[start : start + len(which)]
    if leaf.dtype == room.dtype and leaf.flags.c_contiguous and leaf.flags.aligned:
        np.take(leaf, which, axis=0, out=part, mode="clip")  # to raise, it would fill a copy
    else:  # of which `take` would copy the whole
        part[...] = leaf[which]
    return room


def _picked(rows: Rows, which: np.ndarray) -> Rows:
    return jax.tree.map(lambda leaf: np.asarray(leaf)[which], rows)


def _joined(parts: list[Rows]) -> Rows:
    if len(parts) == 1:
        return parts[0]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


class _Arrays(Source):
    def __init__(self, x: PyTree, y: Any, batch_size: Any, seed: int, shuffle: bool, buffer: int):
        self._arrays = (x, y)
        named = tree.leaf_names(x)
        names = [f"x.{name}" if len(named) > 1 else "x" for name in named]
        leaves = dict(zip([*names, "y"], jax.tree.leaves((x, y)), strict=True))
        for name, leaf in leaves.items():
            if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype") and len(leaf.shape)):
                must = "be an array, or like one (with shape, dtype and slices)"
                refuse(name, Shown(f"a {type(leaf).__name__}"), must)
        rows = int(leaves["y"].shape[0])
        for name, leaf in leaves.items():
            if leaf.shape[0] != rows or not rows:
                refuse(name, Shown(f"{leaf.shape[0]} rows"), f"have as many rows as y ({rows})")
        row_bytes = sum(
            int(np.prod(leaf.shape[1:])) * np.dtype(leaf.dtype).itemsize for leaf in leaves.values()
        )
        check_whole("buffer_bytes", buffer, least=1)
        block = max(1, int(buffer / BLOCKS / max(1, row_bytes)))
        chunks = [c[0] for leaf in leaves.values() if (c := getattr(leaf, "chunks", None))]
        if chunks:  # h5py, zarr: whole chunks are read
            block = -(-block // max(chunks)) * max(chunks)
        edges = np.append(np.arange(0, rows, block), rows)
        super().__init__(edges, row_bytes, batch_size, seed, shuffle=shuffle, buffer_bytes=buffer)

    def expect(self, blocks: Sequence[int]) -> None:
        for leaf in jax.tree.leaves(self._arrays):
            # A map as a whole: of a part of one it is not known where in the file it begins.
            if not isinstance(leaf, np.memmap) or not isinstance(leaf.base, mmap.mmap):
                continue
            if not leaf.flags.c_contiguous or not hasattr(leaf.base, "madvise"):
                continue
            begin = leaf.offset % mmap.ALLOCATIONGRANULARITY
            row = leaf.nbytes // len(leaf)
            for block in blocks:
                start = begin + int(self.edges[block]) * row
                stop = begin + int(self.edges[block + 1]) * row
                start -= start % mmap.PAGESIZE
                leaf.base.madvise(mmap.MADV_WILLNEED, start, stop - start)

    def window(self, blocks: Sequence[int]) -> tuple[Rows, np.ndarray]:
        if not all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(self._arrays)):
            return super().window(blocks)
        self.expect(blocks)  # in memory or mapped: rows are picked where they lie
        places = [np.arange(self.edges[block], self.edges[block + 1]) for block in blocks]
        return self._arrays, np.concatenate(places)

    def read(self, blocks: Sequence[int]) -> Rows:
        self.expect(blocks)

        def rows(leaf: Any) -> np.ndarray:
            parts = [leaf[self.edges[b] : self.edges[b + 1]] for b in blocks]
            return np.concatenate([np.asarray(part) for part in parts])

        return jax.tree.map(rows, self._arrays)


def arrays(
    x: PyTree,
    y: Any,
    batch_size: int | str = "auto",
    seed: int = 0,
    *,
    shuffle: bool = True,
    buffer_bytes: int = BUFFER_BYTES,
) -> Source:
    """Batches of arrays that stay where they are: NumPy's memory maps, h5py, zarr and the like.

    Args:
        x: anything with `shape`, `dtype` and slices `x[a:b]` along its first axis; or a pytree
            (a dictionary, say) of such.
        y: likewise, with as many rows.
        batch_size: rows in a batch; "auto": 256, or all where there are fewer.
        seed: of the shuffling.
        shuffle: False: rows come in their order.
        buffer_bytes: memory for the rows that are shuffled among each other.
    """
    return _Arrays(x, y, batch_size, seed, shuffle, buffer_bytes)


class _Parquet(Source):
    def __init__(
        self,
        files: list[Path],
        target: str | list[str],
        columns: list[str],
        metadata: list[Any],
        **options: Any,
    ):
        self._files, self._target, self._columns = files, target, columns
        self._where = [
            (f, g) for f, meta in enumerate(metadata) for g in range(meta.num_row_groups)
        ]
        sizes = [metadata[f].row_group(g).num_rows for f, g in self._where]
        # Empty row groups hold nothing to shuffle.
        self._where = [place for place, size in zip(self._where, sizes, strict=True) if size]
        edges = np.cumsum([0, *(size for size in sizes if size)])
        width = len(columns) + (1 if isinstance(target, str) else len(target))
        super().__init__(edges, 8.0 * width, **options)

    def read(self, blocks: Sequence[int]) -> Rows:
        tables = [self._read_one(*self._where[block]) for block in blocks]
        return _joined(tables)

    def _read_one(self, file: int, group: int) -> Rows:
        import pyarrow.parquet as pq

        wanted = [self._target] if isinstance(self._target, str) else self._target
        with pq.ParquetFile(self._files[file]) as opened:
            table = opened.read_row_group(group, columns=[*self._columns, *wanted])

        def column(name: str) -> np.ndarray:
            values = table.column(name)
            if values.null_count:
                raise DataError(
                    f"{self._files[file]} has {values.null_count} missing value(s) in the column"
                    f" {name!r} of row group {group}. Drop or fill those rows."
                )
            return values.to_numpy()

        x = np.stack([column(name) for name in self._columns], axis=1)
        if isinstance(self._target, str):
            return x, column(self._target)
        return x, np.stack([column(name) for name in self._target], axis=1)


def parquet(
    path: str | os.PathLike[str],
    target: str | Sequence[str],
    columns: Sequence[str] | None = None,
    batch_size: int | str = "auto",
    seed: int = 0,
    *,
    shuffle: bool = True,
    buffer_bytes: int = BUFFER_BYTES,
) -> Source:
    """Batches of a Parquet file, or of all in a folder, through PyArrow.

    A row group is a block of the shuffling, and two at least are in memory: write files with row
    groups that are small beside it (`row_group_size=`).

    Args:
        path: a file; or a folder, whose `.parquet` files (also in folders inside) are read in
            alphabetical order.
        target: the column that is y, or several.
        columns: the columns of numbers that are x; all but the target unless said.
        batch_size: rows in a batch; "auto": 256, or all where there are fewer.
        seed: of the shuffling.
        shuffle: False: rows come in their order.
        buffer_bytes: memory for the rows that are shuffled among each other.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:  # pragma: no cover
        raise ImportError("Parquet needs PyArrow: pip install 'bayeslearn[parquet]'") from error

    place = Path(path)
    files = sorted(place.rglob("*.parquet")) if place.is_dir() else [place]
    if not files:
        refuse("path", str(place), "hold .parquet files")
    targets = [target] if isinstance(target, str) else list(target)
    metadata = []
    for file in files:
        try:
            with pq.ParquetFile(file) as opened:
                metadata.append(opened.metadata)
                schema = opened.schema_arrow
        except (OSError, pa.ArrowInvalid) as error:
            refuse("path", str(file), "be a Parquet file", str(error).splitlines()[0])
        if columns is None:  # the first file's, for all
            columns = [name for name in schema.names if name not in targets]
        for argument, names in (("target", targets), ("columns", columns)):
            for name in names:
                if name not in schema.names:
                    refuse(argument, name, f"be among the columns of {file}")
                kind = schema.field(name).type
                if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)) and (
                    not pa.types.is_boolean(kind)
                ):
                    what = Shown(f"{name!r}, which is {kind} in {file}")
                    refuse(argument, what, "hold numbers", "Encode text columns as numbers first.")
    for argument, names in (("target", targets), ("columns", columns or ())):
        if not len(names):
            refuse(argument, names, "name at least one column")
    if not sum(meta.num_rows for meta in metadata):
        refuse("path", str(place), "hold at least one row")
    return _Parquet(
        files,
        target if isinstance(target, str) else targets,
        list(columns or ()),
        metadata,
        batch_size=batch_size,
        seed=seed,
        shuffle=shuffle,
        buffer_bytes=buffer_bytes,
    )
