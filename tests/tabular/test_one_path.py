"""Estimators do what `fit` does: the same posterior, from the rows they were given alone."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn.data.scaling import RankScaling, Scaling
from bayeslearn.results import metrics

ROWS = 21  # not a multiple of 16: it would be padded
RNG = np.random.default_rng(5)
X = 100.0 + 30.0 * RNG.normal(size=(ROWS, 2))
Y = 7.0 + 0.2 * X[:, 0] - 0.1 * X[:, 1] + 2.0 * RNG.normal(size=ROWS)
COUNTS = np.arange(ROWS) % 3 + 1
REPEATED = np.repeat(X, COUNTS, axis=0), np.repeat(Y, COUNTS)
EXACT = {"method": "conjugate", "hidden": (), "noise": 2.0, "prior_scale": 1.0}
TRAINED = EXACT | {"method": "map", "hidden": (3,), "num_steps": 40}


def estimator(**settings):
    return bl.BayesianNNRegressor(random_state=0, **settings)


def model(hidden, scale):
    """That of an estimator with these settings, for rows that are scaled."""
    return bl.Model(
        bl.networks.MLP(hidden),
        bl.likelihoods.Gaussian(noise_scale=2.0 / scale),
        bl.priors.Normal.fan_in(1.0),
    )


@pytest.fixture(scope="module")
def exact():
    """An estimator of repeated rows, whose run merges and pads them."""
    return estimator(**EXACT).fit(*REPEATED)


def test_an_estimator_is_fit_of_the_scaled_rows():
    """Bit for bit; its posterior speaks of the data in their units."""
    fitted = estimator(**TRAINED).fit(*REPEATED)
    posterior = fitted.posterior_
    ones = np.ones(len(REPEATED[1]))
    scalings = RankScaling.of(REPEATED[0], ones), Scaling.of(REPEATED[1], ones)
    x, y = (scaling.apply(part) for scaling, part in zip(scalings, REPEATED, strict=True))
    same = bl.fit(
        model((3,), scalings[1].scale),
        "map",
        (x, y),
        seed=posterior.seed,
        num_steps=40,
        options=bl.FitOptions(merge_rows=True),
    )
    for ours, theirs in zip(*map(jax.tree.leaves, (posterior.family, same.family)), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(posterior.trace["log_joint"], same.trace["log_joint"])
    mean = scalings[1].undo(same.in_double_precision().predict(x).mean)
    np.testing.assert_allclose(fitted.predict(REPEATED[0]), mean, rtol=1e-12)


def test_the_posterior_takes_rows_in_their_units(exact):
    """Raw X, without the estimator: not nonsense in silence."""
    posterior = exact.posterior_
    predictive = posterior.predict(X, num_samples=exact.num_samples, seed=posterior.seed)
    np.testing.assert_allclose(predictive.mean, exact.predict(X), rtol=1e-5)
    np.testing.assert_allclose(predictive.std, exact.predictive(X).std, rtol=1e-5)
    assert np.abs(predictive.mean - Y).mean() < 4.0
    assert float(posterior.target.num_data) == COUNTS.sum()


def test_leave_one_out_has_every_observation_once(exact):
    """That of `fit` to rows that were neither merged nor padded, in the units of y."""
    found, scaling = metrics.loo(exact.posterior_), exact.posterior_.scaling
    rows = scaling.apply(*REPEATED)
    plain = bl.fit(model((), scaling.y.scale), "conjugate", rows, seed=exact.posterior_.seed)
    expected = metrics.loo(plain).elpd_i - np.log(scaling.y.scale)
    assert found.elpd_i.shape == (COUNTS.sum(),)
    np.testing.assert_allclose(np.sort(found.elpd_i), np.sort(expected), rtol=1e-4)


def test_predictive_checks_see_the_observations(exact):
    seen = []

    def statistic(values):
        seen.append(values)
        return values.max()

    metrics.posterior_predictive_check(exact.posterior_, statistic, num_samples=2)
    np.testing.assert_allclose(np.sort(seen[0]), np.sort(REPEATED[1]), rtol=1e-6)
    assert seen[1].shape == seen[0].shape


def test_arviz_gets_the_observations(exact):
    data = exact.posterior_.to_arviz(num_samples=8)
    np.testing.assert_allclose(
        np.sort(np.asarray(data.observed_data["y"])), np.sort(REPEATED[1]), rtol=1e-6
    )
    assert np.asarray(data.log_likelihood["y"]).shape == (1, 8, COUNTS.sum())


@pytest.fixture(scope="module")
def held_out():
    """An estimator with weights and rows held out, and those rows in the units of the data."""
    validated = []
    with pytest.MonkeyPatch.context() as patch:
        fit = bl.fit

        def watch(*arguments, **options):
            validated.append((arguments[2], options["validation"]))
            return fit(*arguments, **options)

        patch.setattr("bayeslearn.tabular.base.fit", watch)
        settings = TRAINED | {"validation_fraction": 0.5}
        fitted = estimator(**settings).fit(X, Y, sample_weight=COUNTS)
    (train, validation) = validated[0]
    scaling = fitted.posterior_.scaling
    undo = lambda rows: (scaling.x.undo(rows[0]), scaling.y.undo(rows[1]), rows[2])  # noqa: E731
    return fitted, undo(train), undo(validation)


def test_rows_held_out_are_themselves_with_their_weights(held_out):
    """No copies of the last row, and every row on one side."""
    _, train, validation = held_out
    assert len(validation[1]) > 5
    together = [np.concatenate(parts) for parts in zip(train, validation, strict=True)]
    order, given = np.argsort(together[1]), np.argsort(Y)
    np.testing.assert_allclose(together[1][order], Y[given], rtol=1e-9)
    np.testing.assert_array_equal(together[2][order], COUNTS[given])


def test_scaling_does_not_see_rows_held_out(held_out):
    fitted, (x, y, weight), _ = held_out
    scaling = fitted.posterior_.scaling
    assert scaling.y.mean == pytest.approx(np.average(y, weights=weight), rel=1e-9)
    np.testing.assert_allclose(scaling.x.mean, np.average(x, axis=0, weights=weight), rtol=1e-9)
    assert abs(scaling.y.mean - np.average(Y, weights=COUNTS)) > 0.01
    assert float(fitted.posterior_.target.num_data) == weight.sum()


def test_the_score_that_stops_is_that_of_the_observations_held_out(held_out):
    fitted, _, (x, y, weight) = held_out
    posterior = fitted.posterior_
    terms = posterior.predict(x).log_prob(y) + np.log(posterior.scaling.y.scale)
    scores = posterior.trace["eval_validation"]
    assert np.abs(scores - np.average(terms, weights=weight)).min() < 1e-5
    assert np.abs(scores - terms.mean()).min() > 1e-3
