"""Predictive distributions of the rivals, and their scores on test rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy.special import logsumexp, ndtr

LEVEL = 0.9
TAIL = 1e-5  # left out of the integral of the CRPS on either side
NODES = 48  # of Gauss-Legendre quadrature on either side of y
HALVINGS = 50  # of an interval that holds a quantile
BINS = 10
MIN_PROBABILITY = 1e-12


class Density(Protocol):
    """A predictive distribution of y at the test rows."""

    @property
    def mean(self) -> np.ndarray: ...
    @property
    def std(self) -> np.ndarray: ...
    def log_prob(self, y: np.ndarray) -> np.ndarray: ...
    def crps(self, y: np.ndarray) -> float: ...
    def interval(self, level: float) -> tuple[np.ndarray, np.ndarray]: ...


def normal_log_prob(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    return -0.5 * ((y - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)


@dataclass(frozen=True)
class GaussianMixture:
    """Equal mixture of Gaussians: `means` and `stds` are (components, rows)."""

    means: np.ndarray
    stds: np.ndarray

    @classmethod
    def single(cls, mean: Any, std: Any) -> GaussianMixture:
        mean = np.asarray(mean, np.float64)
        return cls(mean[None], np.broadcast_to(np.asarray(std, np.float64), mean.shape)[None])

    @property
    def mean(self) -> np.ndarray:
        return self.means.mean(axis=0)

    @property
    def std(self) -> np.ndarray:
        return np.sqrt(self.means.var(axis=0) + (self.stds**2).mean(axis=0))

    def log_prob(self, y: np.ndarray) -> np.ndarray:
        terms = normal_log_prob(y, self.means, self.stds)
        return logsumexp(terms, axis=0) - np.log(len(self.means))

    def cdf(self, y: np.ndarray) -> np.ndarray:
        return ndtr((y - self.means) / self.stds).mean(axis=0)

    def quantile(self, level: float) -> np.ndarray:
        """By halving an interval of nine standard deviations around all components."""
        low = (self.means - 9 * self.stds).min(axis=0)
        high = (self.means + 9 * self.stds).max(axis=0)
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            is_below = self.cdf(middle) < level
            low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
        return 0.5 * (low + high)

    def interval(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        return self.quantile(0.5 - level / 2), self.quantile(0.5 + level / 2)

    def crps(self, y: np.ndarray) -> float:
        """The integral of (cdf(z) - [z >= y])^2, as in `bayeslearn.results.metrics.crps`."""
        low, high = self.quantile(TAIL), self.quantile(1 - TAIL)
        middle = np.clip(y, low, high)
        total = np.abs(y - middle)
        for start, width, is_above in ((low, middle - low, 0.0), (middle, high - middle, 1.0)):
            for node, weight in zip(*np.polynomial.legendre.leggauss(NODES), strict=True):
                value = self.cdf(start + 0.5 * (1 + node) * width)
                total = total + 0.5 * weight * width * (value - is_above) ** 2
        return float(np.mean(total))


@dataclass(frozen=True)
class Quantiles:
    """Quantiles at levels (k - 1/2) / n, (n, rows), of a method that has no density.

    Interval and CRPS (twice the mean pinball loss) are of the quantiles as they are. The
    log-likelihood is that of Gaussian kernels at the n quantiles; their standard deviation is
    `bandwidth` times that of the row's quantiles, and at least `min_bandwidth`.
    """

    values: np.ndarray
    mean: np.ndarray
    bandwidth: float
    min_bandwidth: float

    @property
    def levels(self) -> np.ndarray:
        number = len(self.values)
        return (np.arange(number) + 0.5) / number

    @property
    def std(self) -> np.ndarray:
        return np.maximum(self.values.std(axis=0), self.min_bandwidth)

    def log_prob(self, y: np.ndarray) -> np.ndarray:
        return self._kernels().log_prob(y)

    def interval(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        ends = [
            np.array([np.interp(end, self.levels, row) for row in self.values.T])
            for end in (0.5 - level / 2, 0.5 + level / 2)
        ]
        return ends[0], ends[1]

    def crps(self, y: np.ndarray) -> float:
        above = y - self.values
        levels = self.levels[:, None]
        return float(2 * np.mean(np.maximum(levels * above, (levels - 1) * above)))

    def _kernels(self) -> GaussianMixture:
        width = np.maximum(self.bandwidth * self.values.std(axis=0), self.min_bandwidth)
        return GaussianMixture(self.values, np.broadcast_to(width, self.values.shape))


def regression_scores(density: Density, y: np.ndarray) -> dict[str, float]:
    """`gaussian_log_likelihood` is that of a Gaussian with the same mean and standard deviation."""
    mean, std = density.mean, density.std
    lower, upper = density.interval(LEVEL)
    return {
        "log_likelihood": float(np.mean(density.log_prob(y))),
        "gaussian_log_likelihood": float(np.mean(normal_log_prob(y, mean, std))),
        "crps": density.crps(y),
        "rmse": float(np.sqrt(np.mean((y - mean) ** 2))),
        "coverage90": float(np.mean((lower <= y) & (y <= upper))),
        "width90": float(np.mean(upper - lower)),
    }


def classification_scores(probs: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """The Brier score is summed over classes (0 to 2); ECE has ten bins of the largest
    probability."""
    probs = np.asarray(probs, np.float64)
    observed = np.clip(probs[np.arange(len(y)), y], MIN_PROBABILITY, 1.0)
    confidence = probs.max(axis=1)
    is_correct = probs.argmax(axis=1) == y
    edges = np.linspace(0.0, 1.0, BINS + 1)
    bins = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, BINS - 1)
    gaps = np.bincount(bins, weights=confidence - is_correct, minlength=BINS)
    return {
        "log_loss": float(-np.mean(np.log(observed))),
        "accuracy": float(np.mean(is_correct)),
        "brier": float(np.mean(np.sum((probs - np.eye(probs.shape[1])[y]) ** 2, axis=1))),
        "ece": float(np.abs(gaps).sum() / len(y)),
    }
