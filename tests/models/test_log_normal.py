"""Positive numbers whose relative noise depends on the input, against SciPy."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from scipy import stats

import bayeslearn as bl
from bayeslearn.errors import ArgumentError
from bayeslearn.models.likelihoods.log_normal import MAX_SCALE

SHIFT, MIN_SCALE = 0.7, 0.01
Y = np.array([0.3, 1.0, 5.0, 2.2])


def bound_and_scipy(raw, location=0.4):
    bound, _ = bl.likelihoods.HeteroscedasticLogNormal(MIN_SCALE, SHIFT).bind(Y)
    logs = np.log(Y + SHIFT)
    scale = logs.std() * (MIN_SCALE + np.exp(10 * np.tanh(raw / 10)))
    most = MAX_SCALE * logs.std()
    scale = scale * most / (scale + most)
    return bound, stats.lognorm(scale, scale=np.exp(logs.mean() + location * logs.std()))


@pytest.mark.parametrize("raw", [-30.0, -1.0, 0.0, 0.5, 30.0])
def test_density_moments_and_distribution_function(raw, x64):
    bound, exact = bound_and_scipy(raw)
    outputs, y = jnp.array([0.4, raw]), jnp.array([1.3])
    expected = exact.logpdf(1.3 + SHIFT) + np.log(0.9)  # 1 in 2 (4 + 1) is kept for what is smaller
    np.testing.assert_allclose(bound.log_prob(outputs, y, {}), expected, rtol=1e-9)
    np.testing.assert_allclose(bound.mean(outputs, {}), [exact.mean() - SHIFT], rtol=1e-9)
    np.testing.assert_allclose(bound.variance(outputs, {}), [exact.var()], rtol=1e-9)
    np.testing.assert_allclose(bound.cdf(outputs, y, {}), [exact.cdf(1.3 + SHIFT)], atol=1e-12)
    assert bound.cdf(outputs, jnp.array([-SHIFT - 1.0]), {}) == 0.0
    slope = jax.grad(lambda r: bound.log_std(jnp.array([0.4, r]))[0])(raw)
    np.testing.assert_allclose(bound.log_std_slope(outputs), [slope], rtol=1e-9)


@pytest.mark.parametrize("raw", [-30.0, 0.0])
def test_a_number_below_all_rows_has_a_density(raw, x64):
    """The density integrates to one, also below zero, and its gradient is finite."""
    bound, exact = bound_and_scipy(raw)
    outputs = jnp.array([0.4, raw])

    def density(y):
        return np.exp(jax.vmap(lambda one: bound.log_prob(outputs, one[None], {}))(jnp.asarray(y)))

    scale = Y.std()
    below = np.linspace(0.3 - 40 * scale, 0.3, 400_001)[:-1]
    share = np.trapezoid(density(below), below) - 0.9 * exact.cdf(0.3 + SHIFT)
    np.testing.assert_allclose(share, 0.1, atol=1e-4)
    zero = jnp.array([-SHIFT - 1e-3])
    expected = np.log(0.1 / scale) - (0.3 - zero[0]) / scale
    np.testing.assert_allclose(bound.log_prob(outputs, zero, {}), expected, rtol=1e-9)
    assert jnp.all(jnp.isfinite(jax.grad(lambda o: bound.log_prob(o, zero, {}))(outputs)))


def test_a_single_zero_does_not_destroy_the_log_likelihood():
    x, y = problems.wiggle()
    y = np.exp(2.0 * y)
    settings = {"method": "map", "noise": "log-normal", "hidden": (8,), "num_steps": 400}
    regressor = bl.BayesianNNRegressor(**settings, random_state=0).fit(x, y)
    costs = -regressor.log_prob(x[:3], np.array([0.0, -0.1 * y.std(), 1e-9]))
    n, most = len(y), y.min() / y.std() + 0.1
    np.testing.assert_array_less(costs, np.log(2 * (n + 1) * y.std()) + most + 1e-5)


def test_information_is_the_expected_curvature(x64):
    bound, exact = bound_and_scipy(0.5)
    bound = dataclasses.replace(bound, unseen=None)  # no row that it is learned from is smaller
    levels, weights = np.polynomial.legendre.leggauss(400)
    y = jnp.asarray(exact.ppf(0.5 + 0.5 * levels) - SHIFT)
    outputs = jnp.array([0.4, 0.5])
    hessian = jax.hessian(lambda o, y: bound.log_prob(o, y[None], {}))
    expected = -np.einsum("i,ijk->jk", 0.5 * weights, jax.vmap(hessian, (None, 0))(outputs, y))
    np.testing.assert_allclose(bound.information(outputs, None, {}), expected, atol=1e-3)


def test_draws_have_the_distribution(x64):
    """A Kolmogorov-Smirnov test that fails once in a thousand seeds."""
    bound, exact = bound_and_scipy(0.0)
    keys = jax.random.split(jax.random.key(0), 2000)
    draws = jax.vmap(lambda key: bound.sample(key, jnp.array([0.4, 0.0]), {}))(keys)
    assert stats.kstest(np.ravel(draws) + SHIFT, exact.cdf).pvalue > 1e-3


def test_a_standardised_positive_target_is_learned_and_comes_back_from_disk(tmp_path):
    x, y = problems.wiggle()
    y = np.exp(2.0 * y)
    z = (y - y.mean()) / y.std()
    shifted = bl.likelihoods.HeteroscedasticLogNormal(1e-3, y.mean() / y.std())
    model = problems.small_model(shifted)
    posterior = bl.fit(model, "map", (x, z), seed=0, num_steps=400)
    p = posterior.predict(x)
    assert np.mean((p.mean - z) ** 2) < 0.5
    assert p.quantile(0.01).min() >= -y.mean() / y.std() - 1e-9  # below it there is nothing
    posterior.save(tmp_path / "run")
    np.testing.assert_array_equal(bl.load(tmp_path / "run").predict(x).mean, p.mean)


def test_numbers_below_the_shift_are_refused():
    with pytest.raises(ArgumentError, match="hold only positive numbers"):
        bl.likelihoods.HeteroscedasticLogNormal(None, 0.5).bind(np.array([1.0, -0.6]))
