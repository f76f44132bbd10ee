"""Vadam: Adam without noise, the std from uncorrected squares, and what a batch costs."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import problems
import pytest

import bayeslearn as bl
from bayeslearn import tree
from bayeslearn.algorithms.vadam import Correction, Vadam, batch_gradient, vadam_update
from bayeslearn.data.rows import Batch


@pytest.fixture(scope="module")
def problem():
    return problems.regression()


@pytest.fixture(scope="module")
def bound(problem):
    return problem.model.bind((problem.x, problem.y), jax.random.key(0))


def test_without_noise_and_prior_it_is_adam(x64):
    """Equal to optax.adam with eps = 0 over 50 steps on a skew quadratic."""
    matrix = jnp.asarray(np.diag([1.0, 30.0]) + 0.5)
    rate, beta1, beta2 = 0.03, 0.9, 0.999
    adam = optax.adam(rate, beta1, beta2, eps=0.0)
    wanted = mean = jnp.array([2.0, -1.0])
    memory = adam.init(wanted)
    m = s = zero = jnp.zeros(2)
    for t in range(1, 51):
        updates, memory = adam.update(matrix @ wanted, memory)
        wanted = optax.apply_updates(wanted, updates)
        g = matrix @ mean
        correction = Correction(1 - beta1**t, 1 - beta2**t)
        mean, m, s = vadam_update(
            mean, m, s, g, g**2, zero, zero, rate=rate, beta1=beta1, beta2=beta2,
            correction=correction,
        )  # fmt: skip
        np.testing.assert_allclose(mean, wanted, rtol=0, atol=1e-8)
    assert np.linalg.norm(mean) < 1.0


def test_the_prior_pulls_and_the_std_has_the_uncorrected_s(bound, problem, x64):
    target, params = bound
    algorithm = Vadam(start="zero")
    state = jax.jit(algorithm.init)(jax.random.key(0), target, params)
    q = algorithm.approximation(target, state)
    np.testing.assert_allclose(tree.ravel(q.std), 0.5**-0.5)  # q begins as the prior
    s = jax.tree.map(lambda w: jnp.full_like(w, 0.7), params)
    q = algorithm.approximation(target, state._replace(s=s, count=jnp.int32(1)))
    np.testing.assert_allclose(tree.ravel(q.std), (60 * 0.7 + 0.5) ** -0.5)

    one, share, zero = jnp.ones(1), jnp.full(1, 0.1), jnp.zeros(1)
    mean, m, s = vadam_update(
        2 * one, zero, one, 3 * one, 4 * one, one, share,
        rate=0.5, beta1=0.8, beta2=0.9, correction=Correction(one, one),
    )  # fmt: skip
    np.testing.assert_allclose(m, 0.2 * (3 + 0.1 * (2 - 1)))
    np.testing.assert_allclose(s, 0.9 + 0.1 * 4)
    np.testing.assert_allclose(mean, 2 - 0.5 * m / (np.sqrt(s) + 0.1))


def test_the_laplace_start(bound, problem, x64):
    target, params = bound
    state = jax.jit(Vadam().init)(jax.random.key(0), target, params)
    prec = tree.ravel(Vadam().approximation(target, state).prec)
    np.testing.assert_allclose(prec, np.diag(problem.prec), rtol=0.8)  # labels are sampled
    assert float(tree.total(state.m)) == 0.0


@pytest.mark.parametrize("cls", [Vadam, bl.VOGN])
def test_s_of_a_large_network_starts_as_a_constant_and_is_renewed(cls, bound, x64):
    """After 40 steps of 20, of which each has a weight of 0.1, 1.5 % of the start are left."""
    target, params = bound
    algorithm = cls(first_s=1e9).for_network(10_001)
    state = jax.jit(algorithm.init)(jax.random.key(0), target, params)
    np.testing.assert_array_equal(tree.ravel(state.s), 1e9)
    step = jax.jit(algorithm.with_run_length(20).step)
    for key in jax.random.split(jax.random.key(1), 40):
        state, _ = step(key, target, state, target.data)
    np.testing.assert_allclose(tree.ravel(state.s), 1e9 * 0.9**40, rtol=1e-3)


def test_what_a_batch_costs_and_random_signs_save(bound, x64):
    """E[g^2] = w h + (1 - w) gbar^2 over all batches of M of N rows; signs give h itself."""
    target, params = bound
    rows = 6
    gradients = np.stack(
        [
            tree.ravel(g)
            for g in jax.vmap(
                jax.grad(lambda p, x, y: -target.log_likelihood(p, Batch(x[None], y[None]))[0]),
                (None, 0, 0),
            )(params, target.data.x[:rows], target.data.y[:rows])["network"]["layers"][0].weight
        ]
    )
    h, gbar = np.mean(gradients**2, axis=0), np.mean(gradients, axis=0)
    for m in range(1, rows + 1):
        chosen = [np.array(c) for c in itertools.combinations(range(rows), m)]
        mean_square = np.mean([gradients[c].mean(axis=0) ** 2 for c in chosen], axis=0)
        w = (rows - m) / (m * (rows - 1))
        np.testing.assert_allclose(mean_square, w * h + (1 - w) * gbar**2, rtol=1e-10)

    batch = Batch(target.data.x[:rows], target.data.y[:rows])
    keys = jax.random.split(jax.random.key(0), 4000)
    _, g, squares = jax.jit(jax.vmap(lambda k: batch_gradient(k, target, params, batch, "signs")))(
        keys
    )
    np.testing.assert_allclose(tree.ravel(jax.tree.map(lambda v: v[0], g)), gbar, rtol=1e-10)
    squares = jax.vmap(tree.ravel)(squares)
    error = np.std(squares, axis=0) / np.sqrt(len(keys))
    assert np.all(np.abs(np.mean(squares, axis=0) - h) < 4.5 * error)
    of_half = jax.jit(jax.vmap(lambda k: batch_gradient(k, target, params, batch, "signs", 2)[1:]))
    g, squares = of_half(keys)  # signs are of the first half of the rows
    np.testing.assert_allclose(tree.ravel(jax.tree.map(lambda v: v[0], g)), gbar, rtol=1e-10)
    squares, half = jax.vmap(tree.ravel)(squares), np.mean(gradients[: rows // 2] ** 2, axis=0)
    error = np.std(squares, axis=0) / np.sqrt(len(keys))
    assert np.all(np.abs(np.mean(squares, axis=0) - half) < 4.5 * error)
    one = Batch(batch.x[:1], batch.y[:1])  # a batch of one row: both kinds are the same
    found = [batch_gradient(keys[0], target, params, one, kind)[2] for kind in ("signs", "mean")]
    np.testing.assert_allclose(*map(tree.ravel, found), rtol=1e-12)


@pytest.fixture(scope="module")
def run(bound):
    """The last state of 3000 steps, and mean and s averaged over the last thousand."""
    target, params = bound

    def one(state, key):
        state, _ = algorithm.step(key, target, state, target.data)
        return state, (tree.ravel(state.mean), tree.ravel(state.s))

    with jax.enable_x64(True):
        algorithm = Vadam()
        state = jax.jit(algorithm.init)(jax.random.key(1), target, params)
        keys = jax.random.split(jax.random.key(2), 3000)
        state, trace = jax.jit(lambda s: jax.lax.scan(one, s, keys))(state)
        mean, s = jax.tree.map(lambda v: np.asarray(v)[-1000:], trace)
        q = algorithm.approximation(target, state)
        return q, mean.mean(axis=0), s.mean(axis=0)


def test_the_fixed_point(run, problem, x64):
    """s = E_q[mean_i g_i^2], g_i = -x_i (y_i - x_i w) / 0.7^2; the mean is the posterior's."""
    q, mean, s = run
    residual = (problem.y - problem.x @ mean) ** 2 + problem.x**2 @ (1 / (60 * s + 0.5))
    wanted = np.mean(problem.x**2 * residual[:, None], axis=0) / 0.7**4
    # squared normals, four draws a step: an average of 1000 is good to 0.022
    np.testing.assert_allclose(s, wanted, rtol=0.07)
    assert np.all(np.abs(mean - problem.mean) < 0.05 * problem.std)
    assert np.all(np.abs(tree.ravel(q.mean) - problem.mean) < 0.3 * problem.std)


def test_a_run_from_the_warm_start(problem):
    posterior = bl.fit(problem.model, Vadam(), (problem.x, problem.y), seed=0, num_steps=200)
    assert posterior.elbo > -79.0  # the best mean field has -77.5
