"""Batches from an iterable, read ahead on a thread."""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import tree
from bayeslearn.data.host_memory import aligned_empty
from bayeslearn.data.rows import Batch, check_inputs
from bayeslearn.data.sources.base import Source
from bayeslearn.data.worker import Worker
from bayeslearn.errors import ArgumentError, DataError, Shown, refuse
from bayeslearn.models.target import Target
from bayeslearn.tree import PyTree

STREAM_CHUNK = 20  # batches of a stream per compiled call
CHUNK_BYTES = 96e6  # of them
AHEAD = 2  # calls whose batches are read meanwhile; one where they are cut short
MAX_NONFINITE_BATCHES = 100  # batches of a stream in a row that hold NaN
MOST_SECONDS = 60.0  # of counting rows


class Position(NamedTuple):
    """How far a stream was used: what a checkpoint keeps of it."""

    served: int = 0
    checksum: str = ""  # of the batches so far, or of the rule by which a source orders them
    skipped_nonfinite: int = 0

    def differs(self, other: Position) -> bool:
        """Whether both have a checksum, and these are not the same."""
        return "" not in (self.checksum, other.checksum) and self.checksum != other.checksum


class _Read(NamedTuple):
    """Batches stacked on the device, where the stream stood after each, and what ended them."""

    batches: Batch
    positions: list[Position]
    end: BaseException | None
    skipped_nonfinite: int


class _Slots(NamedTuple):
    """Room for batches on the host: the fields of a `Batch`."""

    x: PyTree
    y: np.ndarray
    weight: np.ndarray


class Stream:
    """Batches from an iterable, restarted when it ends if it can be, and read ahead on a thread.

    Only that thread calls the iterable. Its exceptions are raised in the main thread, after the
    batches before them were used. `position` counts what was used, not what was read ahead. `put`
    places stacked batches on the device, and is called on the thread.
    """

    def __init__(self, data: Any, put: Callable[[PyTree], PyTree] = jax.device_put):
        self._data, self.put = data, put
        self._worker = Worker()
        self._iterator: Iterator[PyTree] = self._worker.call(self._begin)
        self.restarts = self._iterator is not data
        self._seen_this_pass = 0
        self._first: list[PyTree] = []  # peeked at, not yet served
        self._now = Position()  # as far as it was read
        self._hashed: Any = None  # a running SHA-256 of what was read, where one is kept
        self._end: BaseException | None = None
        self._free: dict[int, list[np.ndarray]] = {}  # memory of batches that are used up
        self.batch_size = int(getattr(data, "batch_size", 0)) if self.is_source else 0
        self.position = self._now  # as far as it was used
        self.skipped_nonfinite = 0
        self._requested: deque[tuple[int, Future[_Read]]] = deque()
        self._pending: deque[tuple[Batch, Position]] = deque()
        self.notes: list[str] = []

    @property
    def is_source(self) -> bool:
        """Whether any batch can be found without those before it."""
        return isinstance(self._data, Source)

    def all_notes(self) -> list[str]:
        """What a user should know of the data, batches that were skipped included."""
        skipped = f"{self.skipped_nonfinite} batches held NaN or infinity and were skipped."
        return [*self.notes, *([skipped] if self.skipped_nonfinite else [])]

    def close(self) -> None:
        """The thread ends, after the batch that it is reading."""
        for _, future in self._requested:
            future.cancel()
        self._end = self._end or StopIteration()
        self._worker.close()

    # Before the run

    def num_data(self) -> int:
        """Rows behind the batches: as the iterable says, or counted in a pass of its own."""
        if hasattr(self._data, "num_data"):
            return int(self._data.num_data)
        try:
            return len(self._data.dataset)  # as loaders of PyTorch have
        except (AttributeError, TypeError):
            pass
        if not self.restarts:
            refuse("num_data", None, "be given when data is an iterator that can be read only once")
        rows = self._worker.call(self._count)
        self.notes.append(f"num_data was counted in a pass over the data: {rows} rows.")
        return rows

    def _count(self) -> int:
        rows, began = 0, time.monotonic()
        for raw in self._begin():
            if not isinstance(raw, tuple | list) or len(raw) != 2:
                refuse("data", Shown(f"a {type(raw).__name__}"), "be a pair (x, y)")
            rows += len(raw[1])
            if time.monotonic() - began > MOST_SECONDS:
                shown = Shown(f"none, and {rows} rows without an end")
                refuse("num_data", shown, "be given where counting takes long")
        return rows

    def first(self, most: int) -> PyTree:
        """What a model is bound to, and its lower bound measured on.

        A sample of up to `most` rows of a source; else the first batch, which is served again.
        """
        if self.is_source:
            return self._worker.call(self._data.sample, most)
        self._first.append(self._worker.call(self._next))
        found = self._first[0]
        if isinstance(found, tuple | list) and len(found) == 2:
            self.batch_size = next(iter(np.shape(found[1])), 0)
        return found

    def length(self, target: Target) -> int:
        """Batches per compiled call: STREAM_CHUNK, or as many as CHUNK_BYTES hold."""
        assert target.data is not None
        rows = len(target.data.y)
        self.batch_size = self.batch_size or rows
        row_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(target.data[:2])) / rows
        return max(1, min(STREAM_CHUNK, int(CHUNK_BYTES / (row_bytes * self.batch_size))))

    def keep(self, target: Target, position: Position | None, *, compares: bool = True) -> None:
        """Say of every position what it is one of; go to the one of an earlier process.

        Unless it `compares`, the batches may be others than in the first run.
        """
        self.length(target)
        if not compares:
            self.position = self._now = Position()
        elif self.is_source:
            self.position = self._now = Position(0, self._data.fingerprint)
        else:
            self._hashed = hashlib.sha256()
            self.position = self._now = Position(0, self._hashed.hexdigest())
        if position is not None:
            self._worker.call(self._skip_to, target, position)
            self.position, self.skipped_nonfinite = self._now, self._now.skipped_nonfinite

    def _skip_to(self, target: Target, position: Position) -> None:
        """Past the batches that an earlier process has had; refused if they are others."""
        if self.is_source:
            if self._now.differs(position):
                raise DataError("The source orders its rows in another way than in the first run.")
            self._iterator = self._data.skip_to(position.served + position.skipped_nonfinite)
            self._seen_this_pass = 0
            self._now = position._replace(checksum=self._now.checksum)
            return
        slots = self._slots(target, 1)
        while self._now.served < position.served:
            try:
                self._serve(target, jax.tree.map(lambda leaf: leaf[0], slots))
            except StopIteration:
                raise DataError(
                    f"The data iterator ended after {self._now.served} batches, and the run that is"
                    f" resumed had taken {position.served} of it."
                ) from None
        if self._now.differs(position):
            raise DataError("The data iterator gave other batches than in the first run.")

    # During the run

    def chunk(self, target: Target, counts: list[int], length: int) -> tuple[Batch | None, int]:
        """The next counts[0] batches, or those that are left, stacked and padded to `length`.

        The later counts are what will be asked for next, if all goes well, and read meanwhile.
        """
        ready = len(self._pending) + sum(count for count, _ in self._requested)
        for count in counts:
            if ready < count:
                future = self._worker.submit(self._read, target, count - ready, length)
                self._requested.append((count - ready, future))
            ready = max(0, ready - count)
        if not self._pending and self._requested[0][0] == counts[0]:
            found = self._requested.popleft()[1].result()
            if found.positions:
                self._use(found.positions[-1])
                return found.batches, len(found.positions)
            return self._ended(found)
        # Another count than was foreseen, as after a step back: one batch at a time.
        while len(self._pending) < counts[0] and self._requested:
            found = self._requested.popleft()[1].result()
            for i, position in enumerate(found.positions):
                one = jax.tree.map(lambda leaf, i=i: leaf[i], found.batches)
                self._pending.append((one, position))
            if found.end is not None and not self._pending:
                return self._ended(found)
        taken = [self._pending.popleft() for _ in range(min(counts[0], len(self._pending)))]
        self._use(taken[-1][1])
        batches = [batch for batch, _ in taken]
        padded = batches + [batches[-1]] * (length - len(batches))
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *padded), len(batches)

    def _use(self, position: Position) -> None:
        self.position, self.skipped_nonfinite = position, position.skipped_nonfinite

    def _ended(self, found: _Read) -> tuple[None, int]:
        self.skipped_nonfinite = found.skipped_nonfinite
        if isinstance(found.end, StopIteration):
            return None, 0
        assert found.end is not None
        raise found.end

    # On the thread

    def _begin(self) -> Iterator[PyTree]:
        if self.is_source:
            return self._data.skip_to(0)
        if hasattr(self._data, "as_numpy_iterator"):  # tf.data
            return self._data.as_numpy_iterator()
        return iter(self._data)

    def _next(self, into: PyTree = None) -> PyTree:
        """The next batch; a source that has begun puts x into these arrays, if it can."""
        iterator, begun = self._iterator, self.is_source and self._seen_this_pass
        try:
            if begun and isinstance(iterator, Generator):
                batch = iterator.send(into)
            else:
                batch = next(iterator)
        except StopIteration:
            if not self.restarts or self._seen_this_pass == 0:
                raise
            self._iterator, self._seen_this_pass = self._begin(), 0
            batch = next(self._iterator)
        self._seen_this_pass += 1
        return jax.tree.map(_on_host, batch)

    def _read(self, target: Target, count: int, length: int) -> _Read:
        """Up to `count` batches in an array of `length`, fewer if something ends them."""
        slots = self._slots(target, length)
        positions: list[Position] = []
        while len(positions) < count and self._end is None:
            number = len(positions)
            try:
                self._serve(target, jax.tree.map(lambda leaf, i=number: leaf[i], slots))
                positions.append(self._now)
            except BaseException as error:  # whatever it is, the main thread raises it
                self._end = error
        for leaf in jax.tree.leaves(slots):
            leaf[len(positions) :] = 0
        placed = jax.block_until_ready(self.put(tuple(slots)))
        return _Read(Batch(*placed), positions, self._end, self._now.skipped_nonfinite)

    def _slots(self, target: Target, length: int) -> _Slots:
        """Room for batches on the host, in the types that they have on the device."""
        assert target.data is not None
        shape = (length, self.batch_size)
        x, y = jax.tree.map(
            lambda leaf: aligned_empty((*shape, *leaf.shape[1:]), leaf.dtype, self._free),
            target.data[:2],
        )
        return _Slots(x, y, aligned_empty(shape, np.float64, self._free))

    def _serve(self, target: Target, slot: _Slots) -> None:
        """The next batch into its place; those that hold NaN or infinity are passed over."""
        served, checksum, skipped_nonfinite = self._now
        for _ in range(MAX_NONFINITE_BATCHES):
            raw = self._first.pop(0) if self._first else self._next(slot.x)
            try:
                self._fit_in(target, raw, slot)
                break
            except DataError:
                if not _has_nonfinite(raw):
                    raise
            skipped_nonfinite += 1
            self._now = self._now._replace(skipped_nonfinite=skipped_nonfinite)
        else:
            raise DataError(
                f"The data iterator gave {MAX_NONFINITE_BATCHES} batches in a row that hold NaN or"
                " infinity."
            )
        if self._hashed is not None:
            for leaf in jax.tree.leaves(slot):
                self._hashed.update(leaf.reshape(-1).view(np.uint8).data)
            checksum = self._hashed.hexdigest()
        self._now = Position(served + 1, checksum, skipped_nonfinite)

    def _fit_in(self, target: Target, raw: PyTree, slot: _Slots) -> None:
        if isinstance(raw, tuple | list) and len(raw) == 3:
            raise DataError("The data iterator gave weights: batches are (x, y). Give arrays.")
        if not isinstance(raw, tuple | list) or len(raw) != 2:
            raise DataError(f"The data iterator gave a {type(raw).__name__}, not a pair (x, y).")
        try:
            x, y = check_inputs(raw[0]), np.asarray(raw[1])
            if not tree.is_finite(y):
                refuse("y", Shown("NaN or infinity"), "be finite")
            y = target.likelihood.check(y)
        except ArgumentError as error:
            raise DataError(f"The data iterator gave a bad batch: {error}") from error
        shapes, first = (jax.tree.map(lambda leaf: leaf.shape[1:], part) for part in (x, slot.x))
        if shapes != first:
            raise DataError(f"The data iterator gave rows of shape {shapes}, not {first}.")
        rows = len(y)
        if rows > self.batch_size or rows != len(jax.tree.leaves(x)[0]):
            raise DataError(
                f"The data iterator gave a batch of {len(jax.tree.leaves(x)[0])} inputs and {rows}"
                f" observations; batches must have at most {self.batch_size} rows, as the first."
            )

        def fill(room: np.ndarray, leaf: np.ndarray) -> None:
            if _kind(leaf.dtype) > _kind(room.dtype):
                raise DataError(
                    f"The data iterator gave numbers of type {leaf.dtype}, and {room.dtype} in the"
                    " first batch."
                )
            if not np.may_share_memory(room, leaf):  # it is there already
                room[:rows] = leaf
            room[rows:] = room[rows - 1]

        jax.tree.map(fill, (slot.x, slot.y), (x, y))
        slot.weight[:rows], slot.weight[rows:] = 1.0, 0.0


def planned_counts(at: int, goal: int, num_steps: int, eval_every: int, most: int) -> list[int]:
    """Steps of the compiled calls from `at` on, if all goes well: the next one and AHEAD more.

    Calls of fewer than STREAM_CHUNK batches are mostly so because those are large.
    """
    counts: list[int] = []
    ahead = 1 if most < STREAM_CHUNK else AHEAD
    while at < num_steps and len(counts) <= ahead:
        goal = goal if at < goal else min(num_steps, goal + eval_every)
        counts.append(min(most, goal - at))
        at += counts[-1]
    return counts


def _on_host(leaf: object) -> object:
    """Tensors of other libraries as NumPy arrays; all else as it is."""
    if isinstance(leaf, np.ndarray | jax.Array) or not hasattr(leaf, "__dlpack__"):
        return leaf
    try:
        return np.asarray(leaf) if hasattr(leaf, "__array__") else np.from_dlpack(leaf)
    except (TypeError, ValueError, BufferError):  # on a device
        return np.asarray(jax.dlpack.from_dlpack(leaf))


def _has_nonfinite(raw: PyTree) -> bool:
    """Whether numbers of a batch are not finite; what is no batch at all is found out later."""
    try:
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(raw)]
    except (TypeError, ValueError):
        return False
    return not all(tree.is_finite(leaf) for leaf in leaves)


def _kind(dtype: np.dtype) -> int:
    """Truth values, whole numbers, numbers: each can stand for those before it."""
    return 2 if jnp.issubdtype(dtype, jnp.floating) else int(dtype != np.bool_)
