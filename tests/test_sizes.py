"""Sizes that cannot end well are refused at once, with the memory they would take."""

from __future__ import annotations

import time

import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn import sizes

ROWS = (np.ones((6, 3)), np.arange(6.0))


def fit(hidden=(2,), algorithm="map", **options):
    model = bl.Model(bl.networks.MLP(hidden), bl.likelihoods.Gaussian(noise_scale=1.0))
    return bl.fit(model, algorithm, ROWS, **{"seed": 0, "num_steps": 2} | options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        # 5 x 10^11 weights: of each unit three inputs, a bias and an output
        ({"hidden": [10**11]}, "`network` must be smaller: its weights.* take about 6,000 GB"),
        ({"hidden": [10**9, 10**9]}, "take about 12,000,000,0.. GB, and this machine has"),
        ({"algorithm": bl.Ensemble(num_members=10**12)}, "`num_members` must be smaller: so many"),
        (
            {"algorithm": "bayes-by-backprop", "starts": 10**12},
            "`starts` must be smaller: so many starts",
        ),
        ({"batch_size": 10**9}, "`batch_size` must be at most the number of rows"),
        ({"seed": 2**64}, "`seed` must be .*at most 9223372036854775807, got 1844"),
        ({"seed": -1}, "`seed` must be a whole number of at least 0"),
    ],
)
def test_what_cannot_end_well_is_refused_at_once(options, match):
    began = time.monotonic()
    with pytest.raises(bl.ArgumentError, match=match):
        fit(**options)
    assert time.monotonic() - began < 10


def test_the_largest_seed_and_others_than_32_bits_have_keys_of_their_own():
    means = [fit(seed=seed).predict(ROWS[0]).mean for seed in (0, 2**32, 2**63 - 1)]
    assert not np.allclose(means[0], means[1])
    assert not np.allclose(means[0], means[2])


def test_the_limit_is_that_of_the_process(monkeypatch):
    have = sizes.host_memory()
    sizes.check_memory("name", 1, have, "they")
    with pytest.raises(bl.ArgumentError, match="`name` must be smaller: they take about"):
        sizes.check_memory("name", 1, have + 1, "they")


def test_a_single_class_is_refused_unless_others_are_announced():
    data = (ROWS[0], np.zeros(6, int))
    for likelihood, is_refused in (
        (bl.likelihoods.Categorical(), True),
        (bl.likelihoods.Categorical(num_classes=3), False),
    ):
        model = bl.Model(bl.networks.MLP([]), likelihood)
        if is_refused:
            with pytest.raises(bl.ArgumentError, match="`y` must hold at least two classes, got"):
                bl.fit(model, "map", data, seed=0, num_steps=2)
        else:
            probs = bl.fit(model, "map", data, seed=0, num_steps=2).predict(ROWS[0]).probs
            assert probs.shape == (6, 3)
