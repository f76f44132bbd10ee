"""Notes on runs that have learned nothing, or less than nothing."""

import numpy as np
import optax
import problems

import bayeslearn as bl

NOTHING, LOWER = "no better than one prediction", "ended below where it started"
rng = np.random.default_rng(0)
X = rng.normal(size=(80, 3))


def notes(likelihood, algorithm, y, x=X, **options):
    model = bl.Model(bl.networks.MLP([5]), likelihood)
    found = bl.fit(model, algorithm, (x, y), seed=0, **{"num_steps": 200} | options)
    return " ".join(found.notes)


def test_labels_that_are_noise_are_named():
    noise = rng.integers(0, 2, 80)
    assert NOTHING in notes(bl.likelihoods.Bernoulli(), bl.VOGN(), noise)
    assert NOTHING not in notes(bl.likelihoods.Bernoulli(), bl.VOGN(), (X[:, 0] > 0).astype(int))


def test_values_that_are_noise_are_named():
    """At most half of a nat per weight from the best constant, the price of uncertainty."""
    for likelihood in (bl.likelihoods.Gaussian(), bl.likelihoods.Gaussian(noise_scale=1.0)):
        assert NOTHING in notes(likelihood, bl.IVON(), rng.normal(size=80))
        assert NOTHING not in notes(likelihood, bl.IVON(), 3 * X[:, 0])


def test_a_linearised_network_is_not_judged_by_the_network_at_draws():
    """Which is noise where its linearisation predicts well."""
    x, y = problems.two_classes()
    model = bl.Model(bl.networks.MLP([50, 50]), bl.likelihoods.Bernoulli())
    options = {"seed": 0, "num_steps": 200}
    found = bl.fit(model, bl.Laplace(covariance="diagonal"), (x, y), **options)
    assert np.mean(np.argmax(found.predict(x).probs, axis=1) == y) > 0.8
    assert NOTHING not in " ".join(found.notes)
    sampled = bl.Laplace(covariance="diagonal", predictive="sampled")
    assert NOTHING in " ".join(bl.fit(model, sampled, (x, y), **options).notes)


def test_a_run_that_ends_below_its_start_says_so():
    """From a good start with steps that are too long, and none to go back to."""
    x, y = problems.wiggle()
    model = bl.Model(bl.networks.MLP([8]), bl.likelihoods.Gaussian(noise_scale=0.2))
    good = bl.fit(model, bl.MAP(), (x, y), seed=0, num_steps=2000)
    options = {"seed": 0, "num_steps": 200, "init": good.family.mean}
    wild = bl.MAP(optimizer=optax.adam(0.5))
    worse = bl.fit(model, wild, (x, y), **options)
    assert LOWER in " ".join(worse.notes)
    better = bl.fit(model, bl.MAP(learning_rate=1e-4), (x, y), **options)
    assert LOWER not in " ".join(better.notes)
