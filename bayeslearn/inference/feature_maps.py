"""Features of a frozen body that do not fit into memory: in a file, read in batches.

The body runs once over the rows, a block at a time, and its features are written to a nameless
file in the folder for temporary files (`TMPDIR`), which the system removes when the run ends or its
process dies. The run then reads them as `bl.sources.arrays` reads a memory map.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile

import jax
import numpy as np

from bayeslearn.algorithms.base import Algorithm
from bayeslearn.data.rows import Batch
from bayeslearn.data.sources.arrays import arrays
from bayeslearn.data.streams import Stream
from bayeslearn.inference.context import RunContext
from bayeslearn.inference.evaluation_plan import EVAL_ROWS
from bayeslearn.inference.features import Division, divide
from bayeslearn.tree import PyTree

BLOCK = 8192  # rows through the body and to the file at a time
NOTE = (
    "What the frozen layers compute ({size:.1f} GB) was kept in a temporary file and read in"
    " batches."
)


def with_mapped_features(
    context: RunContext, algorithm: Algorithm, start: PyTree, seed: int
) -> RunContext | None:
    """The context on features in a file; None where the body runs in every step instead.

    That is: for methods that need all rows or independent batches, rows with weights, noise that
    is inferred from all rows, and where the folder has no room.
    """
    target, needs = context.target, algorithm.capabilities
    data = target.data
    is_plain = needs.takes_minibatches and not needs.is_composite and not needs.independent_batches
    if data is None or data.weight is not None or not is_plain or target.refreshes:
        return None
    if context.batch_size >= len(data.y):
        return None
    divided = divide(target, start)
    if divided is None:
        return None
    size = divided.num_bytes(len(data.y))
    if size > 0.9 * shutil.disk_usage(tempfile.gettempdir()).free:
        return None
    source = arrays(_written(divided, data), np.asarray(data.y), context.batch_size, seed)
    stream = Stream(source)
    stream.notes.append(NOTE.format(size=size / 1e9))
    x, y = stream.first(EVAL_ROWS)
    target = dataclasses.replace(target, network=divided.head, data=Batch(*map(_placed, (x, y))))
    if context.checkpointer is not None:
        stream.keep(target, context.checkpointer.position)
    validation = context.validation
    validation = None if validation is None else divided.computed(validation)
    return dataclasses.replace(
        context, target=target, stream=stream, validation=validation, host_rows=target.data
    )


def _placed(rows: PyTree) -> PyTree:
    return jax.tree.map(jax.numpy.asarray, rows)


def _written(divided: Division, data: Batch) -> tuple[np.ndarray, ...]:
    """The features of all rows in memory maps of nameless files."""
    num = len(data.y)
    maps = []
    for shape in divided.shapes:
        with tempfile.TemporaryFile() as file:
            maps.append(np.memmap(file, shape.dtype, "w+", shape=(num, *shape.shape)))
    for first in range(0, num, BLOCK):
        # The last block begins earlier, so that all have one size and one program.
        first = max(0, min(first, num - BLOCK))
        rows = jax.tree.map(lambda leaf, a=first: leaf[a : a + BLOCK], data)
        for one, values in zip(maps, divided.computed(rows).x, strict=True):
            one[first : first + BLOCK] = np.asarray(values)
    return tuple(maps)
