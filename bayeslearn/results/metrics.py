"""Scores of a predictive against what was observed, and checks of a whole model.

A score takes a predictive and the observations at its rows, `rmse(posterior.predict(x), y)`, and
gives one number, averaged over rows (and columns of y). A check takes a model or a posterior.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike

from bayeslearn.data.rows import Data
from bayeslearn.errors import ArgumentError, Shown, check_whole, refuse
from bayeslearn.families import Point
from bayeslearn.models.model import Model
from bayeslearn.precision import double_precision
from bayeslearn.predictive_base import PredictiveBase
from bayeslearn.results import diagnostics
from bayeslearn.results.arviz import pointwise_log_likelihood
from bayeslearn.results.predictive import Predictive
from bayeslearn.results.psis import LOO, psis_loo
from bayeslearn.tree import Array, PyTree

if TYPE_CHECKING:
    from bayeslearn.results.posterior import Posterior

CRPS_TAIL = 1e-5  # left out of the integral on either side
CRPS_NODES = 48  # of Gauss-Legendre quadrature, on either side of y
CRPS_COUNTS = 256  # most whole numbers evaluated on either side of a count


# Regression


def rmse(predictive: PredictiveBase, y: ArrayLike) -> float:
    """Root mean squared error of the predictive mean."""
    _need(predictive, "regression", "rmse")
    return float(np.sqrt(np.mean((predictive.mean - predictive.observed(y)) ** 2)))


def coverage(predictive: PredictiveBase, y: ArrayLike, level: float = 0.9) -> float:
    """Share of observations inside the central interval of that level.

    >>> bl.metrics.coverage(posterior.predict(x_held), y_held, level=0.9) > 0.8
    True
    """
    lower, upper = predictive.interval(level)
    y = predictive.observed(y)
    return float(np.mean((lower <= y) & (y <= upper)))


def interval_width(predictive: PredictiveBase, level: float = 0.9) -> float:
    """Mean width of the central interval of that level: how much its coverage costs."""
    lower, upper = predictive.interval(level)
    return float(np.mean(upper - lower))


def crps(predictive: PredictiveBase, y: ArrayLike) -> float:
    """Continuous ranked probability score, in the units of y (lower is better).

    The integral of (F(z) - [z >= y])^2, F being the distribution function of a new observation:
    by quadrature, or as a sum where y is a count. Columns of y are scored one by one.

    >>> round(bl.metrics.crps(posterior.predict(x_held), y_held), 1)
    0.2
    """
    _need(predictive, "regression", "crps")
    y = np.asarray(predictive.observed(y), np.float64)
    low, high = predictive.tails(CRPS_TAIL)
    middle = np.clip(y, low, high)
    total = np.abs(y - middle)  # F is 0 or 1 there
    for start, width, is_above in ((low, middle - low, 0.0), (middle, high - middle, 1.0)):
        quadrature = _counts if predictive.is_discrete else _nodes
        nodes = list(quadrature(width))
        values = predictive.cdfs([start + offset for offset, _ in nodes]) if nodes else []
        for (_, weight), value in zip(nodes, values, strict=True):
            total += weight * (value - is_above) ** 2
    return float(np.mean(total))


def _nodes(width: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Nodes and weights of Gauss-Legendre quadrature from 0 to each width."""
    nodes, weights = np.polynomial.legendre.leggauss(CRPS_NODES)
    for node, weight in zip(nodes, weights, strict=True):
        yield 0.5 * (1.0 + node) * width, 0.5 * weight * width


def _counts(width: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The whole numbers below each width, or where they are many the middle of every few."""
    longest = int(np.max(width))
    stride = -(-longest // CRPS_COUNTS) // 2 * 2 + 1  # odd, so that its middle is whole
    for begin in range(0, longest, stride):
        count = np.clip(width - begin, 0, stride)
        yield np.where(count > 0, begin + np.maximum(count - 1, 0) // 2, 0.0), count


def pit(predictive: PredictiveBase, y: ArrayLike, seed: int = 0) -> np.ndarray:
    """Probability integral transform: uniform on [0, 1] if the predictive is calibrated.

    Shaped like y. A count's is drawn evenly from the step of the distribution function at y, which
    makes it uniform too, and that of a censored y evenly from what is above it.
    """
    _need(predictive, "regression", "pit")
    upper = predictive.cdf(y)
    if not predictive.is_discrete:
        is_censored = predictive.is_censored(y)
        if not np.any(is_censored):
            return upper
        above = np.random.default_rng(seed).uniform(size=upper.shape) * (1.0 - upper)
        return np.where(is_censored, upper + above, upper)
    y = predictive.align_y(y)
    lower = np.where(y > 0, predictive.cdf(np.maximum(y - 1, 0)), 0.0)
    return lower + np.random.default_rng(seed).uniform(size=upper.shape) * (upper - lower)


# Both kinds


def log_likelihood(predictive: PredictiveBase, y: ArrayLike) -> float:
    """Mean log predictive density per row (higher is better).

    >>> round(bl.metrics.log_likelihood(posterior.predict(x_held), y_held))
    0
    """
    return float(np.mean(predictive.log_prob(y)))


def nll(predictive: PredictiveBase, y: ArrayLike) -> float:
    """Mean negative log predictive density per row (lower is better)."""
    return -log_likelihood(predictive, y)


class Selective(NamedTuple):
    """The error on the most certain rows: `risk[i]` on the share `kept[i]` of all rows."""

    kept: np.ndarray
    risk: np.ndarray
    area: float  # under the curve: the mean risk


def selective(predictive: PredictiveBase, y: ArrayLike, by: str = "total") -> Selective:
    """Error when only the most certain rows are predicted: RMSE, or the share of wrong classes.

    `by` names the uncertainty by which rows are sorted: "total", "epistemic" or "aleatoric". Of
    several columns uncertainties are added and squared errors averaged.
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


def accuracy(predictive: PredictiveBase, y: ArrayLike) -> float:
    """Share of rows whose most probable class is the observed one."""
    return float(np.mean(_probs(predictive).argmax(axis=1) == predictive.align_y(y)))


def brier(predictive: PredictiveBase, y: ArrayLike) -> float:
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


def reliability(predictive: PredictiveBase, y: ArrayLike, num_bins: int = 10) -> Reliability:
    """How often the predicted class was right, by its predicted probability."""
    probs = _probs(predictive)
    is_correct = probs.argmax(axis=1) == predictive.align_y(y)
    return gathered(probs.max(axis=1), is_correct, num_bins)


def gathered(confidence: np.ndarray, is_correct: np.ndarray, num_bins: int = 10) -> Reliability:
    """The same of rows given by their largest probability and whether that class was observed."""
    check_whole("num_bins", num_bins, least=1)
    edges = np.linspace(0.0, 1.0, num_bins + 1)
    index = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, num_bins - 1)
    rows = np.bincount(index, minlength=num_bins)
    sums = (np.bincount(index, weights=w, minlength=num_bins) for w in (confidence, is_correct))
    with np.errstate(invalid="ignore"):
        mean_confidence, share_right = (total / rows for total in sums)
    return Reliability(edges, mean_confidence, share_right, rows)


def ece(predictive: PredictiveBase, y: ArrayLike, num_bins: int = 10) -> float:
    """Expected calibration error of the predicted class; biased upwards where rows are few."""
    return reliability(predictive, y, num_bins).error


# Two predictives


def auroc(inside: PredictiveBase, outside: PredictiveBase) -> float:
    """How well `epistemic` separates rows outside the training distribution from rows inside it.

    The probability that a row of `outside` is more uncertain than one of `inside` (needs
    scikit-learn).
    """
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(*_labelled_scores(inside, outside)))


def aupr(inside: PredictiveBase, outside: PredictiveBase) -> float:
    """Average precision of finding the rows of `outside` by `epistemic` (needs scikit-learn).

    By chance it is their share among all rows.
    """
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(*_labelled_scores(inside, outside)))


def agreement(predictive: PredictiveBase, other: PredictiveBase) -> float:
    """Share of rows for which both name the same class."""
    one, two = _both_probs(predictive, other)
    return float(np.mean(one.argmax(axis=1) == two.argmax(axis=1)))


def total_variation(predictive: PredictiveBase, other: PredictiveBase) -> float:
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
    posterior: Posterior, statistic: Statistic = np.std, *, num_samples: int = 1000, seed: int = 0
) -> PredictiveCheck:
    """Would the fitted model make data like those it was fitted to?

    `statistic` is a function of all of y, shaped as it was fitted, to one number; it should measure
    what the model might miss (`np.max`, a share of zeros, a skewness). The same data are used to
    fit and to check, so p-values concentrate around 1/2. A row of weight n is there n times.
    """
    x, y = _repeated(*posterior.training_data())
    predictive = posterior.predict(x, seed=seed)
    key = jax.random.fold_in(jax.random.key(seed), 1)  # `predict` has used the key itself
    return _check(predictive, y, statistic, num_samples, key)


def _repeated(x: PyTree, y: np.ndarray, weight: np.ndarray | None) -> tuple[PyTree, np.ndarray]:
    """Rows, each as often as its weight says."""
    counts = diagnostics.row_counts(weight, len(y))
    if counts is None:
        refuse("weight", weight, "hold whole numbers, to say how many rows each row stands for")
    return jax.tree.map(lambda leaf: np.repeat(leaf, counts, axis=0), (x, y))


@double_precision
def prior_predictive_check(
    model: Model,
    data: Data,
    statistic: Statistic = np.std,
    *,
    num_samples: int = 1000,
    seed: int = 0,
) -> PredictiveCheck:
    """Would the model make data like these before it has seen any? `statistic` as above.

    A prior need not be right: only a p-value of exactly 0 or 1 is a problem.
    """
    key_bind, key_draws, key_check = jax.random.split(jax.random.key(seed), 3)
    target, params = model.bind(data, key_bind)
    diagnostics.check_generative(target)
    prior, rows = target.prior, target.data
    assert prior is not None
    assert rows is not None
    keys = jax.random.split(key_draws, num_samples)
    draws = jax.vmap(lambda key: prior.sample(key, params))(keys)
    weight = None if rows.weight is None else np.asarray(rows.weight)
    x, y = _repeated(rows.x, np.asarray(data[1]), weight)
    return _check(Predictive(target, draws, x), y, statistic, num_samples, key_check)


def _check(
    predictive: PredictiveBase, y: np.ndarray, statistic: Statistic, num_samples: int, key: Array
) -> PredictiveCheck:
    check_whole("num_samples", num_samples, least=1)
    if not callable(statistic):
        refuse("statistic", statistic, "be a function of y, such as np.max")
    observed = np.asarray(statistic(predictive.align_y(y)))
    if observed.ndim:
        must = "return one number"
        refuse("statistic", Shown(f"one that returns shape {observed.shape}"), must)
    made = predictive.sample(key, num_samples)
    replicated = np.array([statistic(sample) for sample in made], np.float64)
    p_value = np.mean(replicated > observed) + 0.5 * np.mean(replicated == observed)
    return PredictiveCheck(float(observed), replicated, float(p_value))


def loo(posterior: Posterior, *, num_samples: int = 1000, seed: int = 0) -> LOO:
    """Leave-one-out cross-validation over the training rows without refitting (PSIS-LOO).

    `elpd_loo`, its standard error `se`, and `pareto_k` of each row; above 0.7 a row's value is
    unreliable. All draws of a sampler are used. For a variational posterior q is taken for the
    posterior, with `num_samples` draws. A row of weight n counts as n rows, of which one is left
    out; where weights are not whole numbers a row is left out with its whole weight.

    >>> found = bl.metrics.loo(posterior)
    >>> bool(found.pareto_k.max() < 0.7)
    True
    """
    diagnostics.all_rows(posterior)
    if isinstance(posterior.family, Point):
        raise ArgumentError(
            f"{posterior.algorithm.name} leaves a single point: leaving a row out would change"
            " nothing. Use laplace, a variational method or a sampler."
        )
    terms, _, counts = pointwise_log_likelihood(posterior, num_samples, seed)
    chains, draws, _ = terms.shape
    efficiency = 1.0
    if posterior.draws is not None:  # draws of chains are dependent
        rows = np.repeat(np.arange(len(counts)), counts)
        chosen = np.linspace(0, len(rows) - 1, min(len(rows), diagnostics.ROWS)).astype(int)
        bulk = diagnostics.convergence(terms[:, :, rows[chosen]], has_tail=False)[1]
        if not np.all(np.isnan(bulk)):
            efficiency = min(1.0, float(np.nanmean(bulk)) / (chains * draws))
    return psis_loo(terms, efficiency, counts)


def _need(predictive: PredictiveBase, kind: str, what: str) -> None:
    if predictive.kind != kind:
        raise ArgumentError(
            f"`{what}` needs a {kind} model; this predictive is for {predictive.kind}."
        )


def _probs(predictive: PredictiveBase) -> np.ndarray:
    _need(predictive, "classification", "a score of class probabilities")
    return predictive.probs


def _both_probs(predictive: PredictiveBase, other: PredictiveBase) -> tuple[np.ndarray, np.ndarray]:
    one, two = _probs(predictive), _probs(other)
    if one.shape != two.shape:
        refuse("other", Shown(f"probabilities {two.shape}"), f"be at the same rows {one.shape}")
    return one, two


def _rows(values: np.ndarray, over: Callable[..., Any]) -> np.ndarray:
    """One number per row, of one or several columns."""
    return values if values.ndim == 1 else over(values, axis=1)


def _labelled_scores(
    inside: PredictiveBase, outside: PredictiveBase
) -> tuple[np.ndarray, np.ndarray]:
    scores = [_rows(predictive.epistemic, np.sum) for predictive in (inside, outside)]
    labels = np.repeat([0, 1], [len(part) for part in scores])
    return labels, np.concatenate(scores)
