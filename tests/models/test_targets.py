"""Likelihoods of counts, proportions, positive, ordered and censored numbers, against SciPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from scipy import special, stats

import bayeslearn as bl
from bayeslearn.errors import ArgumentError
from bayeslearn.gradients import curvature
from bayeslearn.precision import inside_double_precision

DRAWS, ROWS, FEATURES = 6, 5, 3
STANDARD_ERRORS = 5.0
likelihoods = bl.likelihoods


class ZeroInflated:
    """Built on SciPy's Poisson distribution."""

    def __init__(self, outputs):
        half = outputs.shape[-1] // 2
        self.poisson = stats.poisson(np.exp(outputs[..., :half]))
        self.extra = special.expit(outputs[..., half:])

    def logpmf(self, y):
        return np.log(self.extra * (y == 0) + (1 - self.extra) * self.poisson.pmf(y))

    def cdf(self, y):
        return np.where(y < 0, 0.0, self.extra + (1 - self.extra) * self.poisson.cdf(y))

    def mean(self):
        return (1 - self.extra) * self.poisson.mean()

    def var(self):
        square = (1 - self.extra) * (self.poisson.var() + self.poisson.mean() ** 2)
        return square - self.mean() ** 2


OWN = 0.4  # every draw's own parameter, a little different for each


def counts(rng, shape):
    return rng.poisson(2.0, size=shape)


# Likelihood, the name of its own leaf, what y is, and SciPy's distribution of outputs and leaf.
KINDS = {
    "log-normal": (
        likelihoods.LogNormal(),
        "log_noise_scale",
        lambda rng, shape: rng.lognormal(size=shape),
        lambda o, w: stats.lognorm(np.exp(w), scale=np.exp(o)),
    ),
    "gamma": (
        likelihoods.Gamma(),
        "log_shape",
        lambda rng, shape: rng.gamma(2.0, size=shape),
        lambda o, w: stats.gamma(np.exp(w), scale=np.exp(o - w)),
    ),
    "beta": (
        likelihoods.Beta(),
        "log_concentration",
        lambda rng, shape: rng.beta(2.0, 3.0, size=shape),
        lambda o, w: stats.beta(special.expit(o) * np.exp(w), special.expit(-o) * np.exp(w)),
    ),
    "negative-binomial": (
        likelihoods.NegativeBinomial(),
        "log_size",
        counts,
        lambda o, w: stats.nbinom(np.exp(w), special.expit(w - o)),
    ),
    "zero-inflated": (
        likelihoods.ZeroInflatedPoisson(),
        None,
        counts,
        lambda o, w: ZeroInflated(o),
    ),
    "multi-label": (
        likelihoods.MultiLabelBernoulli(),
        None,
        lambda rng, shape: rng.integers(0, 2, size=shape),
        lambda o, w: stats.bernoulli(special.expit(o)),
    ),
    "censored": (
        likelihoods.CensoredGaussian(),
        "log_noise_scale",
        lambda rng, shape: rng.normal(size=shape),
        lambda o, w: stats.norm(o, np.exp(w)),
    ),
    "weibull": (
        likelihoods.Weibull(),
        "log_shape",
        lambda rng, shape: rng.weibull(1.5, size=shape),
        lambda o, w: stats.weibull_min(np.exp(w), scale=np.exp(o)),
    ),
}
SURVIVAL = ("censored", "weibull")


class Case:
    """A linear model with made-up draws, and SciPy's distributions of each draw and row."""

    def __init__(self, name, columns):
        self.name, self.columns = name, columns
        likelihood, leaf, make, distribution = KINDS[name]
        rng = np.random.default_rng(0)
        x = rng.normal(size=(ROWS, FEATURES))
        self.table = make(rng, (ROWS, columns))
        self.y = self.table[:, 0] if columns == 1 else self.table
        network = bl.networks.MLP([], use_bias=False)
        model = bl.Model(network, likelihood, dtype="float64")
        self.target, params = model.bind((x, self.y), jax.random.key(0))
        self.likelihood = self.target.likelihood
        self.is_discrete = self.likelihood.is_discrete
        weights = 0.6 * rng.normal(size=(DRAWS, self.likelihood.num_outputs, FEATURES))
        self.outputs = np.einsum("soc,rc->sro", weights, x)
        own = OWN + 0.1 * rng.normal(size=(DRAWS, columns))
        self.dist = distribution(self.outputs, own[:, None])
        with inside_double_precision():
            stacked = {} if leaf is None else {leaf: jnp.asarray(own)}
            self.own = jax.tree.map(lambda w: w[0], stacked)
            filled = jax.tree.map(lambda _: jnp.asarray(weights), params["network"])
            draws = {"network": filled, "likelihood": stacked}
            self.predictive = bl.Predictive(self.target, draws, self.target.data.x)

    def like_y(self, table):
        return table[..., 0] if self.columns == 1 else table


PAIRS = [(name, columns) for name in KINDS for columns in (1, 2) if name not in SURVIVAL]
PAIRS += [(name, 1) for name in SURVIVAL]


@pytest.fixture(scope="module", params=PAIRS, ids=lambda pair: f"{pair[0]}-{pair[1]}")
def case(request):
    return Case(*request.param)


def test_log_prob_is_scipys(case):
    density = case.dist.logpmf if case.is_discrete else case.dist.logpdf
    terms = density(case.table).sum(axis=2)
    wanted = special.logsumexp(terms, axis=0) - np.log(DRAWS)
    np.testing.assert_allclose(case.predictive.log_prob(case.y), wanted, rtol=1e-9)


def test_moments_are_scipys(case):
    p, mean = case.predictive, case.dist.mean()
    np.testing.assert_allclose(p.mean, case.like_y(mean.mean(axis=0)), rtol=1e-9)
    np.testing.assert_allclose(p.epistemic, case.like_y(mean.var(axis=0, ddof=1)), rtol=1e-9)
    np.testing.assert_allclose(p.aleatoric, case.like_y(case.dist.var().mean(axis=0)), rtol=1e-9)
    assert p.mean.shape == case.y.shape


def test_cdf_is_scipys_and_quantiles_invert_it(case):
    p = case.predictive
    wanted = case.like_y(case.dist.cdf(case.table).mean(axis=0))
    np.testing.assert_allclose(p.cdf(case.y), wanted, atol=1e-9)
    low, high = case.likelihood.support
    if np.isfinite(low):
        assert np.all(p.quantile(0.01) >= low)
    assert np.all(p.quantile(0.99) <= high)
    for q in (0.001, 0.05, 0.5, 0.99):
        value = p.quantile(q).reshape(ROWS, -1)
        reached = case.dist.cdf(value).mean(axis=0)
        if case.is_discrete:
            assert np.all(value == np.round(value))
            below = case.dist.cdf(value - 1).mean(axis=0)
            assert np.all((below < q) & (q <= reached))
        else:
            np.testing.assert_allclose(reached, q, rtol=1e-7)


def test_cdf_is_defined_for_every_number(case):
    """Also where there are no observations: between whole numbers, and outside of the range."""
    for point in (-1.5, 0.0, 0.3, 1.0, 2.7):
        y = np.full(case.y.shape, point)
        wanted = case.like_y(case.dist.cdf(np.full(case.table.shape, point)).mean(axis=0))
        np.testing.assert_allclose(case.predictive.cdf(y), wanted, atol=1e-9, err_msg=str(point))


def test_samples_have_the_predictives_distribution(case):
    p, num = case.predictive, 8000
    samples = p.sample(1, num)
    assert samples.shape == (num, *case.y.shape)
    error = STANDARD_ERRORS * p.std / np.sqrt(num)
    mixed = case.like_y(case.dist.mean())
    of_draws = mixed.std(axis=0) / np.sqrt(num) * STANDARD_ERRORS
    assert np.all(np.abs(samples.mean(axis=0) - mixed.mean(axis=0)) < error + of_draws)
    for q in (0.2, 0.8):
        value = p.quantile(q)
        wanted = case.like_y(case.dist.cdf(value.reshape(ROWS, -1)).mean(axis=0))
        assert np.all(np.abs(np.mean(samples <= value, axis=0) - wanted) < 5 * 0.5 / np.sqrt(num))


def test_gradients_by_finite_differences(case, x64):
    y, outputs = case.target.data.y[0], jnp.asarray(case.outputs[0, 0])
    log_prob = jax.jit(lambda o: case.likelihood.log_prob(o, y, case.own))
    found = jax.jit(jax.grad(log_prob))(outputs)
    step = 1e-6 * np.eye(len(outputs))
    wanted = [(log_prob(outputs + e) - log_prob(outputs - e)) / 2e-6 for e in step]
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


def test_information_is_the_scores_covariance(case, x64):
    """40,000 observations from the likelihood itself, 5 standard errors of each entry."""
    outputs, own = jnp.asarray(case.outputs[0, 0]), case.own

    def one(key):
        y = case.likelihood.sample(key, outputs, own)
        score, own_score = jax.grad(case.likelihood.log_prob, (0, 2))(outputs, y, own)
        return jnp.outer(score, score), jax.tree.map(jnp.square, own_score)

    keys = jax.random.split(jax.random.key(0), 40_000)
    products, squares = jax.jit(jax.vmap(one))(keys)
    found = case.likelihood.information(outputs, case.target.data.y[0], own)
    error = np.std(products, axis=0) / 200
    assert np.all(np.abs(np.mean(products, axis=0) - found) < STANDARD_ERRORS * error)
    found = case.likelihood.own_information(outputs, own)
    for name, square in squares.items():
        mean, error = np.mean(square, axis=0), np.std(square, axis=0) / 200
        assert np.all(np.abs(mean - found[name]) < STANDARD_ERRORS * error)


@pytest.mark.parametrize("size", [0.5, 3.0])
def test_information_about_the_size_of_large_counts(size, x64):
    """Against the sum over a hundred thousand counts."""
    bound, _ = likelihoods.NegativeBinomial().bind(np.arange(5))
    mean, step = 300.0, 1e-3
    y = np.arange(100_000)
    at = np.log(size) + step * np.array([-1.0, 0.0, 1.0])
    terms = [stats.nbinom(np.exp(v), np.exp(v) / (np.exp(v) + mean)).logpmf(y) for v in at]
    score = (terms[2] - terms[0]) / (2 * step)
    wanted = np.sum(np.exp(terms[1]) * score**2)
    own = {"log_size": jnp.log(jnp.asarray([size]))}
    found = bound.own_information(jnp.log(jnp.asarray([mean])), own)["log_size"]
    np.testing.assert_allclose(found, wanted, rtol=0.05)


@pytest.mark.parametrize("size", [-12.0, 12.0])
def test_far_outputs_are_finite(case, size, x64):
    y = case.target.data.y[0]
    outputs = jnp.full(case.likelihood.num_outputs, size)
    value, gradient = jax.value_and_grad(case.likelihood.log_prob)(outputs, y, case.own)
    assert np.isfinite(value)
    assert np.all(np.isfinite(gradient))
    assert np.all(np.isfinite(case.likelihood.information(outputs, y, case.own)))


def test_prior_is_around_the_shape_of_the_moments(x64):
    rng = np.random.default_rng(0)
    for likelihood, y, wanted in (
        (likelihoods.Gamma(), rng.gamma(3.0, size=20_000), 3.0),
        (likelihoods.Beta(), rng.beta(2.0, 3.0, size=20_000), 5.0),
        (likelihoods.NegativeBinomial(), rng.negative_binomial(2, 0.3, size=20_000), 2.0),
        (likelihoods.LogNormal(), rng.lognormal(1.0, 0.7, size=20_000), 0.7),
    ):
        bound, _ = likelihood.bind(y)
        (center,) = bound.prior()[0].values()
        np.testing.assert_allclose(np.exp(center), wanted, rtol=0.1)


# Censored


@pytest.mark.parametrize("name", SURVIVAL)
def test_a_censored_row_has_the_probability_of_more(name, x64):
    case = Case(name, 1)
    pairs = np.stack([case.table[:, 0], np.arange(ROWS) % 2], axis=1)
    terms = np.where(
        pairs[:, 1:] == 1, case.dist.logpdf(case.table), case.dist.logsf(case.table)
    ).sum(axis=2)
    wanted = special.logsumexp(terms, axis=0) - np.log(DRAWS)
    np.testing.assert_allclose(case.predictive.log_prob(pairs), wanted, rtol=1e-9)
    np.testing.assert_array_equal(case.predictive.align_y(pairs), pairs[:, 0])


@pytest.mark.parametrize("name", SURVIVAL)
def test_information_of_a_censored_row(name, x64):
    """What a limit leaves: the score's variance over observations that it cuts off."""
    case = Case(name, 1)
    outputs, own = jnp.asarray(case.outputs[0, 0]), case.own
    limit = jnp.asarray([1.1, 0.0])

    def one(key):
        time = case.likelihood.sample(key, outputs, own)[0]
        y = jnp.where(time > limit[0], limit, jnp.stack([time, 1.0]))
        return jax.grad(case.likelihood.log_prob)(outputs, y, own)[0] ** 2

    squares = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), 40_000))
    found = case.likelihood.information(outputs, limit, own)[0, 0]
    error = np.std(squares) / 200
    assert abs(np.mean(squares) - found) < STANDARD_ERRORS * error


def test_censoring_is_not_taken_for_events():
    """Half of the rows are cut off at 1: the scale is found all the same."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 1))
    time = np.exp(0.5 * x[:, 0]) * rng.weibull(2.0, size=2000)
    y = np.stack([np.minimum(time, 1.0), time < 1.0], axis=1)
    model = bl.Model(bl.networks.MLP([]), likelihoods.Weibull())
    posterior = bl.fit(model, bl.Laplace(), (x, y), seed=0)
    weights = posterior.family.mean["network"]
    slope, bias = (float(np.ravel(leaf)[0]) for leaf in jax.tree.leaves(weights))
    assert {round(slope, 1), round(bias, 1)} == {0.5, 0.0}
    shape = np.exp(float(posterior.family.mean["likelihood"]["log_shape"][0]))
    np.testing.assert_allclose(shape, 2.0, rtol=0.1)


# Ordered classes


@pytest.fixture(scope="module")
def ordinal():
    with inside_double_precision():
        labels = np.repeat(np.arange(4), [10, 20, 30, 40])
        bound, _ = likelihoods.Ordinal().bind(labels)
        return bound


def test_ordinal_probabilities_are_differences_of_the_logistic_function(ordinal, x64):
    params = ordinal.init()
    thresholds = np.asarray(ordinal.thresholds(params))
    np.testing.assert_allclose(
        special.expit(thresholds), (np.cumsum([10, 20, 30]) + np.arange(1, 4) / 2) / 102
    )
    for location in (-30.0, -1.0, 0.3, 30.0):
        below = stats.logistic(location).cdf(np.concatenate([[-np.inf], thresholds, [np.inf]]))
        outputs = jnp.asarray([location])
        np.testing.assert_allclose(ordinal.probs(outputs, params), np.diff(below), atol=1e-12)
        logs = [ordinal.log_prob(outputs, y, params) for y in range(4)]
        np.testing.assert_allclose(np.exp(logs), ordinal.probs(outputs, params), rtol=1e-12)
        assert np.all(np.isfinite(jax.jacrev(lambda o: ordinal.log_probs(o, params))(outputs)))


def test_ordinal_information_is_the_scores_covariance(ordinal, x64):
    params, outputs = ordinal.init(), jnp.asarray([0.3])
    probs = ordinal.probs(outputs, params)
    score, own = jax.vmap(lambda y: jax.grad(ordinal.log_prob, (0, 2))(outputs, y, params))(
        jnp.arange(4)
    )
    wanted = np.sum(probs * score[:, 0] ** 2)
    np.testing.assert_allclose(ordinal.information(outputs, 0, params), [[wanted]])
    wanted = probs @ own["thresholds"] ** 2
    np.testing.assert_allclose(ordinal.own_information(outputs, params)["thresholds"], wanted)


def test_ordinal_finds_the_order():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2))
    latent = 2.0 * x[:, 0] + rng.logistic(size=400)
    y = np.digitize(latent, [-1.5, 0.5, 2.0])
    model = bl.Model(bl.networks.MLP([], use_bias=False), likelihoods.Ordinal())
    posterior = bl.fit(model, bl.Laplace(), (x, y), seed=0)
    found = posterior.target.likelihood.thresholds(posterior.family.mean["likelihood"])
    np.testing.assert_allclose(found, [-1.5, 0.5, 2.0], atol=0.5)
    p = posterior.predict(np.array([[-2.0, 0.0], [2.0, 0.0]]))
    assert p.probs[0].argmax() == 0
    assert p.probs[1].argmax() == 3
    assert np.all(p.std > 0)


# Learning, storing, refusing

RUNS = {
    "log-normal": (likelihoods.LogNormal(), lambda y: np.exp(y)),
    "gamma": (likelihoods.Gamma(), lambda y: np.exp(y)),
    "beta": (likelihoods.Beta(), lambda y: special.expit(2 * y)),
    "negative-binomial": (likelihoods.NegativeBinomial(), lambda y: np.round(3 + 2 * y)),
    "zero-inflated": (likelihoods.ZeroInflatedPoisson(), lambda y: np.round(3 + 2 * y)),
    "multi-label": (
        likelihoods.MultiLabelBernoulli(),
        lambda y: np.stack([y > 0, y < 0.5], axis=1).astype(int),
    ),
    "censored": (
        likelihoods.CensoredGaussian(),
        lambda y: np.stack([np.minimum(y, 0.5), y < 0.5], axis=1),
    ),
    "weibull": (
        likelihoods.Weibull(),
        lambda y: np.stack([np.minimum(np.exp(y), 2.0), np.exp(y) < 2.0], axis=1),
    ),
    "ordinal": (likelihoods.Ordinal(), lambda y: np.digitize(y, [-0.5, 0.5])),
}


@pytest.mark.parametrize("kind", RUNS)
def test_every_one_is_learned_and_comes_back_from_disk(kind, tmp_path):
    likelihood, make = RUNS[kind]
    x, y = problems.wiggle()
    y = make(np.clip(y, -1.4, None))
    method = "vogn" if kind in ("gamma", "ordinal") else "map"
    posterior = bl.fit(problems.small_model(likelihood), method, (x, y), seed=0, num_steps=200)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(posterior.family.mean))
    p = posterior.predict(x, num_samples=16)
    if kind == "ordinal":
        frequent = np.bincount(y).max() / len(y)
        assert bl.metrics.accuracy(p, y) > frequent
    else:
        observed = p.align_y(y)
        before = np.mean((observed - observed.mean(axis=0)) ** 2)
        assert np.mean((p.mean - observed) ** 2) < before
        assert np.all(p.std > 0)
        assert np.isfinite(bl.metrics.crps(p, observed))
    posterior.save(tmp_path / "run")
    loaded = bl.load(tmp_path / "run").predict(x, num_samples=16)
    np.testing.assert_array_equal(loaded.mean, p.mean)
    np.testing.assert_array_equal(loaded.log_prob(y), p.log_prob(y))


@pytest.mark.parametrize("kind", ["gamma", "negative-binomial", "weibull", "ordinal"])
def test_diagonal_and_full_gauss_newton_agree(kind, x64):
    likelihood, make = RUNS[kind]
    x, y = problems.wiggle(12)
    model = bl.Model(bl.networks.MLP([2]), likelihood, dtype="float64")
    target, params = model.bind((x, make(y)), jax.random.key(0))
    groups = (tuple(range(len(jax.tree.leaves(params)))),)
    key = jax.random.key(0)
    (matrix,) = curvature.blocks(key, target, params, None, groups, "gauss-newton")
    found = curvature.diagonal(key, target, params, None, "gauss-newton")
    leaves = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(found)])
    np.testing.assert_allclose(leaves, np.diag(matrix), rtol=1e-9)


@pytest.mark.parametrize(
    ("likelihood", "y", "message"),
    [
        (
            likelihoods.LogNormal(),
            [1.0, 0.0],
            "must hold only positive numbers, got the number",
        ),
        (likelihoods.Gamma(), [1.0, -2.0], "got the number -2.0"),
        (
            likelihoods.Beta(),
            [0.5, 1.0],
            "hold only numbers between 0 and 1, got the prop",
        ),
        (likelihoods.NegativeBinomial(), [1.0, 2.5], "got the count 2.5"),
        (likelihoods.ZeroInflatedPoisson(), [1, -2], "got the count -2"),
        (likelihoods.MultiLabelBernoulli(), [[0, 2]], "got the label 2"),
        (
            likelihoods.CensoredGaussian(),
            np.ones((4, 3)),
            r"must be \(rows, 2\): the time, and",
        ),
        (likelihoods.Weibull(), [[1.0, 0.5]], "`y` must hold 1 .observed. or 0 .censored."),
        (likelihoods.Weibull(), [[0.0, 1.0]], "`y` must hold only positive numbers"),
        (likelihoods.Ordinal(3), [0, 3], "got the label 3"),
    ],
)
def test_refusals(likelihood, y, message, x64):
    with pytest.raises(ArgumentError, match=message):
        likelihood.bind(np.asarray(y))


def test_ordinal_needs_two_classes():
    with pytest.raises(ArgumentError, match="`num_classes` must be a whole number of at least 2"):
        likelihoods.Ordinal(1)
