"""Class labels: two, several, or several at once."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn.errors import Shown, refuse
from bayeslearn.models.likelihoods.base import ColumnLikelihood, Likelihood, Params
from bayeslearn.models.likelihoods.checks import as_labels, as_table, check_labels
from bayeslearn.tree import Array


class Bernoulli(Likelihood):
    """Binary labels, 0 or 1; the network returns the log-odds of 1.

    Aleatoric uncertainty is the mean entropy of the predictions over draws.
    """

    kind: ClassVar[str] = "classification"

    def bind(self, y: np.ndarray, weight: np.ndarray | None = None) -> tuple[Bernoulli, np.ndarray]:
        """The likelihood as it is, and y checked."""
        return self, self.check(y)

    def check(self, y: np.ndarray) -> np.ndarray:
        """y as (rows,) of 0 and 1."""
        y = as_labels(y, "be (rows,) of 0 and 1")
        check_labels(y, 2, "0 and 1", "For more classes use bl.likelihoods.Categorical().")
        return y.astype(np.int32)

    @property
    def num_outputs(self) -> int:
        """The log-odds."""
        return 1

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        """log p(y | log-odds)."""
        log_odds = outputs[0]  # a number: rows of one column are not vectorised on a CPU
        return jax.nn.log_sigmoid(jnp.where(y == 1, log_odds, -log_odds))

    def probs(self, outputs: Array, params: Params) -> Array:
        """Probabilities of 0 and 1."""
        return jax.nn.softmax(jnp.concatenate([jnp.zeros_like(outputs), outputs]))

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        """0 or 1."""
        return jax.random.bernoulli(key, jax.nn.sigmoid(outputs[0])).astype(jnp.int32)


class Categorical(Likelihood):
    """One of `num_classes` classes, labelled 0, 1, ...; the network returns one logit for each.

    Default of `num_classes`: the largest label of the training data plus one. Aleatoric
    uncertainty is the mean entropy of the predictions over draws.

    >>> labels = np.digitize(y, [-1.0, 1.0])  # 0, 1 or 2
    >>> classes = bl.Model(bl.networks.MLP([]), bl.likelihoods.Categorical())
    >>> posterior = bl.fit(classes, bl.Laplace(), (x, labels), seed=0)
    >>> posterior.predict(x[:4]).probs.shape
    (4, 3)
    >>> posterior.predict(x[:4]).prediction_set(0.9).any(axis=1)
    array([ True,  True,  True,  True])
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
        """The likelihood with its number of classes, and y checked."""
        if self.num_classes is not None:
            return self, self.check(y)
        labels = Categorical(num_classes=2**31 - 1).check(y)
        if labels.min() == labels.max():
            remedy = "If there are others that these rows do not show, give num_classes."
            refuse("y", Shown(f"the class {labels[0]} alone"), "hold at least two classes", remedy)
        return Categorical(num_classes=max(2, int(labels.max()) + 1)), labels

    def check(self, y: np.ndarray) -> np.ndarray:
        """y as (rows,) of class labels."""
        remedy = "Turn one-hot rows into labels with y.argmax(axis=1)."
        y = as_labels(y, "be (rows,) of class labels", remedy)
        classes = self.num_outputs
        check_labels(y, classes, f"0 to {classes - 1}", "Encode names with sklearn's LabelEncoder.")
        return y.astype(np.int32)

    @property
    def num_outputs(self) -> int:
        """One logit for each class."""
        return int(self.num_classes or 2)

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        """log p(y | logits)."""
        return jax.nn.log_softmax(outputs)[y]

    def probs(self, outputs: Array, params: Params) -> Array:
        """Probability of each class."""
        return jax.nn.softmax(outputs)

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        """A class label."""
        return jax.random.categorical(key, outputs).astype(jnp.int32)


class MultiLabelBernoulli(ColumnLikelihood):
    """Several labels at once: y is (rows, labels) of 0 and 1, the network returns their log-odds.

    Labels are independent given the network's outputs. Predictions are summarized by moments: the
    mean is the probability of each label. Aleatoric uncertainty is the variance, p (1 - p).
    """

    is_discrete: ClassVar[bool] = True
    support: ClassVar[tuple[float, float]] = (0.0, 1.0)

    columns: int | None = eqx.field(default=None, static=True, kw_only=True)
    is_vector: bool = eqx.field(default=False, static=True, kw_only=True)

    def bind(
        self, y: np.ndarray, weight: np.ndarray | None = None
    ) -> tuple[MultiLabelBernoulli, np.ndarray]:
        """The likelihood with its number of labels, and y checked."""
        columns = as_table(y)[1]
        bound = MultiLabelBernoulli(columns=columns, is_vector=np.ndim(y) == 1)
        return bound, bound.check(y)

    def check(self, y: np.ndarray) -> np.ndarray:
        """y as (rows, labels) of 0 and 1."""
        table = as_table(y, self.columns)[0]
        check_labels(table, 2, "0 and 1", "Use a column for each label.")
        return table.astype(np.int32)

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        """log p(y | log-odds), summed over labels."""
        return jnp.sum(jax.nn.log_sigmoid(jnp.where(y == 1, outputs, -outputs)))

    def mean(self, outputs: Array, params: Params) -> Array:
        """The probability of each label."""
        return jax.nn.sigmoid(outputs)

    def variance(self, outputs: Array, params: Params) -> Array:
        """p (1 - p)."""
        return jax.nn.sigmoid(outputs) * jax.nn.sigmoid(-outputs)

    def cdf(self, outputs: Array, y: Array, params: Params) -> Array:
        """Distribution function at y, by label."""
        below = jnp.where(y < 1, jax.nn.sigmoid(-outputs), 1.0)
        return jnp.where(y < 0, 0.0, below)

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        """0 or 1 for each label."""
        return jax.random.bernoulli(key, jax.nn.sigmoid(outputs)).astype(jnp.int32)
