"""Classification with a Bayesian neural network."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import numpy as np

from bayeslearn.algorithms.base import Algorithm
from bayeslearn.data.scaling import Scaling
from bayeslearn.errors import Shown, refuse
from bayeslearn.inference.options import Checkpoint, Devices
from bayeslearn.models.likelihoods.base import Likelihood
from bayeslearn.models.likelihoods.classes import Bernoulli, Categorical
from bayeslearn.models.likelihoods.ordinal import Ordinal
from bayeslearn.tabular.base import BayesianNN, Callback
from bayeslearn.tabular.candidates import CLASS_PRIOR_SCALES, Noise
from bayeslearn.tabular.classes import (
    AUTO,
    BALANCED,
    CATEGORICAL,
    ORDINAL,
    check_class_options,
    check_labels,
    codes_of,
    order_of,
    ordered_categories,
    weighted,
)
from bayeslearn.tabular.distributions import DistributionMethods, Uncertainty, can_update
from bayeslearn.tabular.frame_inputs import validated
from bayeslearn.tabular.sklearn_parts import (
    ClassifierMixin,
    available_if,
    check_classification_targets,
    check_sample_weight,
    column_or_1d,
)
from bayeslearn.tabular.texts import ATTRIBUTES, PARAMETERS


class BayesianNNClassifier(ClassifierMixin, DistributionMethods, BayesianNN):
    __doc__ = f"""Classification with a Bayesian neural network, for labels of any kind.

    >>> classifier = bl.BayesianNNClassifier(hidden=(), method="laplace", random_state=0)
    >>> probabilities = classifier.fit(x, np.where(y > 0, "up", "down")).predict_proba(x_held)
    >>> probabilities.shape, classifier.classes_.tolist()
    ((40, 2), ['down', 'up'])
{PARAMETERS.format(prior_scale=3.0, scaling='"temperature"')}{ATTRIBUTES}
        classes_: the labels, in the order of `predict_proba`'s columns.
        likelihood_: "categorical" or "ordinal".

    `class_weight`: None, "balanced" (inverse to the frequency) or a dict by label, a factor of the
    weights of the rows; probabilities are then those of the weighted classes. `likelihood`:
    "categorical", "ordinal" (ordered classes: numbers, an ordered pandas column or a Polars Enum,
    in whose order `classes_` is) or "auto": ordinal where the column is ordered, with three classes
    or more.

    The prior is wider than for regression: log-odds of a confident prediction are several units,
    where a scaled y is about one.
    """

    task: ClassVar[str] = "classification"
    default_prior_scale: ClassVar[float] = 3.0
    prior_scales: ClassVar[tuple[float, ...]] = CLASS_PRIOR_SCALES

    def __init__(
        self,
        hidden: Any = "auto",
        activation: Any = "tanh",
        method: Any = "auto",
        prior_scale: float | str = "auto",
        num_steps: int | str = "auto",
        batch_size: int | str = "auto",
        validation_fraction: float | None = None,
        num_samples: int = 256,
        starts: Any = 1,
        random_state: Any = None,
        progress: bool | None = False,
        network: Any = None,
        budget: float | str | None = None,
        calibration: str | None = None,
        calibration_fraction: float = 0.2,
        categories: str = "one-hot",
        missing: str | None = None,
        class_weight: Any = None,
        likelihood: str = AUTO,
    ):
        self.hidden = hidden
        self.activation = activation
        self.method = method
        self.prior_scale = prior_scale
        self.num_steps = num_steps
        self.batch_size = batch_size
        self.validation_fraction = validation_fraction
        self.num_samples = num_samples
        self.starts = starts
        self.random_state = random_state
        self.progress = progress
        self.network = network
        self.budget = budget
        self.calibration = calibration
        self.calibration_fraction = calibration_fraction
        self.categories = categories
        self.missing = missing
        self.class_weight = class_weight
        self.likelihood = likelihood

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        classes: Any = None,
        groups: Any = None,
        time_order: Any = None,
        callback: Callback | None = None,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
        devices: str | Devices | None = None,
    ) -> BayesianNNClassifier:
        """Learn from rows of X and their labels y; a row of weight 2 counts as two.

        `classes` are all labels there are, for a y that does not show them all. `callback`,
        `checkpoint` and `devices` are those of `bl.fit`. Where rows are held out inside
        the fit, rows with the same entry of `groups` stay together; with `time_order`, the time of
        each row, or True for rows in order, the latest are held out.
        """
        if classes is None and sample_weight is not None:
            # A row of weight 0 is not there, and neither is its label.
            weight = check_sample_weight(sample_weight, X)
            if np.any(weight > 0) and not np.all(weight > 0):
                classes = np.unique(np.asarray(y)[weight > 0])
                keep = np.isin(np.asarray(y), classes)
                X, y, sample_weight = _rows_of(X, keep), _rows_of(y, keep), weight[keep]
                groups = None if groups is None else _rows_of(groups, keep)
                if time_order is not None and time_order is not True:
                    time_order = _rows_of(time_order, keep)
        return self._fit(
            X,
            y,
            self._weighted(y, sample_weight),
            classes=classes,
            groups=groups,
            time_order=time_order,
            callback=callback,
            checkpoint=checkpoint,
            devices=devices,
        )

    @available_if(can_update)
    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> BayesianNNClassifier:
        """Learn from more rows, with the posterior so far as the prior.

        The first call is `fit`; columns stay scaled as they were there. `classes` are all labels
        there will be, for a first call that does not show them all.
        """
        if self.class_weight == BALANCED:
            must = "be None or a dict with partial_fit, which does not see all rows"
            refuse("class_weight", self.class_weight, must)
        return self._partial_fit(X, y, self._weighted(y, sample_weight), classes)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of each of `classes_`, averaged over the draws of the weights."""
        return self.predictive(X).probs

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label."""
        probs = self.predict_proba(X)
        return self.classes_[np.argmax(probs, axis=1)]

    def predict_set(self, X: Any, level: float = 0.9, groups: Any = None) -> np.ndarray:
        """Whether each of `classes_` is in the set that holds the label with that probability.

        (rows, classes) of booleans: an adaptive prediction set, never empty. With
        calibration="conformal" it holds the label at least that often; otherwise as often as the
        probabilities are right. `groups`: of each row, where calibration was by groups.
        """
        return self.predictive(X, groups).prediction_set(level, seed=self.posterior_.seed)

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Mutual information and mean entropy, in nats."""
        predictive = self.predictive(X)
        return Uncertainty(predictive.epistemic, predictive.aleatoric)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = None) -> np.ndarray:
        """Labels drawn for each row: (rows, n_samples)."""
        return self.classes_[self._sample(X, n_samples, random_state).T]

    def log_likelihood(self, X: Any, y: Any) -> float:
        """Mean log probability of the observed labels (higher is better)."""
        return float(np.mean(self.log_prob(X, y)))

    def _read(
        self, X: Any, y: Any, classes: Any = None, first: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        categories = ordered_categories(y)
        check_labels(y)
        X, y = validated(self, X, y, reset=first, dtype=np.float64)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        if first:
            self._learn_classes(y, categories, classes)
            if len(self.classes_) < 2:
                refuse("y", Shown("1 class"), "hold at least two classes")
        elif classes is not None and set(np.unique(classes)) != set(self.classes_):
            refuse("classes", classes, f"be those of the first call, {self.classes_.tolist()}")
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            must = f"hold only the labels {self.classes_.tolist()}"
            refuse("y", Shown(f"the label {unknown.tolist()[0]!r}"), must)
        return X, codes_of(y, self.classes_)

    def _learn_classes(self, y: np.ndarray, categories: list[Any] | None, classes: Any) -> None:
        """The labels, and whether they are ordered."""
        self.classes_ = order_of(y, categories, classes)
        is_ordered = categories is not None and len(self.classes_) > 2
        if self.likelihood == ORDINAL and categories is None and self.classes_.dtype.kind in "OUS":
            must = 'be of an ordered type with likelihood="ordinal", or numbers'
            remedy = "Such as pandas.Categorical(y, categories=[...], ordered=True)."
            refuse("y", Shown("text, whose order is not known"), must, remedy)
        self.likelihood_ = self.likelihood
        if self.likelihood == AUTO:
            self.likelihood_ = ORDINAL if is_ordered else CATEGORICAL

    def _weighted(self, y: Any, sample_weight: Any) -> Any:
        check_class_options(self.likelihood, self.class_weight)
        if self.class_weight is None:
            return sample_weight
        y = y.to_numpy() if hasattr(y, "to_numpy") else y
        if sample_weight is not None:
            sample_weight = check_sample_weight(sample_weight, y)
        return weighted(self.class_weight, y, sample_weight)

    def _notes(self, y: np.ndarray) -> tuple[str, ...]:
        notes = []
        if self.likelihood_ == ORDINAL:
            order = " < ".join(map(str, self.classes_))
            notes.append(f'Ordered classes, {order}: likelihood="ordinal".')
        if self.class_weight is not None:
            notes.append("Probabilities are those of the classes as weighted by class_weight.")
        return tuple(notes)

    def check_parameters(self) -> Algorithm | None:
        """Refuse settings that make no sense; the algorithm of `method`, None for "auto"."""
        check_class_options(self.likelihood, self.class_weight)
        return super().check_parameters()

    def _likelihood(self, noise: Noise, scaling: Scaling | None) -> Likelihood:
        if getattr(self, "likelihood_", CATEGORICAL) == ORDINAL:
            return Ordinal(len(self.classes_))
        if len(self.classes_) == 2:
            return Bernoulli()
        return Categorical(len(self.classes_))


def _rows_of(table: Any, keep: np.ndarray) -> Any:
    """Some rows of an array, a list or a frame."""
    if hasattr(table, "filter") and not hasattr(table, "iloc"):  # Polars
        return table.filter(keep)
    return table[keep] if hasattr(table, "iloc") else np.asarray(table)[keep]
