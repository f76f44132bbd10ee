"""Rows read in blocks and shuffled by a rule, from any batch on.

The order of the rows in an epoch is a function of `seed` and the epoch's number alone:

1. rows lie in blocks, of a 64th of the buffer each (for Parquet: the files' row groups);
2. every epoch permutes the blocks, and reads as many of them at a time, in that order, as fill the
   buffer (two at least);
3. the rows in the buffer are permuted, and batches cut from the rows so ordered. The last batch of
   an epoch has the remaining rows, so that an epoch holds every row exactly once.

Data that fit in the buffer are shuffled perfectly; otherwise each batch holds rows of the blocks
that were in the buffer with it. A permutation of n things orders n numbers of NumPy's `Philox`,
whose seed is `SeedSequence([seed, epoch, number])` with number 0 for the blocks and 1, 2, ... for
the buffers: these are the same in every version of NumPy. Any batch can be found without reading
those before it, so that a resumed run starts at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from bayeslearn import tree
from bayeslearn.errors import DataError, check_whole, refuse
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
        rule = (self.batch_size, self.seed, self.shuffle, self._at_a_time)
        return hashlib.sha256(repr(rule).encode() + self.edges.tobytes()).hexdigest()

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


def concatenate(parts: list[Rows]) -> Rows:
    """Rows of several blocks as one."""
    if len(parts) == 1:
        return parts[0]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
