"""BBVI: its step, what a step means, and the posteriors it finds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import bayeslearn as bl
from bayeslearn import tree
from bayeslearn.algorithms.bbvi import BBVI
from bayeslearn.errors import ArgumentError
from bayeslearn.gradients import score


@pytest.fixture(scope="module")
def bound():
    with jax.enable_x64(True):
        problem = problems.regression()
        return *problem.model.bind((problem.x, problem.y), jax.random.key(0)), problem


@pytest.mark.parametrize(("start", "seeds"), [("mean-field", 1), ("mode", 3)])
def test_finds_the_mean_field_posterior(start, seeds):
    """Exact: mean of the posterior, variances 1 / diag(prec)."""
    problem = problems.regression()
    for seed in range(seeds):
        posterior = bl.fit(problem.model, BBVI(start=start), (problem.x, problem.y), seed=seed)
        off = (np.asarray(posterior.family.mean_vector()) - problem.mean) / problem.std
        assert np.max(np.abs(off)) < 0.1
        var = np.asarray(tree.ravel(posterior.family.std)) ** 2
        np.testing.assert_allclose(var * np.diag(problem.prec), 1.0, atol=0.1)


def test_full_covariance_finds_the_posterior_itself():
    """The noise dies out on the way, so that it gets there to many digits."""
    problem = problems.regression()
    algorithm = BBVI(covariance="full", learning_rate=0.03)
    posterior = bl.fit(problem.model, algorithm, (problem.x, problem.y), seed=0, num_steps=3000)
    np.testing.assert_allclose(posterior.family.mean_vector(), problem.mean, atol=1e-5)
    found = np.asarray(posterior.family.cov_matrix()) @ problem.prec
    np.testing.assert_allclose(found, np.eye(4), atol=1e-4)


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_step_is_the_score_gradient_in_units_of_the_start(x64, bound, covariance):
    """With plain SGD: zeta + learning_rate S / (S + k) unit^2 gradient."""
    target, params, _ = bound
    algorithm = BBVI(covariance=covariance, optimizer="sgd", learning_rate=0.5, num_draws=8)

    @jax.jit
    def both_ways(key):
        state = algorithm.init(jax.random.key(1), target, params)
        frame = algorithm.frame(state.zeta)
        noise = frame.noise(key, 8)
        h = score.evaluate(target, frame, target.data, noise, False).h
        weight = score.centred(h, score.squared_scores(frame, noise), "leave-one-out")
        gradient = score.to_zeta(frame, score.average(frame, noise, weight))
        new, info = algorithm.step(key, target, state, target.data)
        return state, gradient, new, info.elbo, jnp.mean(h)

    state, gradient, new, elbo, mean_h = both_ways(jax.random.key(2))
    std = tree.ravel(jax.tree.map(jnp.exp, state.zeta["scale"]))
    if covariance == "diagonal":
        np.testing.assert_allclose(tree.ravel(state.unit["mean"]), std, rtol=1e-12)
        assert np.all(tree.ravel(state.unit["scale"]) == 1.0)
    else:
        std = np.exp(np.diag(state.zeta["scale"][0]))
        unit = np.asarray(state.unit["scale"][0])
        np.testing.assert_allclose(unit[2, 1], std[2] / 4, rtol=1e-12)
        assert np.all(np.diag(unit) == 1.0)
    rate = 0.5 * 8 / (8 + 4)
    wanted = jax.tree.map(lambda z, u, g: z + rate * u**2 * g, state.zeta, state.unit, gradient)
    for a, b in zip(jax.tree.leaves(new.zeta), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(elbo, mean_h, rtol=1e-12)


def test_takes_over_the_warm_starts_scale(x64, bound):
    target, params, _ = bound
    assert isinstance(BBVI().warm_start(), bl.BayesByBackprop)
    assert isinstance(BBVI(start="mode").warm_start(), bl.MAP)
    q = bl.families.DiagonalGaussian(params, jax.tree.map(lambda w: 0.1 + 0.0 * w, params))
    state = jax.jit(BBVI(covariance="full").init_from)(jax.random.key(0), target, q)
    found = BBVI(covariance="full").approximation(target, state)
    np.testing.assert_allclose(found.cov_matrix(), 0.01 * np.eye(4), atol=1e-14)


def test_refusals():
    with pytest.raises(ArgumentError, match="`optimizer` must"):
        BBVI(optimizer="no such thing")
    with pytest.raises(ArgumentError, match="`baseline` must be one of"):
        BBVI(baseline="mean")
