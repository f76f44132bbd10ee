"""Ordered classes: the cumulative logit."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn.errors import check_whole
from bayeslearn.models.likelihoods.base import Likelihood, Params
from bayeslearn.models.likelihoods.checks import as_double, as_labels, check_labels
from bayeslearn.tree import Array

PRIOR_SCALE = 1.0  # of the first threshold, and of the logarithm of each gap between thresholds


class Ordinal(Likelihood):
    """One of `num_classes` ordered classes, labelled 0, 1, ..., such as ratings.

    The network returns one number, the location; P(y <= k) is the logistic function of threshold k
    minus the location. The thresholds are learned along with the weights: the first one, and the
    logarithms of the gaps between them, with Normal priors of scale 1 around those that give the
    observed frequencies. Default of `num_classes`: the largest label of the training data plus one.
    Aleatoric uncertainty is the mean entropy of the predictions over draws.
    """

    kind: ClassVar[str] = "classification"

    num_classes: int | None = eqx.field(default=None, static=True)
    center: Array | None = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        if self.num_classes is not None:
            check_whole("num_classes", self.num_classes, least=2)

    def bind(self, y: np.ndarray, weight: np.ndarray | None = None) -> tuple[Ordinal, np.ndarray]:
        """The likelihood with its number of classes and thresholds, and y checked."""
        number = self.num_classes
        labels = Ordinal(2**31 - 1 if number is None else number).check(y)
        number = max(2, int(labels.max()) + 1) if number is None else number
        counts = np.bincount(labels, weight, number) + 0.5
        below = np.cumsum(counts)[:-1] / np.sum(counts)
        thresholds = np.log(below) - np.log1p(-below)
        center = np.concatenate([thresholds[:1], np.log(np.diff(thresholds))])
        return Ordinal(number, center=jnp.asarray(center, jnp.float64)), labels

    def check(self, y: np.ndarray) -> np.ndarray:
        """y as (rows,) of class labels."""
        y = as_labels(y, "be (rows,) of class labels")
        classes = int(self.num_classes or 2)
        remedy = "Encode ordered names by their rank."
        check_labels(y, classes, f"0 to {classes - 1}", remedy)
        return y.astype(np.int32)

    @property
    def num_outputs(self) -> int:
        """The location."""
        return 1

    def init(self) -> Params:
        """The thresholds of the observed frequencies."""
        assert self.center is not None
        return {"thresholds": self.center}

    def prior(self) -> tuple[Params, Params]:
        """Normal(c, 1)."""
        mean = self.init()
        return mean, jax.tree.map(lambda leaf: jnp.full_like(leaf, PRIOR_SCALE), mean)

    def thresholds(self, params: Params) -> Array:
        """The thresholds in ascending order."""
        own = as_double(params["thresholds"])
        return jnp.cumsum(jnp.concatenate([own[:1], jnp.exp(own[1:])]))

    def log_probs(self, outputs: Array, params: Params) -> Array:
        """log-probability of each class."""
        at = self.thresholds(params) - as_double(outputs)[0]
        # s(b) - s(a) = s(b) s(-a) (1 - exp(a - b)) for the logistic function s, without loss.
        below, above = jax.nn.log_sigmoid(at), jax.nn.log_sigmoid(-at)
        between = below[1:] + above[:-1] + jnp.log(-jnp.expm1(at[:-1] - at[1:]))
        return jnp.concatenate([below[:1], between, above[-1:]])

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        """log p(y | location)."""
        return self.log_probs(outputs, params)[y]

    def probs(self, outputs: Array, params: Params) -> Array:
        """Probability of each class."""
        return jnp.exp(self.log_probs(outputs, params))

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        """A class label."""
        return jax.random.categorical(key, self.log_probs(outputs, params)).astype(jnp.int32)

    def information(self, outputs: Array, y: Array, params: Params) -> Array:
        """The covariance of the score over the classes."""
        scores = jax.jacfwd(lambda o: self.log_probs(o, params))(as_double(outputs))
        return scores.T @ (self.probs(outputs, params)[:, None] * scores)

    def own_information(self, outputs: Array, params: Params) -> Params:
        """The squared score of each threshold's parameter, averaged over the classes."""
        scores = jax.jacfwd(lambda own: self.log_probs(outputs, own))(params)["thresholds"]
        return {"thresholds": self.probs(outputs, params) @ as_double(scores) ** 2}
