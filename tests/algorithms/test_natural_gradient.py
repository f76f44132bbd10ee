"""Natural-gradient ascent: Fisher matrices by brute force, Gaussians, and a Gamma."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import bayeslearn as bl
from bayeslearn import tree
from bayeslearn.algorithms.natural_gradient import (
    MAX_PARAMETERS,
    NaturalGradient,
    move_gaussian,
    natural_gradient,
    sampled_fisher,
)
from bayeslearn.errors import ArgumentError, DivergenceError
from bayeslearn.families import DiagonalGaussian
from bayeslearn.families.gamma import Gamma
from bayeslearn.geometry.frame import DiagonalFrame
from bayeslearn.geometry.natural import Natural

COUNTS = np.array([3, 0, 2, 5, 1, 4, 2])
PRIOR = (2.0, 1.5)
EXACT = (PRIOR[0] + COUNTS.sum(), PRIOR[1] + len(COUNTS))  # shape and rate of the posterior


class FreeGamma(eqx.Module):
    """A Gamma in coordinates free to move."""

    log_shape: dict
    log_rate: dict

    def gamma(self):
        return Gamma(*(jax.tree.map(jnp.exp, part) for part in (self.log_shape, self.log_rate)))

    @property
    def mean(self):
        return self.gamma().mean

    def sample(self, key, num):
        return self.gamma().sample(key, num)

    def log_prob(self, params):
        return self.gamma().log_prob(params)


def poisson_gamma(params):
    """log p(counts, t), without what does not depend on t."""
    t = params["t"]
    return (EXACT[0] - 1.0) * jnp.log(t) - EXACT[1] * t


def elbo(q):
    log_mean, mean = q.expectation()
    log_likelihood = COUNTS.sum() * log_mean - len(COUNTS) * mean
    return log_likelihood - q.kl(Gamma(*map(jnp.asarray, PRIOR)))


def test_solves_with_a_matrix_or_its_diagonal(x64):
    rng = np.random.default_rng(0)
    root = rng.normal(size=(4, 4))
    fisher, gradient = root @ root.T + np.eye(4), rng.normal(size=4)
    for damping in (0.0, 0.3):
        wanted = np.linalg.solve(fisher + damping * np.trace(fisher) / 4 * np.eye(4), gradient)
        found = natural_gradient(jnp.asarray(fisher), jnp.asarray(gradient), damping)
        np.testing.assert_allclose(found, wanted, rtol=1e-8)
        diagonal = jnp.asarray(np.diag(fisher))
        wanted = gradient / (np.diag(fisher) + damping * np.mean(np.diag(fisher)))
        np.testing.assert_allclose(
            natural_gradient(diagonal, gradient, damping), wanted, rtol=1e-12
        )


def test_step_in_mean_and_rho_is_that_of_the_fisher_matrix(x64):
    """Fisher matrix by brute force: the Hessian of KL(q(zeta) || q(zeta + d)) in d."""
    rng = np.random.default_rng(0)
    mean, rho, g, big_g = (jnp.asarray(x) for x in rng.normal(size=(4, 3)))
    beta = 0.01

    @jax.jit
    def both_ways(zeta):
        def q(z):
            return DiagonalGaussian(z[:3], jax.nn.softplus(z[3:]))

        std = q(zeta).std
        fisher = jax.hessian(lambda z: q(zeta).kl(q(z)))(zeta)
        # grad_mean = g / std, and grad_std = 2 std grad_cov = 2 G / std
        slope = jnp.concatenate([g / std, jax.nn.sigmoid(rho) * 2.0 * big_g / std])
        moved = zeta + beta * natural_gradient(fisher, slope)
        frame = DiagonalFrame(mean, std, jnp.sum(jnp.log(std)))
        return q(moved), move_gaussian(frame, beta * g, 2.0 * beta * big_g)

    wanted, found = both_ways(jnp.concatenate([mean, rho]))
    np.testing.assert_allclose(found.mean, wanted.mean, rtol=1e-8)
    np.testing.assert_allclose(found.std, wanted.std, rtol=1e-8)
    np.testing.assert_allclose(found.log_det, np.sum(np.log(wanted.std)), rtol=1e-8)


def test_gamma_in_natural_parameters_is_solved_in_one_step(x64):
    """lambda + F^-1 grad with exact gradients: the posterior, as the model is conjugate."""

    @jax.jit
    def one_step(first, second):
        natural = jnp.stack([first, second])
        gradient = jax.grad(lambda l: elbo(Gamma.from_natural(Natural(*l))))(natural)
        fisher = Gamma.from_natural(Natural(*natural)).fisher()
        return natural + natural_gradient(fisher, gradient)

    shape, rate = one_step(0.7, -0.4) * jnp.array([1.0, -1.0]) + jnp.array([1.0, 0.0])
    np.testing.assert_allclose([shape, rate], EXACT, rtol=1e-9)


def test_gamma_in_logarithms_converges_to_the_posterior(x64):
    """zeta = (log shape, log rate); its Fisher matrix is J^T F J, J = (shape, -rate)."""

    @jax.jit
    def ascend(zeta):
        def one(zeta, _):
            q = Gamma(*jnp.exp(zeta))
            jacobian = jnp.diag(jnp.exp(zeta) * jnp.array([1.0, -1.0]))
            gradient = jax.grad(lambda z: elbo(Gamma(*jnp.exp(z))))(zeta)
            step = natural_gradient(jacobian @ q.fisher() @ jacobian, gradient)
            return zeta + 0.3 * step, elbo(q)

        return jax.lax.scan(one, zeta, length=100)

    zeta, bounds = ascend(jnp.log(jnp.array([5.0, 2.0])))
    np.testing.assert_allclose(np.exp(zeta), EXACT, rtol=1e-8)
    assert np.all(np.diff(bounds) > -1e-10)


def test_sampled_fisher_matrix_of_a_q_is_its_own(x64):
    q = FreeGamma({"t": jnp.log(5.0)}, {"t": jnp.log(2.0)})
    found = jax.jit(jax.vmap(lambda key: sampled_fisher(key, q)))(
        jax.random.split(jax.random.key(0), 50)
    )
    jacobian = np.diag([5.0, -2.0])
    wanted = jacobian @ np.asarray(Gamma(jnp.array(5.0), jnp.array(2.0)).fisher()) @ jacobian
    error = np.std(found, axis=0) / np.sqrt(50)
    assert np.max(np.abs(np.mean(found, axis=0) - wanted) / error) < 4.5


def free_gamma(params):
    """Of the right mean and too wide."""
    ten = jax.tree.map(lambda t: jnp.log(10.0 + 0.0 * t), params)
    return FreeGamma(jax.tree.map(lambda t, b: jnp.log(t) + b, params, ten), ten)


def test_fits_a_q_of_ones_own():
    """A Gamma q and a Gamma posterior: the noise dies out, and the answer is exact."""
    target = bl.Target.from_log_density(poisson_gamma, {"t": jnp.ones(())})
    algorithm = NaturalGradient(q=free_gamma, gradient="score", learning_rate=0.3)
    posterior = bl.fit(target, algorithm, seed=0, num_steps=600)
    found = posterior.family.gamma()
    np.testing.assert_allclose([found.shape["t"], found.rate["t"]], EXACT, rtol=1e-3)


def test_a_density_without_a_mode():
    """A Gamma of shape 0.7 is highest at zero, where it is infinite."""
    target = bl.Target.from_log_density(
        lambda p: -0.3 * jnp.log(p["t"]) - 3.0 * p["t"], {"t": jnp.ones(())}
    )
    posterior = bl.fit(target, NaturalGradient(q=free_gamma), seed=0)
    found = posterior.family.gamma()
    np.testing.assert_allclose([found.shape["t"], found.rate["t"]], [0.7, 3.0], rtol=1e-2)
    assert "began without a warm start" in " ".join(posterior.notes)
    with pytest.raises(DivergenceError):  # whose result would be the mode's
        bl.fit(target, bl.Laplace(), seed=0)


def test_a_q_of_ones_own_by_reparametrised_gradients(x64):
    target = bl.Target.from_log_density(poisson_gamma, {"t": jnp.ones(())})
    algorithm = NaturalGradient(q=free_gamma, learning_rate=0.3)

    @jax.jit
    def run(key):
        def one(state, k):
            return algorithm.step(k, target, state, None)

        start = algorithm.init(key, target, {"t": jnp.asarray(2.0)})
        return jax.lax.scan(one, start, jax.random.split(key, 300))

    state, info = run(jax.random.key(0))
    np.testing.assert_allclose(np.exp(tree.ravel(state.q)), EXACT, rtol=1e-3)
    assert np.mean(info.clipped[100:]) == 0.0


@pytest.mark.parametrize(("gradient", "seeds"), [("reparam", 3), ("score", 1)])
def test_finds_the_mean_field_posterior(gradient, seeds):
    """Exact: mean of the posterior, variances 1 / diag(prec)."""
    problem = problems.regression()
    algorithm = NaturalGradient(gradient=gradient)
    for seed in range(seeds):
        posterior = bl.fit(problem.model, algorithm, (problem.x, problem.y), seed=seed)
        off = (np.asarray(posterior.family.mean_vector()) - problem.mean) / problem.std
        assert np.max(np.abs(off)) < 0.1
        var = np.asarray(tree.ravel(posterior.family.std)) ** 2
        within = 0.03 if gradient == "reparam" else 0.1
        np.testing.assert_allclose(var * np.diag(problem.prec), 1.0, atol=within)
        assert np.mean(posterior.trace["clipped"]) < 0.05


def test_full_covariance_finds_the_posterior_itself(x64):
    """From the mode's Laplace approximation shrunk, in the Cholesky factor: to many digits."""
    problem = problems.regression()
    target, params = problem.model.bind((problem.x, problem.y), jax.random.key(0))
    algorithm = NaturalGradient(covariance="full")

    @jax.jit
    def run(key):
        def one(state, k):
            return algorithm.step(k, target, state, target.data)

        state, _ = jax.lax.scan(
            one, algorithm.init(key, target, params), jax.random.split(key, 2000)
        )
        return state, algorithm.approximation(target, state)

    state, q = run(jax.random.key(1))
    factor = np.asarray(state.frame.factors[0])
    np.testing.assert_allclose(factor, np.tril(factor))
    np.testing.assert_allclose(state.frame.log_det, np.sum(np.log(np.diag(factor))), rtol=1e-10)
    np.testing.assert_allclose(q.mean_vector(), problem.mean, atol=1e-6)
    np.testing.assert_allclose(np.asarray(q.cov_matrix()) @ problem.prec, np.eye(4), atol=1e-5)


def test_refusals(x64):
    with pytest.raises(ArgumentError, match="`gradient` must be"):
        NaturalGradient(q=FreeGamma, gradient="hessian")
    large = {"w": jnp.zeros(MAX_PARAMETERS)}
    algorithm = NaturalGradient(q=lambda params: FreeGamma(params, params))
    with pytest.raises(ArgumentError, match=f"`q` must have at most {MAX_PARAMETERS}"):
        algorithm.init(jax.random.key(0), bl.Target.from_log_density(elbo_of_none, large), large)


def elbo_of_none(params):
    return -0.5 * jnp.sum(params["w"] ** 2)
