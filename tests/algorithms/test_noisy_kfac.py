"""Noisy K-FAC: exact where its factors are, and nearer to the posterior than mean field."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import bayeslearn as bl
from bayeslearn import tree
from bayeslearn.algorithms.noisy_kfac import natural_step
from bayeslearn.gradients import kronecker


def test_the_natural_step_is_the_dense_one(x64):
    """N Sigma g, and a step of the algorithm on numbers."""
    problem = problems.regression()
    target, params = problem.model.bind((problem.x, problem.y), jax.random.key(0))
    algorithm = bl.NoisyKFAC(
        curvature="gauss-newton",
        beta1=0.0,
        beta2=1.0,
        refresh=1,
        num_draws=1,
        learning_rate=0.5,
        clip=1e9,
    )
    state = jax.jit(algorithm.init)(jax.random.key(1), target, params)
    np.testing.assert_allclose(state.q.prec_matrix(), problem.prec, rtol=1e-12)
    gradient = {"likelihood": {}, "network": jax.tree.map(jnp.cos, params["network"])}
    wanted = 60.0 * problem.cov @ tree.ravel(gradient)
    np.testing.assert_allclose(tree.ravel(natural_step(state.q, gradient, 60.0)), wanted)

    key = jax.random.key(2)
    new, info = jax.jit(algorithm.step)(key, target, state, target.data)
    noise = tree.normal_like(jax.random.split(key)[0], params, 1)
    drawn = state.q.transform(jax.tree.map(lambda e: e[0], noise))
    residual = problem.x @ tree.ravel(drawn) - problem.y
    slope = problem.x.T @ residual / 0.7**2 + 0.5 * tree.ravel(params)
    np.testing.assert_allclose(
        tree.ravel(new.q.mean), tree.ravel(params) - 0.5 * problem.cov @ slope, rtol=1e-9
    )
    wanted = 0.5 * np.sum(residual**2) / 0.7**2 + 60 * np.log(0.7 * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(info.nll, wanted, rtol=1e-10)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_exact_on_conjugate_regression(temperature):
    """The precision exactly; the mean to a fifth of a standard deviation, over 1,000 noisy steps:
    its error is .02 of one (root mean square), so that this fails less than once in 1,000."""
    problem = problems.regression()
    algorithm = bl.NoisyKFAC(curvature="gauss-newton", temperature=temperature)
    data = (problem.x, problem.y)
    posterior = bl.fit(problem.model, algorithm, data, seed=0, num_steps=1500)
    prec = problem.x.T @ problem.x / 0.7**2 / temperature + 0.5 * np.eye(4)
    np.testing.assert_allclose(posterior.family.prec_matrix(), prec, rtol=1e-8)
    mean = np.linalg.solve(prec, problem.x.T @ problem.y / 0.7**2 / temperature)
    error = np.linalg.cholesky(prec).T @ (posterior.family.mean_vector() - mean)
    assert np.max(np.abs(error)) < 0.2


def test_factors_of_minibatches_are_unbiased():
    """Averages of some 40,000 rows: five standard errors are 4 % of A and of S, 1 in a million."""
    problem = problems.regression()
    algorithm = bl.NoisyKFAC(beta2=0.002, num_draws=2)
    data = (problem.x, problem.y)
    posterior = bl.fit(problem.model, algorithm, data, seed=0, num_steps=3000, batch_size=20)
    prec = np.asarray(posterior.family.prec_matrix())
    scale = np.sqrt(np.outer(np.diag(problem.prec), np.diag(problem.prec)))
    np.testing.assert_allclose(prec / scale, problem.prec / scale, rtol=0, atol=0.08)


def test_the_step_can_be_limited(x64):
    target, params = problems.small_model().bind(problems.wiggle(), jax.random.key(0))
    algorithm = bl.NoisyKFAC(clip=1e-3, learning_rate=1.0, num_draws=1, beta1=0.0)
    state = jax.jit(algorithm.init)(jax.random.key(1), target, params)
    new, info = jax.jit(algorithm.step)(jax.random.key(2), target, state, target.data)
    change = tree.ravel(tree.double(new.q.mean)) - tree.ravel(tree.double(params))
    assert info.length > 1e-3
    np.testing.assert_allclose(np.sqrt(np.mean(np.square(change))), 1e-3, rtol=1e-3)


def test_leaves_without_factors_are_named_and_correlated_priors_refused():
    class Gained:
        def init(self, key, x_example, num_outputs):
            return {"gain": jnp.ones(2), "out": jnp.ones((2, num_outputs))}

        def apply(self, params, x, key=None):
            return jnp.tanh(x * params["gain"]) @ params["out"]

    x = np.random.default_rng(0).normal(size=(12, 2))
    network = Gained()
    model = bl.Model((network.init, network.apply), bl.likelihoods.Gaussian(noise_scale=1.0))
    posterior = bl.fit(model, bl.NoisyKFAC(num_draws=1), (x, x[:, 0]), seed=0, num_steps=3)
    (note,) = posterior.notes
    assert "with a diagonal covariance: network.gain." in note
    assert len(posterior.family.rest) == 1
    with pytest.raises(bl.ArgumentError, match="must have independent weights"):
        posterior.update((x, x[:, 0]), num_steps=3)
    assert kronecker.KINDS == ("gauss-newton", "fisher", "examples")


def test_factors_of_a_large_network_start_as_the_identity_and_are_renewed(x64):
    """On them q has the curvature N and the prior's; they have no part left after two runs."""
    problem = problems.regression()
    target, params = problem.model.bind((problem.x, problem.y), jax.random.key(0))
    algorithm = bl.NoisyKFAC(curvature="gauss-newton", refresh=1).for_network(10_001)
    state = jax.jit(algorithm.init)(jax.random.key(1), target, params)
    np.testing.assert_allclose(state.q.prec_matrix(), 60.5 * np.eye(4), rtol=1e-12)
    step = jax.jit(algorithm.with_run_length(4).step)
    for key in jax.random.split(jax.random.key(2), 60):
        state, _ = step(key, target, state, target.data)
    np.testing.assert_allclose(state.q.prec_matrix(), problem.prec, rtol=1e-9)
