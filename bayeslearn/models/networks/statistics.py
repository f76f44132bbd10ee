"""Batch statistics of networks: running means and variances, which are constants of a model here.

In the mode of training, batch normalisation makes the output of one row depend on the others of its
batch: rows have no log-likelihood of their own, and a posterior would depend on the batches. So a
network keeps the statistics that it comes with, and then is a function of one row. Statistics that
nothing has moved from 0 and 1 are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np

from bayeslearn.errors import Shown, refuse
from bayeslearn.tree import Array

REMEDY = (
    "Train it first, or write bl.networks.measure_batch_statistics(network, x) with the training"
    " rows; or use GroupNorm or LayerNorm, which need no statistics."
)


def initial_layers(statistics: Mapping[str, Array]) -> list[str]:
    """Layers whose mean is 0 and whose variance is 1 in every channel; arrays by dotted name."""
    layers: dict[str, list[bool]] = {}
    for name, value in statistics.items():
        layer, _, kind = name.rpartition(".")
        start = 0.0 if kind.endswith("mean") else 1.0
        layers.setdefault(layer, []).append(bool(np.all(np.asarray(value) == start)))
    return [layer or "the network" for layer, is_initial in layers.items() if all(is_initial)]


def check_trained(layers: Sequence[str]) -> None:
    """Refuse statistics that are those of an untrained network."""
    if layers:
        shown = f"the initial mean 0 and variance 1 in {', '.join(layers)}"
        refuse("network", Shown(shown), "have trained batch statistics", REMEDY)


def refuse_stateless(what: str, pair: str) -> NoReturn:
    """Refuse a module that has a state, and came without it."""
    refuse(
        "network",
        Shown(f"{what} and no values for them"),
        "come with its state, such as batch statistics, which is not learned here",
        f"Train it first and write {pair}; or, with batch statistics that nothing was trained with,"
        f" bl.networks.measure_batch_statistics({pair}, x) with the training rows. GroupNorm and"
        " LayerNorm need no state.",
    )
