"""Scores of a predictive against what was observed, and checks of a whole model.

A score takes a predictive and the observations at its rows, `rmse(posterior.predict(x), y)`, and
gives one number, averaged over rows (and columns of y). A check takes a model or a posterior.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from bayeslearn.errors import ArgumentError, Shown, check_whole, refuse
from bayeslearn.families import Point
from bayeslearn.precision import double_precision
from bayeslearn.results import arviz, diagnostics
from bayeslearn.results.predictive import Predictive

CRPS_TAIL = 1e-5  # left out of the integral on either side
CRPS_NODES = 48  # of Gauss-Legendre quadrature, on either side of y
CRPS_COUNTS = 256  # most whole numbers looked at on either side of a count


# Regression


def rmse(predictive: Predictive, y: Any) -> float:
    """Root mean squared error of the predictive mean."""
    _need(predictive, "regression", "rmse")
    return float(np.sqrt(np.mean((predictive.mean - predictive.align_y(y)) ** 2)))


def coverage(predictive: Predictive, y: Any, level: float = 0.9) -> float:
    """Share of observations inside the central interval of that level."""
    lower, upper = predictive.interval(level)
    y = predictive.align_y(y)
    return float(np.mean((lower <= y) & (y <= upper)))


def interval_width(predictive: Predictive, level: float = 0.9) -> float:
    """Mean width of the central interval of that level: how much its coverage costs."""
    lower, upper = predictive.interval(level)
    return float(np.mean(upper - lower))


def crps(predictive: Predictive, y: Any) -> float:
    """Continuous ranked probability score, in the units of y (lower is better).

    The integral of (F(z) - [z >= y])^2, F being the distribution function of a new observation:
    by quadrature, or as a sum where y is a count. Columns of y are scored one by one.
    """
    _need(predictive, "regression", "crps")
    y = np.asarray(predictive.align_y(y), np.float64)
    low, high = predictive.quantile(CRPS_TAIL), predictive.quantile(1.0 - CRPS_TAIL)
    middle = np.clip(y, low, high)
    total = np.abs(y - middle)  # F is 0 or 1 there
    for start, width, is_above in ((low, middle - low, 0.0), (middle, high - middle, 1.0)):
        place = _counts if predictive.is_discrete else _nodes
        nodes = list(place(width))
        values = predictive.cdfs([start + offset for offset, _ in nodes]) if nodes else []
        for (_, weight), value in zip(nodes, values, strict=True):
            total += weight * (value - is_above) ** 2
    return float(np.mean(total))


def _nodes(width: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Places and weights of Gauss-Legendre quadrature from 0 to each width."""
    nodes, weights = np.polynomial.legendre.leggauss(CRPS_NODES)
    for node, weight in zip(nodes, weights, strict=True):
        yield 0.5 * (1.0 + node) * width, 0.5 * weight * width


def _counts(width: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The whole numbers below each width, or where they are many the middle of every few."""
    longest = int(np.max(width))
    stride = -(-longest // CRPS_COUNTS) // 2 * 2 + 1  # odd, so that its middle is whole
    for begin in range(0, longest, stride):
        held = np.clip(width - begin, 0, stride)
        yield np.where(held > 0, begin + np.maximum(held - 1, 0) // 2, 0.0), held


def pit(predictive: Predictive, y: Any, seed: int = 0) -> np.ndarray:
    """Probability integral transform: uniform on [0, 1] if the predictive is calibrated.

    Shaped like y. A count's is drawn evenly from the step of the distribution function at y, which
    makes it uniform too.
    """
    _need(predictive, "regression", "pit")
    upper = predictive.cdf(y)
    if not predictive.is_discrete:
        return upper
    y = predictive.align_y(y)
    lower = np.where(y > 0, predictive.cdf(np.maximum(y - 1, 0)), 0.0)
    return lower + np.random.default_rng(seed).uniform(size=upper.shape) * (upper - lower)


# Both kinds


def log_likelihood(predictive: Predictive, y: Any) -> float:
    """Mean log predictive density per row (higher is better)."""
    return float(np.mean(predictive.log_prob(y)))


def nll(predictive: Predictive, y: Any) -> float:
    """Mean negative log predictive density per row (lower is better)."""
    return -log_likelihood(predictive, y)


class Selective(NamedTuple):
    """The error on the surest rows: `risk[i]` on the share `kept[i]` of all rows."""

    kept: np.ndarray
    risk: np.ndarray
    area: float  # under the curve: the mean risk


def selective(predictive: Predictive, y: Any, by: str = "total") -> Selective:
    """Error when only the surest rows are answered: RMSE, or the share of wrong classes.

    `by` names the doubt that sorts the rows: "total", "epistemic" or "aleatoric". Of several
    columns the doubts are added and the squared errors averaged.
    """
    choices = ("total", "epistemic", "aleatoric")
    if by not in choices:
        refuse("by", by, "be one of " + ", ".join(map(repr, choices)))
    is_regression = predictive.kind == "regression"
    observed = predictive.align_y(y)
    if is_regression:
        loss = _rows((predictive.mean - observed) ** 2, np.mean)
    else:
        loss = np.asarray(predictive.probs.argmax(axis=1) != observed, np.float64)
    order = np.argsort(_rows(getattr(predictive, by), np.sum), kind="stable")
    count = np.arange(1, len(loss) + 1)
    risk = np.cumsum(loss[order]) / count
    risk = np.sqrt(risk) if is_regression else risk
    return Selective(count / len(loss), risk, float(np.mean(risk)))


# Classification


def accuracy(predictive: Predictive, y: Any) -> float:
    """Share of rows whose most probable class is the observed one."""
    return float(np.mean(_probs(predictive).argmax(axis=1) == predictive.align_y(y)))


def brier(predictive: Predictive, y: Any) -> float:
    """Squared distance of the class probabilities from the truth, summed over classes: 0 to 2.

    With two classes it is twice the squared error of the one probability.
    """
    probs = _probs(predictive)
    truth = np.eye(probs.shape[1])[predictive.align_y(y)]
    return float(np.mean(np.sum((probs - truth) ** 2, axis=1)))


class Reliability(NamedTuple):
    """Rows gathered by the probability of their most probable class; NaN where a bin is empty."""

    edges: np.ndarray
    confidence: np.ndarray  # mean probability
    accuracy: np.ndarray  # share of rows that were right
    rows: np.ndarray  # how many

    @property
    def error(self) -> float:
        """Expected calibration error: the mean gap, weighted by rows."""
        gap = np.where(self.rows > 0, np.abs(self.accuracy - self.confidence), 0.0)
        return float(np.sum(self.rows * gap) / np.sum(self.rows))


def reliability(predictive: Predictive, y: Any, num_bins: int = 10) -> Reliability:
    """How often the predicted class was right, by how probable it was said to be."""
    probs = _probs(predictive)
    is_right = probs.argmax(axis=1) == predictive.align_y(y)
    return gathered(probs.max(axis=1), is_right, num_bins)


def gathered(confidence: np.ndarray, is_right: np.ndarray, num_bins: int = 10) -> Reliability:
    """The same of rows given by their largest probability and whether that class was observed."""
    check_whole("num_bins", num_bins, least=1)
    edges = np.linspace(0.0, 1.0, num_bins + 1)
    index = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, num_bins - 1)
    rows = np.bincount(index, minlength=num_bins)
    sums = (np.bincount(index, weights=w, minlength=num_bins) for w in (confidence, is_right))
    with np.errstate(invalid="ignore"):
        mean_confidence, share_right = (total / rows for total in sums)
    return Reliability(edges, mean_confidence, share_right, rows)


def ece(predictive: Predictive, y: Any, num_bins: int = 10) -> float:
    """Expected calibration error of the predicted class; biased upwards where rows are few."""
    return reliability(predictive, y, num_bins).error


# Two predictives


def auroc(inside: Predictive, outside: Predictive) -> float:
    """How well `epistemic` tells rows outside the training distribution from rows inside it.

    The chance that a row of `outside` is in more doubt than one of `inside` (needs scikit-learn).
    """
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(*_told_apart(inside, outside)))


def aupr(inside: Predictive, outside: Predictive) -> float:
    """Average precision of finding the rows of `outside` by `epistemic` (needs scikit-learn).

    By chance it is their share among all rows.
    """
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(*_told_apart(inside, outside)))


def agreement(predictive: Predictive, other: Predictive) -> float:
    """Share of rows for which both name the same class."""
    one, two = _both_probs(predictive, other)
    return float(np.mean(one.argmax(axis=1) == two.argmax(axis=1)))


def total_variation(predictive: Predictive, other: Predictive) -> float:
    """Mean over rows of half the summed distance of the class probabilities: 0 to 1."""
    one, two = _both_probs(predictive, other)
    return float(np.mean(0.5 * np.sum(np.abs(one - two), axis=1)))


# Whole models


class PredictiveCheck(NamedTuple):
    """`p_value` is the share of replicated statistics above the observed one, ties half: near 0
    or 1 the model does not make data like those observed."""

    observed: float
    replicated: np.ndarray
    p_value: float


Statistic = Callable[[np.ndarray], Any]


def posterior_predictive_check(
    posterior: Any, statistic: Statistic = np.std, *, num_samples: int = 1000, seed: int = 0
) -> PredictiveCheck:
    """Would the fitted model make data like those it was fitted to?

    `statistic` is a function of all of y, shaped as it was fitted, to one number; it should look
    at what the model might miss (`np.max`, a share of zeros, a skewness). The check looks twice
    at the same data, so p-values gather around 1/2.
    """
    data = diagnostics.all_rows(posterior)
    predictive = posterior.predict(data.x)
    return _check(predictive, np.asarray(data.y), statistic, num_samples, seed)


@double_precision
def prior_predictive_check(
    model: Any,
    data: tuple[Any, Any],
    statistic: Statistic = np.std,
    *,
    num_samples: int = 1000,
    seed: int = 0,
) -> PredictiveCheck:
    """Would the model make data like these before it has seen any? `statistic` as above.

    A prior is not meant to be right: only a p-value of exactly 0 or 1 is a reason to worry.
    """
    key_bind, key_draws = jax.random.split(jax.random.key(seed))
    target, params = model.bind(data, key_bind)
    diagnostics.check_generative(target)
    keys = jax.random.split(key_draws, num_samples)
    draws = jax.vmap(lambda key: target.prior.sample(key, params))(keys)
    predictive = Predictive(target, draws, target.data.x)
    return _check(predictive, np.asarray(data[1]), statistic, num_samples, seed)


def _check(
    predictive: Any, y: np.ndarray, statistic: Statistic, num_samples: int, seed: int
) -> PredictiveCheck:
    check_whole("num_samples", num_samples, least=1)
    if not callable(statistic):
        refuse("statistic", statistic, "be a function of y, such as np.max")
    observed = np.asarray(statistic(predictive.align_y(y)))
    if observed.ndim:
        must = "return one number"
        refuse("statistic", Shown(f"one that returns shape {observed.shape}"), must)
    made = predictive.sample(seed, num_samples)
    replicated = np.array([statistic(sample) for sample in made], np.float64)
    p_value = np.mean(replicated > observed) + 0.5 * np.mean(replicated == observed)
    return PredictiveCheck(float(observed), replicated, float(p_value))


def loo(posterior: Any, *, num_samples: int = 1000, seed: int = 0) -> Any:
    """Leave-one-out predictive density of the training rows without refitting: ArviZ's PSIS-LOO.

    `elpd_loo`, its standard error `se`, and `pareto_k` of each row; above 0.7 a row's value is not
    to be trusted. Of a variational posterior it is the estimate that takes q for the posterior,
    from `num_samples` draws; of a sampler all draws are used.
    """
    diagnostics.all_rows(posterior)
    if isinstance(posterior.family, Point):
        raise ArgumentError(
            f"{posterior.algorithm.name} leaves a single point: leaving a row out would change"
            " nothing. Use laplace, a variational method or a sampler."
        )
    data = arviz.to_arviz(posterior, num_samples=num_samples, seed=seed)
    values = data.log_likelihood["y"].to_numpy()
    chains, draws, rows = values.shape
    worth = 1.0
    if posterior.draws is not None:  # chains: their draws are worth less than independent ones
        chosen = np.linspace(0, rows - 1, min(rows, diagnostics.ROWS)).astype(int)
        bulk = diagnostics.convergence(values[:, :, chosen])[1]
        if not np.all(np.isnan(bulk)):
            worth = min(1.0, float(np.nanmean(bulk)) / (chains * draws))
    return arviz.arviz().loo(data, pointwise=True, var_name="y", reff=worth)


def _need(predictive: Any, kind: str, what: str) -> None:
    if predictive.kind != kind:
        raise ArgumentError(
            f"`{what}` needs a {kind} model; this predictive is for {predictive.kind}."
        )


def _probs(predictive: Any) -> np.ndarray:
    _need(predictive, "classification", "a score of class probabilities")
    return predictive.probs


def _both_probs(predictive: Any, other: Any) -> tuple[np.ndarray, np.ndarray]:
    one, two = _probs(predictive), _probs(other)
    if one.shape != two.shape:
        refuse("other", Shown(f"probabilities {two.shape}"), f"be at the same rows {one.shape}")
    return one, two


def _rows(values: np.ndarray, over: Callable[..., Any]) -> np.ndarray:
    """One number per row, of one or several columns."""
    return values if values.ndim == 1 else over(values, axis=1)


def _told_apart(inside: Any, outside: Any) -> tuple[np.ndarray, np.ndarray]:
    scores = [_rows(predictive.epistemic, np.sum) for predictive in (inside, outside)]
    labels = np.repeat([0, 1], [len(part) for part in scores])
    return labels, np.concatenate(scores)
