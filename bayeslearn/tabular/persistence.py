"""Estimators on disk."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np

from bayeslearn.data.scaling import Scaling, TableScaling
from bayeslearn.errors import StorageError
from bayeslearn.models.likelihoods.base import ColumnLikelihood
from bayeslearn.models.protocols import Network
from bayeslearn.results.posterior import Posterior
from bayeslearn.storage import posteriors
from bayeslearn.tabular.base import BayesianNN
from bayeslearn.tabular.classifier import BayesianNNClassifier
from bayeslearn.tabular.regressor import BayesianNNRegressor
from bayeslearn.tabular.stored_estimator import LEARNED

KINDS: dict[str, type[BayesianNN]] = {
    cls.__name__: cls for cls in (BayesianNNRegressor, BayesianNNClassifier)
}


def load(path: str | os.PathLike[str], network: Network | None = None) -> BayesianNN:
    """The estimator that `save` wrote to a folder; it predicts as before, to the bit.

    `network` is required where the estimator was given one that is not of `bl.networks`.
    """
    fields, owner = posteriors.load(path, network)
    posterior = Posterior.from_stored_fields(fields)
    try:
        if owner is None:
            raise StorageError("it holds a bare posterior; use bl.load")
        learned = dict(owner["learned"])
        if "scaling_" in learned:
            posterior = _from_version_1(posterior, learned)
        estimator = KINDS[owner["class"]](**owner["parameters"])
        if network is not None:
            estimator.network = network
        for name, value in learned.items():
            if name not in LEARNED:
                raise StorageError(f"it holds {name!r}, which no estimator has")
            if isinstance(value, list) and name in ("feature_names_in_", "classes_"):
                value = np.array(value[1], dtype=value[0])
            setattr(estimator, name, value)
        estimator.posterior_ = posterior
        estimator.check_parameters()
    except StorageError as error:
        raise StorageError(f"{path} cannot be loaded: {str(error).removesuffix('.')}.") from error
    except Exception as error:  # whatever a description of nonsense leads to
        raise StorageError(
            f"{path} cannot be loaded: its description does not make an estimator"
            f" ({type(error).__name__}: {error})."
        ) from error
    return estimator


def _from_version_1(posterior: Posterior, learned: dict[str, Any]) -> Posterior:
    """Estimators of version 0.1 kept the scaling, and whether y was a vector, beside the posterior.

    What is read here is removed from `learned`.
    """
    x = Scaling(**learned.pop("scaling_"))
    y = learned.pop("y_scaling_", None)
    y = None if y is None else Scaling(**y)
    target = posterior.target
    is_vector, likelihood = learned.pop("_is_vector", False), target.likelihood
    if is_vector and y is not None and isinstance(likelihood, ColumnLikelihood):
        y = Scaling(y.mean[0], y.scale[0])
        likelihood = dataclasses.replace(likelihood, is_vector=True)
        target = dataclasses.replace(target, likelihood=likelihood)
    return dataclasses.replace(posterior, target=target, scaling=TableScaling(x, y))
