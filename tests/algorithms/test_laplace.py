"""Laplace: exact where the posterior is Gaussian, guarded where the curvature is not positive."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import bayeslearn as bl
from bayeslearn import tree
from bayeslearn.algorithms import laplace
from bayeslearn.algorithms.laplace import Laplace, LinearisedNetwork, positive_blocks

INIT = jax.jit(lambda algorithm, *args: algorithm.init(*args))


@pytest.fixture(scope="module")
def problem():
    return problems.regression()


@pytest.fixture(scope="module")
def bound(problem):
    return problem.model.bind((problem.x, problem.y), jax.random.key(0))


def gaussian_evidence(problem):
    """log N(y; 0, 0.7^2 I + X X^T / 0.5)."""
    cov = 0.7**2 * np.eye(60) + problem.x @ problem.x.T / 0.5
    quadratic = problem.y @ np.linalg.solve(cov, problem.y)
    return -0.5 * (60 * np.log(2 * np.pi) + np.linalg.slogdet(cov)[1] + quadratic)


@pytest.fixture(scope="module")
def posterior(problem):
    return bl.fit(problem.model, Laplace(), (problem.x, problem.y), seed=0)


def test_exact_on_conjugate_regression(posterior, problem):
    np.testing.assert_allclose(posterior.family.mean_vector(), problem.mean, rtol=0, atol=1e-8)
    np.testing.assert_allclose(posterior.family.prec_matrix(), problem.prec, rtol=1e-8)
    (evidence,) = posterior.trace["log_evidence"]
    np.testing.assert_allclose(evidence, gaussian_evidence(problem), rtol=1e-8)
    np.testing.assert_allclose(posterior.elbo, evidence, rtol=1e-6)
    assert posterior.trace["distance"][-1] < 1e-8
    assert posterior.trace["flipped"][-1] == 0


def test_its_prediction_is_that_of_the_linear_model(posterior, problem):
    predictive = posterior.predict(problem.x[:3], num_samples=4000)
    np.testing.assert_allclose(predictive.mean, problem.x[:3] @ problem.mean, atol=0.02)
    variance = np.einsum("ri,ij,rj->r", problem.x[:3], problem.cov, problem.x[:3])
    np.testing.assert_allclose(predictive.epistemic, variance, rtol=0.15)


@pytest.mark.parametrize("kind", ["hessian", "squares"])
def test_a_diagonal_has_the_diagonal_of_the_precision(bound, problem, kind, x64, monkeypatch):
    """From the network's own start, in chunks of rows: Newton's steps find the mode."""
    monkeypatch.setattr(laplace, "CHUNK_ROWS", 16)
    target, params = bound
    algorithm = Laplace(covariance="diagonal", curvature=kind, newton_steps=40)
    state = INIT(algorithm, jax.random.key(1), target, params)
    q = algorithm.approximation(target, state)
    if kind == "hessian":
        np.testing.assert_allclose(tree.ravel(q.prec), np.diag(problem.prec), rtol=1e-10)
        np.testing.assert_allclose(tree.ravel(q.mean), problem.mean, atol=0.05)
    else:
        residual = problem.y - problem.x @ np.asarray(tree.ravel(q.mean))
        wanted = 0.5 + np.sum((problem.x * residual[:, None]) ** 2, axis=0) / 0.7**4
        np.testing.assert_allclose(tree.ravel(q.prec), wanted, rtol=1e-10)


def test_blocks_and_chunks_of_rows(x64, monkeypatch):
    """A network's blocks are those of the full precision, whatever the size of a chunk."""
    target, params = problems.small_model().bind(problems.wiggle(), jax.random.key(0))

    def precision(covariance):
        algorithm = Laplace(covariance=covariance, newton_steps=0)
        state = jax.jit(algorithm.init)(jax.random.key(0), target, params)
        assert float(state.info.flipped) == 0
        return np.asarray(algorithm.approximation(target, state).prec_matrix())

    full = precision("full")
    monkeypatch.setattr(laplace, "CHUNK_ROWS", 32)
    block = precision("block")
    same = np.abs(block) > 0
    np.testing.assert_allclose(block[same], full[same], rtol=1e-5, atol=1e-6)
    assert 0 < np.sum(same) < full.size


def test_a_bare_density_has_its_hessian():
    cov = np.array([[1.0, 0.6], [0.6, 2.0]])
    prec = np.linalg.inv(cov)
    target = bl.Target.from_log_density(
        lambda p: -0.5 * (p["a"] - 1.0) @ prec @ (p["a"] - 1.0), {"a": jnp.zeros(2)}
    )
    posterior = bl.fit(target, Laplace(), seed=0)
    np.testing.assert_allclose(posterior.family.cov_matrix(), cov, rtol=1e-8)
    np.testing.assert_allclose(posterior.family.mean_vector(), 1.0, rtol=0, atol=1e-8)


def test_scales_of_a_density_do_not_matter():
    """Standard deviations from 1e-4 to 1e4, correlated; the start is elsewhere."""
    std = np.array([1e-4, 1.0, 1e4])
    cov = np.outer(std, std) * (0.5 + 0.5 * np.eye(3))
    prec, mean = np.linalg.inv(cov), 2.0 * std
    target = bl.Target.from_log_density(
        lambda p: -0.5 * (p - mean) @ prec @ (p - mean), jnp.zeros(3)
    )
    posterior = bl.fit(target, Laplace(), seed=0)
    np.testing.assert_allclose(posterior.family.cov_matrix() / cov, 1.0, rtol=1e-6)
    np.testing.assert_allclose(posterior.family.mean_vector() / mean, 1.0, rtol=1e-6)


def test_what_is_not_positive_is_counted(x64):
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
    matrix = (rotation * np.array([3.0, -2.0, 1e-9, 0.5])) @ rotation.T
    found, flipped = positive_blocks(jnp.asarray(matrix))
    assert float(flipped) == 2
    unit = np.sqrt(np.abs(np.diag(matrix)))
    values, vectors = np.linalg.eigh(matrix / np.outer(unit, unit))
    values = np.where(np.abs(values) < 1e-8, 1.0, np.abs(values))
    wanted = np.outer(unit, unit) * ((vectors * values) @ vectors.T)
    np.testing.assert_allclose(found, wanted, atol=1e-12)
    other = np.outer(*[[1e-4, 1.0, 1e4, 1e2]] * 2)  # the same in other units
    np.testing.assert_allclose(positive_blocks(jnp.asarray(other * matrix))[0], other * wanted)
    good = jnp.asarray(matrix @ matrix.T + np.eye(4))
    assert np.array_equal(positive_blocks(good)[0], good)

    saddle = bl.Target.from_log_density(lambda p: p[0] ** 2 - p[1] ** 2, jnp.array([1.0, 1.0]))
    state = INIT(Laplace(newton_steps=0), jax.random.key(0), saddle, saddle.start)
    assert float(state.info.flipped) == 1
    assert np.all(np.isfinite(state.frame.factors[0]))


def test_the_linearised_network(x64):
    """Equal to the network at the mode, and linear in the weights."""
    target, params = problems.small_model().bind(problems.wiggle(), jax.random.key(0))
    q = bl.families.Point(params)
    linear = Laplace().predictive_target(target, q)
    assert isinstance(linear.network, LinearisedNetwork)
    x = target.data.x[:7]
    np.testing.assert_allclose(linear.outputs(params, x), target.outputs(params, x), rtol=1e-6)

    def moved(share):
        away = jax.tree.map(
            lambda w: w + share * jnp.cos(jnp.arange(w.size, dtype=w.dtype).reshape(w.shape)),
            params,
        )
        return np.asarray(linear.outputs(away, x) - linear.outputs(params, x))

    np.testing.assert_allclose(moved(3.0), 3.0 * moved(1.0), rtol=1e-4, atol=1e-5)
    assert Laplace(predictive="sampled").predictive_target(target, q) is target
    assert eqx.tree_equal(linear.data, target.data)


def test_bad_settings_are_refused():
    with pytest.raises(bl.ArgumentError, match=r"`curvature` must .* unless cov"):
        Laplace(curvature="fisher")
