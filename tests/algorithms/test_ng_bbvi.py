"""NG-BBVI: Adam, the Fisher matrix, the trust region, and the posterior it finds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import problems
import pytest

import bayeslearn as bl
from bayeslearn import tree
from bayeslearn.algorithms.gaussian import RADIUS
from bayeslearn.algorithms.ng_bbvi import LOG_RADIUS, NGBBVI, adam, clip_step, sampled_natural
from bayeslearn.errors import ArgumentError
from bayeslearn.geometry.natural import damped_solve
from bayeslearn.gradients import score
from bayeslearn.gradients.score import Score


def test_adam_is_optax_adam(x64):
    """Upwards, on given gradients; t from 1."""
    gradients = jnp.asarray(np.random.default_rng(0).normal(size=(20, 3)) * [1.0, 1e-4, 1e3])

    @jax.jit
    def ours(gradients):
        zeros = jnp.zeros(3)

        def one(carry, inputs):
            g, t = inputs
            direction, *memory = adam(g, *carry, t, 0.9, 0.99, 1e-8)
            return tuple(memory), direction

        return jax.lax.scan(one, (zeros, zeros), (gradients, jnp.arange(1, 21)))[1]

    optimizer = optax.adam(1.0, b1=0.9, b2=0.99, eps=1e-8)

    @jax.jit
    def theirs(gradients):
        def one(state, g):
            update, state = optimizer.update(-g, state)
            return state, update

        return jax.lax.scan(one, optimizer.init(jnp.zeros(3)), gradients)[1]

    np.testing.assert_allclose(ours(gradients), theirs(gradients), rtol=1e-10)


def test_sampled_fisher_matrix_is_solved_and_tends_to_the_exact_one(x64):
    rng = np.random.default_rng(0)
    gradient = Score({"w": jnp.asarray(rng.normal(size=3))}, {"w": jnp.asarray(rng.normal(size=3))})

    def brute_force(noise, damping):
        e = np.asarray(noise["w"])
        scores = np.stack([e, e**2 - 1.0], axis=-1)
        fisher = np.einsum("swi,swj->wij", scores, scores) / len(e)
        both = np.stack([gradient.mean["w"], gradient.scale["w"]], axis=-1)
        return damped_solve(jnp.asarray(fisher), jnp.asarray(both), damping)

    few = {"w": jnp.asarray(rng.normal(size=(5, 3)))}
    found = sampled_natural(gradient, few, 0.1)
    wanted = brute_force(few, 0.1)
    np.testing.assert_allclose(found.mean["w"], wanted[:, 0], rtol=1e-10)
    np.testing.assert_allclose(found.scale["w"], wanted[:, 1], rtol=1e-10)

    many = {"w": jnp.asarray(rng.normal(size=(400_000, 3)))}
    found, exact = sampled_natural(gradient, many, 0.0), score.natural(gradient)
    np.testing.assert_allclose(found.mean["w"], exact.mean["w"], atol=0.02)
    np.testing.assert_allclose(found.scale["w"], exact.scale["w"], atol=0.02)

    # one draw: the matrix is singular, and damping makes it none
    alone = {"w": few["w"][:1]}
    assert np.all(np.isfinite(sampled_natural(gradient, alone, 0.01).mean["w"]))


@pytest.mark.parametrize("groups", [None, ((0,),)])
def test_trust_region_holds_long_steps_and_leaves_short_ones(x64, groups):
    mean = {"w": jnp.zeros(3)}
    scale = {"w": jnp.log(jnp.array([0.1, 1.0, 10.0]))}
    if groups is not None:
        scale = (jnp.diag(scale["w"]) + jnp.tril(0.05 * jnp.ones((3, 3)), -1),)
    frame = score.to_frame({"mean": mean, "scale": scale}, groups)
    step = {
        "mean": {"w": jnp.array([0.1, 0.1, 0.1])},
        "scale": jax.tree.map(jnp.ones_like, scale),
    }

    hold = jax.jit(lambda share: clip_step(frame, jax.tree.map(lambda s: share * s, step)))
    short, acted = hold(0.01)
    assert not acted
    np.testing.assert_allclose(tree.ravel(short), 0.01 * tree.ravel(step), rtol=1e-12)
    long, acted = hold(100.0)
    assert acted
    if groups is None:
        whitened = np.asarray(long["mean"]["w"]) / np.asarray(frame.std["w"])
        np.testing.assert_allclose(long["scale"]["w"], LOG_RADIUS, rtol=1e-12)
    else:
        factor = np.asarray(frame.factors[0])
        whitened = np.linalg.solve(factor, long["mean"]["w"])
        change = np.asarray(long["scale"][0])
        change = np.tril(change, -1) + np.diag(np.diag(change) * np.diag(factor))
        rows = np.linalg.norm(np.linalg.solve(factor, change), axis=1)
        np.testing.assert_allclose(np.max(rows), LOG_RADIUS, rtol=1e-10)
    np.testing.assert_allclose(np.sqrt(np.mean(whitened**2)), RADIUS, rtol=1e-10)


@pytest.mark.parametrize(
    ("options", "seeds"), [({}, 1), ({"start": "mode", "fisher": "monte-carlo"}, 3)]
)
def test_finds_the_mean_field_posterior(options, seeds):
    """Exact: mean of the posterior, variances 1 / diag(prec)."""
    problem = problems.regression()
    for seed in range(seeds):
        posterior = bl.fit(problem.model, NGBBVI(**options), (problem.x, problem.y), seed=seed)
        off = (np.asarray(posterior.family.mean_vector()) - problem.mean) / problem.std
        assert np.max(np.abs(off)) < 0.1
        var = np.asarray(tree.ravel(posterior.family.std)) ** 2
        np.testing.assert_allclose(var * np.diag(problem.prec), 1.0, atol=0.1)
        assert np.mean(posterior.trace["clipped"]) < 0.05


def test_block_covariance_and_each_factors_own_terms_move_the_bound_up(x64):
    """A network of 16 weights and a noise scale, from a start of its own: up, and finite."""
    target, params = problems.small_model().bind(problems.wiggle(), jax.random.key(0))
    algorithm = NGBBVI(covariance="block", rao_blackwell=True, learning_rate=0.05)

    @jax.jit
    def run(key):
        def one(state, k):
            state, info = algorithm.step(k, target, state, target.data)
            return state, info

        state = algorithm.init(key, target, params)
        return jax.lax.scan(one, state, jax.random.split(key, 300))[1]

    info = run(jax.random.key(1))
    assert np.all(np.isfinite(info.elbo))
    assert np.mean(info.elbo[-50:]) > np.mean(info.elbo[:50]) + 10.0
    assert np.mean(info.clipped) < 0.05


def test_refusals():
    with pytest.raises(ArgumentError, match='`fisher` must be "exact" for a block covariance'):
        NGBBVI(fisher="monte-carlo", covariance="block")
