"""pandas, or one message where it is missing."""

from __future__ import annotations

try:
    import pandas as pd
except ImportError as error:  # pragma: no cover
    raise ImportError("Tables from files need pandas: pip install 'bayeslearn[cli]'") from error

__all__ = ["pd"]
