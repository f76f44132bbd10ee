"""Batch statistics measured on rows, for networks that were not trained with them.

After a batch in the mode of training a running statistic is r' = a r + (1 - a) b, with b that of
the batch and a the layer's momentum. From r = 0 and r = 1 follow a and b, whatever the framework
calls them: b = r'(0) / (1 - (r'(1) - r'(0))).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn.errors import Shown, check_whole, refuse
from bayeslearn.models.networks.adapters import adapt
from bayeslearn.models.protocols import Network
from bayeslearn.tree import Array, PyTree


class WithStatistics(Protocol):
    """A network with running means and variances."""

    def statistics(self) -> dict[str, Array]: ...

    def with_statistics(self, statistics: Mapping[str, Array]) -> WithStatistics: ...

    def trained_statistics(self, params: PyTree, rows: PyTree, key: Array) -> dict[str, Array]: ...


def measure_batch_statistics(
    network: object,
    x: PyTree,
    *,
    params: PyTree = None,
    batch_size: int = 256,
    seed: int = 0,
) -> Network:
    """The network with the batch statistics of these rows, for `bl.Model`.

    They are averages over batches of `batch_size` rows of the means and variances that each layer
    sees in the mode of training, at the network's weights or at `params`. What is left of a last
    batch is not used, unless it is the only one.

    Args:
        network: a module of Equinox with its state, Flax NNX or Keras, or of Flax Linen with its
            variables.
        x: rows as in training.
        params: other weights, such as `posterior.family.mean["network"]`.
        batch_size: rows of a batch.
        seed: of dropout, which is on in this mode in Flax.
    """
    check_whole("batch_size", batch_size, least=2)
    adapted: PyTree = adapt(network)
    if not hasattr(adapted, "trained_statistics") or not adapted.statistics():
        refuse("network", Shown(f"a {type(network).__name__}"), "have batch statistics")
    found: WithStatistics = adapted
    weights = adapted.weights if params is None else params
    low, high = (
        found.with_statistics({n: jnp.full_like(v, start) for n, v in found.statistics().items()})
        for start in (0.0, 1.0)
    )

    @jax.jit
    def of_batch(weights: PyTree, rows: PyTree, key: Array) -> dict[str, Array]:
        zero, one = (net.trained_statistics(weights, rows, key) for net in (low, high))
        return {name: zero[name] / (1.0 - (one[name] - zero[name])) for name in zero}

    num_rows = len(jax.tree.leaves(x)[0])
    size = min(batch_size, num_rows)
    batches = num_rows // size
    total: dict[str, np.ndarray] = {}
    for number in range(batches):
        rows = jax.tree.map(
            lambda leaf, first=number * size: jnp.asarray(leaf[first : first + size]), x
        )
        key = jax.random.fold_in(jax.random.key(seed), number)
        for name, value in of_batch(weights, rows, key).items():
            total[name] = total.get(name, 0.0) + np.asarray(value, np.float64) / batches
    old = found.statistics()
    return cast(
        "Network",
        found.with_statistics({n: jnp.asarray(v, old[n].dtype) for n, v in total.items()}),
    )
