"""JSON with a checksum of its content, read with a bound on its depth."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from bayeslearn.errors import StorageError

CHECKSUM = "sha256"
MAX_DEPTH = 200  # of lists and mappings inside each other


def seal(content: dict[str, Any]) -> str:
    """Checksum of the content, however it is laid out."""
    text = json.dumps(content, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def unsealed(content: dict[str, Any]) -> dict[str, Any]:
    """Without the checksum."""
    return {name: value for name, value in content.items() if name != CHECKSUM}


def dumps(content: dict[str, Any]) -> str:
    """Text with the checksum."""
    return json.dumps({**content, CHECKSUM: seal(content)}, indent=1, allow_nan=False)


def parse(text: str | bytes) -> Any:
    """The value of a JSON text that is not nested too deeply."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StorageError("it is not JSON") from error
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise StorageError(f"it is nested more than {MAX_DEPTH} levels deep")
        parts = [part for part in level if isinstance(part, list | dict)]
        level = [v for part in parts for v in (part if isinstance(part, list) else part.values())]
    return value


def loads(text: str | bytes, *, needs_checksum: bool = True) -> dict[str, Any]:
    """The content, whose checksum must be right; texts of version 0.1 have none."""
    content = parse(text)
    if not isinstance(content, dict):
        raise StorageError("it is not a mapping")
    if needs_checksum and CHECKSUM not in content:
        raise StorageError("it is damaged: it has no checksum")
    if CHECKSUM in content and content[CHECKSUM] != seal(unsealed(content)):
        raise StorageError("it is damaged: its content does not have its checksum")
    return unsealed(content)
