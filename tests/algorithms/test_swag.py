"""SWAG: its moments by NumPy, its schedule, its Gaussian, and members of an ensemble."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import bayeslearn as bl
from bayeslearn import tree
from bayeslearn.algorithms.swag import SWAG, swag_update
from bayeslearn.errors import ArgumentError


def vector(values):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(values)])


def test_moments_are_those_of_the_iterates(x64):
    iterates = np.random.default_rng(0).normal(size=(9, 5)) + 3.0
    mean, variance = jnp.ones(5), jnp.zeros(5)
    for n, theta in enumerate(iterates, 1):
        mean, variance, newest = swag_update(
            mean, variance, jnp.asarray(theta), jnp.asarray(1.0 * n)
        )
        np.testing.assert_allclose(newest, theta - iterates[:n].mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(mean, iterates.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(variance, iterates.var(axis=0), rtol=1e-12)


def test_a_run_keeps_evenly_spaced_iterates_and_their_last_deviations(x64):
    """Steps 24, 28, ..., 40 of 40, of which the last three are columns."""
    problem = problems.regression()
    target, params = problem.model.bind((problem.x, problem.y), jax.random.key(0))
    algorithm = SWAG(num_iterates=5, rank=3, averaging=0.5, length=40.0)
    step = jax.jit(algorithm.step)
    state = algorithm.init(jax.random.key(0), target, params)
    path = []
    for t in range(40):
        state, _ = step(jax.random.key(t), target, state, target.data)
        path.append(vector(state.position))
    kept = np.asarray(path)[[23, 27, 31, 35, 39]]
    assert int(state.num_kept) == 5
    np.testing.assert_allclose(vector(state.mean), kept.mean(axis=0), rtol=1e-9)
    q = algorithm.approximation(target, state)
    columns = [kept[i] - kept[: i + 1].mean(axis=0) for i in (2, 3, 4)]
    cov = np.diag(kept.var(axis=0)) / 2 + sum(np.outer(c, c) for c in columns) / (2 * 2)
    np.testing.assert_allclose(q.cov_matrix(), cov, rtol=1e-6, atol=1e-13)


def test_the_step_size_falls_to_a_constant(x64):
    schedule = SWAG(learning_rate=0.5, averaging_rate=0.2, averaging=0.5, length=2000.0).schedule()
    found = [float(schedule(jnp.asarray(t))) for t in (0, 24, 499, 999, 1000, 1999)]
    np.testing.assert_allclose(found[0], 0.5 / 50, rtol=1e-3)
    np.testing.assert_allclose(found[2:], [0.3, 0.1, 0.1, 0.1], rtol=1e-3)
    assert found[1] < 0.5


def test_the_gaussian_is_one_around_the_mode():
    """On a linear regression; iterates of Adam scatter by far less than the posterior."""
    problem = problems.regression()
    posterior = bl.fit(
        problem.model, SWAG(), (problem.x, problem.y), seed=0, num_steps=4000, batch_size=20
    )
    assert type(posterior.family).__name__ == "LowRankGaussian"
    error = (np.asarray(posterior.family.mean_vector()) - problem.mean) / problem.std
    assert np.abs(error).max() < 0.5
    ratio = vector(posterior.family.std) / problem.std
    assert np.all((ratio > 1e-3) & (ratio < 1))
    updated = posterior.update((problem.x[:10], problem.y[:10]), algorithm=bl.Laplace())
    assert np.isfinite(vector(updated.family.std)).all()


def test_a_short_run_is_refused():
    problem = problems.regression()
    with pytest.raises(ArgumentError, match="`num_steps` must be at least 240"):
        bl.fit(problem.model, SWAG(), (problem.x, problem.y), seed=0, num_steps=100)


def test_a_bare_density_has_no_batches():
    target = bl.Target.from_log_density(lambda w: -0.5 * jnp.sum(w**2), jnp.zeros(2))
    with pytest.raises(ArgumentError, match="must have batches of rows on a bare log-density"):
        bl.fit(target, SWAG(), seed=0)


def test_before_the_first_iterate_q_is_narrow_and_members_are_a_mixture():
    problem = problems.regression()
    data = problem.x, problem.y
    algorithm = SWAG(num_iterates=8, rank=4)
    stopped = bl.fit(
        problem.model, algorithm, data, seed=0, num_steps=100, callback=lambda event: True
    )
    np.testing.assert_allclose(vector(stopped.family.std), 1e-6)
    mixed = bl.fit(
        problem.model,
        bl.Ensemble(num_members=2, member=algorithm),
        data,
        seed=0,
        num_steps=100,
    )
    assert mixed.family.num_members == 2
    assert all(type(member).__name__ == "LowRankGaussian" for member in mixed.family.members)
    draws = mixed.sample(0, 4)
    assert tree.size(draws) == 4 * 4
    large = algorithm.for_network(10_001)
    assert large.learning_rate == 1e-3
    assert dataclasses.replace(algorithm, learning_rate=0.2).for_network(5).learning_rate == 0.2
