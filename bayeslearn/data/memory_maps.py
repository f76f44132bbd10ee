"""Large memory maps, which are read in batches instead of being copied whole."""

from __future__ import annotations

import jax
import numpy as np

from bayeslearn.data.rows import Data
from bayeslearn.data.sources.arrays import arrays
from bayeslearn.data.sources.base import AUTO_BATCH, Source
from bayeslearn.models.model import Model
from bayeslearn.tree import PyTree

MAPPED_BYTES = 2**28  # from which on a memory map is not copied


def mapped(data: Data, model: Model, batch_size: int | str, seed: int) -> Source | None:
    """A pair (x, y) with a large memory map in it as a source; None if the model needs all rows."""
    if not is_mapped(data) or len(data) == 3:
        return None
    x: PyTree
    y: PyTree
    x, y = data
    likelihood, _ = model.likelihood.bind(np.asarray(y[:AUTO_BATCH]))
    if likelihood.refreshes:  # from all rows
        return None
    return arrays(x, y, batch_size, int(seed))


def is_mapped(data: Data) -> bool:
    """Whether one of these arrays is a memory map too large to be copied."""
    leaves = jax.tree.leaves(tuple(data))
    return all(hasattr(leaf, "shape") for leaf in leaves) and any(
        isinstance(leaf, np.memmap) and leaf.nbytes >= MAPPED_BYTES for leaf in leaves
    )
