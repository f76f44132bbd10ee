"""Names that files of earlier versions have, and what they are called now."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

# Fields of stored classes, by tag, and names of phases: as they are in old files, and now. Settings
# that old files lack have the values that runs had before there were such settings.
_NAMES = json.loads(files(__package__).joinpath("legacy.json").read_text(encoding="utf-8"))
FIELDS: dict[str, dict[str, str]] = _NAMES["fields"]
MISSING: dict[str, dict[str, Any]] = _NAMES["missing"]
PHASES: dict[str, str] = _NAMES["phases"]
# Options of a request that the first runs lack.
NEW_OPTIONS = {"starts": 1, "num_epochs": None, "warm_start": "auto", "merge_rows": False}


def upgrade_fields(tag: str, fields: dict[str, Any]) -> dict[str, Any]:
    """A stored object's fields under the names of today."""
    names = FIELDS.get(tag, {})
    stored = {names.get(name, name): value for name, value in fields.items()}
    return MISSING.get(tag, {}) | stored


def upgrade_request(request: dict[str, Any]) -> dict[str, Any]:
    """A stored request of `fit` in the form of today."""
    if "params" in request:
        request = {("init" if name == "params" else name): v for name, v in request.items()}
    model = request.get("model")
    if isinstance(model, dict) and "points" in model:
        points = model["points"]
        model = {name: value for name, value in model.items() if name != "points"}
        request["model"] = model | {"frozen": "train" if points == "frozen" else points}
    if isinstance(request.get("options"), dict):
        request["options"] = NEW_OPTIONS | request["options"]
    return request


def upgrade_phase(name: str) -> str:
    """The name of a phase under which a checkpoint of today finds it."""
    parts = []
    for part in name.split("/"):
        kind, _, number = part.partition(" ")
        new = PHASES.get(kind, kind)
        parts.append(f"{new} {number}" if number else new)
    return "/".join(parts)
