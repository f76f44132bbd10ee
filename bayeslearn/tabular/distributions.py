"""Methods of both estimators that answer with the whole predictive distribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from bayeslearn.algorithms.map import MAP
from bayeslearn.errors import check_whole, refuse
from bayeslearn.predictive_base import PredictiveBase
from bayeslearn.results.calibration import fit_calibrator
from bayeslearn.results.posterior import Posterior
from bayeslearn.tabular.sklearn_parts import check_random_state

QUANTILES = (0.05, 0.5, 0.95)


class Uncertainty(NamedTuple):
    """Epistemic and aleatoric uncertainty.

    Regression: standard deviations in units of y, whose squares add up to that of `return_std`.
    Classification: mutual information and mean entropy, in nats.
    """

    epistemic: np.ndarray
    aleatoric: np.ndarray


def can_update(estimator: Any) -> bool:
    """Whether `partial_fit` is available; raises the AttributeError that says why not."""
    if estimator.method == MAP.name or isinstance(estimator.method, MAP):
        raise AttributeError(
            'partial_fit needs a posterior to update, and method="map" gives a point.'
        )
    return True


class DistributionMethods:
    """Log-probabilities by row, and calibration (a mixin)."""

    predictive: Callable[..., PredictiveBase]
    observed: Callable[[Any, Any], np.ndarray]

    posterior_: Posterior

    def calibrate(
        self,
        X: Any,
        y: Any,
        method: str = "conformal",
        *,
        groups: Any = None,
        joint: bool = False,
    ) -> Self:
        """Calibrate on rows that were not fitted to, in place of what was done before.

        With `groups`, the group of each row (or "class"), each is calibrated by itself, and
        `predictive`, `predict_interval` and `predict_set` need the groups of their rows (not with
        "class"). With `joint`, conformal intervals hold all columns of y at once. See
        `bl.Posterior.calibrate`.
        """
        observed = self.observed(X, y)
        self.__dict__.pop("cross_calibration_", None)
        self.posterior_ = self.posterior_.uncalibrated()
        predictive = self.predictive(X)
        calibrator = fit_calibrator(
            predictive, observed, method, groups=groups, joint=joint, seed=self.posterior_.seed
        )
        self.posterior_ = self.posterior_.with_calibrator(calibrator)
        return self

    def log_prob(self, X: Any, y: Any) -> np.ndarray:
        """Log predictive density (regression, in units of y) or probability of each row's y."""
        return np.asarray(self.predictive(X).log_prob(self.observed(X, y)))

    def _sample(self, X: Any, n_samples: int, random_state: Any) -> np.ndarray:
        """(n_samples, rows, ...)"""
        predictive = self.predictive(X)
        check_whole("n_samples", n_samples, least=1)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        return predictive.sample(seed, int(n_samples))


class RegressionMethods(DistributionMethods):
    """Quantiles, variances and distribution functions of a number (a mixin)."""

    def predict_quantiles(self, X: Any, alpha: Sequence[float] | float = QUANTILES) -> np.ndarray:
        """Quantiles of a new y, along the last axis: (rows, quantiles), (rows, columns, quantiles).

        A single `alpha` gives (rows,) or (rows, columns).
        """
        levels = np.atleast_1d(np.asarray(alpha, np.float64))
        if levels.ndim != 1 or not len(levels) or not np.all((levels > 0) & (levels < 1)):
            refuse("alpha", alpha, "be a number or a list of numbers between 0 and 1")
        found = np.stack(self.predictive(X).quantiles(levels.tolist()), axis=-1)
        return found[..., 0] if np.ndim(alpha) == 0 else found

    def predict_var(self, X: Any) -> np.ndarray:
        """Variance of a new y."""
        return self.predictive(X).variance

    def cdf(self, X: Any, y: Any) -> np.ndarray:
        """Probability of a new observation at or below each row's y."""
        return self.predictive(X).cdf(self.observed(X, y))
