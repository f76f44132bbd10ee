"""Bayes by Backprop: its gradients, its ways to count the complexity, a q of one's own."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import problems
import pytest

import bayeslearn as bl
from bayeslearn import tree
from bayeslearn.algorithms.bayes_by_backprop import batch_weight, softplus_inverse
from bayeslearn.errors import ArgumentError

INIT = jax.jit(lambda algorithm, *args: algorithm.init(*args))
STEP = jax.jit(lambda algorithm, *args: algorithm.step(*args))


@pytest.fixture
def bound(x64):
    problem = problems.regression()
    return *problem.model.bind((problem.x, problem.y), jax.random.key(0)), problem


@pytest.fixture
def state(bound):
    target, params, _ = bound
    return INIT(bl.BayesByBackprop(), jax.random.key(1), target, params)


def one_step(algorithm, target, params, zeta, key):
    """The change of zeta under plain SGD with rate 1, times -N: the gradient of f."""
    state = INIT(algorithm, jax.random.key(1), target, params)._replace(zeta=zeta)
    new, info = STEP(algorithm, key, target, state, target.data)
    n = float(target.num_data)
    return jax.tree.map(lambda a, b: np.asarray(n * (a - b)), zeta, new.zeta), info


def plain(**options):
    return bl.BayesByBackprop(optimizer="sgd", learning_rate=1.0, power=0.0, **options)


def test_softplus_inverse(x64):
    std = jnp.array([1e-12, 1e-3, 0.5, 3.0, 50.0])
    np.testing.assert_allclose(jax.nn.softplus(softplus_inverse(std)), std, rtol=1e-12)


def test_single_draw_gradients_are_the_papers(bound, state):
    """grad_mean = g and grad_rho = (g eps - 1/std) sigmoid(rho), g = -grad log p(D, w)."""
    target, params, _ = bound
    algorithm = plain(num_draws=1, kl="sampled", antithetic=False, noise="jax")
    key = jax.random.key(5)
    found, info = one_step(algorithm, target, params, state.zeta, key)
    mean, rho = (tree.ravel(state.zeta[name]) for name in ("mean", "rho"))
    key_draws, _ = jax.random.split(key)
    draw = jax.tree.map(lambda w: w[0], algorithm.family(state.zeta).sample(key_draws, 1))
    std = jax.nn.softplus(rho)
    eps = (tree.ravel(draw) - mean) / std
    g = -tree.ravel(jax.jit(jax.grad(target.log_joint))(draw))
    np.testing.assert_allclose(tree.ravel(found["mean"]), g, rtol=1e-8)
    wanted = (g * eps - 1.0 / std) * jax.nn.sigmoid(rho)
    np.testing.assert_allclose(tree.ravel(found["rho"]), wanted, rtol=1e-7)
    np.testing.assert_allclose(info.elbo, -info.nll - info.kl, rtol=1e-12)


def test_from_a_q_the_mean_moves_in_its_standard_deviations(bound, state):
    """The same step in coordinates in which ten standard deviations are 1."""
    target, _, _ = bound
    algorithm, key = plain(), jax.random.key(7)
    q = algorithm.family(state.zeta)
    begun = jax.jit(algorithm.init_from)(jax.random.key(1), target, q)
    np.testing.assert_allclose(tree.ravel(begun.zeta), tree.ravel(state.zeta), rtol=1e-9)
    moved, _ = STEP(algorithm, key, target, begun, target.data)
    same, _ = STEP(algorithm, key, target, begun._replace(unit=None), target.data)
    for name, unit in (("mean", 10 * tree.ravel(q.std)), ("rho", 1.0)):
        long, short = (
            tree.ravel(s.zeta[name]) - tree.ravel(begun.zeta[name]) for s in (moved, same)
        )
        np.testing.assert_allclose(long, unit**2 * short, rtol=1e-6, atol=1e-12)
    assert moved.unit is not None


def test_scales_of_a_density_do_not_matter():
    """Standard deviations from 1e-3 to 1e3, independent: q is the density itself."""
    std = np.array([1e-3, 1.0, 1e3])
    target = bl.Target.from_log_density(
        lambda w: -0.5 * jnp.sum((w / std - 2.0) ** 2), jnp.zeros(3)
    )
    q = bl.fit(target, bl.BayesByBackprop(), seed=0).family
    np.testing.assert_allclose(q.mean_vector() / std, 2.0, atol=0.02)
    np.testing.assert_allclose(np.asarray(q.std) / std, 1.0, rtol=0.02)


def test_mirrored_draws_make_the_mean_gradient_exact_on_a_quadratic(bound, state):
    target, params, problem = bound
    found, _ = one_step(plain(num_draws=2), target, params, state.zeta, jax.random.key(5))
    exact = problem.prec @ (np.asarray(tree.ravel(state.zeta["mean"])) - problem.mean)
    np.testing.assert_allclose(tree.ravel(found["mean"]), exact, rtol=1e-9)


@pytest.mark.parametrize("kl", ["path", "sampled", "closed-form"])
def test_every_complexity_cost_has_the_same_expected_gradient(bound, state, kl):
    """-ELBO's gradient is known: mean-field Gaussian against a quadratic. 5 standard errors."""
    target, params, problem = bound
    algorithm = plain(num_draws=4, kl=kl)
    rho = np.asarray(tree.ravel(state.zeta["rho"]))
    std = np.logaddexp(0, rho)
    wanted = (np.diag(problem.prec) * std - 1.0 / std) / (1 + np.exp(-rho))
    init = INIT(algorithm, jax.random.key(1), target, params)._replace(zeta=state.zeta)

    @jax.jit
    @jax.vmap
    def moved(key):
        new, info = algorithm.step(key, target, init, target.data)
        return tree.ravel(new.zeta["rho"]), info.kl

    rhos, costs = moved(jax.random.split(jax.random.key(2), 2000))
    gradients = 60.0 * (rho - np.asarray(rhos))
    error = gradients.std(axis=0, ddof=1) / np.sqrt(len(gradients))
    assert np.all(np.abs(gradients.mean(axis=0) - wanted) < 5 * error)
    exact = float(algorithm.family(state.zeta).kl(target.prior))
    std = float(np.std(costs))
    assert abs(float(np.mean(costs)) - exact) <= 5 * std / np.sqrt(2000) + 1e-9 * abs(exact)
    assert (std < 1e-9) == (kl == "closed-form")


SHARE = jax.jit(batch_weight, static_argnums=0)


@pytest.mark.parametrize("schedule", ["uniform", "decaying"])
def test_shares_of_the_complexity_cost_add_up(x64, schedule):
    for batches in (1, 2, 7, 100):
        counts = jnp.arange(batches, 2 * batches)
        shares = np.asarray(SHARE(schedule, counts, jnp.asarray(float(batches))))
        shares = np.broadcast_to(shares, counts.shape)
        np.testing.assert_allclose(np.mean(shares), 1.0, rtol=1e-12)
        if schedule == "decaying" and batches > 1:
            np.testing.assert_allclose(shares[0] / shares[1], 2.0, rtol=1e-12)
            wanted = 2.0 ** (batches - 1) / (2.0**batches - 1)
            np.testing.assert_allclose(shares[0] / batches, wanted, rtol=1e-12)


class FullGaussian(eqx.Module):
    """A q of one's own: w = mean + L eps, for any pytree."""

    mean: jax.Array
    factor: jax.Array
    unravel: object = eqx.field(static=True)

    def sample(self, key, num):
        noise = jax.random.normal(key, (num, *self.mean.shape), self.mean.dtype)
        return jax.vmap(lambda e: self.unravel(self.mean + jnp.tril(self.factor) @ e))(noise)

    def log_prob(self, params):
        z = jax.scipy.linalg.solve_triangular(
            jnp.tril(self.factor), tree.ravel(params) - self.mean, lower=True
        )
        log_det = jnp.sum(jnp.log(jnp.abs(jnp.diag(self.factor))))
        return -0.5 * z @ z - log_det - 0.5 * z.size * jnp.log(2 * jnp.pi)


def test_any_reparametrised_q():
    """A full covariance reaches the exact posterior, where the noise dies out (`kl="path"`)."""
    problem = problems.regression()
    _, like = problem.model.bind((problem.x, problem.y), jax.random.key(0))
    unravel = tree.unraveler(like)

    def full(params):
        mean = tree.ravel(params)
        return FullGaussian(mean, 0.1 * jnp.eye(mean.size, dtype=mean.dtype), unravel)

    # Long steps of Adam, which networks want, do not die with the noise.
    algorithm = bl.BayesByBackprop(q=full, decay_steps=200.0, num_draws=4)
    posterior = bl.fit(problem.model, algorithm, (problem.x, problem.y), seed=0)
    factor = np.tril(posterior.family.factor)
    error = np.linalg.norm(factor @ factor.T - problem.cov)
    assert error < 1e-8 * np.linalg.norm(problem.cov)
    assert np.all(np.abs(posterior.family.mean - problem.mean) < 1e-8 * problem.std)


@pytest.mark.parametrize("optimizer", ["sgd", optax.adam(1e-2)])
def test_any_optimiser_raises_the_bound(bound, optimizer):
    target, params, _ = bound
    algorithm = bl.BayesByBackprop(optimizer=optimizer, learning_rate=1e-3)
    params = jax.tree.map(jnp.zeros_like, params)
    state = INIT(algorithm, jax.random.key(0), target, params)

    def one(state, key):
        state, info = algorithm.step(key, target, state, target.data)
        return state, info.elbo

    _, elbo = jax.jit(lambda s: jax.lax.scan(one, s, jax.random.split(jax.random.key(1), 300)))(
        state
    )
    assert float(jnp.mean(elbo[-20:])) > float(jnp.mean(elbo[:20])) + 1.0


def test_bad_settings_are_refused():
    with pytest.raises(ArgumentError, match=r"`optimizer` must .*adam.*, got 'adamm'"):
        bl.BayesByBackprop(optimizer="adamm")
    with pytest.raises(ArgumentError, match=r"`optimizer_options` must suit optax\.adam"):
        bl.BayesByBackprop(optimizer_options={"beta": 1})
    with pytest.raises(ArgumentError, match="`kl` must be one of 'path'"):
        bl.BayesByBackprop(kl="exact")


def test_q_of_a_large_network_starts_from_a_constant_curvature(x64):
    """Below 10,000 weights it is the Laplace approximation; std is 0.3 of that it stands for."""

    def apply(params, x):
        return x @ params["w"][:3]

    model = bl.Model(({"w": np.zeros(10_001)}, apply), bl.likelihoods.Bernoulli())
    x = np.random.default_rng(0).normal(size=(50, 3))
    target, params = model.bind((x, x[:, 0] > 0), jax.random.key(0))
    algorithm = bl.BayesByBackprop().for_network(10_001)
    state = algorithm.init(jax.random.key(1), target, params)
    std = tree.ravel(algorithm.approximation(target, state).std)
    np.testing.assert_allclose(std, 0.3 / np.sqrt(1 / 9 + 0.1 * 50), rtol=1e-5)
