"""Conjugate regression: every number is exact, so every test is an identity."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
import scipy.stats

import bayeslearn as bl
from bayeslearn.algorithms.conjugate import Conjugate, update
from bayeslearn.families.student import MatrixNormalInverseWishart

UPDATE = jax.jit(update)
LOG_PROB = jax.jit(MatrixNormalInverseWishart.log_prob)


def table(columns, rows=30, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3))
    root = rng.normal(size=(columns, columns)) + 2 * np.eye(columns)
    return x, x @ rng.normal(size=(3, columns)) + rng.normal(size=(rows, columns)) @ root.T


def prior(columns, seed=1):
    rng = np.random.default_rng(seed)
    root, scale = rng.normal(size=(3, 3)), rng.normal(size=(columns, columns))
    return MatrixNormalInverseWishart(
        jnp.asarray(rng.normal(size=(3, columns))),
        jnp.asarray(root @ root.T + np.eye(3)),
        jnp.asarray(scale @ scale.T + np.eye(columns)),
        jnp.asarray(columns + 2.5),
    )


@pytest.fixture(params=[1, 2])
def columns(request):
    return request.param


def test_one_step_ahead_predictives_add_up_to_the_evidence(columns, x64):
    """And the pieces one by one end where the whole does."""
    x, y = table(columns)
    whole, evidence = UPDATE(prior(columns), x, y)
    state, total = prior(columns), 0.0
    for row, value in zip(x, y, strict=True):
        location, leverage, dof = state.predict(row[None])
        shape = np.asarray(state.scale) * (1 + float(leverage[0])) / float(dof)
        total += scipy.stats.multivariate_t(np.asarray(location[0]), shape, float(dof)).logpdf(
            value
        )
        state, _ = UPDATE(state, row[None], value[None])
    np.testing.assert_allclose(total, evidence, rtol=1e-10)
    for name in ("location", "prec", "scale", "dof"):
        np.testing.assert_allclose(getattr(state, name), getattr(whole, name), rtol=1e-10)


def test_joint_minus_posterior_is_the_evidence_everywhere(columns, x64):
    x, y = table(columns)
    first = prior(columns)
    last, evidence = UPDATE(first, x, y)
    for weights, noise in zip(*first.sample(jax.random.key(0), 5), strict=True):
        log_likelihood = sum(
            scipy.stats.multivariate_normal(np.zeros(columns), np.asarray(noise)).logpdf(r)
            for r in y - x @ np.asarray(weights)
        )
        found = log_likelihood + LOG_PROB(first, weights, noise) - LOG_PROB(last, weights, noise)
        np.testing.assert_allclose(found, evidence, rtol=1e-10)


def test_the_density_is_scipys(x64):
    first = prior(2)
    weights, noise = (np.asarray(part[0]) for part in first.sample(jax.random.key(3), 5))
    rows = np.linalg.inv(np.asarray(first.prec))
    wanted = scipy.stats.invwishart(float(first.dof), np.asarray(first.scale)).logpdf(noise)
    wanted += scipy.stats.matrix_normal(np.asarray(first.location), rows, noise).logpdf(weights)
    np.testing.assert_allclose(LOG_PROB(first, weights, noise), wanted, rtol=1e-10)


def test_draws_have_its_moments(x64):
    x, y = table(2)
    exact, _ = UPDATE(prior(2), x, y)
    weights, noise = exact.sample(jax.random.key(0), 20000)
    mean_noise = np.asarray(exact.mean_noise())
    np.testing.assert_allclose(np.mean(noise, axis=0), mean_noise, rtol=0.05, atol=0.05)
    flat = np.asarray(weights).reshape(20000, -1)
    wanted = np.kron(np.linalg.inv(np.asarray(exact.prec)), mean_noise)
    np.testing.assert_allclose(flat.mean(0), np.ravel(exact.location), atol=0.02)
    np.testing.assert_allclose(np.cov(flat.T), wanted, atol=0.04 * np.max(wanted))


def model(noise_scale=None, **options):
    return bl.Model(
        bl.networks.MLP([], **options),
        bl.likelihoods.Gaussian(noise_scale=noise_scale),
        bl.priors.Normal(scale=2.0),
    )


def test_known_noise_is_the_exact_gaussian():
    problem = problems.regression()
    posterior = bl.fit(problem.model, Conjugate(), (problem.x, problem.y), seed=0)
    np.testing.assert_allclose(posterior.family.mean_vector(), problem.mean, rtol=0, atol=1e-12)
    np.testing.assert_allclose(posterior.family.prec_matrix(), problem.prec, rtol=1e-12)
    cov = 0.7**2 * np.eye(60) + problem.x @ problem.x.T / 0.5
    wanted = scipy.stats.multivariate_normal(np.zeros(60), cov).logpdf(problem.y)
    np.testing.assert_allclose(posterior.elbo, wanted, rtol=1e-12)


def test_known_noise_of_several_columns_with_bias():
    """A float32 network, a noise scale for each column: two regressions side by side."""
    x, y = (a.astype(np.float32).astype(np.float64) for a in table(2))
    posterior = bl.fit(model([0.5, 3.0]), Conjugate(noise="known"), (x, y), seed=0)
    layer = posterior.family.mean["network"]["layers"][0]
    total, features = 0.0, np.column_stack([x, np.ones(len(x))])
    for column, noise in enumerate((0.5, 3.0)):
        prec = np.eye(4) / 4 + features.T @ features / noise**2
        mean = np.linalg.solve(prec, features.T @ y[:, column] / noise**2)
        np.testing.assert_allclose(layer.weight[column], mean[:3], rtol=1e-6)
        np.testing.assert_allclose(layer.bias[column], mean[3], rtol=1e-5)
        cov = noise**2 * np.eye(len(x)) + 4 * features @ features.T
        total += scipy.stats.multivariate_normal(np.zeros(len(x)), cov).logpdf(y[:, column])
    np.testing.assert_allclose(posterior.elbo, total, rtol=1e-8)


@pytest.fixture(scope="module")
def unknown():
    """The same column by both names, and two columns."""
    x, y = table(2)
    one, two = (
        bl.fit(
            model(), Conjugate(noise=noise, noise_scale=0.8, noise_dof=4.0), (x, y[:, 0]), seed=0
        )
        for noise in ("normal-inverse-gamma", "matrix-normal-inverse-wishart")
    )
    return x, y, one, two, bl.fit(model(), Conjugate(), (x, y), seed=0)


def test_one_column_is_the_normal_inverse_gamma(unknown):
    """Against the textbook's formulas: a, b, and the marginal t of all observations."""
    x, y, one, two, _ = unknown
    assert one.elbo == two.elbo
    features = np.column_stack([x, np.ones(len(x))])
    a, b = 4.0 / 2, 0.8**2 * (4.0 - 2) / 2
    shape = b / a * (np.eye(len(x)) + 4 * features @ features.T)
    wanted = scipy.stats.multivariate_t(np.zeros(len(x)), shape, 2 * a).logpdf(y[:, 0])
    np.testing.assert_allclose(one.elbo, wanted, rtol=1e-5)
    prec = np.eye(4) / 4 + features.T @ features
    mean = np.linalg.solve(prec, features.T @ y[:, 0])
    layer = one.family.mean["network"]["layers"][0]
    np.testing.assert_allclose(np.append(layer.weight, layer.bias), mean, rtol=1e-5)
    b += 0.5 * (y[:, 0] @ y[:, 0] - mean @ prec @ mean)
    gamma = scipy.stats.invgamma(a + 15, scale=b)
    log_noise = one.family.mean["likelihood"]["log_noise_scale"][0]
    np.testing.assert_allclose(log_noise, gamma.expect(lambda v: 0.5 * np.log(v)), rtol=1e-4)
    std = one.family.std["network"]["layers"][0]
    wanted = np.sqrt(np.diag(np.linalg.inv(prec)) * gamma.mean())
    np.testing.assert_allclose(np.append(std.weight, std.bias), wanted, rtol=1e-5)


def test_the_prediction_is_students_t(unknown):
    x, y, one, _, both = unknown
    for posterior, values in ((one, y[:, 0]), (both, y)):
        predictive = posterior.predict(x)
        exact = posterior.family.exact
        d, dof = exact.columns, float(exact.dof) - exact.columns + 1
        assert predictive.dof == dof
        rows = [
            scipy.stats.multivariate_t(np.ravel(m), s, dof)
            for m, s in zip(predictive.location, predictive.scale, strict=True)
        ]
        wanted = [t.logpdf(v) for t, v in zip(rows, values, strict=True)]
        np.testing.assert_allclose(predictive.log_prob(values), wanted, rtol=1e-10)
        # the t's variance is the sum of its parts
        variance = np.diagonal(predictive.scale, axis1=1, axis2=2) * dof / (dof - 2)
        np.testing.assert_allclose(predictive.total.reshape(-1, d), variance, rtol=1e-10)
        np.testing.assert_allclose(
            np.diagonal(predictive.covariance(), axis1=1, axis2=2), variance, rtol=1e-10
        )
        mean_noise = np.diagonal(np.asarray(exact.scale)) / (float(exact.dof) - d - 1)
        np.testing.assert_allclose(predictive.aleatoric.reshape(-1, d)[0], mean_noise, rtol=1e-10)
        low, high = predictive.interval(0.8)
        np.testing.assert_allclose(predictive.cdf(low), 0.1, rtol=1e-8)
        np.testing.assert_allclose(predictive.cdf(high), 0.9, rtol=1e-8)
        draws = predictive.sample(0, 4000)
        assert draws.shape == (4000, *np.shape(values))
        np.testing.assert_allclose(draws.std(axis=0), predictive.std, rtol=0.15)


def test_sampled_predictions_agree_with_the_exact_ones(unknown):
    x, y, one, _, _ = unknown
    sampled, exact = one.predict(x, num_samples=2000), one.predict(x)
    np.testing.assert_allclose(sampled.mean, exact.mean, atol=0.1)
    np.testing.assert_allclose(sampled.total, exact.total, rtol=0.15)
    np.testing.assert_allclose(sampled.log_prob(y[:, 0]), exact.log_prob(y[:, 0]), atol=0.1)


def test_layouts_with_outputs_last_and_zero_columns():
    """x @ w with w of shape (features, columns), and a feature that is always zero."""
    x, y = table(2)
    x[:, 1] = 0.0

    def init(key, x, num_outputs):
        return {"w": jnp.zeros((x.shape[-1], num_outputs))}

    network = (init, lambda params, x: x @ params["w"])
    made = bl.Model(network, bl.likelihoods.Gaussian(), bl.priors.Normal(scale=2.0))
    found = bl.fit(made, Conjugate(), (x, y), seed=0)
    other = bl.fit(model(use_bias=False), Conjugate(), (x, y), seed=0)
    np.testing.assert_allclose(found.elbo, other.elbo, rtol=1e-10)
    weight = other.family.mean["network"]["layers"][0].weight
    np.testing.assert_allclose(found.family.mean["network"]["w"], weight.T, rtol=1e-6)
    np.testing.assert_allclose(found.family.mean["network"]["w"][1], 0.0, atol=1e-12)
    draws = found.sample(0, 2000)
    np.testing.assert_allclose(draws["network"]["w"].mean(0), weight.T, atol=0.2)
    assert draws["likelihood"]["log_noise_scale"].shape == (2000, 2)


@pytest.mark.parametrize(
    ("made", "algorithm", "sentence"),
    [
        (problems.small_model(), Conjugate(), "`network` must be linear in its weights"),
        (model(), Conjugate(noise="known"), r"`noise` must suit .*Write Gaussian\(noise_scale"),
        (model(1.0), Conjugate(noise="normal-inverse-gamma"), r"Write Gaussian\(\) to infer"),
        (model(), Conjugate(noise="normal-inverse-gamma"), "must support the 2 columns"),
        (model(), Conjugate(noise_dof=0.5), "`noise_dof` must be greater than 1"),
    ],
    ids=["network", "learned", "given", "columns", "dof"],
)
def test_what_is_not_conjugate_is_refused(made, algorithm, sentence):
    with pytest.raises(bl.ArgumentError, match=sentence):
        bl.fit(made, algorithm, table(2), seed=0)


def test_priors_that_differ_between_columns_are_refused():
    scale = {"*weight": jnp.array([[1.0], [2.0]]), "*bias": 1.0}
    made = bl.Model(bl.networks.MLP([]), bl.likelihoods.Gaussian(), bl.priors.Normal(scale=scale))
    with pytest.raises(bl.ArgumentError, match="same features and prior scales"):
        bl.fit(made, Conjugate(), table(2), seed=0)
    labels = bl.Model(bl.networks.MLP([]), bl.likelihoods.Bernoulli())
    with pytest.raises(bl.ArgumentError, match="`likelihood` must be Gaussian"):
        bl.fit(labels, Conjugate(), problems.two_classes(), seed=0)


def test_a_network_in_half_precision_is_still_linear():
    """Its inputs are rounded to 8 bits, and it is refused only where it is not linear."""
    x, y = table(1)
    found = {}
    for dtype in ("float64", "bfloat16"):
        model = bl.Model(bl.networks.MLP([]), bl.likelihoods.Gaussian(), dtype=dtype)
        found[dtype] = np.asarray(bl.fit(model, "conjugate", (x, y), seed=0).family.mean_vector())
    size = np.max(np.abs(found["float64"]))
    np.testing.assert_allclose(found["bfloat16"], found["float64"], atol=2**-6 * size)
    curved = bl.Model(bl.networks.MLP([3]), bl.likelihoods.Gaussian(), dtype="bfloat16")
    with pytest.raises(bl.ArgumentError, match="linear in its weights"):
        bl.fit(curved, "conjugate", (x, y), seed=0)


def test_linearity_is_tested_at_inputs_that_differ():
    """A curved term that vanishes where both inputs are equal."""
    x, y = table(1)

    def init(key, x, num_outputs):
        return {"w": jnp.zeros(x["a"].shape[-1])}

    def apply(params, x):
        return (params["w"] @ x["a"] + (params["w"] @ (x["a"] - x["b"])) ** 2)[None]

    made = bl.Model((init, apply), bl.likelihoods.Gaussian(noise_scale=1.0))
    with pytest.raises(bl.ArgumentError, match="linear in its weights"):
        bl.fit(made, Conjugate(), ({"a": x, "b": x[::-1]}, y), seed=0)
