"""Tables: scikit-learn estimators, files, comparisons.

Names are imported when first used: reading a file, or rendering a stored report, needs no JAX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bayeslearn.tabular.classifier import BayesianNNClassifier
    from bayeslearn.tabular.persistence import load
    from bayeslearn.tabular.regressor import BayesianNNRegressor

__all__ = ["BayesianNNClassifier", "BayesianNNRegressor", "load"]
_MODULES = {
    "BayesianNNClassifier": "bayeslearn.tabular.classifier",
    "BayesianNNRegressor": "bayeslearn.tabular.regressor",
    "load": "bayeslearn.tabular.persistence",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'bayeslearn.tabular' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_MODULES[name]), name)
