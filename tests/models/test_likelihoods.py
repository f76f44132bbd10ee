"""Likelihoods against SciPy; an unknown noise covariance against Gibbs sampling and theory."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from scipy import special, stats

import bayeslearn as bl
from bayeslearn import tree
from bayeslearn.data.rows import Batch
from bayeslearn.errors import ArgumentError
from bayeslearn.gradients import curvature
from bayeslearn.models.likelihoods import inverse_wishart
from bayeslearn.models.likelihoods.custom import OWN_SAMPLES
from bayeslearn.precision import inside_double_precision
from bayeslearn.results.sbc import simulation_based_calibration

DRAWS, ROWS, FEATURES = 6, 5, 3
COV = np.array([[0.5, 0.3], [0.3, 0.8]])


def laplace_log_prob(outputs, y):
    return jnp.sum(-jnp.abs(y - outputs) - jnp.log(2.0))


def laplace_sample(key, outputs):
    """With a number for y where y is a vector of rows."""
    noise = outputs + jax.random.laplace(key, outputs.shape)
    return noise[0] if len(outputs) == 1 else noise


def custom(columns, **moments):
    return bl.likelihoods.Custom(laplace_log_prob, laplace_sample, columns, **moments)


def told_custom(columns):
    def mean(outputs):
        return outputs

    def variance(outputs):
        return jnp.full_like(outputs, 2.0)

    return custom(columns, mean=mean, variance=variance)


LIKELIHOODS = {
    "heteroscedastic": lambda d: bl.likelihoods.HeteroscedasticGaussian(),
    "poisson": lambda d: bl.likelihoods.Poisson(),
    "known": lambda d: bl.likelihoods.MultivariateGaussian(COV[:d, :d]),
    "unknown": lambda d: bl.likelihoods.MultivariateGaussian(),
    "custom": told_custom,
    "sampled": custom,
}


class Case:
    """A linear model with made-up draws, and SciPy's distributions of each draw and row."""

    def __init__(self, name, columns):
        rng = np.random.default_rng(0)
        self.name, self.columns = name, columns
        self.x = rng.normal(size=(ROWS, FEATURES))
        y = rng.poisson(3.0, size=(ROWS, columns)) * (1.0 if name == "poisson" else 0.7)
        self.table, self.y = y, y[:, 0] if columns == 1 else y
        model = linear(LIKELIHOODS[name](columns))
        self.target, params = model.bind((self.x, self.y), jax.random.key(0))
        self.likelihood = self.target.likelihood
        weights = 0.6 * rng.normal(size=(DRAWS, self.likelihood.num_outputs, FEATURES))
        self.outputs = np.einsum("soc,rc->sro", weights, self.x)
        with inside_double_precision():
            network = jax.tree.map(lambda _: jnp.asarray(weights), params["network"])
            draws = {"network": network, "likelihood": {}}
            self.predictive = bl.Predictive(self.target, draws, self.target.data.x)

    def marginals(self):
        """Of each draw, row and column."""
        if self.name == "heteroscedastic":
            mean, raw = self.outputs[..., : self.columns], self.outputs[..., self.columns :]
            return stats.norm(mean, self.table.std(axis=0) * np.exp(10 * np.tanh(raw / 10)))
        if self.name == "poisson":
            return stats.poisson(np.exp(self.outputs))
        if self.name == "known":
            return stats.norm(self.outputs, np.sqrt(np.diag(COV)[: self.columns]))
        if self.name == "unknown":
            scale, dof = self.student()
            return stats.t(dof, self.outputs, np.sqrt(np.diag(scale)))
        return stats.laplace(self.outputs)

    def student(self):
        """What is known before a fit: the spread of y, as if it were all noise."""
        spread = np.diag(self.table.var(axis=0)) + ROWS * np.cov(self.table.T, bias=True)
        dof = 2 + self.columns + ROWS - self.columns + 1
        return np.atleast_2d(spread) / dof, dof

    def log_prob(self):
        """Of each draw and row."""
        away = self.table - self.outputs[..., : self.columns]
        if self.name == "known":
            return stats.multivariate_normal(cov=COV[: self.columns, : self.columns]).logpdf(away)
        if self.name == "unknown":
            scale, dof = self.student()
            return stats.multivariate_t(shape=scale, df=dof).logpdf(away)
        dist = self.marginals()
        terms = dist.logpmf(self.table) if self.name == "poisson" else dist.logpdf(self.table)
        return terms.sum(axis=2)

    def noise(self):
        """Covariance of the columns, averaged over draws."""
        if self.name == "known":
            return np.broadcast_to(COV[: self.columns, : self.columns], (ROWS, *[self.columns] * 2))
        if self.name == "unknown":
            scale, dof = self.student()
            return np.broadcast_to(scale * dof / (dof - 2), (ROWS, self.columns, self.columns))
        return np.stack([np.diag(row) for row in self.marginals().var().mean(axis=0)])


def linear(likelihood, scale=1.0):
    network = bl.networks.MLP([], use_bias=False)
    return bl.Model(network, likelihood, bl.priors.Normal(scale=scale), dtype="float64")


@pytest.fixture(
    scope="module",
    params=[
        *[(name, columns) for name in list(LIKELIHOODS)[:4] for columns in (1, 2)],
        ("custom", 1),
        ("sampled", 2),
    ],
    ids=lambda pair: f"{pair[0]}-{pair[1]}",
)
def case(request):
    return Case(*request.param)


def like_y(case, table):
    return table[..., 0] if case.columns == 1 else table


# Every likelihood's predictive, vector and matrix y


def test_log_prob_is_scipys(case):
    wanted = special.logsumexp(case.log_prob(), axis=0) - np.log(DRAWS)
    np.testing.assert_allclose(case.predictive.log_prob(case.y), wanted, rtol=1e-9)


def test_moments_split_into_epistemic_and_aleatoric(case):
    """Sampled moments are of 256 samples with Laplace noise: 5 standard errors, sd 2^0.5, and
    (kurtosis 6) 5^0.5 of the variance; noise is shared by the draws, so epistemic is exact."""
    p, dist = case.predictive, case.marginals()
    slack = 5 / np.sqrt(OWN_SAMPLES) if case.name == "sampled" else 0.0
    mean, variance = dist.mean(), dist.var()
    np.testing.assert_allclose(
        p.mean, like_y(case, mean.mean(axis=0)), rtol=1e-9, atol=1e-9 + slack * 2**0.5
    )
    np.testing.assert_allclose(p.epistemic, like_y(case, mean.var(axis=0, ddof=1)), rtol=1e-9)
    np.testing.assert_allclose(
        p.aleatoric, like_y(case, variance.mean(axis=0)), rtol=1e-9 + slack * 5**0.5
    )
    np.testing.assert_allclose(p.std**2, p.epistemic + p.aleatoric, rtol=1e-12)
    assert p.mean.shape == p.std.shape == case.y.shape
    cov = p.covariance()
    assert cov.shape == (ROWS, case.columns, case.columns)
    np.testing.assert_allclose(np.diagonal(cov, axis1=1, axis2=2).reshape(p.std.shape), p.std**2)
    centred = mean - mean.mean(axis=0)
    spread = np.einsum("sri,srj->rij", centred, centred) / (DRAWS - 1)
    wanted = spread + case.noise()
    np.testing.assert_allclose(cov, wanted, rtol=1e-9, atol=1e-9 + 2 * slack * 5**0.5)


def test_cdf_and_quantiles_are_each_others_inverse(case):
    """Where they are sampled: 4096 samples, 5 standard errors of a share."""
    p, dist = case.predictive, case.marginals()
    wanted = like_y(case, dist.cdf(case.table).mean(axis=0))
    is_sampled = case.name in ("custom", "sampled")
    atol = 5 * 0.5 / 64 if is_sampled else 1e-9
    np.testing.assert_allclose(p.cdf(case.y), wanted, atol=atol)
    for q in (0.001, 0.05, 0.5, 0.99):
        value = p.quantile(q)
        assert value.shape == case.y.shape
        reached = dist.cdf(value.reshape(ROWS, -1)).mean(axis=0)
        if case.name == "poisson":
            assert np.all(value == np.round(value))
            below = dist.cdf(value.reshape(ROWS, -1) - 1).mean(axis=0)
            assert np.all((below < q) & (q <= reached))
        else:
            error = 5 * np.sqrt(q * (1 - q) / 4096) + 1 / 4096 if is_sampled else 1e-9
            np.testing.assert_allclose(reached, q, atol=error)
    lower, upper = p.interval(0.9)
    np.testing.assert_array_equal(lower, p.quantile((1 - 0.9) / 2))
    assert np.all(lower <= upper)


def test_samples_have_the_predictives_moments(case):
    """8000 samples, 5 standard errors by fourth moments; a moment estimated from 256 adds its."""
    p, num = case.predictive, 8000
    samples = p.sample(1, num)
    assert samples.shape == (num, *case.y.shape)
    mean = like_y(case, case.marginals().mean().mean(axis=0))
    centred = (samples - mean).reshape(num, ROWS, case.columns)
    assert np.all(np.abs(centred.mean(axis=0)) < 5 * centred.std(axis=0) / np.sqrt(num))
    means = case.marginals().mean()
    away = means - means.mean(axis=0)
    cov = case.noise() + np.einsum("sri,srj->rij", away, away) / DRAWS
    products = np.einsum("nri,nrj->nrij", centred, centred)
    error = products.std(axis=0) / np.sqrt(num)
    assert np.all(np.abs(products.mean(axis=0) - cov) < 5 * error)


def test_gradients_by_finite_differences(case, x64):
    y = case.target.data.y[0]
    outputs = jnp.asarray(case.outputs[0, 0])

    log_prob = jax.jit(lambda o: case.likelihood.log_prob(o, y, {}))
    step = 1e-6 * np.eye(len(outputs))
    found = jax.jit(jax.grad(log_prob))(outputs)
    wanted = [(log_prob(outputs + e) - log_prob(outputs - e)) / 2e-6 for e in step]
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["heteroscedastic", "poisson", "known", "unknown"])
def test_information_is_the_scores_covariance(name, x64):
    """40,000 labels from the likelihood itself, 5 standard errors of each entry."""
    case = Case(name, 2)
    outputs = jnp.asarray(case.outputs[0, 0])

    def one(key):
        y = case.likelihood.sample(key, outputs, {})
        score = jax.grad(lambda o: case.likelihood.log_prob(o, y, {}))(outputs)
        return jnp.outer(score, score)

    products = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), 40_000)))
    found = case.likelihood.information(outputs, case.target.data.y[0], {})
    error = products.std(axis=0) / 200
    assert np.all(np.abs(products.mean(axis=0) - found) < 5 * error)


def test_heteroscedastic_gauss_newton_is_positive_where_the_hessian_is_not(x64):
    case = Case("heteroscedastic", 1)
    _, params = linear(case.likelihood).bind((case.x, case.y), jax.random.key(0))
    groups = (tuple(range(len(jax.tree.leaves(params)))),)
    lowest = {}
    for kind in curvature.BLOCK_KINDS:
        (matrix,) = curvature.blocks(jax.random.key(0), case.target, params, None, groups, kind)
        lowest[kind] = np.linalg.eigvalsh(matrix)[0]
    assert lowest["gauss-newton"] > 0.99  # the prior's precision is 1
    assert lowest["hessian"] < lowest["gauss-newton"]
    exact = curvature.diagonal(jax.random.key(0), case.target, params, None, "gauss-newton")
    (matrix,) = curvature.blocks(
        jax.random.key(0), case.target, params, None, groups, "gauss-newton"
    )
    np.testing.assert_allclose(tree.ravel(exact), np.diag(matrix), rtol=1e-9)


def test_no_input_makes_a_heteroscedastic_scale_overflow(x64):
    bound, _ = bl.likelihoods.HeteroscedasticGaussian().bind(np.array([1.0, 3.0]))
    for raw, factor in ((1e30, np.exp(10.0)), (-1e30, np.exp(-10.0)), (0.1, np.exp(0.1))):
        found = bound.variance(jnp.array([0.0, raw]), {}) ** 0.5
        np.testing.assert_allclose(found, factor, rtol=1e-4)
        assert np.isfinite(bound.log_prob(jnp.array([0.0, raw]), jnp.array([5.0]), {}))


def test_large_counts_do_not_lose_their_precision(x64):
    bound, y = bl.likelihoods.Poisson().bind(np.array([10_000_000]))
    for shift in (0.0, 1e-3):
        output = np.float32(np.log(1e7) + shift)
        found = bound.log_prob(jnp.asarray([output]), jnp.asarray(y[0]), {})
        wanted = stats.poisson(np.exp(np.float64(output))).logpmf(10_000_000)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


# Refusals


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: multivariate([[1.0, 2.0]]), "`cov` must be a square matrix"),
        (lambda: multivariate([[1.0, 0.2], [0.1, 1.0]]), "`cov` must be finite and symmetric"),
        (lambda: multivariate([[1.0, 2.0], [2.0, 1.0]]), "`cov` must be positive definite"),
        (lambda: multivariate(np.eye(2), degrees=4), "`degrees` must be left out where `cov` is"),
        (lambda: multivariate(degrees=-1), "`degrees` must be positive"),
        (lambda: multivariate(scale=np.zeros((2, 2))), "`scale` must be positive definite"),
        (lambda: multivariate(np.eye(3)).bind(np.ones((4, 2))), r"`cov` must be \(2, 2\) for this"),
        (lambda: multivariate(degrees=1).bind(np.ones((4, 2))), "`degrees` must be greater than 1"),
        (lambda: multivariate(degrees=2).bind(np.ones((1, 2))), "`degrees` must be greater than 2"),
        (lambda: bl.likelihoods.Poisson().bind(np.array([1.0, -2.0])), "got the count -2.0"),
        (lambda: bl.likelihoods.Poisson().bind(np.array([1.0, 2.5])), "got the count 2.5"),
        (lambda: bl.likelihoods.Poisson().bind(np.ones((2, 2, 2))), r"`y` must be \(rows,\) or"),
        (lambda: bl.likelihoods.Custom(3, laplace_sample), "`log_prob` must be a function, got 3"),
        (lambda: custom(1, mean=3), "`mean` must be a function of the outputs, or left out"),
        (lambda: custom(0), "`num_outputs` must be a whole number of at least 1"),
        (
            lambda: bl.likelihoods.Custom(lambda o, y: o, laplace_sample, 2).bind(np.ones((4, 2))),
            "`log_prob` must return one number",
        ),
        (lambda: custom(2).bind(np.ones(4)), r"`sample` must return one y, of shape \(\)"),
    ],
)
def test_refusals(make, message, x64):
    with pytest.raises(ArgumentError, match=message):
        make()


def multivariate(*args, **options):
    return bl.likelihoods.MultivariateGaussian(*args, **options)


def test_later_observations_have_the_columns_of_the_fit(case):
    wrong = np.ones((ROWS, case.columns + 1))
    with pytest.raises(ArgumentError, match=rf"`y` must have {case.columns} column"):
        case.predictive.log_prob(wrong)
    if case.columns == 1:  # a table of one column is as good as a vector
        np.testing.assert_array_equal(
            case.predictive.log_prob(case.table), case.predictive.log_prob(case.y)
        )


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
        spread = np.einsum("ni,iajb,nj->ab", x, cov.reshape(p, d, p, d), x)
        cov_scale = scale + (y - x @ mean).T @ (y - x @ mean) + spread
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    # MAP takes the covariance along too, and holds it where it is told to
    learned = run(model, bl.MAP(), (x, y), num_steps=20).target.likelihood
    held = run(model, bl.MAP(learn_noise=False), (x, y), num_steps=20).target.likelihood
    np.testing.assert_allclose(learned.mean_noise(), (np.eye(2) + y.T @ y) / (4 + 30 - 3))
    spread = np.eye(2) + 30 * np.cov(y.T, bias=True)
    np.testing.assert_allclose(held.mean_noise(), spread / (4 + 30 - 3))


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


# Every way of learning


RUNS = {
    "heteroscedastic": (bl.likelihoods.HeteroscedasticGaussian(), lambda y: y),
    "poisson": (bl.likelihoods.Poisson(), lambda y: np.round(3 + 2 * y)),
    "known": (multivariate(COV), lambda y: np.stack([y, -y], axis=1)),
    "custom": (custom(1), lambda y: y),
}
ALWAYS = {("laplace", "heteroscedastic")}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, marks=[] if (name, kind) in ALWAYS else pytest.mark.slow)
        for name in ("bayes-by-backprop", "vogn", "vadam", "von", "ngvi", "laplace", "hmc")
        for kind in RUNS
    ],
)
def test_every_way_of_learning_serves_every_likelihood(name, kind):
    likelihood, make = RUNS[kind]
    x, y = problems.wiggle()
    y = make(y)
    options = problems.quick_options(name)
    if name == "laplace":
        options = {}
    posterior = run(problems.small_model(likelihood), problems.quick(name), (x, y), **options)
    p = posterior.predict(x)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(posterior.family.mean))
    assert p.mean.shape == y.shape
    assert np.all(p.std > 0)
    # better than knowing nothing of x
    assert np.mean((p.mean - y) ** 2) < np.mean((y - y.mean(axis=0)) ** 2)


def test_heteroscedastic_noise_is_found_and_ignorance_grows_outside():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(400, 1))

    def noise(x):
        return 0.1 + 0.5 / (1 + np.exp(-3 * x[:, 0]))

    y = np.sin(2 * x[:, 0]) + noise(x) * rng.normal(size=len(x))
    # units that do not saturate: tanh's leave a spread that stays as it is
    network = bl.networks.MLP([20], activation="relu")
    model = bl.Model(network, bl.likelihoods.HeteroscedasticGaussian())
    posterior = run(model, bl.BayesByBackprop(), (x, y), num_steps=2000)
    inside = np.linspace(-1.9, 1.9, 50)[:, None]
    p = posterior.predict(inside)
    assert np.corrcoef(np.sqrt(p.aleatoric), noise(inside))[0, 1] > 0.9
    far = posterior.predict(np.array([[-6.0], [6.0]]))
    assert np.all(far.epistemic > 3 * p.epistemic.mean())
    assert 0.85 < bl.metrics.coverage(posterior.predict(x), y, 0.9) < 0.95
