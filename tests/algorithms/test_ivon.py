"""IVON: its formulas in NumPy, the Hessian on a quadratic, the exact posterior, tempering."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import bayeslearn as bl
from bayeslearn import tree
from bayeslearn.algorithms.ivon import IVON, ivon_update


@pytest.fixture(scope="module")
def problem():
    return problems.regression()


def vector(values):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(values)])


def test_one_step_by_the_formulas(x64):
    """Section 1 of the specification, number by number."""
    rng = np.random.default_rng(0)
    mean, m, gradient, prior_mean, eps = rng.normal(size=(5, 7))
    h, delta = rng.uniform(0.1, 2.0, size=(2, 7))
    num_data, rate, beta1, beta2, t = 50.0, 0.3, 0.8, 0.9, 3
    std = 1.0 / np.sqrt(num_data * (h + delta))
    hhat = gradient * eps / std
    new_m = beta1 * m + (1 - beta1) * gradient
    new_h = beta2 * h + (1 - beta2) * hhat + (1 - beta2) ** 2 * (h - hhat) ** 2 / (2 * (h + delta))
    push = new_m / (1 - beta1**t) + delta * (mean - prior_mean)
    wanted = mean - rate * push / (new_h + delta)
    numbers = {"rate": rate, "beta1": beta1, "beta2": beta2, "correction": 1 - beta1**t}
    arrays = (mean, m, h, gradient, hhat, prior_mean, delta)
    found = ivon_update(*map(jnp.asarray, arrays), **numbers)
    for left, right in zip(found, (wanted, new_m, new_h), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-12)
    clipped = ivon_update(*map(jnp.asarray, arrays), **numbers, clip=0.01)[0]
    assert float(jnp.max(jnp.abs(clipped - mean))) <= rate * 0.01 * (1 + 1e-12)


def test_the_step_draws_as_the_update_assumes(problem, x64):
    """A whole step is the update with the gradient at mean + std eps of one draw."""
    target, params = problem.model.bind((problem.x, problem.y), jax.random.key(0))
    algorithm = IVON(num_draws=1, start="constant", first_h=2.0, beta2=0.9, decay="power")
    state = algorithm.init(jax.random.key(1), target, params)
    new, _ = jax.jit(algorithm.step)(jax.random.key(2), target, state, None)
    mean, h = np.asarray(tree.ravel(state.mean)), 2.0
    gradient = np.asarray(tree.ravel(new.m)) / 0.1  # m was zero
    # The gradient of the mean loss of a linear model gives the draw, and so eps.
    hessian = problem.x.T @ problem.x / 0.7**2 / 60
    draw = np.linalg.solve(hessian, gradient + problem.x.T @ problem.y / 0.7**2 / 60)
    std = 1.0 / np.sqrt(60 * h + 0.5)
    eps = (draw - mean) / std
    change = 0.1 * (gradient * eps / std - h)
    wanted = h + change + change**2 / (2 * (h + 0.5 / 60))
    np.testing.assert_allclose(tree.ravel(new.h), wanted, rtol=1e-9)


def test_h_stays_positive_for_every_estimate(x64):
    hhat = jnp.asarray([-1e6, -10.0, 0.0, 1e6])
    h, delta = jnp.full(4, 0.5), jnp.full(4, 0.01)
    zero = jnp.zeros(4)
    for beta2 in (0.0, 0.5, 0.999):
        numbers = {"rate": 0.1, "beta1": 0.9, "beta2": beta2, "correction": 1.0}
        new = ivon_update(zero, zero, h, zero, hhat, zero, delta, **numbers)[2]
        assert float(jnp.min(new + delta)) > 0


def test_h_finds_the_hessian_and_q_the_posterior(problem):
    """On a quadratic the best diagonal q has the diagonal of the posterior's precision.

    h starts at 0.05, of a Hessian of 3 to 7. With a beta2 that averages the last 500 steps of 16
    draws each, its standard error is about 1.6 %.
    """
    algorithm = IVON(start="constant", first_h=0.05, beta2=0.998, num_draws=16, learning_rate=0.05)
    options = bl.FitOptions(warm_start=0)
    data = problem.x, problem.y
    found = bl.fit(problem.model, algorithm, data, seed=0, num_steps=6000, options=options)
    h = vector(found.state.h)
    hessian = np.diag(problem.x.T @ problem.x) / 0.7**2 / 60
    np.testing.assert_allclose(h, hessian, rtol=0.08)
    std = vector(found.family.std)
    np.testing.assert_allclose(std, np.diag(problem.prec) ** -0.5, rtol=0.04)
    error = (np.asarray(found.family.mean_vector()) - problem.mean) / problem.std
    assert np.abs(error).max() < 0.1


def test_a_beta2_near_one_leaves_h_where_it_began(problem):
    """Why the default depends on the length of the run."""
    algorithm = IVON(start="constant", first_h=0.05, beta2=1 - 1e-6, learning_rate=1e-3)
    options = bl.FitOptions(warm_start=0)
    data = problem.x, problem.y
    found = bl.fit(problem.model, algorithm, data, seed=0, num_steps=100, options=options)
    np.testing.assert_allclose(vector(found.state.h), 0.05, rtol=0.05)
    default = IVON().with_run_length(1000)
    np.testing.assert_allclose(float(default.hessian_decay()), 0.99)
    large = IVON().for_network(10_001).with_run_length(1000)
    np.testing.assert_allclose(float(large.hessian_decay()), 0.998)


def test_a_temperature_scales_the_precision_of_the_data(problem, x64):
    target, params = problem.model.bind((problem.x, problem.y), jax.random.key(0))
    for temperature in (1.0, 0.25):
        algorithm = IVON(temperature=temperature, start="constant", first_h=2.0)
        state = algorithm.init(jax.random.key(0), target, params)
        std = tree.ravel(algorithm.approximation(target, state).std)
        np.testing.assert_allclose(std, (60 / temperature * 2.0 + 0.5) ** -0.5)


def test_h_starts_no_smaller_than_first_h_where_rows_are_predicted_well(problem, x64):
    """There the curvature is nearly 0, and m / (h + d) would leave the mode in one step."""
    target, params = problem.model.bind((problem.x, problem.y), jax.random.key(0))
    below = IVON(start="laplace", first_h=1e-3).init(jax.random.key(0), target, params)
    curvature = vector(below.h)
    assert curvature.min() > 1e-3
    first = float(np.median(curvature))
    state = IVON(start="laplace", first_h=first).init(jax.random.key(0), target, params)
    np.testing.assert_allclose(vector(state.h), np.maximum(curvature, first))


def test_a_curvature_near_zero_does_not_lead_away(problem):
    """h starts at nothing, where unclipped steps are of the gradient divided by the prior's."""
    data = problem.x, problem.y
    options = {"seed": 0, "num_steps": 20, "options": bl.FitOptions(warm_start=0)}
    tiny = {"start": "constant", "first_h": 1e-9, "learning_rate": 0.3}
    found = bl.fit(problem.model, IVON(**tiny, beta2=0.999), data, **options)
    start = vector(problem.model.bind(data, jax.random.key(0))[1])
    assert np.abs(vector(found.state.mean)).max() < np.abs(start).max() + 20 * 0.3 * 0.1 + 2
