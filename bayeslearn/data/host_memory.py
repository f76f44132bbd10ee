"""Memory on the host that XLA uses without a copy."""

from __future__ import annotations

import math
import weakref

import numpy as np
from jax.typing import DTypeLike

ALIGNMENT = 64  # bytes, as XLA requires on the CPU


def aligned_empty(
    shape: tuple[int, ...], dtype: DTypeLike, free: dict[int, list[np.ndarray]]
) -> np.ndarray:
    """An empty array that XLA can use where it is, on the CPU.

    Its memory goes back to `free`, by size, when the last array on it is gone: what JAX made of it
    without a copy holds on to it for as long as a computation reads there.
    """
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    spare = free.setdefault(size, [])
    memory = spare.pop() if spare else np.empty(size + ALIGNMENT, np.uint8)
    # The first array on a buffer, which is the base of all views of it and of theirs.
    room = np.frombuffer(memory.data, np.uint8)
    weakref.finalize(room, spare.append, memory).atexit = False
    begin = -memory.ctypes.data % ALIGNMENT
    return room[begin : begin + size].view(dtype).reshape(shape)
