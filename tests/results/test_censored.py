"""Scores and calibration where only a bound of some observations is known."""

from __future__ import annotations

import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn.errors import ArgumentError
from bayeslearn.models import likelihoods


@pytest.fixture(scope="module", params=["weibull", "gaussian"])
def survival(request):
    """A fit, and rows of which a third are censored."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1200, 1))
    if request.param == "weibull":
        likelihood = likelihoods.Weibull()
        time = np.exp(0.5 * x[:, 0]) * rng.weibull(1.5, size=1200)
        limit = rng.exponential(2.0, size=1200)
    else:
        likelihood = likelihoods.CensoredGaussian()
        time = x[:, 0] + rng.normal(size=1200)
        limit = 0.5 + rng.normal(size=1200)
    y = np.stack([np.minimum(time, limit), time <= limit], axis=1)
    model = bl.Model(bl.networks.MLP([]), likelihood)
    posterior = bl.fit(model, "map", (x[:600], y[:600]), seed=0, num_steps=600)
    return posterior, x[600:], y[600:], time[600:]


@pytest.mark.parametrize("method", ["conformal", "scale", "isotonic"])
def test_calibration_refuses_censored_rows(survival, method):
    posterior, x, y, _ = survival
    with pytest.raises(ArgumentError, match=r"hold observed numbers alone.* censored of 600 rows"):
        posterior.calibrate((x, y), method=method)


def test_rows_that_are_all_observed_calibrate(survival):
    posterior, x, _, time = survival
    calibrated = posterior.calibrate((x, np.stack([time, np.ones(600)], axis=1)))
    assert abs(bl.metrics.coverage(calibrated.predict(x), time) - 0.9) < 0.02


@pytest.mark.parametrize("score", [bl.metrics.rmse, bl.metrics.coverage, bl.metrics.crps])
def test_scores_refuse_censored_rows(survival, score):
    posterior, x, y, time = survival
    predictive = posterior.predict(x)
    with pytest.raises(ArgumentError, match="log_likelihood and pit take censored rows"):
        score(predictive, y)
    assert np.isfinite(score(predictive, time))


def test_pit_of_censored_rows_is_uniform(survival):
    """Mean and variance of 600 uniform numbers, by 4 standard errors; as events they are not."""
    posterior, x, y, _ = survival
    predictive = posterior.predict(x)
    found = bl.metrics.pit(predictive, y)
    assert abs(np.mean(found) - 0.5) < 4 * np.sqrt(1 / 12 / 600)
    assert abs(np.var(found) - 1 / 12) < 4 * np.sqrt(1 / 180 / 600)
    assert abs(np.mean(predictive.cdf(y)) - 0.5) > 4 * np.sqrt(1 / 12 / 600)
