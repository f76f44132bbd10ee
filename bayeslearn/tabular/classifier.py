"""Classification with a Bayesian neural network."""

from __future__ import annotations

from typing import Any

import numpy as np

from bayeslearn.errors import Shown, refuse
from bayeslearn.models.likelihoods.base import Likelihood
from bayeslearn.models.likelihoods.classes import Bernoulli, Categorical
from bayeslearn.tabular.base import (
    _ATTRIBUTES,
    _PARAMETERS,
    Uncertainty,
    _BayesianNN,
    _has_spread,
    _Rows,
)
from bayeslearn.tabular.sklearn_parts import (
    ClassifierMixin,
    available_if,
    check_classification_targets,
    column_or_1d,
    validate_data,
)


class BayesianNNClassifier(ClassifierMixin, _BayesianNN):
    __doc__ = f"""Classification with a Bayesian neural network, for labels of any kind.
{_PARAMETERS}{_ATTRIBUTES}
        classes_: the labels, in the order of `predict_proba`'s columns.

    The prior is wider than for regression: log-odds of a sure prediction are several units, where
    a scaled y is about one.
    """

    def __init__(
        self,
        hidden: Any = (50,),
        activation: Any = "tanh",
        method: Any = "bayes-by-backprop",
        prior_scale: float = 3.0,
        num_steps: Any = "auto",
        batch_size: Any = "auto",
        validation_fraction: float | None = None,
        num_samples: int = 256,
        random_state: Any = None,
        progress: bool | None = False,
        network: Any = None,
    ):
        super().__init__(
            hidden=hidden,
            activation=activation,
            method=method,
            prior_scale=prior_scale,
            num_steps=num_steps,
            batch_size=batch_size,
            validation_fraction=validation_fraction,
            num_samples=num_samples,
            random_state=random_state,
            progress=progress,
            network=network,
        )

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> BayesianNNClassifier:
        """Learn from rows of X and their labels y; a row of weight 2 counts as two."""
        return self._fit(X, y, sample_weight)

    @available_if(_has_spread)
    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> BayesianNNClassifier:
        """Learn from more rows, what is known so far being the prior.

        The first call is `fit`; columns stay scaled as they were there. `classes` are all labels
        there will be, for a first call that does not show them all.
        """
        return self._partial_fit(X, y, sample_weight, classes)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of each of `classes_`, averaged over the draws of the weights."""
        return self._predictive(X).probs

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label."""
        probs = self.predict_proba(X)
        return self.classes_[np.argmax(probs, axis=1)]

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Mutual information and mean entropy; see `Uncertainty`."""
        predictive = self._predictive(X)
        return Uncertainty(predictive.epistemic, predictive.aleatoric)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = None) -> np.ndarray:
        """Labels drawn for each row: (rows, n_samples)."""
        return self.classes_[self._sample(X, n_samples, random_state).T]

    def log_likelihood(self, X: Any, y: Any) -> float:
        """Mean log probability of the observed labels (higher is better)."""
        predictive = self._predictive(X)
        _, y = self._read(X, y, first=False)
        return float(np.mean(predictive.log_prob(self._to_network(y))))

    def _read(self, X: Any, y: Any, classes: Any = None, first: bool = True) -> Any:
        X, y = validate_data(self, X, y, reset=first, dtype=np.float64)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        if first:
            self.classes_ = np.unique(y if classes is None else classes)
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            refuse("classes", classes, f"be those of the first call, {self.classes_.tolist()}")
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            must = f"hold only the labels {self.classes_.tolist()}"
            refuse("y", Shown(f"the label {unknown[0]!r}"), must)
        return X, np.searchsorted(self.classes_, y).astype(np.float64)[:, None]

    def _bind_y(self, rows: _Rows, classes: Any) -> tuple[Likelihood, np.ndarray]:
        if classes is None:  # rows of weight 0 are not there, and neither are their labels
            seen = np.unique(rows.y).astype(int)
            rows.y[:] = np.searchsorted(seen, rows.y)
            self.classes_ = self.classes_[seen]
        if len(self.classes_) < 2:
            refuse("y", Shown("1 class"), "hold at least two classes")
        if len(self.classes_) == 2:
            return Bernoulli(), np.array([0, 1])
        return Categorical(len(self.classes_)), np.array([0, 1])

    def _to_network(self, y: np.ndarray) -> np.ndarray:
        return y[:, 0].astype(np.int64)
