"""Rows of arrays and data frames alike; pandas is not imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

Inputs: TypeAlias = "np.ndarray | pd.DataFrame"


def take_rows(X: Inputs, index: np.ndarray) -> Inputs:
    """Some rows of a table."""
    return X[index] if isinstance(X, np.ndarray) else X.iloc[index]


def with_columns_of(X: Inputs, values: np.ndarray) -> Inputs:
    """Other values under the names of the columns."""
    return values if isinstance(X, np.ndarray) else type(X)(values, columns=X.columns)
