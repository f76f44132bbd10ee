"""Values that JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

JSON: TypeAlias = "dict[str, JSON] | list[JSON] | str | int | float | bool | None"


def json_value(value: object) -> JSON:
    """The value without NumPy, NaN or infinity (None); whatever JSON does not know as its repr."""
    if isinstance(value, Mapping):
        return {str(name): json_value(part) for name, part in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return json_value(value.tolist())
    if isinstance(value, list | tuple):
        return [json_value(part) for part in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return repr(value)
