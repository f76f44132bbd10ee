"""What `fit` takes beyond its main arguments, and what a callback hears. Knows no algorithm."""

from __future__ import annotations

import dataclasses
import os
from typing import NamedTuple

from jax.sharding import Mesh

from bayeslearn.distributed.mesh import Layout, layout
from bayeslearn.errors import check_whole, refuse
from bayeslearn.storage.checkpoints import EVERY, KEEP

# Arguments of `fit` in version 0.1, and where they are now.
_OPTIONS = ("eval_every", "patience", "chunk_size", "microbatch", "remat", "num_data")
MOVED = {
    **{name: f"options=bl.FitOptions({name}=...)" for name in _OPTIONS},
    "params": "init=...",
    "every": "checkpoint=bl.Checkpoint(folder, every=...)",
    "keep": "checkpoint=bl.Checkpoint(folder, keep=...)",
    "mesh": "devices=bl.Devices(mesh)",
    "shard": "devices=bl.Devices(mesh, shard=...)",
}


@dataclasses.dataclass(frozen=True)
class FitOptions:
    """Options of `fit` that are rarely set.

    Args:
        eval_every: steps between evaluations; None: one hundredth of the run, and at least ten in
            runs of a hundred steps or more; where an evaluation is much work (large networks,
            minibatches), so that all of them cost a twentieth of the run.
        patience: evaluations without a new best before stopping (or, with a decaying step size,
            before the remaining decay is shortened); None: never. "auto": 20 if `num_steps` is
            "auto", else never.
        warm_start: steps of a method's warm start (0: none), inside `num_steps`. "auto": a third of
            a given `num_steps`, up to 5000; none above 10,000 weights for the methods that have
            defaults for large networks.
        chunk_size: most steps per compiled call; changes nothing but the pace of progress.
        microbatch: rows of a batch for which the network is evaluated at a time; gradients (and
            squares) are summed over them. Saves memory, and changes nothing but rounding.
        remat: keep only the results of matrix products for the gradient and recompute the rest,
            which saves memory too.
        num_data: size of the data set behind an iterable; None: asked of the iterable, or counted,
            for which it must be readable twice.
        merge_rows: merge equal rows, order rows by the seed and pad their number to one of few
            sizes before the run. The result then depends on neither the order of rows nor on
            whether a row is repeated or weighted, and data sets of similar size share compiled
            programs. For arrays of which every step uses all rows.
    """

    eval_every: int | None = None
    patience: int | str | None = "auto"
    warm_start: int | str = "auto"
    chunk_size: int | None = None
    microbatch: int | None = None
    remat: bool = False
    num_data: int | None = None
    merge_rows: bool = False

    def __post_init__(self) -> None:
        for name in ("eval_every", "chunk_size", "microbatch", "num_data"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), least=1)
        if self.patience not in (None, "auto"):
            check_whole("patience", self.patience, least=1)
        if self.warm_start != "auto":
            check_whole("warm_start", self.warm_start, least=0)
        for name in ("remat", "merge_rows"):
            if not isinstance(getattr(self, name), bool):
                refuse(name, getattr(self, name), "be True or False")


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Where and how often a run is saved, so that it can be resumed.

    Args:
        folder: the folder of the run.
        every: steps between checkpoints, or a time such as "30s", "5m" or "1h".
        keep: how many of the last checkpoints are kept.
        resume: go on with the run in the folder if there is one, after a check that model, data and
            settings are the same; False: a folder that holds a run is refused.
    """

    folder: str | os.PathLike[str]
    every: int | str = EVERY
    keep: int = KEEP
    resume: bool = False


@dataclasses.dataclass(frozen=True)
class Devices:
    """On which devices a run lies.

    Args:
        mesh: a `jax.sharding.Mesh` over whose first axis rows are divided; None: all devices of all
            processes. Results do not depend on it but for rounding.
        shard: "replicate": the posterior's state is on every device; "weights": leaf by leaf along
            the mesh's last axis.
    """

    mesh: Mesh | None = None
    shard: str = "replicate"


def to_layout(devices: str | Mesh | Devices | None) -> Layout | None:
    """The layout that `devices` asks for; None: one device, as JAX chooses it."""
    if devices is None:
        return None
    if isinstance(devices, Mesh):
        devices = Devices(devices)
    if isinstance(devices, Devices):
        return layout(devices.mesh, None if devices.mesh is not None else "all", devices.shard)
    return layout(None, devices)


class FitEvent(NamedTuple):
    """What a callback hears at every evaluation (of a sampler: after every compiled call)."""

    algorithm: str
    step: int
    num_steps: int
    metrics: dict[str, float]
    phase: str = "main"
    num_members: int | None = None  # of an ensemble, whose phases are "main/member 0" and so on


class Phase(NamedTuple):
    """One phase of a run: `posterior.phases` lists them in their order."""

    name: str
    algorithm: str
    num_steps: int
    num_gradients: int  # of the log-joint, over a batch or all rows
    seconds: float  # compiling included
    elbo: float | None
    is_chosen: bool  # whether the run went on from its result
    evaluation_cost: float = 0.0  # in gradients over a batch: a forward pass is a third of one
