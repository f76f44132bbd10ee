"""Calibration rows that drift are warned about, and others are not."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn.errors import DataWarning
from bayeslearn.results import drift


def test_false_alarms_are_as_rare_as_they_should_be():
    """2,000 exchangeable tables at a level of 5 %: binomial sd .0049, four of them.

    The level itself, .001, would take a hundred times as many tables.
    """
    rng = np.random.default_rng(0)
    p_values = [drift.drift_p_value(np.abs(rng.standard_t(3, size=120))) for _ in range(2000)]
    assert abs(np.mean(np.array(p_values) < 0.05) - 0.05) < 4 * 0.0049


def test_a_drift_is_seen_and_few_rows_are_left_alone():
    rng = np.random.default_rng(0)
    scores = np.abs(rng.normal(size=200)) * np.linspace(1.0, 4.0, 200)
    assert drift.drift_p_value(scores) < 1e-4
    assert drift.drift_p_value(scores[:39]) == 1.0
    assert drift.drift_p_value(np.ones(200)) == 1.0


def test_calibration_warns_of_the_order():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 1))
    y = x[:, 0] + rng.normal(size=300)
    y[:200] += np.linspace(0.0, 6.0, 200)
    estimator = bl.BayesianNNRegressor(hidden=(), method="conjugate", random_state=0)
    estimator.fit(x[200:], y[200:])
    with pytest.warns(DataWarning, match="drift with the order of the calibration rows"):
        estimator.calibrate(x[:200], y[:200])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        order = rng.permutation(200)  # the same rows in random order
        estimator.calibrate(x[order], y[order])
    assert estimator.posterior_.calibrator.num_rows == 200
    assert sum("Calibrated" in note for note in estimator.posterior_.notes) == 1
