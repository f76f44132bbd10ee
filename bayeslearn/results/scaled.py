"""A predictive in the units of y, where the model was fitted to a scaled y."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from bayeslearn.data.scaling import Scaling
from bayeslearn.predictive_base import PredictiveBase
from bayeslearn.tree import Array


class ScaledPredictive(PredictiveBase):
    """The predictive distribution of mean + scale * y, given that of y."""

    def __init__(self, inner: PredictiveBase, scaling: Scaling):
        self._inner, self._scaling = inner, scaling
        self.num_rows, self.num_samples = inner.num_rows, inner.num_samples
        self.kind, self.is_discrete = inner.kind, inner.is_discrete
        if np.any(np.isfinite(inner.support)):  # such a y is scaled by one factor, or not at all
            lower, upper = (scaling.undo(np.asarray(end)) for end in inner.support)
            self.support = float(np.min(lower)), float(np.max(upper))

    @property
    def mean(self) -> np.ndarray:
        """Predictive mean, in the units of y."""
        return self._scaling.undo(self._inner.mean)

    @property
    def epistemic(self) -> np.ndarray:
        """Variance of the mean, in squared units of y."""
        return self._inner.epistemic * self._scaling.scale**2

    @property
    def aleatoric(self) -> np.ndarray:
        """Noise variance, in squared units of y."""
        return self._inner.aleatoric * self._scaling.scale**2

    def covariance(self) -> np.ndarray:
        """Covariance of the columns of a new observation."""
        scale = np.atleast_1d(self._scaling.scale)
        return self._inner.covariance() * np.outer(scale, scale)

    def align_y(self, y: ArrayLike) -> np.ndarray:
        """Observations checked and shaped as the predictions are."""
        return self._scaling.undo(self._inner.align_y(self._scaling.apply(np.asarray(y))))

    def log_prob(self, y: ArrayLike) -> np.ndarray:
        """log p(y) of each row, as a density in the units of y."""
        return self._inner.log_prob(self._scaling.apply(np.asarray(y))) - self._log_unit

    def log_prob_by_draw(self, y: ArrayLike) -> np.ndarray:
        """log p(y) of each row under each draw: (draws, rows)."""
        return self._inner.log_prob_by_draw(self._scaling.apply(np.asarray(y))) - self._log_unit

    @property
    def _log_unit(self) -> float:
        return float(np.sum(np.log(self._scaling.scale)))

    def quantiles(self, qs: Sequence[float]) -> list[np.ndarray]:
        """Several quantiles of a new observation."""
        return [self._scaling.undo(values) for values in self._inner.quantiles(qs)]

    def cdfs(self, points: Sequence[ArrayLike]) -> list[np.ndarray]:
        """Distribution function at several y of each row."""
        return self._inner.cdfs([self._scaling.apply(np.asarray(y)) for y in points])

    def sample(self, key: Array | int, num: int = 1) -> np.ndarray:
        """New observations (num, rows, ...)."""
        return self._scaling.undo(self._inner.sample(key, num))
