"""Calibration after fitting: coverage by simulation, and each method against its definition."""

from __future__ import annotations

import dataclasses

import numpy as np
import problems
import pytest
from scipy import integrate, special, stats

import bayeslearn as bl
from bayeslearn.errors import ArgumentError, DataWarning, NotAvailableError
from bayeslearn.predictive_base import PredictiveBase
from bayeslearn.results.calibration import fit_calibrator
from bayeslearn.results.calibration_maps import ConformalMap, isotonic_of_pit

# Of a thousand sets of exchangeable rows one seems to drift.
pytestmark = pytest.mark.filterwarnings("ignore:The conformal scores drift")

DRAWS, CALIBRATION, TEST = 1000, 60, 20
STANDARD_ERRORS = 5.0  # a failure in a million
NOISE, TOO_SMALL = 1.5, 0.4  # of the rows, and what the model takes for it


class Fixed(PredictiveBase):
    """One fixed predictive with SciPy's distributions, of a y with one or several columns."""

    num_samples = 1

    def __init__(self, distribution, is_discrete=False, probs=None):
        self.dist, self.is_discrete, self._probs = distribution, is_discrete, probs
        self.kind = "regression" if probs is None else "classification"
        self.support = (0.0, np.inf) if is_discrete else (-np.inf, np.inf)
        self.num_rows = len(self.mean)

    mean = property(lambda self: self.dist.mean() if self._probs is None else self._probs)
    aleatoric = property(lambda self: self._part(1.0))
    epistemic = property(lambda self: self._part(0.0))
    probs = property(lambda self: self._probs)

    def _part(self, share):
        if self._probs is None:
            return share * self.dist.var()
        return share * stats.entropy(self._probs, axis=1)

    def covariance(self):
        return np.stack([np.diag(np.atleast_1d(row)) for row in self.variance])

    def align_y(self, y):
        return np.asarray(y)

    def log_prob(self, y):
        if self._probs is not None:
            return np.log(self._probs[np.arange(self.num_rows), y])
        terms = self.dist.logpmf(y) if self.is_discrete else self.dist.logpdf(y)
        return terms if terms.ndim == 1 else terms.sum(axis=1)

    def log_prob_by_draw(self, y):
        return self.log_prob(y)[None]

    def quantiles(self, qs):
        return [self.dist.ppf(q) for q in qs]

    def cdfs(self, points):
        return [self.dist.cdf(y) for y in points]

    def sample(self, key, num=1):
        shape = (num, *np.shape(self.mean))
        return self.dist.ppf(np.random.default_rng(key).uniform(size=shape))


def rows_of(rng, number, columns=None):
    """Noise that grows with x, and a model that takes it for small and even."""
    x = rng.normal(size=number if columns is None else (number, columns))
    y = np.sin(2 * x) + NOISE * (0.4 + 0.6 * np.abs(x)) * rng.normal(size=x.shape)
    return Fixed(stats.norm(0.8 * x, TOO_SMALL * NOISE)), y, x


def coverages(make, covered, level=0.9):
    """The fraction covered in each of many draws of calibration and test rows."""
    rng = np.random.default_rng(0)
    return np.array([covered(make, rng, level) for _ in range(DRAWS)])


def interval_covered(make, rng, level):
    predictive, y, _ = make(rng, CALIBRATION)
    calibrator = fit_calibrator(predictive, y)
    predictive, y, _ = make(rng, TEST)
    lower, upper = calibrator.apply(predictive).interval(level)
    return np.mean((lower <= y) & (y <= upper))


def assert_covers(values, level, number):
    """From the level to 1 / (n + 1) above it, and there exactly where theory says."""
    error = values.std(ddof=1) / np.sqrt(len(values))
    expected = np.ceil((number + 1) * level - 1e-9) / (number + 1)
    assert level <= expected <= level + 1 / (number + 1)
    assert abs(values.mean() - expected) < STANDARD_ERRORS * error


# Conformal intervals


def test_the_model_is_misspecified():
    rng = np.random.default_rng(0)
    predictive, y, _ = rows_of(rng, 20_000)
    assert 0.45 < bl.metrics.coverage(predictive, y, 0.9) < 0.6


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9])
def test_conformal_intervals_cover(level):
    assert_covers(coverages(rows_of, interval_covered, level), level, CALIBRATION)


def test_conformal_quantile_is_the_order_statistic():
    scores = np.random.default_rng(0).normal(size=(19, 2))
    own = ConformalMap.of(scores, np.ones(19))
    for level, place in ((0.9, 18), (0.95, 19), (0.5, 10), (0.51, 11)):
        wanted = np.sort(scores, axis=0)[place - 1]
        np.testing.assert_array_equal(own.quantile(level), wanted)
    assert np.all(np.isinf(own.quantile(0.951)))
    np.testing.assert_allclose(own.level(own.quantile(0.9)[None]), 18 / 20)


def test_a_row_of_weight_two_is_the_row_twice():
    rng = np.random.default_rng(0)
    scores, weight = rng.normal(size=(12, 1)), rng.integers(1, 4, size=12)
    weighted = ConformalMap.of(scores, weight.astype(float))
    repeated = ConformalMap.of(np.repeat(scores, weight, axis=0), np.ones(weight.sum()))
    for level in (0.1, 0.5, 0.7, 0.9, 0.99):
        np.testing.assert_array_equal(weighted.quantile(level), repeated.quantile(level))
    new = rng.normal(size=(50, 1))
    np.testing.assert_allclose(weighted.level(new), repeated.level(new))


def test_too_few_rows_give_infinite_intervals_and_say_so():
    rng = np.random.default_rng(0)
    predictive, y, _ = rows_of(rng, 14)
    calibrated = fit_calibrator(predictive, y).apply(predictive)
    with pytest.warns(DataWarning, match=r"level 0\.99 needs at least 99 .* with 14 it is"):
        lower, upper = calibrated.interval(0.99)
    assert np.all(lower == -np.inf)
    assert np.all(upper == np.inf)
    lower, upper = calibrated.interval(14 / 15)
    assert np.all(np.isfinite(upper - lower))
    assert np.isfinite(bl.metrics.crps(calibrated, y))


def test_conformal_cdf_inverts_quantiles_and_samples_follow_it():
    rng = np.random.default_rng(0)
    predictive, y, _ = rows_of(rng, 200)
    calibrated = fit_calibrator(predictive, y).apply(predictive)
    for q in (0.1, 0.4, 0.7, 0.95):
        value = calibrated.quantile(q)
        np.testing.assert_allclose(calibrated.cdf(value), q, atol=1 / 201)
    samples = calibrated.sample(3, 4000)
    for q in (0.1, 0.5, 0.9):
        below = np.mean(samples <= calibrated.quantile(q))
        assert abs(below - q) < 1 / 201 + STANDARD_ERRORS * 0.5 / np.sqrt(samples.size)


def test_each_group_is_covered_by_its_own_quantile():
    """Rows in the middle are covered too often by one quantile for all, the others too seldom."""

    def covered(make, rng, level):
        found = {}
        for by_group in (True, False):
            predictive, y, x = make(rng, 2 * CALIBRATION)
            groups = np.where(np.abs(x) < 0.674, "middle", "outside")
            calibrator = fit_calibrator(predictive, y, groups=groups if by_group else None)
            predictive, y, x = make(rng, TEST)
            groups = np.where(np.abs(x) < 0.674, "middle", "outside")
            calibrated = calibrator.apply(predictive, groups if by_group else None)
            lower, upper = calibrated.interval(level)
            is_in = (lower <= y) & (y <= upper)
            for name in ("middle", "outside"):
                found[by_group, name] = np.sum(is_in[groups == name]), np.sum(groups == name)
        return [[*found[key]] for key in sorted(found, reverse=True)]

    values = coverages(rows_of, covered)
    share = values[..., 0].sum(axis=0) / values[..., 1].sum(axis=0)
    outside, middle, *plain = share
    # About 60 rows a group: at most 1 / 40 above the level; rows of a draw share a quantile.
    for value in (outside, middle):
        assert 0.9 - 0.01 < value < 0.9 + 1 / 40 + 0.01
    assert plain[0] < 0.88
    assert plain[1] > 0.93


def test_joint_intervals_hold_all_columns_at_once():
    def covered(make, rng, level):
        predictive, y, _ = rows_of(rng, CALIBRATION, 3)
        calibrator = fit_calibrator(predictive, y, joint=True)
        predictive, y, _ = rows_of(rng, TEST, 3)
        lower, upper = calibrator.apply(predictive).interval(level)
        return np.mean(np.all((lower <= y) & (y <= upper), axis=1))

    assert_covers(coverages(None, covered), 0.9, CALIBRATION)


def test_counts_have_whole_ends_from_zero():
    rng = np.random.default_rng(0)
    rate = rng.uniform(0.5, 6.0, size=300)
    y = rng.negative_binomial(1, 1 / (1 + rate))
    predictive = Fixed(stats.poisson(rate), is_discrete=True)
    lower, upper = fit_calibrator(predictive, y).apply(predictive).interval(0.9)
    assert np.all(lower >= 0)
    assert np.all((lower == np.round(lower)) & (upper == np.round(upper)))
    assert np.mean((lower <= y) & (y <= upper)) >= 0.9


# Prediction sets


def labels_of(rng, number):
    """Four classes by their logits, and a model that is far too sure of itself."""
    logits = rng.normal(size=(number, 4))
    labels = np.array([rng.choice(4, p=row) for row in special.softmax(logits, axis=1)])
    probs = special.softmax(3.0 * logits, axis=1)
    return Fixed(None, probs=probs), labels, logits


@pytest.mark.parametrize("by_class", [False, True])
def test_prediction_sets_cover(by_class):
    number = 4 * CALIBRATION

    def covered(make, rng, level):
        predictive, labels, _ = make(rng, number)
        groups = "class" if by_class else None
        seed = int(rng.integers(2**31))
        calibrator = fit_calibrator(predictive, labels, groups=groups, seed=seed)
        predictive, labels, _ = make(rng, TEST)
        sets = calibrator.apply(predictive).prediction_set(level, seed=seed, allow_empty=True)
        return np.mean(sets[np.arange(TEST), labels])

    values = coverages(labels_of, covered)
    if by_class:
        error = values.std(ddof=1) / np.sqrt(DRAWS)
        assert 0.9 - STANDARD_ERRORS * error < values.mean()
        assert values.mean() < 0.9 + 1 / 30 + STANDARD_ERRORS * error
    else:
        assert_covers(values, 0.9, number)


def test_sets_of_a_model_that_is_right_cover_without_calibration():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(20_000, 4))
    probs = special.softmax(logits, axis=1)
    labels = (rng.uniform(size=(len(probs), 1)) > probs.cumsum(axis=1)).sum(axis=1)
    sets = Fixed(None, probs=probs).prediction_set(0.9, allow_empty=True)
    is_in = sets[np.arange(len(labels)), labels]
    assert abs(is_in.mean() - 0.9) < STANDARD_ERRORS * 0.3 / np.sqrt(len(labels))
    assert np.all(Fixed(None, probs=probs).prediction_set(0.1).any(axis=1))


def test_too_few_rows_give_whole_sets_and_say_so():
    predictive, labels, _ = labels_of(np.random.default_rng(0), 5)
    calibrated = fit_calibrator(predictive, labels).apply(predictive)
    with pytest.warns(DataWarning, match="needs at least 9 calibration rows"):
        assert np.all(calibrated.prediction_set(0.9))


# The others


def test_scale_is_the_maximum_likelihood_factor():
    rng = np.random.default_rng(0)
    predictive, y, _ = rows_of(rng, 500, 2)
    calibrator = fit_calibrator(predictive, y, "scale")
    z = (y - predictive.mean) / predictive.std
    np.testing.assert_allclose(calibrator.maps[0].factor, np.sqrt(np.mean(z**2)), rtol=1e-3)
    calibrated = calibrator.apply(predictive)
    factor = calibrator.maps[0].factor
    same = Fixed(stats.norm(predictive.mean, factor * predictive.std))
    np.testing.assert_allclose(calibrated.log_prob(y), same.log_prob(y), rtol=1e-9)
    np.testing.assert_allclose(calibrated.std, same.std)
    np.testing.assert_allclose(calibrated.cdf(y), same.cdf(y), atol=1e-12)
    np.testing.assert_allclose(calibrated.interval(0.8), same.interval(0.8))
    np.testing.assert_allclose(calibrated.covariance(), same.covariance())
    np.testing.assert_allclose(calibrated.sample(1, 3), same.sample(1, 3))


def test_groups_have_a_factor_each():
    rng = np.random.default_rng(0)
    groups = np.repeat([0, 1], 300)
    y = np.where(groups == 0, 0.5, 2.0) * rng.normal(size=600)
    predictive = Fixed(stats.norm(np.zeros(600), 1.0))
    calibrator = fit_calibrator(predictive, y, "scale", groups=groups)
    calibrated = calibrator.apply(predictive, groups)
    for group in (0, 1):
        factor = np.sqrt(np.mean(y[groups == group] ** 2))
        np.testing.assert_allclose(calibrated.std[groups == group], factor, rtol=1e-3)


def test_temperature_minimises_the_log_loss():
    predictive, labels, logits = labels_of(np.random.default_rng(0), 2000)
    calibrator = fit_calibrator(predictive, labels, "temperature")
    found = calibrator.maps[0].factor

    def log_loss(temperature):
        logs = special.log_softmax(3.0 * logits / temperature, axis=1)
        return -np.mean(logs[np.arange(len(labels)), labels])

    grid = np.linspace(2.0, 4.0, 2001)
    wanted = grid[np.argmin([log_loss(t) for t in grid])]
    np.testing.assert_allclose(found, wanted, atol=2e-3)
    calibrated = calibrator.apply(predictive)
    np.testing.assert_allclose(calibrated.probs, special.softmax(3.0 * logits / found, axis=1))
    np.testing.assert_allclose(-calibrated.log_prob(labels).mean(), log_loss(found))
    np.testing.assert_allclose(calibrated.total, stats.entropy(calibrated.probs, axis=1))
    np.testing.assert_allclose(calibrated.epistemic + calibrated.aleatoric, calibrated.total)
    often = np.eye(4)[calibrated.sample(0, 4000)].mean(axis=0)
    assert np.all(np.abs(often - calibrated.probs) < 5 * 0.5 / np.sqrt(4000) + 0.01)
    with pytest.raises(NotAvailableError, match="by draw"):
        calibrated.log_prob_by_draw(labels)


def test_a_temperature_of_rows_that_are_all_right_is_one():
    """The likelihood has no maximum there: one wrong row later would cost everything."""
    predictive, _, _ = labels_of(np.random.default_rng(0), 30)
    with pytest.warns(DataWarning, match="All 30 calibration rows are classified correctly"):
        calibrator = fit_calibrator(predictive, predictive.probs.argmax(axis=1), "temperature")
    assert calibrator.maps[0].factor == 1.0


@pytest.mark.parametrize("classes", [2, 4])
def test_isotonic_probabilities_are_the_frequencies(classes):
    rng = np.random.default_rng(0)
    predictive, labels, _ = labels_of(rng, 4000)
    if classes == 2:
        probs = np.stack([predictive.probs[:, 0], 1 - predictive.probs[:, 0]], axis=1)
        predictive, labels = Fixed(None, probs=probs), (labels > 0).astype(int)
    calibrated = fit_calibrator(predictive, labels, "isotonic").apply(predictive)
    np.testing.assert_allclose(calibrated.probs.sum(axis=1), 1.0)
    assert bl.metrics.ece(calibrated, labels) < 0.25 * bl.metrics.ece(predictive, labels)
    assert bl.metrics.nll(calibrated, labels) < bl.metrics.nll(predictive, labels)


def test_isotonic_pit_is_uniform_on_new_rows():
    rng = np.random.default_rng(0)
    predictive, y, _ = rows_of(rng, 2000)
    calibrator = fit_calibrator(predictive, y, "isotonic")
    predictive, y, _ = rows_of(rng, 2000)
    calibrated = calibrator.apply(predictive)
    before, after = (stats.kstest(p.cdf(y), "uniform").statistic for p in (predictive, calibrated))
    assert before > 0.15
    assert after < 0.05  # two samples of 2000: sqrt(2 / 2000) is 0.03
    assert bl.metrics.nll(calibrated, y) < bl.metrics.nll(predictive, y)
    assert bl.metrics.crps(calibrated, y) < bl.metrics.crps(predictive, y)


def test_isotonic_predictive_is_one_distribution():
    rng = np.random.default_rng(0)
    predictive, y, _ = rows_of(rng, 300)
    calibrator = fit_calibrator(predictive, y, "isotonic")
    row = Fixed(stats.norm(np.array([0.3, -1.0]), 0.6))
    calibrated = calibrator.apply(row)
    for q in (0.01, 0.2, 0.5, 0.9):
        np.testing.assert_allclose(calibrated.cdf(calibrated.quantile(q)), q, atol=1e-9)
    grid = np.linspace(-6.0, 6.0, 20_001)
    density = np.exp([calibrated.log_prob(np.array([v, v]))[0] for v in grid])
    np.testing.assert_allclose(integrate.trapezoid(density, grid), 1.0, atol=1e-3)
    mean = integrate.trapezoid(density * grid, grid)
    variance = integrate.trapezoid(density * (grid - mean) ** 2, grid)
    np.testing.assert_allclose(calibrated.mean[0], mean, atol=1e-3)
    np.testing.assert_allclose(calibrated.std[0], np.sqrt(variance), rtol=1e-2)
    samples = calibrated.sample(0, 4000)
    for q in (0.05, 0.5, 0.9):
        error = STANDARD_ERRORS * np.sqrt(q * (1 - q) / 4000)
        assert np.all(np.abs(np.mean(samples <= calibrated.quantile(q), axis=0) - q) < error)


def test_isotonic_counts_are_probabilities():
    rng = np.random.default_rng(0)
    rate = rng.uniform(0.5, 6.0, size=500)
    y = rng.negative_binomial(1, 1 / (1 + rate))
    predictive = Fixed(stats.poisson(rate), is_discrete=True)
    calibrator = fit_calibrator(predictive, y, "isotonic")
    calibrated = calibrator.apply(predictive)
    masses = np.exp([calibrated.log_prob(np.full(500, count)) for count in range(200)])
    np.testing.assert_allclose(masses.sum(axis=0), 1.0, atol=1e-9)
    assert bl.metrics.nll(calibrated, y) < bl.metrics.nll(predictive, y)
    value = calibrated.quantile(0.8)
    assert np.all(value == np.round(value))
    counts = np.arange(200)[:, None]
    mean = np.sum(masses * counts, axis=0)
    np.testing.assert_allclose(calibrated.mean, mean, rtol=5e-3)
    std = np.sqrt(np.sum(masses * (counts - mean) ** 2, axis=0))
    np.testing.assert_allclose(calibrated.std, std, rtol=1e-2)
    samples = calibrated.sample(0, 4000)
    assert np.all(np.abs(samples.mean(axis=0) - mean) < STANDARD_ERRORS * std / 63)


def test_isotonic_knots_increase_where_all_values_are_in_a_tail():
    own = isotonic_of_pit(np.array([[0.0], [0.0], [1.0], [1.0]]), np.ones(4))
    levels = np.linspace(0, 1, 101)[:, None]
    assert np.all(np.diff(own.before[0]) > 0)
    assert np.all(np.isfinite(own.log_slope(levels)))
    assert np.all(np.diff(own.apply(levels), axis=0) >= 0)


def test_isotonic_map_of_a_scaled_gaussian_is_linear_in_normal_scores():
    """Then it is right beyond the last rows too."""
    z = 2.5 * stats.norm.ppf(np.arange(1, 200) / 200) + 0.3
    own = isotonic_of_pit(stats.norm.cdf(z)[:, None], np.ones(199))
    levels = np.array([[1e-6], [1e-3], [0.1], [0.5], [0.99]])
    wanted = stats.norm.cdf((stats.norm.ppf(levels) - 0.3) / 2.5)
    np.testing.assert_allclose(own.apply(levels), wanted, atol=5e-3)
    np.testing.assert_allclose(own.inverse(own.apply(levels)), levels, atol=1e-9)


# Posteriors


@pytest.fixture(scope="module")
def posterior():
    p = problems.regression()
    model = dataclasses.replace(p.model, likelihood=bl.likelihoods.Gaussian(noise_scale=0.2))
    return bl.fit(model, bl.Conjugate(), (p.x, p.y), seed=0)


@pytest.fixture(scope="module")
def classifier():
    return bl.fit(
        problems.small_model(bl.likelihoods.Bernoulli()),
        "map",
        problems.two_classes(),
        seed=0,
        num_steps=100,
    )


@pytest.fixture(scope="module")
def rows():
    """Rows of the same distribution that the posterior has not seen."""
    rng = np.random.default_rng(9)
    x = rng.normal(size=(150, 4))
    fit = problems.regression()
    return x, x @ fit.mean + 0.7 * rng.normal(size=150)


SETTINGS = [("conformal", {}), ("conformal", {"groups": np.arange(150) % 3}), ("scale", {})]
SETTINGS += [("isotonic", {}), ("isotonic", {"groups": np.where(np.arange(150) < 70, "a", "b")})]


@pytest.mark.parametrize(("method", "options"), SETTINGS)
def test_calibrated_posterior_comes_back_from_disk(method, options, posterior, rows, tmp_path):
    calibrated = posterior.calibrate(rows, method, num_samples=32, **options)
    assert calibrated.notes[-1].startswith(f"Calibrated ({method}) on 150 held-out rows")
    calibrated.save(tmp_path / "run")
    loaded = bl.load(tmp_path / "run")
    x, y = rows
    left, right = (p.predict(x, num_samples=32, **options) for p in (calibrated, loaded))
    for quantity in ("mean", "std", "epistemic"):
        np.testing.assert_array_equal(getattr(left, quantity), getattr(right, quantity))
    np.testing.assert_array_equal(left.interval(0.8), right.interval(0.8))
    np.testing.assert_array_equal(left.log_prob(y), right.log_prob(y))
    before = bl.metrics.coverage(posterior.predict(x), y, 0.8)
    after = bl.metrics.coverage(left, y, 0.8)
    assert before < 0.5
    assert abs(after - 0.8) < 0.05
    assert repr(loaded) == repr(calibrated)


@pytest.mark.parametrize("method", ["conformal", "temperature", "isotonic"])
def test_calibrated_classes_come_back_from_disk(method, classifier, tmp_path):
    x, y = problems.two_classes(rows=80, seed=1)
    options = {"groups": "class"} if method == "conformal" else {}
    calibrated = classifier.calibrate((x, y), method, **options)
    calibrated.save(tmp_path / "run")
    left, right = calibrated.predict(x), bl.load(tmp_path / "run").predict(x)
    np.testing.assert_array_equal(left.probs, right.probs)
    np.testing.assert_array_equal(left.prediction_set(0.8), right.prediction_set(0.8))
    assert np.any(left.probs != classifier.predict(x).probs) == (method != "conformal")


def test_calibration_is_replaced_and_removed(posterior, rows):
    calibrated = posterior.calibrate(rows, "scale").calibrate(rows, "conformal")
    assert calibrated.calibrator.method == "conformal"
    assert len(calibrated.notes) == len(posterior.notes) + 1
    assert calibrated.uncalibrated().notes == posterior.notes
    x, y = rows
    updated = calibrated.update((x[:20], y[:20]))
    assert updated.calibrator is None
    assert not any(note.startswith("Calibrated") for note in updated.notes)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p, r: p.calibrate(r, "platt"), "`method` must be one of 'conformal', 'scale'"),
        (lambda p, r: p.calibrate(r, "temperature"), "'isotonic' for regression, got 'temp"),
        (lambda p, r: p.calibrate(r, groups="class"), "`groups` must be used with method="),
        (lambda p, r: p.calibrate(r, groups=[1, 2]), "`groups` must have one entry for each of"),
        (lambda p, r: p.calibrate(r, groups=r[0][:, 0]), "`groups` must hold whole numbers or"),
        (lambda p, r: p.calibrate(r, "scale", joint=True), "`joint` must be used with"),
        (lambda p, r: p.calibrate(r).predict(r[0], groups=r[1]), "`groups` must be left out"),
        (lambda p, r: p.predict(r[0], groups=r[1]), "`groups` must be left out"),
        (
            lambda p, r: p.calibrate(r, groups=np.arange(150) % 2).predict(r[0]),
            "`groups` must have the group of each row",
        ),
        (
            lambda p, r: p.calibrate(r, groups=np.arange(150) % 2).predict(r[0][:1], groups=[7]),
            "`groups` must hold only groups of the calibration rows, got the group 7",
        ),
    ],
)
def test_refusals(call, message, posterior, rows):
    with pytest.raises(ArgumentError, match=message):
        call(posterior, rows)


def test_a_scale_of_counts_is_refused():
    predictive = Fixed(stats.poisson(np.ones(5)), is_discrete=True)
    with pytest.raises(ArgumentError, match="`method` must be one that keeps observations in"):
        fit_calibrator(predictive, np.ones(5, int), "scale")
