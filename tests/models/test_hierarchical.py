"""Weights whose scales are unknown."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
import scipy.stats

import bayeslearn as bl
from bayeslearn import tree
from bayeslearn.errors import ArgumentError


def weights():
    keys = jax.random.split(jax.random.key(0), 2)
    return {
        "network": {
            "bias": jax.random.normal(keys[0], (3,), jnp.float64),
            "weight": jax.random.normal(keys[1], (3, 2), jnp.float64),
        }
    }


def test_hierarchical_density_is_a_multivariate_t_of_each_group(x64):
    params = weights()
    prior = bl.priors.Hierarchical(2.0, 3.0, by_input="weight", input_gain=0.5)
    network = jax.tree.map(np.asarray, params["network"])
    wanted = scipy.stats.multivariate_t(np.zeros(3), 4.0 * np.eye(3), 3.0).logpdf(network["bias"])
    of_input = scipy.stats.multivariate_t(np.zeros(3), 0.25 / 2 * np.eye(3), 3.0)
    wanted += of_input.logpdf(network["weight"].T).sum()
    found = prior.bind(params["network"]).log_prob(params["network"])
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_inputs_of_a_hierarchical_prior_are_columns_or_rows_of_a_kernel(x64):
    params = {
        "dense": {"weight": jnp.zeros((7, 4)), "bias": jnp.zeros(7)},
        "flax": {"kernel": jnp.zeros((4, 7))},
        "conv": {"kernel": jnp.zeros((5, 5, 3, 8))},
        "other": {"weight": jnp.zeros((2, 7))},
    }
    prior = bl.priors.Hierarchical(by_input=["dense.*", "*.kernel"]).bind(params)
    named = dict(zip(tree.leaf_names(params), prior.axes, strict=True))
    assert named == {
        "conv.kernel": 2,
        "dense.bias": None,
        "dense.weight": 1,
        "flax.kernel": 0,
        "other.weight": None,
    }
    trained = prior.to_train().prec
    np.testing.assert_allclose(trained["dense"]["weight"], 4 / 9)  # Normal.fan_in(3.0)


def test_draws_of_a_hierarchical_prior_have_its_distribution(x64):
    """|w_g|^2 / (k scale^2) has an F distribution with k and df degrees of freedom; groups are
    independent. Failure rate about 1e-3: four tests of Kolmogorov and Smirnov at 2e-4, two
    correlations within 3.9 standard errors."""
    params = weights()
    prior = bl.priors.Hierarchical(2.0, 3.0, by_input="weight", input_gain=0.5)
    prior = prior.bind(params["network"])
    keys = jax.random.split(jax.random.key(0), 5000)
    draws = jax.vmap(lambda k: prior.sample(k, params["network"]))(keys)
    squares = {"bias": np.sum(draws["bias"] ** 2, axis=1) / (3 * 4.0)}
    for j in range(2):
        squares[f"input {j}"] = np.sum(draws["weight"][:, :, j] ** 2, axis=1) / (3 * 0.25 / 2)
    for values in squares.values():
        assert scipy.stats.kstest(values, scipy.stats.f(3, 3.0).cdf).pvalue > 2e-4
    first, second, third = (scipy.stats.rankdata(values) for values in squares.values())
    for pair in ((first, second), (second, third)):
        assert abs(np.corrcoef(*pair)[0, 1]) < 3.9 / np.sqrt(5000)


def test_a_point_is_not_fitted_to_unknown_scales_and_chains_start_at_a_network():
    """The density with unknown scales is highest at zero weights."""
    x, y = problems.wiggle()
    starts = []
    for prior in (bl.priors.Normal.fan_in(3.0), bl.priors.Hierarchical()):
        model = bl.Model(bl.networks.MLP([5]), bl.likelihoods.Gaussian(), prior)
        sampler = bl.HMC(num_warmup=0, num_samples=1, step_size=1e-12, max_leapfrog=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            posterior = bl.fit(model, sampler, (x, y), seed=0, num_chains=1)
        starts.append(tree.ravel(posterior.family.mean))
    np.testing.assert_allclose(starts[1], starts[0], atol=1e-6)
    with pytest.raises(ArgumentError, match="`prior` must be one whose mode is a good network"):
        bl.fit(model, "map", (x, y), seed=0, num_steps=5)
