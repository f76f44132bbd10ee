"""Gaussian noise with a covariance among the columns of y: known, or inferred."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import bayeslearn as bl
from bayeslearn.data.rows import Batch
from bayeslearn.errors import ArgumentError
from bayeslearn.models.likelihoods import inverse_wishart
from bayeslearn.results.sbc import simulation_based_calibration

DRAWS, ROWS, FEATURES = 6, 5, 3
COV = np.array([[0.5, 0.3], [0.3, 0.8]])


def linear(likelihood, scale=1.0):
    network = bl.networks.MLP([], use_bias=False)
    return bl.Model(network, likelihood, bl.priors.Normal(scale=scale), dtype="float64")


def multivariate(*args, **options):
    return bl.likelihoods.MultivariateGaussian(*args, **options)


# The inverse-Wishart's parts


def correlated(rows, seed=0):
    """Three features, two columns with correlated noise."""
    rng = np.random.default_rng(seed)
    x, weights = rng.normal(size=(rows, 3)), rng.normal(size=(3, 2))
    root = np.array([[0.8, 0.0], [0.5, 0.6]])
    return x, x @ weights + rng.normal(size=(rows, 2)) @ root.T


def test_inverse_wishart_draws_and_divergence(x64):
    """20,000 draws, 5 standard errors of E[cov], E[log|cov|] and of the KL by SciPy's densities."""
    dof, scale = 9.0, np.array([[2.0, 0.7], [0.7, 1.0]])
    keys = jax.random.split(jax.random.key(0), 20_000)
    draw = jax.jit(jax.vmap(lambda k: inverse_wishart.sample_inverse_wishart(k, dof, scale)))
    draws = np.asarray(draw(keys))

    def near(values, wanted):
        error = values.std(axis=0) / np.sqrt(len(values))
        assert np.all(np.abs(values.mean(axis=0) - wanted) < 5 * error)

    near(draws, scale / (dof - 3))
    near(np.linalg.inv(draws), dof * np.linalg.inv(scale))
    root = np.linalg.cholesky(scale)
    near(np.linalg.slogdet(draws)[1], inverse_wishart.expected_log_det(dof, root))
    prior = stats.invwishart(4.0, np.eye(2))
    columns = np.moveaxis(draws, 0, -1)
    ratio = stats.invwishart(dof, scale).logpdf(columns) - prior.logpdf(columns)
    near(ratio, inverse_wishart.inverse_wishart_kl(dof, root, 4.0, np.eye(2)))
    same = inverse_wishart.inverse_wishart_kl(dof, root, dof, scale)
    np.testing.assert_allclose(same, 0.0, atol=1e-12)


def test_the_marginal_is_bayes_rule_for_any_covariance(x64):
    """log p(Y | W) = log p(Y | W, cov) + log p(cov) - log p(cov | Y, W), whatever cov."""
    x, y = correlated(12)
    degrees, scale = 5.5, np.array([[1.0, 0.2], [0.2, 2.0]])
    target, params = linear(multivariate(degrees=degrees, scale=scale)).bind(
        (x, y), jax.random.key(0)
    )
    (weights,) = jax.tree.leaves(params["network"])
    residuals = y - x @ np.asarray(weights).T
    after = stats.invwishart(degrees + 12, scale + residuals.T @ residuals)
    found = target.marginal().scaled_log_likelihood(params)
    for cov in (np.eye(2), COV):
        wanted = stats.multivariate_normal(cov=cov).logpdf(residuals).sum()
        wanted += stats.invwishart(degrees, scale).logpdf(cov) - after.logpdf(cov)
        np.testing.assert_allclose(found, wanted, rtol=1e-10)
    np.testing.assert_allclose(
        target.marginal().log_joint(params), found + target.log_prior(params), rtol=1e-12
    )


def test_between_rounds_the_covariance_is_averaged_over(x64):
    """E_q[log N(y | f, cov)] by SciPy's draws of q, 20,000 of them, 5 standard errors."""
    bound, table = multivariate().bind(correlated(8)[1])
    scale = np.asarray(bound.root @ bound.root.T)
    covs = stats.invwishart(float(bound.dof), scale).rvs(20_000, random_state=0)
    away = np.array([0.4, -0.9])
    squares = np.einsum("i,nij,j->n", away, np.linalg.inv(covs), away)
    terms = -0.5 * squares - 0.5 * np.linalg.slogdet(covs)[1] - np.log(2 * np.pi)
    found = bound.log_prob(jnp.asarray(table[0] - away), jnp.asarray(table[0]), {})
    assert abs(terms.mean() - found) < 5 * terms.std() / np.sqrt(len(terms))


# An unknown covariance, inferred


class Reference(NamedTuple):
    weights: np.ndarray  # (draws, features, columns), from independent chains
    covs: np.ndarray

    def near(self, weights, error, covs):
        """Means within 4 standard errors (6 weights: fails once in 2600), E[cov] within 5 %."""
        own = self.weights.std(axis=0) / np.sqrt(len(self.weights))
        z = (weights - self.weights.mean(axis=0)) / np.sqrt(own**2 + error**2)
        assert np.abs(z).max() < 4
        assert relative(covs, self.covs.mean(axis=0)) < 0.05


def relative(found, wanted):
    """Largest error of a covariance's entry, in the size of its columns."""
    return np.max(np.abs(found - wanted) / np.sqrt(np.outer(np.diag(wanted), np.diag(wanted))))


def gibbs(x, y, degrees, scale, prior_scale, chains=4000, steps=25):
    """The last states of independent Gibbs chains under the product prior.

    cov | W ~ IW(degrees + N, scale + R^T R); W | cov, its rows one after another in a vector, is
    Gaussian with precision X^T X (x) cov^-1 + I / prior_scale^2.
    """
    rng = np.random.default_rng(1)
    (rows, d), p = y.shape, x.shape[1]
    weights = np.broadcast_to(np.linalg.lstsq(x, y, rcond=None)[0], (chains, p, d))
    for _ in range(steps):
        residuals = y - x @ weights
        inverse = np.linalg.inv(scale + np.swapaxes(residuals, 1, 2) @ residuals)
        # a Wishart draw is a sum of squares of Gaussians; degrees are whole here
        noise = rng.normal(size=(chains, degrees + rows, d))
        noise = noise @ np.swapaxes(np.linalg.cholesky(inverse), 1, 2)
        precs = np.swapaxes(noise, 1, 2) @ noise
        matrix = np.einsum("ij,nkl->nikjl", x.T @ x, precs).reshape(chains, p * d, p * d)
        matrix = matrix + np.eye(p * d) / prior_scale**2
        mean = np.linalg.solve(matrix, (x.T @ y @ precs).reshape(chains, p * d, 1))
        upper = np.swapaxes(np.linalg.cholesky(matrix), 1, 2)
        draw = mean + np.linalg.solve(upper, rng.normal(size=(chains, p * d, 1)))
        weights = draw.reshape(chains, p, d)
    return Reference(weights, np.linalg.inv(precs))


def coordinate_ascent(x, y, degrees, scale, is_full):
    """q(W) q(cov) at its fixed point under a unit prior: mean and sd of W, E[cov].

    A mean-field q(W) has the mean of the full one, and 1 / diag(prec) for variances.
    """
    (rows, d), p = y.shape, x.shape[1]
    dof, cov_scale = degrees + rows, scale + y.T @ y
    for _ in range(200):
        prec = dof * np.linalg.inv(cov_scale)
        matrix = np.kron(x.T @ x, prec) + np.eye(p * d)
        mean = np.linalg.solve(matrix, (x.T @ y @ prec).ravel()).reshape(p, d)
        cov = np.linalg.inv(matrix) if is_full else np.diag(1 / np.diag(matrix))
        squares = np.einsum("ni,iajb,nj->ab", x, cov.reshape(p, d, p, d), x)
        cov_scale = scale + (y - x @ mean).T @ (y - x @ mean) + squares
    return mean, np.sqrt(np.diag(cov)).reshape(p, d), cov_scale / (dof - d - 1)


def network_weights(posterior, what="mean"):
    """(features, columns), as the reference has them."""
    (weights,) = jax.tree.leaves(getattr(posterior.family, what)["network"])
    return np.asarray(weights).T


SAMPLER = bl.HMC(num_warmup=300, num_samples=1000)


def run(model, algorithm, data, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bl.MixingWarning)
        return bl.fit(model, algorithm, data, seed=0, **options)


def check_sampler(rows, prior_scale=1.0):
    x, y = correlated(rows)
    scale = np.eye(2)
    model = linear(multivariate(degrees=4, scale=scale), prior_scale)
    posterior = run(model, SAMPLER, (x, y))
    draws = posterior.draws
    assert draws["likelihood"]["cov"].shape == (4, 1000, 2, 2)
    (weights,) = jax.tree.leaves(draws["network"])
    effective = np.min(posterior.diagnostics().ess_bulk_weights)
    assert effective > 400
    error = np.asarray(weights).std(axis=(0, 1)).T / np.sqrt(effective)
    covs = np.asarray(draws["likelihood"]["cov"]).mean(axis=(0, 1))
    gibbs(x, y, 4, scale, prior_scale).near(network_weights(posterior), error, covs)
    return x, y, posterior, covs


def test_samplers_agree_with_gibbs():
    x, _, posterior, covs = check_sampler(30)
    names = [row["name"] for row in posterior.summary()]
    assert "likelihood.cov" in names
    p = posterior.predict(x[:3])
    np.testing.assert_allclose(p.aleatoric, [np.diag(covs)] * 3, rtol=0.02)
    assert np.all(p.covariance()[:, 0, 1] > 0.2)
    assert np.all(np.isfinite(p.log_prob(np.zeros((3, 2)))))


@pytest.mark.slow(reason="long chains on 200 rows")
def test_samplers_agree_with_gibbs_on_more_rows():
    check_sampler(200)


def test_flat_weights_differ_from_the_conjugate_prior_by_their_degrees_of_freedom():
    """With weights free, exactly: cov ~ IW(degrees + N - features, ...) under the product prior,
    IW(degrees + N, ...) under the matrix-normal one; E[W] is that of least squares for both."""
    x, y, _, covs = check_sampler(30, prior_scale=100.0)
    conjugate = bl.Conjugate(noise_dof=4.0, noise_scale=1.0)
    exact = run(linear(bl.likelihoods.Gaussian(), 100.0), conjugate, (x, y)).family.exact
    squares = np.linalg.lstsq(x, y, rcond=None)[0]
    residuals = y - x @ squares
    scale = np.eye(2) + residuals.T @ residuals
    np.testing.assert_allclose(exact.location, squares, rtol=1e-3, atol=1e-4)
    assert relative(np.asarray(exact.mean_noise()), scale / (4 + 30 - 3)) < 2e-3
    assert relative(covs, scale / (4 + 30 - 3 - 3)) < 0.03
    assert relative(covs, np.asarray(exact.mean_noise())) > 0.06


def check_variational(rows, algorithm, is_full):
    """Against its own fixed point: 256 draws leave 1 % of noise in E[cov], steps 0.05 sd."""
    x, y = correlated(rows)
    model = linear(multivariate(degrees=4, scale=np.eye(2)))
    posterior = run(model, algorithm, (x, y), num_steps=1000)
    mean, std, cov = coordinate_ascent(x, y, 4, np.eye(2), is_full)
    assert np.abs((network_weights(posterior) - mean) / std).max() < 0.05
    np.testing.assert_allclose(network_weights(posterior, "std"), std, rtol=0.05)
    assert relative(posterior.target.likelihood.mean_noise(), cov) < 0.02
    return x, y, posterior, cov


@pytest.mark.slow(reason="Gibbs draws as a reference, and a long fit")
@pytest.mark.parametrize("rows", [30, 200])
def test_variational_covariance_agrees_with_gibbs(rows):
    """Factorisation makes E[cov] smaller by about features (columns + 1) / (degrees + N)^2."""
    x, y, posterior, cov = check_variational(rows, bl.NGVI(), is_full=True)
    reference = gibbs(x, y, 4, np.eye(2), 1.0)
    error = 0.05 / 4 * network_weights(posterior, "std")  # 0.05 sd is 4 of these
    found = posterior.target.likelihood.mean_noise()
    reference.near(network_weights(posterior), error, found)
    ratio = np.diag(cov) / np.diag(reference.covs.mean(axis=0))
    np.testing.assert_allclose(ratio, 1 - 3 * 3 / (4 + rows) ** 2, atol=0.015)


def test_mean_field_covariance_and_its_predictive():
    x, y, posterior, _ = check_variational(30, bl.BayesByBackprop(), is_full=False)
    p = posterior.predict(x)
    noise = np.diag(posterior.target.likelihood.mean_noise())
    np.testing.assert_allclose(p.aleatoric, np.tile(noise, (30, 1)), rtol=1e-9)
    # t-like: the tails are those of no Gaussian of that covariance
    far = p.mean + 8 * p.std
    normal = np.array(
        [
            stats.multivariate_normal(m, c).logpdf(v)
            for m, c, v in zip(p.mean, p.covariance(), far, strict=True)
        ]
    )
    assert np.all(p.log_prob(far) > normal + 3)
    lower, upper = p.interval(0.9)
    np.testing.assert_allclose(p.cdf(upper) - p.cdf(lower), 0.9, atol=1e-9)
    assert 0.75 < bl.metrics.coverage(p, y, 0.9) <= 1.0


def test_the_bound_holds_the_covariances_divergence(x64):
    """On a model without weights to speak of the bound is the evidence, exactly."""
    _, y = correlated(30)
    x = np.zeros((30, 3))  # the outputs are 0 whatever the weights
    model = linear(multivariate(degrees=4, scale=np.eye(2)))
    posterior = run(model, bl.BayesByBackprop(), (x, y), num_steps=200)
    target, params = model.bind((x, y), jax.random.key(0))
    evidence = float(target.marginal().scaled_log_likelihood(params))
    kl = float(posterior.family.kl(target.prior))
    assert posterior.elbo == pytest.approx(evidence - kl, abs=1e-3 + kl)
    assert posterior.trace["eval_kl"][-1] > 1.0
    # MAP takes the covariance along too, and fixes it on request
    learned = run(model, bl.MAP(), (x, y), num_steps=20).target.likelihood
    frozen = run(model, bl.MAP(learn_noise=False), (x, y), num_steps=20).target.likelihood
    np.testing.assert_allclose(learned.mean_noise(), (np.eye(2) + y.T @ y) / (4 + 30 - 3))
    squares = np.eye(2) + 30 * np.cov(y.T, bias=True)
    np.testing.assert_allclose(frozen.mean_noise(), squares / (4 + 30 - 3))


def test_conjugate_takes_a_known_covariance():
    x, y = correlated(30)
    posterior = run(linear(multivariate(COV)), "conjugate", (x, y))
    prec = np.linalg.inv(COV)
    matrix = np.kron(x.T @ x, prec) + np.eye(6)
    mean = np.linalg.solve(matrix, (x.T @ y @ prec).ravel()).reshape(3, 2)
    np.testing.assert_allclose(network_weights(posterior), mean, rtol=1e-9)
    big = np.kron(x @ x.T, np.eye(2)) + np.kron(np.eye(30), COV)
    evidence = stats.multivariate_normal(cov=big).logpdf(y.ravel())
    assert posterior.elbo == pytest.approx(evidence, rel=1e-9)


def test_an_unknown_covariance_needs_all_rows(x64):
    x, y = correlated(6)
    model = linear(multivariate())
    batches = [(x[:3], y[:3]), (x[3:], y[3:])]
    with pytest.raises(ArgumentError, match=r"`data` must be arrays \(x, y\): the noise of Multi"):
        bl.fit(model, "map", batches, seed=0, options=bl.FitOptions(num_data=6))
    target, params = model.bind((x, y), jax.random.key(0))
    half = Batch(target.data.x[:3], target.data.y[:3])
    with pytest.raises(ArgumentError, match="`batch` must hold all rows"):
        target.marginal().log_joint(params, half)
    with pytest.raises(ArgumentError, match="`likelihood` must have a conjugate prior"):
        bl.fit(model, "conjugate", (x, y), seed=0)
    with pytest.raises(ArgumentError, match="`model` must hold all its unknowns as parameters"):
        simulation_based_calibration(model, bl.MAP(), (x, y), num_datasets=10, seed=0)
