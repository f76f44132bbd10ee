"""CV+ and jackknife+ against their definition, and their coverage with an exact model refitted."""

from __future__ import annotations

import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn.errors import ArgumentError, DataWarning
from bayeslearn.predictive_base import PredictiveBase
from bayeslearn.results.cross_conformal import CrossConformalPredictive
from bayeslearn.tabular import persistence

EXACT = {"hidden": (), "method": "conjugate", "noise": 0.5, "random_state": 0}


class Gaussian(PredictiveBase):
    """Given moments; what CV+ needs of a predictive."""

    kind, is_discrete, num_samples = "regression", False, 1

    def __init__(self, mean, std):
        self._mean, self._std, self.num_rows = mean, std, len(mean)

    mean = property(lambda self: self._mean)
    epistemic = property(lambda self: 0.0 * self._mean)
    aleatoric = property(lambda self: self._std**2)

    def align_y(self, y):
        return np.broadcast_to(np.asarray(y), self._mean.shape)

    covariance = log_prob = log_prob_by_draw = quantiles = cdfs = sample = None


def ridge(x, y, x_new, noise):
    """Bayesian linear regression with a N(0, 1) prior and a known noise: moments at x_new."""
    prec = np.eye(x.shape[1]) + x.T @ x / noise**2
    mean = np.linalg.solve(prec, x.T @ y) / noise**2
    variance = np.sum(x_new * np.linalg.solve(prec, x_new.T).T, axis=1)
    return Gaussian(x_new @ mean, np.sqrt(variance + noise**2))


def cross(x, y, x_new, folds, noise):
    fold = np.arange(len(y)) % folds
    scores = np.empty((len(y), 1))
    parts = []
    for k in range(folds):
        own = fold == k
        outside = ridge(x[~own], y[~own], x[own], noise)
        scores[own, 0] = np.abs(y[own] - outside.mean) / outside.std
        parts.append(ridge(x[~own], y[~own], x_new, noise))
    inner = ridge(x, y, x_new, noise)
    return inner, CrossConformalPredictive(inner, parts, fold, scores, np.ones(len(y)))


@pytest.mark.parametrize("folds", [5, 40])
def test_coverage_with_a_model_that_is_refitted(folds):
    """40 rows, a noise of half the truth, 1,000 tables: one new row each, binomial error .0095.

    Credible intervals of level .9 hold 60 %. Correct code fails one of the bounds below once in
    30,000 seeds (four errors).
    """
    rng = np.random.default_rng(0)
    plain, found = 0, 0
    for _ in range(1000):
        x = rng.normal(size=(41, 3))
        y = x @ [1.0, -1.0, 0.5] + rng.normal(size=41)
        inner, predictive = cross(x[:40], y[:40], x[40:], folds, noise=0.5)
        lower, upper = predictive.interval(0.9)
        found += int(lower[0] <= y[40] <= upper[0])
        plain += int(abs(y[40] - inner.mean[0]) <= 1.645 * inner.std[0])
    assert plain / 1000 < 0.68
    assert 0.9 - 4 * 0.0095 < found / 1000 < 0.95 + 4 * 0.0069


def test_the_definition_row_by_row():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(23, 2))
    y = x[:, 0] + rng.normal(size=23)
    x_new = rng.normal(size=(4, 2))
    _, predictive = cross(x, y, x_new, 23, 1.0)
    lower, upper = predictive.interval(0.8)
    for j in range(4):
        ends = []
        for i in range(23):
            others = np.arange(23) != i
            outside = ridge(x[others], y[others], x[i : i + 1], 1.0)
            new = ridge(x[others], y[others], x_new[j : j + 1], 1.0)
            half = abs(y[i] - outside.mean[0]) / outside.std[0] * new.std[0]
            ends.append((new.mean[0] - half, new.mean[0] + half))
        low, high = np.sort(np.array(ends), axis=0).T
        place = int(np.ceil(0.8 * 24))
        assert upper[j] == pytest.approx(high[place - 1], rel=1e-12)
        assert lower[j] == pytest.approx(low[23 - place], rel=1e-12)


def test_quantiles_distribution_function_and_samples_agree():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 2))
    y = x[:, 0] + rng.normal(size=60)
    _, predictive = cross(x, y, rng.normal(size=(3, 2)), 5, 1.0)
    levels = [0.05, 0.2, 0.5, 0.8, 0.95]
    ends = np.stack(predictive.quantiles(levels))
    assert np.all(np.diff(ends, axis=0) >= 0)
    for level, end in zip(levels, ends, strict=True):
        assert np.all(np.abs(predictive.cdf(end) - level) <= 1 / 61)
    samples = predictive.sample(0, 4000)
    # The share below an end is binomial: 4 errors of .0034 at .05, and 1 / 61 for the steps.
    assert np.all(np.abs(np.mean(samples <= ends[0], axis=0) - 0.05) < 4 * 0.0035 + 1 / 61)
    with pytest.warns(DataWarning, match="needs at least 99 calibration rows"):
        assert np.all(np.isinf(predictive.interval(0.99)))


def table(rows, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2))
    return x, 3 + x[:, 0] + rng.normal(size=rows)


@pytest.mark.parametrize(("method", "rows"), [("cv+", 60), ("jackknife+", 12), ("auto", 60)])
def test_estimators(method, rows, tmp_path):
    """No row is set aside, intervals are wider than the model's, and they are saved."""
    x, y = table(rows)
    estimator = bl.BayesianNNRegressor(**EXACT, calibration=method).fit(x, y)
    plain = bl.BayesianNNRegressor(**EXACT).fit(x, y)
    np.testing.assert_array_equal(estimator.predict(x), plain.predict(x))
    new, observed = table(400, seed=1)
    lower, upper = estimator.predict_interval(new, 0.8)
    covered = np.mean((lower <= observed) & (observed <= upper))
    assert covered > bl.metrics.coverage(plain.predictive(new), observed, 0.8)
    estimator.save(tmp_path / "run")
    loaded = persistence.load(tmp_path / "run")
    np.testing.assert_array_equal(loaded.predict_interval(new, 0.8), (lower, upper))
    name = "jackknife+" if method == "jackknife+" else "cv+"
    note = f"Calibrated ({name}) on {rows} out-of-fold rows: the predictions of the estimator are"
    assert any(one.startswith(note) for one in loaded.posterior_.notes)


@pytest.mark.parametrize(
    ("cls", "method", "options", "message"),
    [
        (bl.BayesianNNClassifier, "cv+", {}, "'isotonic' for classification"),
        (bl.BayesianNNRegressor, "cv+", {"time_order": True}, 'must be "conformal" for rows in'),
        (bl.BayesianNNRegressor, "jackknife+", {}, 'must be "cv\\+" for more than 100'),
    ],
)
def test_refusals(cls, method, options, message):
    x, y = table(120)
    settings = {"hidden": (), "method": "map", "calibration": method}
    with pytest.raises(ArgumentError, match=message):
        cls(**settings).fit(x, y > 3 if "Class" in cls.__name__ else y, **options)


def test_partial_fit_is_refused():
    x, y = table(30)
    estimator = bl.BayesianNNRegressor(**EXACT, calibration="cv+").fit(x, y)
    with pytest.raises(ArgumentError, match="be another with partial_fit"):
        estimator.partial_fit(x, y)
