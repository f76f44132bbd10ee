"""A predictive in the units of y, where the model was fitted to a scaled y."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bayeslearn.data.scaling import Scaling
from bayeslearn.predictive_base import PredictiveBase
from bayeslearn.tree import Array


class ScaledPredictive(PredictiveBase):
    """The predictive distribution of mean + scale * y, given that of y."""

    def __init__(self, inner: PredictiveBase, scaling: Scaling):
        self._inner, self._scaling = inner, scaling
        self.num_rows, self.num_samples = inner.num_rows, inner.num_samples
        self.kind, self.is_discrete = inner.kind, inner.is_discrete

    @property
    def mean(self) -> np.ndarray:
        return self._scaling.undo(self._inner.mean)

    @property
    def epistemic(self) -> np.ndarray:
        return self._inner.epistemic * self._scaling.scale**2

    @property
    def aleatoric(self) -> np.ndarray:
        return self._inner.aleatoric * self._scaling.scale**2

    def covariance(self) -> np.ndarray:
        scale = np.atleast_1d(self._scaling.scale)
        return self._inner.covariance() * np.outer(scale, scale)

    def align_y(self, y: Any) -> np.ndarray:
        return self._scaling.undo(self._inner.align_y(self._scaling.apply(np.asarray(y))))

    def log_prob(self, y: Any) -> np.ndarray:
        return self._inner.log_prob(self._scaling.apply(np.asarray(y))) - self._log_unit

    def log_prob_by_draw(self, y: Any) -> np.ndarray:
        return self._inner.log_prob_by_draw(self._scaling.apply(np.asarray(y))) - self._log_unit

    @property
    def _log_unit(self) -> float:
        return float(np.sum(np.log(self._scaling.scale)))

    def quantiles(self, qs: Sequence[float]) -> list[np.ndarray]:
        return [self._scaling.undo(values) for values in self._inner.quantiles(qs)]

    def cdfs(self, points: Sequence[Any]) -> list[np.ndarray]:
        return self._inner.cdfs([self._scaling.apply(np.asarray(y)) for y in points])

    def sample(self, key: Array | int, num: int = 1) -> np.ndarray:
        return self._scaling.undo(self._inner.sample(key, num))
