"""A request of `fit`: all of its arguments, checked, in one object."""

from __future__ import annotations

import dataclasses
from typing import Any

from bayeslearn.algorithms.base import Algorithm
from bayeslearn.data.rows import Batches, Data
from bayeslearn.distributed.mesh import Layout
from bayeslearn.inference.arguments import check_arguments
from bayeslearn.inference.context import Callback
from bayeslearn.inference.multistart import MultiStart
from bayeslearn.inference.options import FitOptions
from bayeslearn.models.model import Model
from bayeslearn.models.target import Target
from bayeslearn.storage.checkpoints import Checkpointer
from bayeslearn.storage.codec import describe_model
from bayeslearn.tree import PyTree

# What is stored with a run, of FitOptions: the rest changes nothing but pace and rounding.
STORED_OPTIONS = ("eval_every", "patience", "warm_start", "num_data", "merge_rows")
RULE = "steps"  # in a stored request: what `num_steps` counts


@dataclasses.dataclass(frozen=True)
class Request:
    """What `fit` is to do."""

    model: Model | Target
    algorithm: Algorithm
    data: Data | Batches | None
    seed: int
    num_steps: int | str = "auto"
    num_epochs: int | None = None
    batch_size: int | str = "auto"
    num_chains: int | None = None
    validation: Data | None = None
    init: PyTree | None = None
    starts: int | str | MultiStart = 1
    callback: Callback | None = None
    progress: bool | None = None
    checkpointer: Checkpointer | None = None
    layout: Layout | None = None
    options: FitOptions = dataclasses.field(default_factory=FitOptions)
    is_legacy: bool = False  # begun by version 0.1, whose `num_steps` counted the last phase only

    def __post_init__(self) -> None:
        check_arguments(
            self.algorithm,
            self.options,
            seed=self.seed,
            num_steps=self.num_steps,
            num_epochs=self.num_epochs,
            batch_size=self.batch_size,
            num_chains=self.num_chains,
            starts=self.starts,
            validation=self.validation,
            callback=self.callback,
        )

    @property
    def is_shared(self) -> bool:
        """Whether several processes run it."""
        return self.layout is not None and self.layout.is_shared

    def stored(self) -> dict[str, Any]:
        """What a run's folder keeps of it."""
        starts = self.starts
        return {
            "model": describe_model(self.model) if isinstance(self.model, Model) else None,
            "algorithm": self.algorithm,
            "options": {
                "seed": self.seed,
                "num_steps": self.num_steps,
                "batch_size": self.batch_size,
                "num_chains": self.num_chains,
                **{name: getattr(self.options, name) for name in STORED_OPTIONS},
                "num_epochs": self.num_epochs,
                "starts": starts.stored() if isinstance(starts, MultiStart) else starts,
                **({} if self.is_legacy else {RULE: "total"}),
            },
            "init": self.init,
            "has_callback": self.callback is not None,
        }

    @classmethod
    def from_stored(cls, stored: dict[str, Any], *, options: FitOptions, **parts: Any) -> Request:
        """The request of a run's folder, with what is not stored there."""
        known = dict(stored["options"])
        default = FitOptions()
        kept = {name: known.pop(name, getattr(default, name)) for name in STORED_OPTIONS}
        is_legacy = known.pop(RULE, None) is None
        if isinstance(known.get("starts"), dict):
            known["starts"] = MultiStart(**known["starts"])
        options = dataclasses.replace(options, **kept)
        return cls(options=options, is_legacy=is_legacy, **known, **parts)
