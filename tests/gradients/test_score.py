"""Score-function gradients: against exact ones, against autodiff, and their baselines."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import bayeslearn as bl
from bayeslearn import tree
from bayeslearn.algorithms.gaussian import to_family
from bayeslearn.gradients import score

GROUPS = {"diagonal": None, "block": ((0,), (1,)), "full": ((0, 1),)}


class Quadratic:
    """A linear model with two leaves (bias, weights): its log-joint is a quadratic."""

    def __init__(self):
        problem = problems.regression()
        model = bl.Model(
            bl.networks.MLP([]), bl.likelihoods.Gaussian(noise_scale=0.7), dtype="float64"
        )
        self.target, params = model.bind((problem.x, problem.y), jax.random.key(0))
        self.params = params
        unravel = tree.unraveler(params)

        @jax.jit
        def derivatives(v):
            def log_joint(v):
                return self.target.log_joint(unravel(v))

            return jax.grad(log_joint)(v), -jax.hessian(log_joint)(v)

        slope, prec = derivatives(jnp.zeros(tree.size(params)))
        self.prec, self.mean = np.asarray(prec), np.linalg.solve(prec, slope)

    def zeta(self, covariance):
        """A q that is some way from the optimum."""
        rng = np.random.default_rng(1)
        unravel = tree.unraveler(self.params)
        std = 1.3 / np.sqrt(np.diag(self.prec))
        mean = unravel(jnp.asarray(self.mean + std * rng.normal(size=len(std))))
        if covariance == "diagonal":
            return {"mean": mean, "scale": jax.tree.map(jnp.log, unravel(jnp.asarray(std)))}
        leaves = jax.tree.leaves(unravel(jnp.asarray(std)))
        factors = []
        for group in GROUPS[covariance]:
            s = np.concatenate([np.ravel(leaves[i]) for i in group])
            mixed = np.tril(0.3 * rng.normal(size=(len(s), len(s))), -1) + np.eye(len(s))
            factors.append(score.log_diagonal(jnp.asarray(s[:, None] * mixed)))
        return {"mean": mean, "scale": tuple(factors)}

    def exact_gradient(self, covariance, zeta):
        def elbo(z):
            q = family(z, covariance)
            shift = q.mean_vector() - self.mean
            energy = jnp.trace(self.prec @ q.cov_matrix()) + shift @ self.prec @ shift
            return q.entropy() - 0.5 * energy

        return jax.jit(jax.grad(elbo))(zeta)


def family(zeta, covariance):
    return to_family(score.to_frame(zeta, GROUPS[covariance]), covariance)


@pytest.fixture(scope="module")
def quadratic():
    with jax.enable_x64(True):
        return Quadratic()


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_scores_are_those_of_autodiff(x64, quadratic, covariance):
    zeta = quadratic.zeta(covariance)

    @jax.jit
    def both_ways(zeta, key):
        frame = score.to_frame(zeta, GROUPS[covariance])
        noise = frame.noise(key, 1)
        alone = jax.tree.map(lambda e: e[0], noise)

        def log_prob(z):
            return family(z, covariance).log_prob(jax.lax.stop_gradient(frame.draw(alone)))

        estimate = score.average(frame, noise, jnp.ones((1, 1)))
        return {
            "log q": (jnp.sum(score.log_density_terms(frame, alone)), log_prob(zeta)),
            "score": (score.to_zeta(frame, estimate), jax.grad(log_prob)(zeta)),
            "squares": (score.squared_scores(frame, noise)[0], estimate),
        }

    found = both_ways(zeta, jax.random.key(0))
    np.testing.assert_allclose(*found["log q"], rtol=1e-10)
    for a, b in zip(*map(jax.tree.leaves, found["score"]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
    squares, estimate = found["squares"]
    variances = [np.tril(m) if covariance == "full" else m for m in jax.tree.leaves(estimate.scale)]
    for value, g, m in zip(squares, jax.tree.leaves(estimate.mean), variances, strict=True):
        np.testing.assert_allclose(value, np.sum(g**2) + np.sum(m**2), rtol=1e-12)


@pytest.mark.parametrize("covariance", ["diagonal", "block"])
def test_every_baseline_and_each_factors_own_h_are_unbiased(x64, quadratic, covariance):
    """Mean of 4000 gradients of 8 draws each against the exact one, 4.5 standard errors."""
    zeta = quadratic.zeta(covariance)
    wanted = np.asarray(tree.ravel(quadratic.exact_gradient(covariance, zeta)))

    @jax.jit
    @jax.vmap
    def gradients(key):
        frame = score.to_frame(zeta, GROUPS[covariance])
        noise = frame.noise(key, 8)
        found = {}
        for rao_blackwell in (False, True):
            estimate = score.evaluate(quadratic.target, frame, None, noise, rao_blackwell)
            squares = score.squared_scores(frame, noise)
            for baseline in score.BASELINES:
                weight = score.centred(estimate.h, squares, baseline)
                gradient = score.to_zeta(frame, score.average(frame, noise, weight))
                found[baseline, rao_blackwell] = tree.ravel(gradient)
        return found

    found = gradients(jax.random.split(jax.random.key(3), 4000))
    free = wanted != 0.0  # above the diagonal of a Cholesky factor there is nothing
    variances = {}
    for setting, values in found.items():
        values = np.asarray(values)
        assert np.all(values[:, ~free] == 0.0)
        error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
        z = (values.mean(axis=0) - wanted)[free] / error[free]
        assert np.max(np.abs(z)) < 4.5, (setting, z)
        variances[setting] = np.mean(values.var(axis=0)[free] / wanted[free] ** 2)
    for rao_blackwell in (False, True):
        bare = variances["none", rao_blackwell]
        assert variances["leave-one-out", rao_blackwell] < 0.2 * bare
        assert variances["control-variate", rao_blackwell] < 0.3 * bare


def test_noise_dies_out_where_q_is_the_posterior(x64, quadratic):
    lower = jnp.asarray(np.linalg.cholesky(np.linalg.inv(quadratic.prec)))
    mean = tree.unraveler(quadratic.params)(jnp.asarray(quadratic.mean))

    @jax.jit
    def weights(key):
        frame = score.to_frame({"mean": mean, "scale": (score.log_diagonal(lower),)}, ((0, 1),))
        noise = frame.noise(key, 8)
        h = score.evaluate(quadratic.target, frame, None, noise, False).h
        squares = score.squared_scores(frame, noise)
        return [score.centred(h, squares, name) for name in ("leave-one-out", "control-variate")]

    for weight in weights(jax.random.key(0)):
        np.testing.assert_allclose(weight, 0.0, atol=1e-9)


def test_a_factors_own_h_has_its_own_terms(x64, quadratic):
    zeta = quadratic.zeta("diagonal")

    @jax.jit
    def both(key):
        frame = score.to_frame(zeta, None)
        noise = frame.noise(key, 2)
        own = score.evaluate(quadratic.target, frame, None, noise, True)
        whole = score.evaluate(quadratic.target, frame, None, noise, False)
        draws = jax.vmap(frame.draw)(noise)
        likelihood = jax.vmap(quadratic.target.scaled_log_likelihood)(draws)
        prior = jax.vmap(quadratic.target.log_prior_terms)(draws)
        return (
            own,
            whole,
            likelihood,
            prior,
            jax.vmap(lambda e: score.log_density_terms(frame, e))(noise),
        )

    own, whole, likelihood, prior, log_q = both(jax.random.key(0))
    terms = np.stack(jax.tree.leaves(prior), axis=1) - log_q
    np.testing.assert_allclose(own.h, likelihood[:, None] + terms, rtol=1e-12)
    np.testing.assert_allclose(whole.h[:, 0], likelihood + np.sum(terms, axis=1), rtol=1e-12)
    np.testing.assert_allclose(own.elbo, np.mean(whole.h), rtol=1e-12)
    np.testing.assert_allclose(own.nll, -np.mean(likelihood), rtol=1e-12)


def test_the_control_variate_takes_away_the_squared_correlation(x64):
    """In one coordinate, f = score h: second moments fall by 1 - corr^2, exactly."""
    rng = np.random.default_rng(0)
    s = rng.normal(size=(20000, 3))
    h = 5.0 + s @ np.array([1.0, 0.5, 0.0]) + rng.normal(size=20000)
    f = s * h[:, None]
    a = np.asarray(score.control_variate(jnp.asarray(h[:, None]), jnp.asarray(s**2)))
    corr = np.sum(f * s, axis=0) / np.sqrt(np.sum(f**2, axis=0) * np.sum(s**2, axis=0))
    ratio = np.sum((f - a * s) ** 2, axis=0) / np.sum(f**2, axis=0)
    np.testing.assert_allclose(ratio, 1.0 - corr**2, rtol=1e-12)
    # the mean of a score is 0, so that these moments are variances
    plain = [np.corrcoef(f[:, i], s[:, i])[0, 1] for i in range(3)]
    np.testing.assert_allclose(
        np.var(f - a * s, axis=0) / np.var(f, axis=0), 1.0 - np.square(plain), rtol=0.01
    )
    # pooled over the coordinates: sum Cov / sum Var
    pooled = score.control_variate(
        jnp.asarray(h[:, None]), jnp.sum(jnp.asarray(s) ** 2, axis=1, keepdims=True)
    )
    np.testing.assert_allclose(pooled[0], np.sum(f * s) / np.sum(s**2), rtol=1e-12)


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_natural_gradient_is_that_of_the_fisher_matrix(x64, quadratic, covariance):
    """Fisher matrix in zeta by brute force: the Hessian of KL(q(zeta) || q(zeta + d)) in d."""
    zeta = quadratic.zeta(covariance)
    unravel = tree.unraveler(zeta)

    @jax.jit
    def parts(vector):
        q = family(unravel(vector), covariance)
        fisher = jax.hessian(lambda v: q.kl(family(unravel(v), covariance)))(vector)
        frame = score.to_frame(unravel(vector), GROUPS[covariance])
        noise = frame.noise(jax.random.key(0), 6)
        gradient = score.average(frame, noise, jnp.arange(6.0)[:, None])
        step = score.step_to_zeta(frame, score.natural(gradient))
        return fisher, tree.ravel(score.to_zeta(frame, gradient)), tree.ravel(step)

    fisher, gradient, found = map(np.asarray, parts(tree.ravel(zeta)))
    free = np.diag(fisher) > 0
    wanted = np.linalg.solve(fisher[np.ix_(free, free)], gradient[free])
    np.testing.assert_allclose(found[free], wanted, rtol=1e-8, atol=1e-8)
    assert np.all(found[~free] == 0.0)


def test_frames_and_zetas_are_the_same_gaussian(x64, quadratic):
    @jax.jit
    def round_trip(zeta, rotation):
        frame = score.to_frame(zeta, GROUPS["full"])
        return score.from_frame(frame), score.to_cholesky(frame.factors[0] @ rotation)

    zeta = quadratic.zeta("full")
    rotation, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 5)))
    again, lower = round_trip(zeta, rotation)
    for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(zeta), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)
    np.testing.assert_allclose(lower, score.exp_diagonal(zeta["scale"][0]), atol=1e-12)


def test_average_is_a_plain_mean_at_first_and_an_eighth_of_a_long_run(x64):
    values = jnp.arange(2000.0)
    average = jax.lax.scan(
        lambda a, t: (score.averaged(a, values[t], t),) * 2, values[0], jnp.arange(2000)
    )[1]
    np.testing.assert_allclose(average[:100], np.arange(100) / 2.0, rtol=1e-12)
    assert 2000 / 12 < 1999 - float(average[-1]) < 2000 / 8
