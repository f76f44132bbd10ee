"""A posterior over a part of the network: other leaves are trained and frozen, or move along."""

import contextlib

import jax
import numpy as np
import problems
import pytest

import bayeslearn as bl

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 2))
Y = np.tanh(X @ [1.0, -2.0]) + 0.1 * rng.normal(size=60)
LAST = "layers.1.*"


def model(**options):
    return bl.Model(bl.networks.MLP([4]), bl.likelihoods.Gaussian(), **options)


def network_leaves(params):
    return jax.tree.leaves(params["network"])


@pytest.mark.parametrize("name", [n for n in problems.STEPPING if n not in ("map", "conjugate")])
def test_every_method_has_states_of_the_named_leaves_only(name, x64):
    partial = model(bayesian=LAST)
    target, params = partial.freeze(*partial.bind((X, Y), jax.random.key(0)))
    algorithm = problems.quick(name)

    def stepped(key):
        state = algorithm.init(key, target, params)
        state, _ = algorithm.step(key, target, state, target.data)
        if algorithm.capabilities.is_sampler:
            return algorithm.position(state)
        return algorithm.approximation(target, state).mean

    shapes = [w.shape for w in network_leaves(jax.eval_shape(stepped, jax.random.key(0)))]
    assert shapes == [(1, 4), (1,)]


@pytest.mark.parametrize("name", ["map", "hmc", "laplace"])
def test_a_point_draws_and_a_gaussian_cover_the_named_leaves_only(name):
    algorithm = bl.ALGORITHMS[name]
    options = {"num_steps": 20}
    if algorithm.capabilities.is_sampler:
        options = {"num_chains": 2}
        algorithm = algorithm(num_warmup=20, num_samples=20)
    else:
        algorithm = algorithm()
    partial = model(bayesian=LAST)
    with pytest.warns() if algorithm.capabilities.is_sampler else contextlib.nullcontext():
        posterior = bl.fit(partial, algorithm, (X, Y), seed=0, **options)
    if name == "map":
        assert posterior.target.frozen is None
        return
    shapes = [w.shape for w in network_leaves(posterior.family.mean)]
    assert shapes == [(1, 4), (1,)]
    frozen = posterior.target.frozen["layers"]
    assert frozen[0].weight.shape == (4, 2)
    assert frozen[1].weight is None
    # Draws differ in what they say, the first layer does not.
    predictive = posterior.predict(X)
    assert np.all(np.isfinite(predictive.mean))
    assert np.all(np.isfinite(predictive.log_prob(Y)))
    assert predictive.epistemic.max() > 0


def test_frozen_leaves_give_the_conjugate_posterior_of_the_last_layer():
    """With the features frozen and the noise known, the last layer is a linear regression."""
    partial = bl.Model(
        bl.networks.MLP([4]), bl.likelihoods.Gaussian(noise_scale=0.3), bayesian=LAST
    )
    posterior = bl.fit(partial, bl.Laplace(), (X, Y), seed=0)
    first = posterior.target.frozen["layers"][0]
    features = np.tanh(X @ np.asarray(first.weight).T + np.asarray(first.bias))
    features = np.column_stack([features, np.ones(len(X))])
    prec = np.eye(5) + features.T @ features / 0.09
    mean = np.linalg.solve(prec, features.T @ Y / 0.09)
    np.testing.assert_allclose(posterior.family.prec_matrix(), prec, rtol=1e-4)
    # MAP is where the start is found, to its own tolerance.
    std = np.sqrt(np.diag(np.linalg.inv(prec)))
    np.testing.assert_allclose(posterior.family.mean_vector() / std, mean / std, atol=0.05)


def test_conjugate_takes_a_network_that_is_linear_in_its_bayesian_leaves():
    partial = bl.Model(
        bl.networks.MLP([4]), bl.likelihoods.Gaussian(noise_scale=0.3), bayesian=LAST
    )
    exact = bl.fit(partial, bl.Conjugate(), (X, Y), seed=0)
    laplace = bl.fit(partial, bl.Laplace(), (X, Y), seed=0)
    np.testing.assert_allclose(exact.family.prec_matrix(), laplace.family.prec_matrix(), rtol=1e-4)


def test_frozen_leaves_are_those_of_the_trained_network():
    """Other seeds of the method do not move them; they are not the network's first values."""
    partial = model(bayesian=LAST)
    posterior = bl.fit(partial, bl.BayesByBackprop(), (X, Y), seed=0, num_steps=10)
    _, start = partial.bind((X, Y), jax.random.key(0))
    moved = np.abs(
        np.asarray(posterior.target.frozen["layers"][0].weight)
        - np.asarray(start["network"]["layers"][0].weight)
    )
    assert moved.max() > 0.05
    steps = {phase.name: phase.num_steps for phase in posterior.phases}
    assert steps["main/frozen leaves"] == 7  # two thirds, as accuracy depends on them


def test_joint_points_move_and_the_bound_is_no_worse():
    frozen = bl.fit(model(bayesian=LAST), bl.BayesByBackprop(), (X, Y), seed=0, num_steps=600)
    along = bl.fit(
        model(bayesian=LAST, frozen="joint"), bl.BayesByBackprop(), (X, Y), seed=0, num_steps=600
    )
    before = np.asarray(frozen.target.frozen["layers"][0].weight)
    after = np.asarray(along.target.frozen["layers"][0].weight)
    assert np.abs(before - after).max() > 1e-3
    assert along.elbo > frozen.elbo - 0.5
    assert along.algorithm.name == "bayes-by-backprop"


@pytest.mark.parametrize("pattern", [["layers.1.weight", "layers.1.bias"], lambda n: "1." in n])
def test_patterns_and_functions_name_leaves(pattern):
    partial = model(bayesian=pattern)
    target, params = partial.bind((X, Y), jax.random.key(0))
    _, kept = partial.freeze(target, params)
    assert [w.shape for w in network_leaves(kept)] == [(1, 4), (1,)]


def test_a_prior_by_name_or_tree_goes_with_its_leaves():
    _, params = model().bind((X, Y), jax.random.key(0))
    scales = jax.tree.map(lambda w: 0.5 + w.ndim, params["network"])
    for scale in (scales, {"*.weight": 2.5, "*.bias": 1.5}):
        partial = model(prior=bl.priors.Normal(scale=scale), bayesian=LAST)
        target, params = partial.bind((X, Y), jax.random.key(0))
        target, _ = partial.freeze(target, params)
        found = [float(p) for p in jax.tree.leaves(target.prior.prec["network"])]
        np.testing.assert_allclose(found, [2.5**-2, 1.5**-2])


@pytest.mark.parametrize(
    ("options", "algorithm", "words"),
    [
        ({"bayesian": "nothing.*"}, bl.Laplace(), "`bayesian` must name at least one leaf"),
        ({"bayesian": LAST, "frozen": "joint"}, bl.HMC(), '`frozen` must be "train"'),
        ({"bayesian": LAST, "frozen": "joint"}, bl.Laplace(), '`frozen` must be "train"'),
    ],
)
def test_refusals(options, algorithm, words):
    with pytest.raises(bl.ArgumentError, match=words):
        bl.fit(model(**options), algorithm, (X, Y), seed=0)


def test_bad_arguments_are_refused():
    with pytest.raises(bl.ArgumentError, match="`frozen` must be"):
        model(frozen="thawed")
    with pytest.raises(bl.ArgumentError, match="`points` has moved"):
        model(points="joint")
    for odd in ([3], 3, ()):
        with pytest.raises(bl.ArgumentError, match="`bayesian` must be name patterns"):
            model(bayesian=odd)
