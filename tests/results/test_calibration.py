"""Simulation-based calibration of HMC, and the coverage of predictive intervals."""

from __future__ import annotations

import equinox as eqx
import numpy as np
import problems
import pytest
from scipy import stats

import bayeslearn as bl
from bayeslearn.errors import ArgumentError
from bayeslearn.results.sbc import _uniformity, simulation_based_calibration

FAILURE_RATE = 1e-6
# Thinned, so that ranks of dependent draws do not pile up at the ends.
SETTINGS = {"num_warmup": 100, "num_samples": 99, "thin": 3, "mass_matrix": "dense"}


def small():
    """Two weights and a learned noise scale on twelve rows."""
    x = np.random.default_rng(0).normal(size=(12, 2))
    model = bl.Model(
        bl.networks.MLP([], use_bias=False),
        bl.likelihoods.Gaussian(noise_prior_scale=0.5),
        dtype="float64",
    )
    return model, (x, np.linspace(-1, 1, 12))


class Overconfident(bl.HMC):
    """Counts every observation nine times: a third of the right standard deviation."""

    name = "overconfident"

    def step(self, key, target, state, batch):
        return super().step(key, self._too_sure(target), state, batch)

    def init(self, key, target, params):
        return super().init(key, self._too_sure(target), params)

    def _too_sure(self, target):
        return eqx.tree_at(lambda t: t.num_data, target, 9.0 * target.num_data)


def test_ranks_are_tested_for_uniformity():
    ranks = np.random.default_rng(0).integers(0, 100, size=(500, 3))
    assert _uniformity(ranks, 99, 10).min() > FAILURE_RATE
    # the test itself is calibrated: its p-values are uniform
    many = np.random.default_rng(1).integers(0, 100, size=(500, 400))
    assert stats.kstest(_uniformity(many, 99, 10), "uniform").pvalue > FAILURE_RATE
    shifted = np.minimum(ranks + 15, 99)
    assert _uniformity(shifted, 99, 10).max() < FAILURE_RATE


def test_too_few_data_sets_are_refused():
    model, data = small()
    with pytest.raises(
        ArgumentError, match=r"`num_datasets` must be at least num_bins \(10\), got"
    ):
        simulation_based_calibration(model, bl.HMC(), data, num_datasets=5, seed=0)


@pytest.mark.slow(reason="300 data sets are sampled")
def test_hmc_is_calibrated():
    model, data = small()
    found = simulation_based_calibration(
        model, bl.HMC(**SETTINGS), data, num_datasets=300, seed=0, num_chains=1
    )
    assert found.ranks.shape == (300, 3)
    assert found.ranks.min() >= 0
    assert found.ranks.max() <= found.num_samples == 99
    assert found.p_values.min() > FAILURE_RATE / 3


@pytest.mark.slow(reason="100 data sets are sampled")
def test_a_wrong_sampler_is_not():
    """A third of the std sends a third of the ranks to each end: 100 data sets do."""
    model, data = small()
    found = simulation_based_calibration(
        model, Overconfident(**SETTINGS), data, num_datasets=100, seed=0, num_chains=1
    )
    assert found.p_values.max() < FAILURE_RATE


NUM_DATA_SETS, NUM_TEST, LEVEL = 20, 500, 0.95


@pytest.fixture(scope="module")
def coverages():
    """(total, epistemic only, plug-in) coverage of new observations in 20 data sets."""
    rng = np.random.default_rng(0)
    model = problems.regression().model
    algorithm = bl.HMC(num_warmup=300, num_samples=250)
    found = []
    for seed in range(NUM_DATA_SETS):
        weights = rng.normal(size=4) / np.sqrt(0.5)
        x = rng.normal(size=(60 + NUM_TEST, 4))
        y = x @ weights + 0.7 * rng.normal(size=len(x))
        posterior = bl.fit(model, algorithm, (x[:60], y[:60]), seed=seed, num_chains=2)
        predictive = posterior.predict(x[60:], num_samples=100)
        z = stats.norm.ppf(0.5 + LEVEL / 2)
        miss = np.abs(y[60:] - predictive.mean)
        found.append(
            [
                bl.metrics.coverage(predictive, y[60:], LEVEL),
                np.mean(miss <= z * np.sqrt(predictive.epistemic)),
            ]
        )
    return np.array(found)


def test_intervals_for_new_observations_cover_what_they_say(coverages):
    """Truth and prior agree, so 95 % is exact on average over data sets.

    10,000 points: binomial standard error 0.22 %; coverage differs between data sets by about
    0.5 % (0.104 sd(chi2_4) / 60), 0.11 % in the mean of 20. So 1 % is 4 standard errors.
    """
    assert 0.94 <= coverages[:, 0].mean() <= 0.96


def test_intervals_of_the_mean_alone_do_not(coverages):
    assert coverages[:, 1].mean() < 0.6
    assert coverages[:, 1].max() < 0.9
