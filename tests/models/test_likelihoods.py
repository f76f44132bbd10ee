"""Likelihoods against SciPy; an unknown noise covariance against Gibbs sampling and theory."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from scipy import special, stats

import bayeslearn as bl
from bayeslearn import tree
from bayeslearn.errors import ArgumentError
from bayeslearn.gradients import curvature
from bayeslearn.models.likelihoods.custom import OWN_SAMPLES
from bayeslearn.precision import inside_double_precision

DRAWS, ROWS, FEATURES = 6, 5, 3
LOG_DF = 1.2
COV = np.array([[0.5, 0.3], [0.3, 0.8]])


def laplace_log_prob(outputs, y):
    return jnp.sum(-jnp.abs(y - outputs) - jnp.log(2.0))


def laplace_sample(key, outputs):
    """With a number for y where y is a vector of rows."""
    noise = outputs + jax.random.laplace(key, outputs.shape)
    return noise[0] if len(outputs) == 1 else noise


def custom(columns, **moments):
    return bl.likelihoods.Custom(laplace_log_prob, laplace_sample, columns, **moments)


def custom_with_moments(columns):
    def mean(outputs):
        return outputs

    def variance(outputs):
        return jnp.full_like(outputs, 2.0)

    return custom(columns, mean=mean, variance=variance)


LIKELIHOODS = {
    "heteroscedastic": lambda d: bl.likelihoods.HeteroscedasticGaussian(),
    "student-t": lambda d: bl.likelihoods.StudentT(0.05),
    "poisson": lambda d: bl.likelihoods.Poisson(),
    "known": lambda d: bl.likelihoods.MultivariateGaussian(COV[:d, :d]),
    "unknown": lambda d: bl.likelihoods.MultivariateGaussian(),
    "custom": custom_with_moments,
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
            own = {}
            if name == "student-t":
                own = {"log_df": jnp.full((DRAWS, columns), LOG_DF)}
            self.own = jax.tree.map(lambda leaf: leaf[0], own)
            draws = {"network": network, "likelihood": own}
            self.predictive = bl.Predictive(self.target, draws, self.target.data.x)

    def marginals(self):
        """Of each draw, row and column."""
        if self.name == "heteroscedastic":
            mean, raw = self.outputs[..., : self.columns], self.outputs[..., self.columns :]
            return stats.norm(mean, self.table.std(axis=0) * np.exp(10 * np.tanh(raw / 10)))
        if self.name == "student-t":
            mean, raw = self.outputs[..., : self.columns], self.outputs[..., self.columns :]
            scale = self.table.std(axis=0) * (0.05 + np.exp(10 * np.tanh(raw / 10)))
            return stats.t(2.0 + np.exp(LOG_DF), mean, scale)
        if self.name == "poisson":
            return stats.poisson(np.exp(self.outputs))
        if self.name == "known":
            return stats.norm(self.outputs, np.sqrt(np.diag(COV)[: self.columns]))
        if self.name == "unknown":
            scale, dof = self.student()
            return stats.t(dof, self.outputs, np.sqrt(np.diag(scale)))
        return stats.laplace(self.outputs)

    def student(self):
        """What is known before a fit: the variance of y, as if it were all noise."""
        squares = np.diag(self.table.var(axis=0)) + ROWS * np.cov(self.table.T, bias=True)
        dof = 2 + self.columns + ROWS - self.columns + 1
        return np.atleast_2d(squares) / dof, dof

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
        *[(name, columns) for name in list(LIKELIHOODS)[:5] for columns in (1, 2)],
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
    squares = np.einsum("sri,srj->rij", centred, centred) / (DRAWS - 1)
    wanted = squares + case.noise()
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

    log_prob = jax.jit(lambda o: case.likelihood.log_prob(o, y, case.own))
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
        score = jax.grad(lambda o: case.likelihood.log_prob(o, y, case.own))(outputs)
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


def run(model, algorithm, data, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bl.MixingWarning)
        return bl.fit(model, algorithm, data, seed=0, **options)


# Every way of learning


RUNS = {
    "heteroscedastic": (bl.likelihoods.HeteroscedasticGaussian(), lambda y: y),
    "poisson": (bl.likelihoods.Poisson(), lambda y: np.round(3 + 2 * y)),
    "known": (multivariate(COV), lambda y: np.stack([y, -y], axis=1)),
    "custom": (custom(1), lambda y: y),
}
# One method with every likelihood, and every way to use its derivatives with one.
OTHERS = {
    "bayes-by-backprop": "heteroscedastic",
    "vadam": "poisson",
    "ivon": "known",
    "von": "known",
    "ngvi": "custom",
    "laplace": "heteroscedastic",
    "hmc": "poisson",
}


@pytest.mark.parametrize(("name", "kind"), [*(("vogn", kind) for kind in RUNS), *OTHERS.items()])
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
    # units that do not saturate: tanh's leave a variance that stays as it is
    network = bl.networks.MLP([20], activation="relu")
    model = bl.Model(network, bl.likelihoods.HeteroscedasticGaussian())
    posterior = run(model, bl.BayesByBackprop(), (x, y), num_steps=2000)
    inside = np.linspace(-1.9, 1.9, 50)[:, None]
    p = posterior.predict(inside)
    assert np.corrcoef(np.sqrt(p.aleatoric), noise(inside))[0, 1] > 0.9
    far = posterior.predict(np.array([[-6.0], [6.0]]))
    assert np.all(far.epistemic > 3 * p.epistemic.mean())
    assert 0.85 < bl.metrics.coverage(posterior.predict(x), y, 0.9) < 0.95


@pytest.mark.parametrize("kind", [bl.likelihoods.HeteroscedasticGaussian, bl.likelihoods.StudentT])
def test_noise_of_rounded_numbers_is_at_least_the_rounding_error(kind, x64):
    """A scale near 0 at a grade would have a density without bound, whatever it does elsewhere."""
    rng = np.random.default_rng(0)
    grades, numbers = rng.integers(3, 9, 60), rng.normal(size=60)
    y = np.stack([grades / 2, numbers], axis=1)
    least = np.array([0.5 / np.sqrt(12), 1e-3 * numbers.std()]) + np.exp(-10) * y.std(axis=0)
    lowest = jnp.array([0.0, 0.0, -100.0, -100.0])
    bound, _ = kind(1e-3).bind(y)
    np.testing.assert_allclose(np.exp(bound.log_std(lowest)), least, rtol=1e-6)
    one, _ = kind(1e-3).bind(y[:, 0], weight=np.ones(60))
    np.testing.assert_allclose(np.exp(one.log_std(lowest[1:3]))[0], least[0], rtol=1e-6)
    # Rows that do not count, twice as many rows and other weights change nothing.
    aside = np.concatenate([y, [[3.1, 0.0]]]), np.append(np.ones(60), 0.0)
    twice = np.concatenate([y, y]), np.ones(120)
    for other in (aside, twice, (y, np.full(60, 2.0)), (y, np.full(60, 1 / 60))):
        again, _ = kind(1e-3).bind(*other)
        np.testing.assert_allclose(again.min_scale[0], bound.min_scale[0], rtol=1e-12)
    assert kind().bind(y)[0].min_scale is None
