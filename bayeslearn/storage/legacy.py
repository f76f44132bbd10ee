"""Names that files of earlier versions have, and what they are called now."""

from __future__ import annotations

from typing import Any

# Fields of stored classes, by tag.
FIELDS = {"model.Target": {"held": "frozen", "held_prior": "frozen_prior"}}
OPTIONS = {"eval_every", "patience", "num_data"}  # of the request; they are in FitOptions now


def upgrade_fields(tag: str, fields: dict[str, Any]) -> dict[str, Any]:
    """A stored object's fields under the names of today."""
    names = FIELDS.get(tag, {})
    return {names.get(name, name): value for name, value in fields.items()}


def upgrade_request(request: dict[str, Any]) -> dict[str, Any]:
    """A stored request of `fit` in the form of today."""
    if "params" in request:
        request = {("init" if name == "params" else name): v for name, v in request.items()}
    model = request.get("model")
    if isinstance(model, dict) and "points" in model:
        points = model["points"]
        model = {name: value for name, value in model.items() if name != "points"}
        request["model"] = model | {"frozen": "train" if points == "frozen" else points}
    return request
