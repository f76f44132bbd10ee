"""Records: what a checkpoint holds of a loop, as containers of arrays and numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np

from bayeslearn.errors import StorageError
from bayeslearn.tree import Array, PyTree

Record = dict[str, Any]


class RunState(Protocol):
    """What a loop gives to be saved."""

    @property
    def now(self) -> int:
        """Steps so far."""
        ...

    def record(self) -> Record:
        """The state of the loop."""
        ...

    def segment(self) -> dict[str, np.ndarray]:
        """Trace and draws since the last checkpoint."""
        ...

    def mark_saved(self) -> None:
        """The segment is on disk."""
        ...


def rebuild(like: PyTree, stored: list[Array], *, is_exact: bool = True) -> PyTree:
    """Stored leaves in the structure of `like`, whose shapes and dtypes they have if exact."""
    own, structure = jax.tree.flatten(like)
    fits = isinstance(stored, list) and len(own) == len(stored)
    if fits and is_exact:
        pairs = zip(own, stored, strict=True)
        fits = all(
            a.shape == np.shape(b) and a.dtype == getattr(b, "dtype", None) for a, b in pairs
        )
    if not fits:
        raise StorageError(
            "The checkpoint holds other arrays than this algorithm and model have: they are not"
            " those of the first run."
        )
    return jax.tree.unflatten(structure, stored)


def dedupe(values: list[PyTree], leaves_of: Callable[[PyTree], list[Array]]) -> Record:
    """Each object once, and the index of each value among them (-1 for None)."""
    found: list[PyTree] = []
    which = []
    for value in values:
        places = [i for i, other in enumerate(found) if other is value]
        if value is not None and not places:
            found.append(value)
            places = [len(found) - 1]
        which.append(places[0] if value is not None else -1)
    return {"values": [leaves_of(value) for value in found], "which": which}


def expand(stored: Record, build: Callable[[list[Array]], PyTree]) -> list[PyTree]:
    """The inverse of `dedupe`."""
    values = [build(value) for value in stored["values"]]
    return [None if i < 0 else values[i] for i in stored["which"]]
