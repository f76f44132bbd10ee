"""Arrays that need not fit in memory: memory maps, h5py, zarr."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from bayeslearn import tree
from bayeslearn.data.sources.base import BLOCKS, BUFFER_BYTES, Rows, Source
from bayeslearn.errors import Shown, check_whole, refuse
from bayeslearn.tree import PyTree


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
        """Ask the kernel to read these blocks of memory maps ahead."""
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
        """The arrays themselves if they can be indexed by row, else the blocks, read."""
        if not all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(self._arrays)):
            return super().window(blocks)
        self.expect(blocks)  # in memory or mapped: rows are picked where they lie
        places = [np.arange(self.edges[block], self.edges[block + 1]) for block in blocks]
        return self._arrays, np.concatenate(places)

    def read(self, blocks: Sequence[int]) -> Rows:
        """The rows of some blocks, copied."""
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
