"""Estimators on disk, and in a pickle."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from bayeslearn.errors import StorageError
from bayeslearn.results.posterior import Posterior
from bayeslearn.storage import posteriors
from bayeslearn.tabular.base import LEARNED
from bayeslearn.tabular.classifier import BayesianNNClassifier
from bayeslearn.tabular.regressor import BayesianNNRegressor
from bayeslearn.tabular.scaling import Scaling


def load(path: str | os.PathLike[str], network: Any = None) -> Any:
    """The estimator that `save` wrote to a folder; it predicts as before, to the bit.

    `network` is required where the estimator was given one that is not of `bl.networks`.
    """
    fields, owner = posteriors.load(path, network)
    posterior = Posterior.from_stored_fields(fields)
    kinds = {cls.__name__: cls for cls in (BayesianNNRegressor, BayesianNNClassifier)}
    try:
        if owner is None:
            raise StorageError("it holds a bare posterior; use bl.load")
        estimator = kinds[owner["class"]](**owner["parameters"])
        if network is not None:
            estimator.network = network
        for name, value in owner["learned"].items():
            if name not in LEARNED:
                raise StorageError(f"it holds {name!r}, which no estimator has")
            if isinstance(value, dict):
                value = Scaling(**value)
            elif isinstance(value, list):
                value = np.array(value[1], dtype=value[0])
            setattr(estimator, name, value)
        estimator.posterior_ = posterior
        estimator._check_parameters()
    except StorageError as error:
        raise StorageError(f"{path} cannot be loaded: {str(error).removesuffix('.')}.") from error
    except Exception as error:  # whatever a description of nonsense leads to
        raise StorageError(
            f"{path} cannot be loaded: its description does not make an estimator"
            f" ({type(error).__name__}: {error})."
        ) from error
    return estimator
