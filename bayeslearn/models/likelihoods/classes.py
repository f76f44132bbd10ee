"""Class labels: two, or several."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn.errors import Shown, refuse
from bayeslearn.models.likelihoods.base import Likelihood, Params
from bayeslearn.models.likelihoods.checks import _check_labels, _numeric
from bayeslearn.tree import Array


class Bernoulli(Likelihood):
    """A yes or no (0 or 1); the network gives the log-odds of 1.

    Aleatoric uncertainty is the mean entropy of the draws' predictions.
    """

    kind: ClassVar[str] = "classification"

    def bind(self, y: np.ndarray, weight: np.ndarray | None = None) -> tuple[Bernoulli, np.ndarray]:
        return self, self.check(y)

    def check(self, y: np.ndarray) -> np.ndarray:
        y = _numeric(y)
        if y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]
        if y.ndim != 1:
            refuse("y", Shown(f"shape {y.shape}"), "be (rows,) of 0 and 1")
        _check_labels(y, 2, "0 and 1", "For more classes use bl.likelihoods.Categorical().")
        return y.astype(np.int32)

    @property
    def num_outputs(self) -> int:
        return 1

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        log_odds = outputs[0]  # a number: rows of one column are not vectorised on a CPU
        return jax.nn.log_sigmoid(jnp.where(y == 1, log_odds, -log_odds))

    def probs(self, outputs: Array, params: Params) -> Array:
        return jax.nn.softmax(jnp.concatenate([jnp.zeros_like(outputs), outputs]))

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        return jax.random.bernoulli(key, jax.nn.sigmoid(outputs[0])).astype(jnp.int32)


class Categorical(Likelihood):
    """One of `num_classes` classes, labelled 0, 1, ...; the network gives one logit for each.

    Left out, `num_classes` is the largest label of the training data plus one. Aleatoric
    uncertainty is the mean entropy of the draws' predictions.
    """

    kind: ClassVar[str] = "classification"

    num_classes: int | None = eqx.field(default=None, static=True)

    def __check_init__(self) -> None:
        if self.num_classes is not None and (
            not isinstance(self.num_classes, int | np.integer) or self.num_classes < 2
        ):
            refuse("num_classes", self.num_classes, "be an integer of at least 2")

    def bind(
        self, y: np.ndarray, weight: np.ndarray | None = None
    ) -> tuple[Categorical, np.ndarray]:
        if self.num_classes is not None:
            return self, self.check(y)
        labels = Categorical(num_classes=2**31 - 1).check(y)
        return Categorical(num_classes=max(2, int(labels.max()) + 1)), labels

    def check(self, y: np.ndarray) -> np.ndarray:
        y = _numeric(y)
        if y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]
        if y.ndim != 1:
            refuse(
                "y",
                Shown(f"shape {y.shape}"),
                "be (rows,) of class labels",
                "Turn one-hot rows into labels with y.argmax(axis=1).",
            )
        classes = self.num_outputs
        _check_labels(
            y, classes, f"0 to {classes - 1}", "Encode names with sklearn's LabelEncoder."
        )
        return y.astype(np.int32)

    @property
    def num_outputs(self) -> int:
        return int(self.num_classes or 2)

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        return jax.nn.log_softmax(outputs)[y]

    def probs(self, outputs: Array, params: Params) -> Array:
        return jax.nn.softmax(outputs)

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        return jax.random.categorical(key, outputs).astype(jnp.int32)
