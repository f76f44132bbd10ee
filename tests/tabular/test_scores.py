"""Scores of a predictive, how they are written, and values that JSON can hold."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bayeslearn.predictive_base import PredictiveBase
from bayeslearn.tabular.compare.held_out import crps_by_row, predict_held_out
from bayeslearn.tabular.json_values import json_value
from bayeslearn.tabular.score_table import METRICS, metric, write_score
from bayeslearn.tabular.scores import is_covered, score


class Uniform(PredictiveBase):
    """Each y is uniform on [0, 1]."""

    kind, is_discrete, num_samples = "regression", False, 1
    covariance = log_prob_by_draw = sample = None

    def __init__(self, rows):
        self.num_rows = rows

    mean = property(lambda self: np.full(self.num_rows, 0.5))
    epistemic = property(lambda self: np.zeros(self.num_rows))
    aleatoric = property(lambda self: np.full(self.num_rows, 1 / 12))

    def align_y(self, y):
        return np.asarray(y)

    def log_prob(self, y):
        return np.where((y >= 0) & (y <= 1), 0.0, -np.inf)

    def cdfs(self, points):
        return [np.clip(y, 0.0, 1.0) for y in points]

    def quantiles(self, qs):
        return [np.full(self.num_rows, q) for q in qs]


Y = np.array([0.0, 0.25, 0.5, 0.96, 1.0])


def test_scores_of_a_uniform_predictive():
    found = score(Uniform(5), Y)
    assert list(found) == ["rmse", "log_likelihood", "coverage90", "crps"]
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((Y - 0.5) ** 2)))
    assert found["log_likelihood"] == 0.0
    assert found["coverage90"] == 0.4
    exact = Y**3 / 3 + (1 - Y) ** 3 / 3
    assert found["crps"] == pytest.approx(np.mean(exact), abs=1e-4)
    assert crps_by_row(Uniform(5), Y) == pytest.approx(exact, abs=1e-3)
    assert is_covered(Uniform(5), Y).tolist() == [False, True, True, False, False]


def test_held_out_rows():
    found = predict_held_out(Uniform(5), Y, "log-likelihood")
    assert found.crps is None
    assert found.calibration == pytest.approx(0.4)
    assert found.calibration_error == pytest.approx(0.5)
    by_crps = predict_held_out(Uniform(5), Y, "crps")
    assert np.array_equal(by_crps.utility("crps"), -crps_by_row(Uniform(5), Y))


@pytest.mark.parametrize(
    ("name", "mean", "error", "text"),
    [
        ("rmse", 54.321, 0.87, "54.32 ± 0.87"),
        ("log_likelihood", -1.2345, 0.05, "-1.234 ± 0.050"),
        ("log_likelihood", -1.2345, None, "-1.23"),
        ("coverage90", 0.876, 0.012, "87.6 ± 1.2 %"),
        ("ood_auroc", 0.5, 0.0, "0.500"),
        ("seconds", 12.34, 0.01, "12.3"),
        ("rmse", 123456.0, None, "123,456"),
        ("rmse", None, None, "–"),
        ("something_else", 0.0, None, "0"),
    ],
)
def test_scores_have_the_digits_that_their_error_leaves(name, mean, error, text):
    assert str(write_score(name, mean, error)) == text


def test_every_metric_has_a_meaning():
    assert all(entry.meaning and entry.better for entry in METRICS.values())
    assert metric("something_else").label == "something else"


def test_json_values():
    value = {
        1: np.arange(2),
        "nan": [np.nan, np.inf, np.float32(0.5)],
        "flags": (np.True_, False),
        "object": Uniform,
        "none": None,
    }
    assert json.loads(json.dumps(json_value(value), allow_nan=False)) == {
        "1": [0, 1],
        "nan": [None, None, 0.5],
        "flags": [True, False],
        "object": repr(Uniform),
        "none": None,
    }
