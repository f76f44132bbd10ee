"""The predictive against its definition, computed with NumPy from the same draws."""

from __future__ import annotations

import jax
import numpy as np
import problems
import pytest
from scipy import optimize, special, stats

import bayeslearn as bl
from bayeslearn.errors import ArgumentError
from bayeslearn.precision import inside_double_precision
from bayeslearn.results import predictive

DRAWS, ROWS, COLUMNS = 7, 9, 3


class Case:
    """A linear model with made-up draws: outputs (draws, rows, outputs) are known."""

    def __init__(self, likelihood, y, *, noise=None):
        rng = np.random.default_rng(0)
        self.x = rng.normal(size=(ROWS, COLUMNS))
        model = bl.Model(bl.networks.MLP([], use_bias=False), likelihood, dtype="float64")
        self.target, params = model.bind((self.x, y), jax.random.key(0))
        outputs = self.target.likelihood.num_outputs
        weights = rng.normal(size=(DRAWS, outputs, COLUMNS))
        self.outputs = np.einsum("soc,rc->sro", weights, self.x)
        self.noise = None if noise is None else np.exp(rng.normal(size=(DRAWS, outputs)) + noise)
        with inside_double_precision():
            draws = {
                "network": jax.tree.map(lambda _: jax.numpy.asarray(weights), params["network"]),
                "likelihood": {}
                if noise is None
                else {"log_noise_scale": jax.numpy.asarray(np.log(self.noise))},
            }
            self.predictive = bl.Predictive(self.target, draws, self.target.data.x)


@pytest.fixture(scope="module")
def one():
    """One column of y, learned noise."""
    return Case(bl.likelihoods.Gaussian(), np.arange(float(ROWS)), noise=-0.5)


@pytest.fixture(scope="module")
def two():
    """Two columns of y, learned noise."""
    y = np.random.default_rng(1).normal(size=(ROWS, 2))
    return Case(bl.likelihoods.Gaussian(), y, noise=-0.5)


@pytest.fixture(scope="module")
def classes():
    return Case(bl.likelihoods.Categorical(num_classes=4), np.arange(ROWS) % 4)


@pytest.fixture(scope="module")
def yes_or_no():
    return Case(bl.likelihoods.Bernoulli(), np.arange(ROWS) % 2)


def test_variance_is_epistemic_plus_aleatoric(one):
    p, means = one.predictive, one.outputs[..., 0]
    np.testing.assert_allclose(p.mean, means.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(p.epistemic, means.var(axis=0, ddof=1), rtol=1e-12)
    np.testing.assert_allclose(p.aleatoric, np.mean(one.noise**2), rtol=1e-12)
    np.testing.assert_array_equal(p.total, p.epistemic + p.aleatoric)
    np.testing.assert_allclose(p.variance, p.total)
    np.testing.assert_allclose(p.std**2, p.total, rtol=1e-12)
    assert p.mean.shape == p.std.shape == p.epistemic.shape == (ROWS,)


def test_several_targets_and_their_covariance(two):
    p, means = two.predictive, two.outputs
    assert p.mean.shape == p.std.shape == p.aleatoric.shape == (ROWS, 2)
    cov = p.covariance()
    for row in range(ROWS):
        wanted = np.cov(means[:, row], rowvar=False) + np.diag(np.mean(two.noise**2, axis=0))
        np.testing.assert_allclose(cov[row], wanted, rtol=1e-10)
    np.testing.assert_allclose(np.diagonal(cov, axis1=1, axis2=2), p.variance, rtol=1e-12)
    assert np.abs(cov[:, 0, 1]).min() > 1e-3
    assert all(end.shape == (ROWS, 2) for end in p.interval(0.5))


@pytest.mark.parametrize("level", [0.5, 0.9, 0.999])
def test_the_interval_inverts_the_mixtures_distribution_exactly(one, level):
    lower, upper = one.predictive.interval(level)
    tail = (1 - level) / 2
    for row in range(ROWS):
        means = one.outputs[:, row, 0]

        def cdf(y, means=means):
            return np.mean(stats.norm.cdf(y, means, one.noise[:, 0]))

        span = means.min() - 50, means.max() + 50
        for found, q in ((lower[row], tail), (upper[row], 1 - tail)):
            wanted = optimize.brentq(lambda y, q=q, f=cdf: f(y) - q, *span, xtol=1e-13)
            assert abs(found - wanted) < 1e-8
    np.testing.assert_allclose(one.predictive.cdf(lower), tail, rtol=1e-9)
    np.testing.assert_allclose(one.predictive.cdf(upper), 1 - tail, rtol=1e-9)


def test_the_interval_is_not_the_gaussian_one(one):
    """A mixture of such different noises has other quantiles than mean and std suggest."""
    p = one.predictive
    gaussian = p.mean + stats.norm.ppf(0.95) * p.std
    assert np.max(np.abs(gaussian - p.interval(0.9)[1]) / p.std) > 0.05


def test_log_prob_averages_inside_the_logarithm(one, two):
    for case, y in ((one, np.linspace(-2, 2, ROWS)), (two, np.ones((ROWS, 2)))):
        table = y.reshape(ROWS, -1)
        terms = stats.norm.logpdf(table, case.outputs, case.noise[:, None]).sum(axis=2)
        found = case.predictive.log_prob(y)
        assert found.shape == (ROWS,)
        wanted = special.logsumexp(terms, axis=0) - np.log(DRAWS)
        np.testing.assert_allclose(found, wanted, rtol=1e-10)
        np.testing.assert_allclose(found, np.log(np.mean(np.exp(terms), axis=0)), rtol=1e-10)
        assert np.all(found > terms.mean(axis=0) + 1e-6)  # Jensen: not the mean of logarithms


def test_log_prob_does_not_underflow(one):
    found = one.predictive.log_prob(np.full(ROWS, 1e4))
    assert np.all(np.isfinite(found))
    assert np.all(found < -1e5)


def test_samples_have_the_predictives_moments(one, two):
    """10,000 samples, 5 standard errors (of the mean, and of the variance by fourth moments)."""
    num = 10_000
    for case in (one, two):
        p = case.predictive
        samples = p.sample(1, num)
        assert samples.shape == (num, *p.mean.shape)
        centred = samples - p.mean
        assert np.all(np.abs(centred.mean(axis=0)) < 5 * samples.std(axis=0) / np.sqrt(num))
        # of the mixture itself, that is with 1/S and not 1/(S-1) for the variance of the means
        variance = p.aleatoric + p.epistemic * (DRAWS - 1) / DRAWS
        error = (centred**2).std(axis=0) / np.sqrt(num)
        assert np.all(np.abs((centred**2).mean(axis=0) - variance) < 5 * error)
    np.testing.assert_array_equal(samples, p.sample(1, num))
    assert not np.any(samples == p.sample(2, num))


def test_class_probabilities_average_probabilities_not_logits(classes, yes_or_no):
    probs = special.softmax(classes.outputs, axis=2)
    np.testing.assert_allclose(classes.predictive.probs, probs.mean(axis=0), rtol=1e-12)
    other = special.softmax(classes.outputs.mean(axis=0), axis=1)
    assert np.abs(classes.predictive.probs - other).max() > 0.01
    ones = special.expit(yes_or_no.outputs[..., 0]).mean(axis=0)
    np.testing.assert_allclose(yes_or_no.predictive.probs[:, 1], ones, rtol=1e-12)
    np.testing.assert_allclose(yes_or_no.predictive.probs.sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_array_equal(yes_or_no.predictive.mean, yes_or_no.predictive.probs)


def test_entropy_splits_into_mean_entropy_and_mutual_information(classes, yes_or_no):
    for case in (classes, yes_or_no):
        p = case.predictive
        logits = case.outputs
        if logits.shape[2] == 1:
            logits = np.concatenate([np.zeros_like(logits), logits], axis=2)
        probs = special.softmax(logits, axis=2)
        aleatoric = stats.entropy(probs, axis=2).mean(axis=0)
        relative = special.rel_entr(probs, probs.mean(axis=0)).sum(axis=2).mean(axis=0)
        np.testing.assert_allclose(p.aleatoric, aleatoric, rtol=1e-10)
        np.testing.assert_allclose(p.epistemic, relative, rtol=1e-9)
        np.testing.assert_allclose(p.total, stats.entropy(p.probs, axis=1), rtol=1e-10)
        assert p.total.shape == (ROWS,)
        cov = p.covariance()
        wanted = np.stack([np.diag(row) - np.outer(row, row) for row in p.probs])
        np.testing.assert_allclose(cov, wanted, atol=1e-12)
        np.testing.assert_allclose(p.std**2, p.probs * (1 - p.probs), rtol=1e-12)


def test_class_log_prob_and_samples(classes, yes_or_no):
    for case, labels in ((classes, np.arange(ROWS) % 4), (yes_or_no, np.arange(ROWS) % 2)):
        p = case.predictive
        wanted = np.log(p.probs[np.arange(ROWS), labels])
        np.testing.assert_allclose(p.log_prob(labels), wanted, rtol=1e-10)
        samples = p.sample(0, 10_000)
        assert samples.shape == (10_000, ROWS)
        for label in range(p.probs.shape[1]):
            share = p.probs[:, label]
            error = np.sqrt(share * (1 - share) / 10_000)
            assert np.all(np.abs((samples == label).mean(axis=0) - share) < 5 * error + 1e-4)


def test_chunks_change_nothing(one, two, classes, monkeypatch):
    y = np.zeros(ROWS)
    whole = (one.predictive.log_prob(y), *one.predictive.interval(0.8), two.predictive.covariance())
    whole += (one.predictive.cdf(y), classes.predictive.probs, two.predictive.mean)
    monkeypatch.setattr(predictive, "CELLS", 2 * DRAWS)  # two rows at a time, the last alone

    def fresh(case):
        p = case.predictive
        return bl.Predictive(p._target, p._draws, p._x)

    assert [rows for rows, _ in fresh(one)._chunks(per_row=DRAWS)] == [2, 2, 2, 2, 1]
    monkeypatch.setattr(predictive, "ROWS", 4)
    monkeypatch.setitem(predictive.FILL, "cpu", 12)  # three draws at a time, the last alone
    assert [rows for rows, _ in fresh(one)._chunks()] == [4, 4, 1]
    assert fresh(one)._at_once(one.x[:4], DRAWS) == 3
    parts = (fresh(one).log_prob(y), *fresh(one).interval(0.8), fresh(two).covariance())
    parts += (fresh(one).cdf(y), fresh(classes).probs, fresh(two).mean)
    for a, b in zip(whole, parts, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


def test_the_same_shapes_do_not_compile_again(one, compiles):
    """Other draws and rows, another level and key."""

    def ask(p, y, level, seed):
        p.mean, p.covariance(), p.log_prob(y), p.cdf(y), p.interval(level), p.sample(seed, 20)

    p = one.predictive
    y = np.zeros(ROWS)
    ask(bl.Predictive(p._target, p._draws, p._x), y, 0.9, 0)
    with inside_double_precision():
        draws = jax.tree.map(lambda w: 0.5 * w, p._draws)
        x = p._x + 1.0
    with compiles() as seen:
        ask(bl.Predictive(p._target, draws, x), y + 1.0, 0.5, 1)
    assert not seen, seen


def test_another_number_of_rows_does_not_compile_again(one, compiles):
    """Chunks have few sizes, and are cut on the host."""
    p = one.predictive

    def ask(num_rows):
        fresh = bl.Predictive(p._target, p._draws, np.resize(p._x, (num_rows, *p._x.shape[1:])))
        return fresh.std, fresh.log_prob(np.zeros(num_rows))

    ask(60)
    with compiles() as seen:
        ask(50)
        ask(33)
    assert not seen, seen


def test_one_row_is_like_the_same_row_among_many(one):
    p = one.predictive
    alone = bl.Predictive(p._target, p._draws, p._x[4:5])
    for name in ("mean", "std", "epistemic"):
        assert getattr(alone, name).shape == (1,)
        np.testing.assert_allclose(getattr(alone, name), getattr(p, name)[4:5], rtol=1e-12)
    np.testing.assert_allclose(alone.interval(0.9)[0], p.interval(0.9)[0][4:5], rtol=1e-10)


def test_answers_are_float64_numpy_in_the_users_32_bit_world(one):
    p = one.predictive
    assert not jax.config.jax_enable_x64
    for values in (p.mean, p.std, p.log_prob(np.zeros(ROWS)), *p.interval(), p.sample(0, 10_000)):
        assert isinstance(values, np.ndarray)
        assert values.dtype == np.float64


def test_questions_of_the_wrong_kind(one, classes):
    with pytest.raises(ArgumentError, match=r"quantile and interval needs a regression.*`probs`"):
        classes.predictive.interval(0.9)
    with pytest.raises(ArgumentError, match="probs needs a classification model"):
        one.predictive.probs


def test_metrics_are_what_they_say(one, classes):
    y = np.linspace(-1, 1, ROWS)
    p = one.predictive
    assert bl.metrics.rmse(p, y) == pytest.approx(np.sqrt(np.mean((p.mean - y) ** 2)))
    assert bl.metrics.log_likelihood(p, y) == pytest.approx(p.log_prob(y).mean())
    lower, upper = p.interval(0.6)
    assert bl.metrics.coverage(p, y, 0.6) == np.mean(
        [a <= v <= b for a, v, b in zip(lower, y, upper, strict=True)]
    )
    labels = np.arange(ROWS) % 4
    best = [np.argmax(row) for row in classes.predictive.probs]
    assert bl.metrics.accuracy(classes.predictive, labels) == np.mean(labels == best)


def test_a_posteriors_number_of_draws():
    """256 of a variational q by default; a sampler's kept draws, evenly spaced."""
    problem = problems.regression()
    data = (problem.x, problem.y)
    q = bl.fit(problem.model, "bayes-by-backprop", data, seed=0, num_steps=20)
    assert q.predict(problem.x).num_samples == 256
    assert q.predict(problem.x, num_samples=10).num_samples == 10
    a, b = (q.predict(problem.x[:3], num_samples=10, seed=s).mean for s in (0, 1))
    assert not np.array_equal(a, b)
    np.testing.assert_array_equal(a, q.predict(problem.x[:3], num_samples=10, seed=0).mean)
    exact = problem.x @ np.asarray(q.family.mean_vector())
    error = q.predict(problem.x).epistemic ** 0.5 / 16
    assert np.all(np.abs(q.predict(problem.x).mean - exact) < 5 * error)
