"""What every predictive distribution answers, and what follows from it."""

from __future__ import annotations

import abc
import numbers
from collections.abc import Sequence
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike

from bayeslearn.errors import NotAvailableError, Shown, check_whole, refuse
from bayeslearn.predictive_summary import predictive_html
from bayeslearn.tree import Array


class PredictiveBase(abc.ABC):
    """The predictive distribution at each of some rows (abstract).

    Attributes:
        kind: "regression" or "classification".
        is_discrete: whether observations are whole numbers.
        support: least and greatest number that an observation can be (regression).
        num_rows, num_samples: rows, and draws of the weights behind the predictions.
    """

    kind: str
    is_discrete: bool
    support: tuple[float, float] = (-np.inf, np.inf)
    num_rows: int
    num_samples: int

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}({self.kind}, rows={self.num_rows}, draws={self.num_samples})"

    def _repr_html_(self) -> str:
        return predictive_html(self)

    # Moments and probabilities

    @property
    @abc.abstractmethod
    def mean(self) -> np.ndarray:
        """Predictive mean, shaped like y; for classification the class probabilities."""

    @property
    @abc.abstractmethod
    def epistemic(self) -> np.ndarray:
        """Epistemic uncertainty: variance of the mean, or mutual information."""

    @property
    @abc.abstractmethod
    def aleatoric(self) -> np.ndarray:
        """Aleatoric uncertainty: noise variance, or mean entropy."""

    @property
    def probs(self) -> np.ndarray:
        """Class probabilities (rows, classes), averaged over the draws."""
        self.not_available("probs", "classification")

    @property
    def total(self) -> np.ndarray:
        """epistemic + aleatoric: the predictive variance, or the predictive entropy."""
        return self.epistemic + self.aleatoric

    @property
    def variance(self) -> np.ndarray:
        """Variance of a new observation (of each class's indicator, for classification)."""
        if self.kind == "classification":
            return self.probs * (1.0 - self.probs)
        return self.total

    @property
    def std(self) -> np.ndarray:
        """Standard deviation of a new observation."""
        return np.sqrt(self.variance)

    @abc.abstractmethod
    def covariance(self) -> np.ndarray:
        """Covariance of a new observation's columns (classes): (rows, columns, columns)."""

    # The whole distribution

    def is_censored(self, y: ArrayLike) -> np.ndarray:
        """Of which rows of y only a bound is known, as of survival times."""
        return np.zeros(self.num_rows, bool)

    def observed(
        self,
        y: ArrayLike,
        must: str = "hold observed numbers alone for this score",
        remedy: str = "log_likelihood and pit take censored rows.",
    ) -> np.ndarray:
        """As `align_y`; no row may be censored."""
        number = int(np.sum(self.is_censored(y)))
        if number:
            refuse("y", Shown(f"{number} censored of {self.num_rows} rows"), must, remedy)
        return self.align_y(y)

    @abc.abstractmethod
    def align_y(self, y: ArrayLike) -> np.ndarray:
        """Observations checked and shaped as the predictions are."""

    @abc.abstractmethod
    def log_prob(self, y: ArrayLike) -> np.ndarray:
        """log p(y) of each row, the average taken over draws inside the logarithm."""

    @abc.abstractmethod
    def log_prob_by_draw(self, y: ArrayLike) -> np.ndarray:
        """log p(y) of each row under each draw of the weights: (draws, rows)."""

    @abc.abstractmethod
    def quantiles(self, qs: Sequence[float]) -> list[np.ndarray]:
        """Several quantiles of a new observation, for which the network is evaluated once."""

    @abc.abstractmethod
    def cdfs(self, points: Sequence[ArrayLike]) -> list[np.ndarray]:
        """`cdf` at several y of each row, for which the network is evaluated once."""

    @abc.abstractmethod
    def sample(self, key: Array | int, num: int = 1) -> np.ndarray:
        """New observations (num, rows, ...): a draw of the weights, then of the noise."""

    def interval(self, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper end of the central interval for a new observation."""
        check_level(level)
        tail = (1.0 - level) / 2.0
        lower, upper = self.quantiles([tail, 1.0 - tail])
        return lower, upper

    def tails(self, tail: float) -> tuple[np.ndarray, np.ndarray]:
        """Finite ends that leave out a probability of at most about `tail` on either side."""
        lower, upper = self.quantiles([tail, 1.0 - tail])
        return lower, upper

    def quantile(self, q: float) -> np.ndarray:
        """Quantile of a new observation: the mixture over draws, inverted exactly.

        Of a count it is the least whole number that reaches q. A custom likelihood's is estimated
        from 4096 samples.
        """
        if not isinstance(q, numbers.Real) or not 0 < q < 1:
            refuse("q", q, "be between 0 and 1")
        return self.quantiles([q])[0]

    def cdf(self, y: ArrayLike) -> np.ndarray:
        """Probability of a new observation at or below y (its PIT value)."""
        return self.cdfs([y])[0]

    def prediction_set(
        self, level: float = 0.9, *, seed: int = 0, allow_empty: bool = False
    ) -> np.ndarray:
        """The most probable classes that hold a new label with that probability: (rows, classes).

        A boolean for each class: an adaptive prediction set (Romano, Sesia and Candes 2020). The
        last class is in it or not by a random number, drawn from `seed` for each row, so that the
        probability is the level and not more. Sets hold labels as often as they say if the
        probabilities are right; after `Posterior.calibrate(..., method="conformal")` also if they
        are not. The most probable class is always in it, unless `allow_empty`, with which the
        probability is exact.
        """
        check_level(level)
        check_whole("seed", seed, least=0)
        probs = self.probs
        uniform = np.random.default_rng([seed, len(probs)]).uniform(size=len(probs))
        chosen = set_scores(probs, uniform) <= self.set_threshold(level)
        if not allow_empty:
            chosen[np.arange(len(probs)), probs.argmax(axis=1)] = True
        return chosen

    def set_threshold(self, level: float) -> np.ndarray:
        """The score up to which a class is in `prediction_set`, for each row and class."""
        return np.array([[level]])

    def not_available(self, what: str, kind: str) -> NoReturn:
        """The error of a quantity that needs the other kind of model."""
        instead = "Use `probs`." if kind == "regression" else "Use `mean` and `std`."
        raise NotAvailableError(
            f"{what} needs a {kind} model; this predictive is for {self.kind}. {instead}"
        )


def set_scores(probs: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Of every class: the probability of all that are more probable, and a random part of its own.

    The score of adaptive prediction sets; `uniform` has one number for each row. Of equal
    probabilities the first class counts as the more probable.
    """
    order = np.argsort(-probs, axis=1, kind="stable")
    ordered = np.take_along_axis(probs, order, axis=1)
    scores = np.cumsum(ordered, axis=1) - (1.0 - uniform[:, None]) * ordered
    found = np.empty_like(scores)
    np.put_along_axis(found, order, scores, axis=1)
    return found


def check_level(level: float) -> None:
    """Refuse what is not a probability."""
    if not isinstance(level, numbers.Real) or not 0 < level < 1:
        refuse("level", level, "be between 0 and 1, such as 0.9")
