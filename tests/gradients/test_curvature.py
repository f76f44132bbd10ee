"""Curvature: the same matrix by independent ways."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import bayeslearn as bl
from bayeslearn import tree
from bayeslearn.data.rows import Batch
from bayeslearn.gradients import curvature

pytestmark = pytest.mark.usefixtures("x64")


def bound(likelihood, x, y, hidden=(3,)):
    model = bl.Model(bl.networks.MLP(hidden), likelihood, dtype="float64")
    return model.bind((x, y), jax.random.key(0))


def whole_group(params):
    return (tuple(range(len(jax.tree.leaves(params)))),)


def test_hessian_gauss_newton_and_exact_precision_agree_on_a_linear_model():
    problem = problems.regression()
    target, params = problem.model.bind((problem.x, problem.y), jax.random.key(0))
    for kind in ("hessian", "gauss-newton"):
        (found,) = curvature.blocks(jax.random.key(0), target, params, None, ((0,),), kind)
        np.testing.assert_allclose(found, problem.prec, rtol=1e-9)
        diagonal = curvature.diagonal(jax.random.key(0), target, params, None, kind)
        np.testing.assert_allclose(tree.ravel(diagonal), np.diag(problem.prec), rtol=1e-9)


@pytest.mark.parametrize("turns", [1, 3, 13])
def test_a_hessian_in_turns_is_the_whole(turns, monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(7, 2)), rng.normal(size=7)
    target, params = bound(bl.likelihoods.Gaussian(noise_scale=0.5), x, y)
    vector, unravel = tree.ravel(params), tree.unraveler(params)
    assert len(vector) == 13  # of 3 turns of 5 the last is shorter
    monkeypatch.setitem(curvature.MAX_BATCH, "cpu", 7 * 13 * -(-13 // turns))
    (found,) = curvature.blocks(
        jax.random.key(0), target, params, None, whole_group(params), "hessian"
    )
    whole = jax.hessian(lambda v: -target.log_joint(unravel(v), None))(vector)
    np.testing.assert_allclose(found, whole, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("likelihood", [bl.likelihoods.Bernoulli(), bl.likelihoods.Categorical(3)])
def test_gauss_newton_is_jacobian_output_curvature_jacobian(likelihood):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(7, 2))
    y = rng.integers(0, 2, size=7)
    target, params = bound(likelihood, x, y)
    vector, unravel = tree.ravel(params), tree.unraveler(params)
    jacobian = np.asarray(jax.jacobian(lambda v: target.outputs(unravel(v), target.data.x))(vector))
    outputs = np.asarray(target.outputs(params, target.data.x))
    total = np.eye(len(vector))
    for j, out in zip(jacobian, outputs, strict=True):
        if len(out) == 1:
            p = 1 / (1 + np.exp(-out[0]))
            middle = np.array([[p * (1 - p)]])
        else:
            p = np.exp(out - out.max())
            p /= p.sum()
            middle = np.diag(p) - np.outer(p, p)
        total += j.T @ middle @ j
    groups = whole_group(params)
    (found,) = curvature.blocks(jax.random.key(0), target, params, None, groups, "gauss-newton")
    np.testing.assert_allclose(found, total, atol=1e-8)
    diagonal = curvature.diagonal(jax.random.key(0), target, params, None, "gauss-newton")
    np.testing.assert_allclose(tree.ravel(diagonal), np.diag(total), atol=1e-8)


def test_sampled_labels_are_unbiased_for_gauss_newton_noise_scale_included():
    x, y = problems.wiggle(rows=6)
    target, params = bound(bl.likelihoods.Gaussian(), x, y)
    exact = tree.ravel(curvature.gauss_newton_diagonal(target, params, target.data))
    groups = whole_group(params)
    (block,) = curvature.blocks(jax.random.key(0), target, params, None, groups, "gauss-newton")
    prior = tree.ravel(target.prior.broadcast(params)[1])
    np.testing.assert_allclose(np.diag(block) - prior, exact, rtol=1e-7)
    keys = jax.random.split(jax.random.key(1), 3000)
    draws = jax.jit(
        jax.vmap(lambda k: tree.ravel(curvature.fisher_diagonal(k, target, params, target.data)))
    )(keys)
    error = np.asarray(draws).std(axis=0, ddof=1) / np.sqrt(len(keys))
    z = (np.asarray(draws).mean(axis=0) - exact) / np.where(error > 0, error, 1.0)
    assert np.abs(z).max() < 4.5


def test_squares_are_per_example_and_padding_does_not_count():
    x, y = problems.wiggle(rows=5)
    target, params = bound(bl.likelihoods.Gaussian(), x, y)
    found = tree.ravel(curvature.squared_gradients(target, params, target.data))

    def one(i):
        row = Batch(target.data.x[i : i + 1], target.data.y[i : i + 1])
        return tree.ravel(jax.grad(lambda p: target.log_likelihood(p, row)[0])(params))

    wanted = sum(np.asarray(one(i)) ** 2 for i in range(5))
    np.testing.assert_allclose(found, wanted, rtol=1e-10)
    padded = Batch(
        jnp.concatenate([target.data.x, target.data.x[:2]]),
        jnp.concatenate([target.data.y, target.data.y[:2]]),
        jnp.asarray([1.0] * 5 + [0.0] * 2),
    )
    again = tree.ravel(curvature.squared_gradients(target, params, padded))
    np.testing.assert_allclose(again, wanted, rtol=1e-10)


def test_hessian_diagonals_exact_and_by_random_signs():
    x, y = problems.wiggle(rows=6)
    target, params = bound(bl.likelihoods.Gaussian(), x, y)
    unravel, vector = tree.unraveler(params), tree.ravel(params)
    exact = np.diag(jax.hessian(lambda v: -target.log_joint(unravel(v)))(vector))
    found = curvature.diagonal(jax.random.key(0), target, params, None, "hessian")
    np.testing.assert_allclose(tree.ravel(found), exact, rtol=1e-8, atol=1e-8)
    sampled = jax.jit(
        lambda k: tree.ravel(
            curvature.hutchinson_diagonal(k, lambda p: -target.log_joint(p), params, num=1)
        )
    )
    draws = np.stack([np.asarray(sampled(k)) for k in jax.random.split(jax.random.key(2), 500)])
    error = draws.std(axis=0, ddof=1) / np.sqrt(len(draws))
    z = (draws.mean(axis=0) - exact) / np.where(error > 1e-12, error, 1.0)
    assert np.abs(z).max() < 4.5
