"""VOGN: per-example squares, tempering, momentum, and its fixed point."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import bayeslearn as bl
from bayeslearn import tree
from bayeslearn.algorithms.vogn import VOGN, gradient_moments, vogn_update
from bayeslearn.data.rows import Batch
from bayeslearn.gradients import curvature


@pytest.fixture(scope="module")
def problem():
    return problems.regression()


@pytest.fixture(scope="module")
def bound(problem):
    return problem.model.bind((problem.x, problem.y), jax.random.key(0))


def test_moments_are_those_of_per_example_gradients(bound, x64, monkeypatch):
    target, params = bound
    monkeypatch.setattr(curvature, "JACOBIAN_ROWS", 16)  # 60 rows: three chunks and a part

    def one(x, y):
        return jax.grad(lambda p: -target.log_likelihood(p, Batch(x[None], y[None]))[0])(params)

    rows = jax.vmap(tree.ravel)(jax.jit(jax.vmap(one))(target.data.x, target.data.y))
    nll, gradient, square = jax.jit(gradient_moments)(target, params, target.data)
    np.testing.assert_allclose(tree.ravel(gradient), np.mean(rows, axis=0), rtol=1e-12)
    np.testing.assert_allclose(tree.ravel(square), np.mean(rows**2, axis=0), rtol=1e-12)
    np.testing.assert_allclose(60 * nll, -target.scaled_log_likelihood(params), rtol=1e-12)
    summed = curvature.squared_gradients(target, params, target.data)
    np.testing.assert_allclose(tree.ravel(summed), 60 * tree.ravel(square), rtol=1e-12)


def test_squares_are_unbiased_at_every_batch_size(bound, x64):
    """The mean over all batches of M rows is the full batch's, for each M."""
    target, params = bound
    x, y = target.data.x[:5], target.data.y[:5]
    masks = np.array(list(itertools.product([0.0, 1.0], repeat=5)))[1:]
    found = jax.jit(jax.vmap(lambda w: gradient_moments(target, params, Batch(x, y, w))[1:]))(
        jnp.asarray(masks)
    )
    gradient, square = (np.asarray(jax.vmap(tree.ravel)(part)) for part in found)
    sizes = masks.sum(axis=1)
    for m in range(1, 6):
        chosen = sizes == m
        np.testing.assert_allclose(gradient[chosen].mean(0), gradient[-1], rtol=1e-10)
        np.testing.assert_allclose(square[chosen].mean(0), square[-1], rtol=1e-10)


def test_momentum_is_a_heavy_ball_of_another_rate():
    rng = np.random.default_rng(0)
    rate, beta1 = 0.1, 0.9
    mean = ball = np.ones(3)
    m = ball_m = np.zeros(3)
    s = np.ones(3)
    for _ in range(30):
        g, h = rng.normal(size=3), rng.uniform(size=3)
        ball_m = beta1 * ball_m + (g + 0.2 * (ball - 0.5))
        mean, m, s = vogn_update(
            mean, m, s, g, h, 0.5, 0.2,
            rate=rate, beta1=beta1, beta2=0.05, weight=1.0, damping=1e-3,
        )  # fmt: skip
        ball = ball - rate * (1 - beta1) * ball_m / (s + 0.2 + 1e-3)
        np.testing.assert_allclose(mean, ball, rtol=1e-12)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_tempering(bound, problem, temperature, x64):
    """The best precision of E[log p(D)] - T KL is N h / T + lambda."""
    target, params = bound
    h = np.diag(problem.x.T @ problem.x) / 0.7**2 / 60
    s = np.ones(4)
    for _ in range(200):
        _, _, s = vogn_update(
            0.0, 0.0, s, 0.0, h, 0.0, 0.5 / 60,
            rate=0.1, beta1=0.9, beta2=0.3, weight=temperature, damping=0.0,
        )  # fmt: skip
    algorithm = VOGN(temperature=temperature, augmentation=1.0)
    state = jax.jit(algorithm.init)(jax.random.key(0), target, params)
    state = state._replace(s=tree.unraveler(params)(jnp.asarray(s)))
    q = algorithm.approximation(target, state)
    np.testing.assert_allclose(tree.ravel(q.prec), 60 * h / temperature + 0.5, rtol=1e-8)
    more = VOGN(augmentation=3.0).approximation(target, state)
    np.testing.assert_allclose(tree.ravel(more.prec), 180 * s + 0.5, rtol=1e-8)


def test_the_complexity_costs_warm_up(x64):
    algorithm = VOGN(kl_warmup=100, temperature=2.0)
    weights = [float(algorithm.complexity_weight(jnp.int32(t))) for t in (0, 50, 100, 1000)]
    np.testing.assert_allclose(weights, [0.02, 1.01, 2.0, 2.0])
    assert float(VOGN().complexity_weight(jnp.int32(0))) == 1.0


@pytest.fixture(scope="module")
def run(bound):
    """The last state of 3000 steps, and mean and s averaged over the last thousand."""
    target, params = bound

    def one(state, key):
        state, info = algorithm.step(key, target, state, target.data)
        return state, (tree.ravel(state.mean), tree.ravel(state.s), info)

    with jax.enable_x64(True):
        algorithm = VOGN()
        state = jax.jit(algorithm.init)(jax.random.key(1), target, params)
        keys = jax.random.split(jax.random.key(2), 3000)
        state, trace = jax.jit(lambda s: jax.lax.scan(one, s, keys))(state)
        mean, s, info = jax.tree.map(lambda v: np.asarray(v)[-1000:], trace)
        q = algorithm.approximation(target, state)
        return q, mean.mean(axis=0), s.mean(axis=0), info


def test_the_fixed_point(run, problem, x64):
    """s = E_q[mean_i g_i^2] within 2 %, the mean within 0.14 standard deviations."""
    q, mean, s, info = run
    residual = (problem.y - problem.x @ mean) ** 2 + problem.x**2 @ (1 / (60 * s + 0.5))
    wanted = np.mean(problem.x**2 * residual[:, None], axis=0) / 0.7**4
    np.testing.assert_allclose(s, wanted, rtol=0.02)
    assert np.all(np.abs(tree.ravel(q.mean) - problem.mean) < 0.14 * problem.std)
    np.testing.assert_allclose(info.elbo, -info.nll - info.kl)


def test_a_run_from_the_warm_start(problem):
    posterior = bl.fit(problem.model, VOGN(), (problem.x, problem.y), seed=0, num_steps=200)
    assert posterior.elbo > -79.0  # the best mean field has -77.5
    assert abs(posterior.trace["eval_elbo"][-1] - posterior.elbo) < 1.0
    assert "kl" not in posterior.trace  # a pass over the weights: at looks only


@pytest.mark.parametrize("squares", ["fisher", "gauss-newton"])
def test_the_true_gauss_newton_survives_a_wrong_noise(problem, squares, x64):
    """Noise set three times too large: the std is mean field's, not a fraction of it."""
    likelihood = bl.likelihoods.Gaussian(noise_scale=2.1)
    model = bl.Model(problem.model.network, likelihood, problem.model.prior, dtype="float64")
    target, params = model.bind((problem.x, problem.y), jax.random.key(0))
    algorithm = VOGN(squares=squares)
    wanted = np.diag(problem.x.T @ problem.x) / 2.1**2 / 60
    keys = jax.random.split(jax.random.key(1), 500 if squares == "fisher" else 1)
    square = jax.jit(jax.vmap(lambda k: algorithm.moments(k, target, params, target.data)[2]))(keys)
    square = np.asarray(jax.vmap(tree.ravel)(square))
    tolerance = 0.05 if squares == "fisher" else 1e-10
    np.testing.assert_allclose(square.mean(axis=0), wanted, rtol=tolerance)
    mean = tree.unraveler(params)(jnp.asarray(problem.mean))
    empirical = gradient_moments(target, mean, target.data)[2]
    assert np.all(tree.ravel(empirical) < 0.3 * wanted)


def test_a_bare_density_is_refused():
    target = bl.Target.from_log_density(lambda p: -jnp.sum(p**2), jnp.zeros(2))
    with pytest.raises(bl.ArgumentError, match="per-example"):
        bl.fit(target, VOGN(), seed=0)
