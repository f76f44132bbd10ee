"""Class probabilities and prediction sets after calibration."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from bayeslearn.predictive_base import PredictiveBase
from bayeslearn.results.calibrated import (
    CalibratedPredictive,
    MapT,
    no_draws,
    uniform_of,
    warn_too_few,
)
from bayeslearn.results.calibration_maps import ConformalMap, FactorMap, ProbabilityMap, tempered
from bayeslearn.tree import Array


class ConformalSets(CalibratedPredictive[ConformalMap]):
    """Prediction sets from conformal scores; the probabilities are the model's.

    With `is_by_class` the maps are those of the classes, and every class has its own threshold.
    """

    def __init__(
        self,
        inner: PredictiveBase,
        maps: Sequence[ConformalMap],
        group: np.ndarray | None = None,
        *,
        is_by_class: bool = False,
    ):
        super().__init__(inner, maps, group)
        self._is_by_class = is_by_class

    def set_threshold(self, level: float) -> np.ndarray:
        """The score up to which a class is in the set, for each row and class."""
        if self._is_by_class:
            threshold = np.array([own.quantile(level)[0] for own in self._maps])[None]
        else:
            rows = np.zeros((self.num_rows, 1))
            threshold = self._by_group(lambda own, part: own.quantile(level) + part, rows)
        if not np.all(np.isfinite(threshold)):
            warn_too_few(level, self._maps, "set", "whole")
        return threshold


class ClassesPredictive(CalibratedPredictive[MapT], abc.ABC):
    """Class probabilities that are a function of the model's averaged ones (abstract).

    Total uncertainty is their entropy; epistemic and aleatoric keep the model's proportion.
    """

    @abc.abstractmethod
    def _calibrate(self, own: MapT, probs: np.ndarray) -> np.ndarray:
        """The probabilities of some rows after calibration."""

    @cached_property
    def _probs(self) -> np.ndarray:
        return self._by_group(self._calibrate, self._inner.probs)

    @property
    def probs(self) -> np.ndarray:
        """Class probabilities (rows, classes)."""
        return self._probs

    @property
    def mean(self) -> np.ndarray:
        """The class probabilities."""
        return self._probs

    @property
    def total(self) -> np.ndarray:
        """Entropy of the calibrated probabilities."""
        logs = np.log(np.where(self._probs > 0, self._probs, 1.0))
        return -np.sum(self._probs * logs, axis=1)

    @property
    def epistemic(self) -> np.ndarray:
        """The model's share of the entropy."""
        before = self._inner.total
        share = np.divide(
            self._inner.epistemic, before, where=before > 0, out=np.zeros_like(before)
        )
        return self.total * share

    @property
    def aleatoric(self) -> np.ndarray:
        """The model's share of the entropy."""
        return self.total - self.epistemic

    def covariance(self) -> np.ndarray:
        """Covariance of the class indicators of a new observation."""
        probs = self._probs
        return np.einsum("ri,ij->rij", probs, np.eye(probs.shape[1])) - np.einsum(
            "ri,rj->rij", probs, probs
        )

    def log_prob(self, y: ArrayLike) -> np.ndarray:
        """log p(y) of each row."""
        with np.errstate(divide="ignore"):
            return np.log(self._probs[np.arange(self.num_rows), self.align_y(y)])

    def log_prob_by_draw(self, y: ArrayLike) -> np.ndarray:
        """Not available: calibration acts on the average over draws."""
        raise no_draws()

    def sample(self, key: Array | int, num: int = 1) -> np.ndarray:
        """Labels (num, rows)."""
        uniform = uniform_of(key, (num, self.num_rows, 1))
        labels = np.sum(uniform > np.cumsum(self._probs, axis=1), axis=2)
        return np.minimum(labels, self._probs.shape[1] - 1)


class TemperedPredictive(ClassesPredictive[FactorMap]):
    """Logits of the averaged probabilities, divided by a temperature."""

    def _calibrate(self, own: FactorMap, probs: np.ndarray) -> np.ndarray:
        return tempered(probs, own.factor)


class IsotonicClasses(ClassesPredictive[ProbabilityMap]):
    """An increasing function of each class's probability, normalised."""

    def _calibrate(self, own: ProbabilityMap, probs: np.ndarray) -> np.ndarray:
        if len(own.before) == 1:
            (last,) = own.apply(probs[:, 1:]).T
            return np.stack([1.0 - last, last], axis=1)
        calibrated = own.apply(probs)
        return calibrated / np.sum(calibrated, axis=1, keepdims=True)
