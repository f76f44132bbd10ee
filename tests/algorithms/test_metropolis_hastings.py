"""Metropolis-Hastings on a finite set of states, where invariance can be computed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn.algorithms.metropolis_hastings import log_ratio
from bayeslearn.errors import ArgumentError


def kernel(log_f, g, ratio):
    """The transition matrix that accepts a proposal from g with min(1, exp(ratio))."""
    size = len(log_f)
    matrix = np.zeros((size, size))
    for old in range(size):
        for new in range(size):
            if new != old:
                matrix[old, new] = g[old, new] * np.exp(min(0.0, float(ratio(old, new))))
        matrix[old, old] = 1.0 - matrix[old].sum()
    return matrix


@pytest.fixture
def states(x64):
    rng = np.random.default_rng(0)
    log_f = 2.0 * rng.normal(size=6)
    g = rng.uniform(0.05, 1.0, size=(6, 6))
    g /= g.sum(axis=1, keepdims=True)
    target = np.exp(log_f) / np.exp(log_f).sum()
    return log_f, g, target


def test_an_asymmetric_proposal_leaves_the_target_invariant(states):
    log_f, g, target = states
    assert np.abs(g - g.T).max() > 0.1

    def ratio(old, new):
        return log_ratio(log_f[new], log_f[old], np.log(g[new, old]), np.log(g[old, new]))

    matrix = kernel(log_f, g, ratio)
    np.testing.assert_allclose(target @ matrix, target, rtol=0, atol=1e-12)
    flow = target[:, None] * matrix
    np.testing.assert_allclose(flow, flow.T, rtol=0, atol=1e-12)  # detailed balance


def test_the_surveys_ratio_does_not(states):
    """Errata 21: printed with g the other way round."""
    log_f, g, target = states

    def printed(old, new):
        return log_ratio(log_f[new], log_f[old], np.log(g[old, new]), np.log(g[new, old]))

    assert np.abs(target @ kernel(log_f, g, printed) - target).max() > 1e-3


def test_what_is_not_a_density_is_rejected(x64):
    assert log_ratio(jnp.nan, 0.0, 0.0, 0.0) == -jnp.inf
    assert log_ratio(-jnp.inf, 0.0, 0.0, 0.0) == -jnp.inf
    assert log_ratio(jnp.inf - jnp.inf, 0.0, 0.0, 0.0) == -jnp.inf
    assert log_ratio(1.5, 1.0, 0.25, 0.5) == 0.25


def gaussian(w):
    return -0.5 * jnp.sum(w**2)


@pytest.mark.parametrize("proposal", [3, "walk", (print, 3), (print, print, print)])
def test_a_proposal_is_functions(proposal):
    with pytest.raises(ArgumentError, match="`proposal` must be a function or a pair"):
        bl.MetropolisHastings(proposal=proposal)


def test_adaptation_ends_with_warm_up():
    """The scale moves in warm-up and is one number per chain afterwards."""
    target = bl.Target.from_log_density(gaussian, jnp.zeros(3))
    algorithm = bl.MetropolisHastings(num_warmup=400, num_samples=400, thin=5)
    posterior = bl.fit(target, algorithm, seed=0, num_chains=2)
    # a kept number is the mean of `thin` equal ones, so equal up to rounding
    assert np.all(np.ptp(posterior.trace["scale"], axis=1) < 1e-12)
    assert np.all(np.ptp(posterior.trace["warmup_scale"], axis=1) > 0.1)
    aim = 0.234 + 0.206 / 3
    assert abs(posterior.trace["acceptance"].mean() - aim) < 0.1


def test_a_symmetric_proposal_may_come_without_its_density(x64):
    def walk(k, w):
        return w + jax.random.normal(k, w.shape)

    def log_prob(new, old):
        return -0.5 * jnp.sum((new - old) ** 2)

    target = bl.Target.from_log_density(gaussian, jnp.ones(2))

    def steps(proposal):
        algorithm = bl.MetropolisHastings(proposal=proposal)

        @jax.jit
        def run(keys):
            state = algorithm.init(keys[0], target, target.start)
            return jax.lax.scan(
                lambda s, k: (algorithm.step(k, target, s, None)[0],) * 2, state, keys
            )[1]

        return np.asarray(run(jax.random.split(jax.random.key(0), 50)).position)

    alone = steps(walk)
    np.testing.assert_array_equal(alone, steps((walk, log_prob)))
    assert 5 < len(np.unique(alone[:, 0])) < 50  # some accepted, some not
