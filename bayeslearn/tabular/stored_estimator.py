"""What estimators are on disk, in pickles and in notebooks."""

from __future__ import annotations

import dataclasses
import numbers
import os
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from bayeslearn.data.scaling import RankScaling, Scaling
from bayeslearn.results.diagnostics import stored_outputs
from bayeslearn.results.notebook import posterior_html
from bayeslearn.results.posterior import Posterior
from bayeslearn.storage import posteriors
from bayeslearn.tabular.sklearn_parts import BaseEstimator, check_is_fitted

# What `fit` leaves beside the posterior.
LEARNED = (
    *("n_features_in_", "feature_names_in_", "classes_"),
    *("chosen_", "candidates_", "baseline_", "likelihood_", "encoding_", "column_notes_"),
    "cross_calibration_",
)


class StoredEstimator(BaseEstimator):
    """Saving and showing a fitted estimator (abstract)."""

    posterior_: Posterior
    random_state: Any

    @property
    def trace_(self) -> dict[str, np.ndarray]:
        """Numbers of the run by name, `eval_elbo` among them; see `Posterior.trace`."""
        return self.posterior_.trace

    @property
    def scaling_(self) -> Scaling | RankScaling:
        """Mean and scale of the columns of x."""
        scaling = self.posterior_.scaling
        assert scaling is not None
        return scaling.x

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the fitted estimator to a folder that `bl.tabular.load` reads.

        Arrays and a description, as `Posterior.save` writes them: no pickle, no training rows. A
        `random_state` that is not a number is not stored, nor a `class_weight` of numbers.
        """
        check_is_fitted(self, "posterior_")
        parameters = self.get_params(deep=False) | {"network": None}
        if not isinstance(self.random_state, numbers.Integral | None):
            parameters["random_state"] = None
        weights = parameters.get("class_weight")
        if isinstance(weights, Mapping) and not all(isinstance(name, str) for name in weights):
            parameters["class_weight"] = None  # JSON has names alone; only another fit needs it
        learned = {name: getattr(self, name) for name in LEARNED if hasattr(self, name)}
        for name, value in learned.items():
            if isinstance(value, np.ndarray) and value.dtype.kind in "OUT":  # names
                learned[name] = [str(value.dtype), value.tolist()]
        owner = {"class": type(self).__name__, "parameters": parameters, "learned": learned}
        posteriors.save(self.posterior_.stored_fields(), path, overwrite=overwrite, owner=owner)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if "posterior_" in state:
            state["posterior_"] = _without_rows(state["posterior_"])
        return state

    def _repr_html_inner(self) -> str:
        shown = super()._repr_html_inner()
        return shown + posterior_html(self.posterior_) if hasattr(self, "posterior_") else shown

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        bundle = super()._repr_mimebundle_(**kwargs)
        if "text/html" in bundle:
            bundle["text/html"] = self._repr_html_inner()
        return bundle


def _without_rows(posterior: Posterior) -> Posterior:
    """Arrays of NumPy and settings, without the training rows and the last state of the run."""
    target = posterior.target.with_data(jax.tree.map(lambda a: a[:0], posterior.target.data))
    parts = {
        name: jax.tree.map(lambda a: np.asarray(a) if isinstance(a, jax.Array) else a, part)
        for name, part in (("target", target), ("family", posterior.family))
    }
    return dataclasses.replace(
        posterior, state=None, row_outputs=stored_outputs(posterior), **parts
    )
