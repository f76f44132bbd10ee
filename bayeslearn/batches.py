"""Where the next batch comes from: rows on the device, or an iterable of batches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn.errors import ArgumentError, DataError
from bayeslearn.model import Batch, Target, check_inputs
from bayeslearn.tree import Array, PyTree

FULL_BATCH_ROWS = 2048  # up to here "auto" uses all rows in every step
AUTO_BATCH = 256
MOST_SPOILED = 100  # batches of a stream in a row that hold NaN


def auto_batch_size(num_rows: int) -> int:
    return num_rows if num_rows <= FULL_BATCH_ROWS else AUTO_BATCH


def permutation(key: Array, epoch: Array, num_rows: int) -> Array:
    """The order of the rows in one epoch, a function of key and epoch alone."""
    return jax.random.permutation(jax.random.fold_in(key, epoch), num_rows)


def take(data: Batch, order: Array, position: Array, batch_size: int) -> Batch:
    """Batch number `position` of an epoch; the last one may be partly padding (weight 0)."""
    num_rows = len(data.y)
    num_batches = math.ceil(num_rows / batch_size)
    padding = num_batches * batch_size - num_rows
    start = position * batch_size
    rows = jax.lax.dynamic_slice(jnp.pad(order, (0, padding)), (start,), (batch_size,))
    weight = None
    if padding:
        weight = (start + jnp.arange(batch_size) < num_rows).astype(jnp.float64)
    if data.weight is not None:
        chosen = data.weight[rows]
        weight = chosen if weight is None else chosen * weight
    x, y = jax.tree.map(lambda leaf: leaf[rows], (data.x, data.y))
    return Batch(x, y, weight)


class Stream:
    """Batches from an iterable, restarted when it ends if it can be."""

    def __init__(self, batches: Iterable[Any]):
        self._source = batches
        self._iterator: Iterator[Any] = iter(batches)
        self.restarts = self._iterator is not batches
        self._seen_this_pass = 0
        self._pending: list[Any] = []
        self.batch_size = 0
        self.served = self.spoiled = 0
        self.hashed: Any = None  # a running SHA-256 of what was served, where one is kept

    def peek(self) -> Any:
        """The first batch, which will be served again."""
        self._pending.append(self._next())
        return self._pending[0]

    def _next(self) -> Any:
        try:
            batch = next(self._iterator)
        except StopIteration:
            if not self.restarts or self._seen_this_pass == 0:
                raise
            self._iterator, self._seen_this_pass = iter(self._source), 0
            batch = next(self._iterator)
        self._seen_this_pass += 1
        return batch

    def chunk(self, target: Target, count: int, length: int) -> tuple[Batch | None, int]:
        """Up to `count` batches stacked along a leading axis padded to `length`."""
        batches: list[Batch] = []
        while len(batches) < count:
            try:
                batches.append(self._serve(target))
            except StopIteration:
                break
        if not batches:
            return None, 0
        padded = batches + [batches[-1]] * (length - len(batches))
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *padded), len(batches)

    def _serve(self, target: Target) -> Batch:
        """The next batch; those that hold NaN or infinity are counted and passed over."""
        for _ in range(MOST_SPOILED):
            raw = self._pending.pop(0) if self._pending else self._next()
            if not _is_spoiled(raw):
                break
            self.spoiled += 1
        else:
            raise DataError(
                f"The data iterator gave {MOST_SPOILED} batches in a row that hold NaN or infinity."
            )
        batch = self._fit_in(target, raw)
        self.served += 1
        if self.hashed is not None:
            for leaf in jax.tree.leaves(batch):
                self.hashed.update(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data)
        return batch

    @property
    def position(self) -> tuple[int, str]:
        """How many batches were served, and a checksum of them where one is kept."""
        return self.served, "" if self.hashed is None else self.hashed.hexdigest()

    def skip_to(self, target: Target, position: tuple[int, str]) -> None:
        """Serve the batches that an earlier process has had; refused if they are others."""
        while self.served < position[0]:
            try:
                self._serve(target)
            except StopIteration:
                raise DataError(
                    f"The data iterator ended after {self.served} batches, and the run that is"
                    f" resumed had taken {position[0]} of it."
                ) from None
        if self.position != position and "" not in (self.position[1], position[1]):
            raise DataError("The data iterator gave other batches than in the first run.")

    def _fit_in(self, target: Target, raw: Any) -> Batch:
        if not isinstance(raw, tuple | list) or len(raw) != 2:
            raise DataError(f"The data iterator gave a {type(raw).__name__}, not a pair (x, y).")
        try:
            x, y = check_inputs(raw[0]), target.likelihood.check(np.asarray(raw[1]))
        except ArgumentError as error:
            raise DataError(f"The data iterator gave a bad batch: {error}") from error
        assert target.data is not None
        shapes, first = (
            jax.tree.map(lambda leaf: leaf.shape[1:], part) for part in (x, target.data.x)
        )
        if shapes != first:
            raise DataError(f"The data iterator gave rows of shape {shapes}, not {first}.")
        rows = len(y)
        self.batch_size = self.batch_size or rows
        if rows > self.batch_size or rows != len(jax.tree.leaves(x)[0]):
            raise DataError(
                f"The data iterator gave a batch of {len(jax.tree.leaves(x)[0])} inputs and {rows}"
                f" observations; batches must have at most {self.batch_size} rows, as the first."
            )
        missing = self.batch_size - rows

        def pad(leaf: np.ndarray) -> np.ndarray:
            return np.concatenate([leaf, np.repeat(leaf[-1:], missing, axis=0)])

        weight = np.concatenate([np.ones(rows), np.zeros(missing)])
        return target.batch((jax.tree.map(pad, x), pad(y)), weight)


def _is_spoiled(raw: Any) -> bool:
    """Whether numbers of a batch are not finite; what is no batch at all is found out later."""
    try:
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(raw)]
    except (TypeError, ValueError):
        return False
    return any(leaf.dtype.kind == "f" and not np.all(np.isfinite(leaf)) for leaf in leaves)


def sample_rows(data: Batch, most: int) -> Batch:
    """At most `most` rows, evenly spaced: what the lower bound is measured on."""
    rows = len(data.y)
    if rows <= most:
        return data
    chosen = np.linspace(0, rows - 1, most).round().astype(np.int32)
    return Batch(*(pick(leaf, chosen) for leaf in data))


def pick(leaf: PyTree, rows: np.ndarray) -> PyTree:
    return jax.tree.map(lambda a: a[rows], leaf)
