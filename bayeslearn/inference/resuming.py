"""A run's request, again: what was stored of it, and what must be given because it could not be."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from bayeslearn import tree
from bayeslearn.data.rows import check_data
from bayeslearn.errors import BayesLearnError, StorageError, refuse
from bayeslearn.inference.setup import is_in_memory
from bayeslearn.models.model import Model
from bayeslearn.storage.checkpoints import Checkpointer
from bayeslearn.storage.registry import NotSaved


def require_or_stored(name: str, stored: Any, value: Any) -> Any:
    """The value that is given, or else the stored one, if it could be stored."""
    if value is not None:
        return value
    missing = _first_not_saved(stored)
    if missing is not None:
        refuse(name, None, "be given again", f"{missing.what} cannot be stored as data.")
    return stored


def _first_not_saved(value: Any) -> NotSaved | None:
    if isinstance(value, NotSaved):
        return value
    if isinstance(value, dict):
        inside = list(value.values())
    elif isinstance(value, list | tuple):
        inside = list(value)
    elif dataclasses.is_dataclass(value):
        inside = [getattr(value, field.name) for field in dataclasses.fields(value)]
    else:
        return None
    return next((found for part in inside if (found := _first_not_saved(part))), None)


def rebuild_model(stored: Any, network: Any) -> Model:
    """The model of a stored request; `network` is required where it could not be stored."""
    if stored is None:
        refuse("model", None, "be given again", "A Target cannot be stored as data.")
    if not isinstance(stored, dict) or stored.keys() != {f.name for f in dataclasses.fields(Model)}:
        raise StorageError("The run cannot be resumed: its description of the model is invalid.")
    if network is not None:
        stored = stored | {"network": network}
    elif isinstance(stored["network"], NotSaved):
        what = f"{stored['network'].what}, cannot be stored as data."
        refuse("network", None, "be given again", what[0].upper() + what[1:])
    parts = {name: require_or_stored("model", value, None) for name, value in stored.items()}
    return Model(**parts)


def check_rebuilt(model: Model, data: Any, checkpointer: Checkpointer) -> None:
    """A network rebuilt from a file must have the weights it had, before any is made."""
    if not is_in_memory(data):
        return
    x, y, weight = check_data(data)
    try:
        likelihood, _ = model.likelihood.bind(y, weight)
        start = jax.eval_shape(
            lambda key: {
                "network": model.network.init(
                    key, jax.tree.map(lambda leaf: leaf[0], x), likelihood.num_outputs
                ),
                "likelihood": likelihood.init(),
            },
            jax.random.key(0),
        )
        is_same = tree.size(start) == checkpointer.num_weights
    except BayesLearnError:
        raise
    except Exception as error:  # whatever a description of nonsense leads to
        raise StorageError(
            f"{checkpointer.folder} cannot be resumed: its model cannot be built"
            f" ({type(error).__name__})."
        ) from error
    if not is_same:
        raise StorageError(
            f"{checkpointer.folder} cannot be resumed: its model has {tree.size(start)} weights,"
            f" and had {checkpointer.num_weights}. Are these the same data?"
        )
