"""Samplers with their defaults on posteriors whose moments are known: right, or they say so."""

from __future__ import annotations

import warnings

import gold
import jax
import numpy as np
import pytest

import bayeslearn as bl

QUICK = ("linear", "logistic", "schools")


@pytest.mark.parametrize("name", gold.references())
def test_the_densities_are_those_of_the_reference(name):
    """The value at the first parameters; data that a library draws otherwise would change it."""
    value = gold.MODELS[name]().at_start()
    np.testing.assert_allclose(value, gold.references()[name]["at_start"], rtol=1e-9)


def sampled(name, algorithm, seed=0):
    """The errors of a run, and whether it warned."""
    model = gold.MODELS[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bl.MixingWarning)
        posterior = model.fit(algorithm, seed)
    return gold.errors(model.quantities(posterior), gold.references()[name]), gold.warned(posterior)


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("algorithm", [bl.NUTS(), bl.HMC()], ids=lambda a: a.name)
def test_means_and_sds_are_right(name, algorithm):
    """Three Monte-Carlo errors beyond a tenth of an sd: more than five of them at these sizes."""
    found, _ = sampled(name, algorithm)
    assert found.is_within, found


@pytest.mark.slow(reason="ten models with five samplers")
def test_every_sampler_is_within_or_warns():
    wrong = {}
    for model in gold.references():
        if model == "two_modes":  # four chains miss one of them once in eight: test_sampling.py
            continue
        for name in ("nuts", "hmc", "mams", "mclmc", "metropolis-hastings"):
            found, has_warned = sampled(model, bl.ALGORITHMS[name]())
            if not found.is_within and not has_warned:
                wrong[model, name] = found
        jax.clear_caches()
    assert not wrong
