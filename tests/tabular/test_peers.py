"""The estimators inside scikit-learn's tools, skpro and MAPIE, and the methods these expect."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.compose import TransformedTargetRegressor
from sklearn.model_selection import GridSearchCV, GroupKFold, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import bayeslearn as bl
from bayeslearn.errors import ArgumentError

EXACT = {"hidden": (), "method": "conjugate", "noise": "learned", "random_state": 0}


def table(rows=200, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2))
    return x, 3 + x @ [2.0, -1.0] + rng.normal(0, 0.5, rows)


@pytest.fixture(scope="module")
def fitted():
    return bl.BayesianNNRegressor(**EXACT).fit(*table())


def test_quantiles_densities_and_distribution_functions_agree(fitted):
    x, y = table(30, seed=1)
    levels = [0.1, 0.5, 0.75]
    found = fitted.predict_quantiles(x, levels)
    assert found.shape == (30, 3)
    for i, level in enumerate(levels):
        np.testing.assert_allclose(fitted.cdf(x, found[:, i]), level, atol=1e-6)
        np.testing.assert_array_equal(fitted.predict_quantiles(x, level), found[:, i])
    mean, std = fitted.predict(x, return_std=True)
    np.testing.assert_allclose(fitted.predict_var(x), std**2)
    np.testing.assert_allclose(fitted.predict_quantiles(x).mean(axis=1), mean, rtol=0.01)
    step = 1e-4  # the density is the slope of the distribution function
    slope = (fitted.cdf(x, y + step) - fitted.cdf(x, y - step)) / (2 * step)
    np.testing.assert_allclose(np.exp(fitted.log_prob(x, y)), slope, rtol=1e-4, atol=1e-7)
    assert fitted.log_likelihood(x, y) == pytest.approx(np.mean(fitted.log_prob(x, y)))
    for bad in (1.0, [], [0.5, -1], [[0.5]]):
        with pytest.raises(ArgumentError, match="`alpha` must be a number or a list"):
            fitted.predict_quantiles(x, bad)


def test_targets_can_be_transformed(fitted):
    x, y = table()
    logged = TransformedTargetRegressor(
        bl.BayesianNNRegressor(**EXACT), func=np.log, inverse_func=np.exp
    ).fit(x, np.exp(y))
    np.testing.assert_allclose(np.log(logged.predict(x)), fitted.predict(x), rtol=1e-9)


def test_methods_are_searched_over():
    x, y = table()
    search = GridSearchCV(
        make_pipeline(StandardScaler(), bl.BayesianNNRegressor(hidden=(), random_state=0)),
        {"bayesiannnregressor__method": ["conjugate", bl.MAP()]},
        cv=2,
        scoring="r2",
    ).fit(x, y)
    assert len(search.cv_results_["params"]) == 2
    assert search.best_score_ > 0.9


def test_weights_and_groups_are_routed():
    """A weight of 0 for outliers reaches `fit` through the search, and groups reach its splits."""
    x, y = table(60)
    y[:10] += 1000.0
    weight = np.r_[np.zeros(10), np.ones(50)]
    groups = np.arange(60) // 6
    with sklearn.config_context(enable_metadata_routing=True):
        estimator = bl.BayesianNNRegressor(**EXACT).set_fit_request(sample_weight=True, groups=True)
        estimator.set_score_request(sample_weight=True)
        search = GridSearchCV(estimator, {"prior_scale": [1.0, 3.0]}, cv=GroupKFold(3))
        search.fit(x, y, sample_weight=weight, groups=groups)
    plain = bl.BayesianNNRegressor(**EXACT, prior_scale=search.best_params_["prior_scale"])
    plain.fit(x, y, sample_weight=weight)
    np.testing.assert_array_equal(search.predict(x), plain.predict(x))
    assert search.best_score_ > 0.9


def test_skpro_takes_the_regressor():
    """Mean and variance are ours; skpro's Gaussian gives the same log-density."""
    pytest.importorskip("skpro")
    from skpro.regression.adapters.sklearn import SklearnProbaReg

    x, y = table()
    frame, target = pd.DataFrame(x, columns=["a", "b"]), pd.DataFrame({"y": y})
    wrapped = SklearnProbaReg(bl.BayesianNNRegressor(**EXACT)).fit(frame, target)
    ours = bl.BayesianNNRegressor(**EXACT).fit(frame, y)
    mean, std = ours.predict(frame, return_std=True)
    np.testing.assert_allclose(wrapped.predict(frame)["y"], mean)
    np.testing.assert_allclose(wrapped.predict_var(frame)["y"], std**2)
    quantiles = wrapped.predict_quantiles(frame, alpha=[0.05, 0.95]).to_numpy()
    # 200 rows: Student's t of the exact posterior is nearly Gaussian
    np.testing.assert_allclose(quantiles, ours.predict_quantiles(frame, [0.05, 0.95]), atol=0.02)
    density = wrapped.predict_proba(frame).log_pdf(target).to_numpy()[:, 0]
    np.testing.assert_allclose(density, ours.log_prob(frame, y), atol=0.1)


def test_mapie_takes_the_regressor():
    """Its conformal intervals are ours, with residuals in place of |y - mean| / std."""
    pytest.importorskip("mapie")
    from mapie.regression import SplitConformalRegressor

    x, y = table(300)
    x_fit, x_other, y_fit, y_other = train_test_split(x, y, test_size=100, random_state=0)
    ours = bl.BayesianNNRegressor(**EXACT).fit(x_fit, y_fit)
    mapie = SplitConformalRegressor(ours, confidence_level=0.9, prefit=True)
    mapie.conformalize(x_other, y_other)
    mean, intervals = mapie.predict_interval(x)
    np.testing.assert_allclose(mean, ours.predict(x))
    residuals = np.sort(np.abs(y_other - ours.predict(x_other)))
    half = residuals[int(np.ceil(101 * 0.9)) - 1]
    np.testing.assert_allclose(intervals[:, 1, 0] - mean, half)
