"""Model pieces: likelihoods and priors against SciPy, scaling, adapters, networks."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from scipy import stats

import bayeslearn as bl
from bayeslearn import tree
from bayeslearn.data.rows import Batch
from bayeslearn.errors import ArgumentError
from bayeslearn.models.networks import as_network
from bayeslearn.precision import user_precision

X = np.random.default_rng(0).normal(size=(6, 3))
Y = np.random.default_rng(1).normal(size=6)
PARAMS = {"layers": [{"weight": jnp.ones((2, 3)), "bias": jnp.ones(2)}, {"weight": jnp.ones(2)}]}


def bind(likelihood, y, **options):
    network = bl.networks.MLP([], use_bias=False)
    model = bl.Model(network, likelihood, dtype="float64", **options)
    return model.bind((X, y), jax.random.key(0))


def outputs_of(params):
    (weight,) = jax.tree.leaves(params["network"])
    return X @ np.asarray(weight).T


# Likelihoods


def test_gaussian_log_prob(x64):
    target, params = bind(bl.likelihoods.Gaussian(noise_scale=0.3), Y)
    assert params["likelihood"] == {}
    wanted = stats.norm.logpdf(Y, outputs_of(params)[:, 0], 0.3)
    np.testing.assert_allclose(target.log_likelihood(params), wanted, rtol=1e-10)


def test_gaussian_learns_one_noise_scale_per_column(x64):
    y = np.stack([Y, 10 * Y], axis=1)
    target, params = bind(bl.likelihoods.Gaussian(noise_prior_scale=0.5), y)
    log_noise = params["likelihood"]["log_noise_scale"]
    np.testing.assert_allclose(log_noise, np.log(y.std(axis=0)), rtol=1e-12)
    moved = params | {"likelihood": {"log_noise_scale": log_noise + jnp.array([0.4, -0.2])}}
    scale = y.std(axis=0) * np.exp([0.4, -0.2])
    wanted = stats.norm.logpdf(y, outputs_of(params), scale).sum(axis=1)
    np.testing.assert_allclose(target.log_likelihood(moved), wanted, rtol=1e-10)
    own = target.log_prior_terms(moved)["likelihood"]["log_noise_scale"]
    np.testing.assert_allclose(own, stats.norm.logpdf([0.4, -0.2], 0, 0.5).sum(), rtol=1e-10)


def test_known_noise_may_differ_by_column(x64):
    y = np.stack([Y, Y], axis=1)
    target, params = bind(bl.likelihoods.Gaussian(noise_scale=[0.3, 2.0]), y)
    wanted = stats.norm.logpdf(y, outputs_of(params), [0.3, 2.0]).sum(axis=1)
    np.testing.assert_allclose(target.log_likelihood(params), wanted, rtol=1e-10)
    with pytest.raises(ArgumentError, match=r"`noise_scale` must be one number or 1 .*got \[0.3"):
        bind(bl.likelihoods.Gaussian(noise_scale=[0.3, 2.0]), Y)


def test_bernoulli_and_categorical_log_prob(x64):
    labels = np.arange(6) % 2
    target, params = bind(bl.likelihoods.Bernoulli(), labels)
    chance = 1 / (1 + np.exp(-outputs_of(params)[:, 0]))
    wanted = stats.bernoulli.logpmf(labels, chance)
    np.testing.assert_allclose(target.log_likelihood(params), wanted, rtol=1e-10)

    labels = np.arange(6) % 3
    target, params = bind(bl.likelihoods.Categorical(), labels)
    assert target.likelihood.num_classes == 3
    logits = outputs_of(params)
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    wanted = np.log(probs[np.arange(6), labels])
    np.testing.assert_allclose(target.log_likelihood(params), wanted, rtol=1e-10)


@pytest.mark.parametrize("likelihood", [bl.likelihoods.Bernoulli(), bl.likelihoods.Categorical(2)])
def test_extreme_logits_stay_finite(x64, likelihood):
    big = jnp.array([800.0]) if likelihood.num_outputs == 1 else jnp.array([0.0, 800.0])
    found = [float(likelihood.log_prob(big, y, {})) for y in (0, 1)]
    np.testing.assert_allclose(found, [-800.0, 0.0], atol=1e-10)


# Scaling


def test_minibatches_are_scaled_to_the_whole_and_the_prior_is_not(x64):
    target, params = bind(bl.likelihoods.Gaussian(noise_scale=0.3), Y)
    terms = target.log_likelihood(params)
    full = float(target.scaled_log_likelihood(params))
    np.testing.assert_allclose(full, terms.sum(), rtol=1e-12)
    half = Batch(target.data.x[:3], target.data.y[:3])
    np.testing.assert_allclose(
        target.scaled_log_likelihood(params, half), 2.0 * terms[:3].sum(), rtol=1e-12
    )
    prior = float(target.log_prior(params))
    np.testing.assert_allclose(target.log_joint(params), full + prior, rtol=1e-12)
    np.testing.assert_allclose(
        target.log_joint(params, half), 2.0 * terms[:3].sum() + prior, rtol=1e-12
    )
    padded = target.batch((np.repeat(X[:1], 4, 0), np.repeat(Y[:1, None], 4, 0)), [1, 1, 0, 0])
    np.testing.assert_allclose(
        target.scaled_log_likelihood(params, padded), 6.0 * terms[0], rtol=1e-12
    )


def test_num_data_may_be_larger_than_the_rows_at_hand(x64):
    model = bl.Model(bl.networks.MLP([]), bl.likelihoods.Gaussian(0.3))
    target, params = model.bind((X, Y), jax.random.key(0), num_data=600)
    np.testing.assert_allclose(
        target.scaled_log_likelihood(params), 100 * target.log_likelihood(params).sum(), rtol=1e-10
    )


def test_padding_cannot_poison(x64):
    """A padding row beyond all bounds counts nothing."""
    target, params = bind(bl.likelihoods.Gaussian(noise_scale=0.3), Y)
    x = np.concatenate([X[:2], np.full((1, 3), 1e300)])
    batch = target.batch((x, np.array([[0.1], [0.2], [1e300]])), [1, 1, 0])
    found = target.log_likelihood(params, batch)
    assert np.all(np.isfinite(found))
    assert found[2] == 0.0
    assert target.scale(batch) == 3.0


# Priors


def test_log_prior_is_normalised(x64):
    prior = bl.priors.Normal(mean=0.5, scale=2.0).bind(PARAMS)
    w = jax.tree.map(lambda leaf: leaf * jnp.arange(leaf.size).reshape(leaf.shape), PARAMS)
    vector = np.asarray(tree.ravel(w), np.float64)
    np.testing.assert_allclose(
        prior.log_prob(w), stats.norm.logpdf(vector, 0.5, 2.0).sum(), rtol=1e-6
    )
    terms = prior.log_prob_terms(w)
    assert jax.tree.structure(terms) == jax.tree.structure(w)
    np.testing.assert_allclose(sum(jax.tree.leaves(terms)), prior.log_prob(w), rtol=1e-6)


def test_name_patterns_count_in_their_order(x64):
    scale = {"*.0.weight": 0.5, "*.weight": 2.0, "*": 10.0}
    prior = bl.priors.Normal(scale=scale).bind(PARAMS)
    first, last = prior.prec["layers"]
    assert float(first["weight"]) == 4.0
    assert float(last["weight"]) == 0.25
    assert float(first["bias"]) == pytest.approx(0.01)


def test_a_tree_gives_each_weight_its_own_scale(x64):
    scale = jax.tree.map(
        lambda leaf: 1.0 + jnp.arange(leaf.size, dtype=float).reshape(leaf.shape), PARAMS
    )
    prior = bl.priors.Normal(scale=scale).bind(PARAMS)
    mean, prec = prior.broadcast(PARAMS)
    np.testing.assert_allclose(prec["layers"][0]["weight"].ravel(), np.arange(1, 7) ** -2.0)
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(mean))
    vector, sd = np.ones(10), np.asarray(tree.ravel(scale))
    np.testing.assert_allclose(
        prior.log_prob(PARAMS), stats.norm.logpdf(vector, 0, sd).sum(), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scale": -1.0}, r"`scale` must be positive, got -1\.0\. It is a standard deviation"),
        ({"scale": 0.0}, "`scale` must be positive, got 0.0"),
        ({"scale": np.inf}, "`scale` must be finite, got inf"),
        ({"mean": np.nan}, "`mean` must be finite, got nan"),
        ({"scale": "wide"}, "`scale` must be a number.*got 'wide'"),
        ({"scale": {}}, r"`scale` must hold at least one number, got \{\}"),
        ({"scale": {"*.weight": -2.0}}, "`scale` must be positive, got -2.0"),
    ],
)
def test_bad_priors(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        bl.priors.Normal(**arguments)


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        ({"*.weight": 1.0}, r"cover every leaf.*'layers.0.bias'.*Add \"\*\" as the last pattern"),
        ([1.0, 2.0], "`scale` must be a number, a mapping of name patterns, or a tree like"),
        ({"*": np.ones(5)}, r"`scale` must fit \(2,\), got shape \(5,\) for layers.0.bias"),
    ],
)
def test_priors_that_do_not_fit_the_network(scale, message):
    with pytest.raises(ArgumentError, match=message):
        bl.priors.Normal(scale=scale).bind(PARAMS)


# Bare densities


@pytest.mark.parametrize(
    "start", [jnp.ones(3), {"a": jnp.ones(2), "b": jnp.ones(())}, (jnp.ones(1), [jnp.ones(2)])]
)
def test_any_density_of_any_pytree(start):
    def log_density(w):
        return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(w))

    target = bl.Target.from_log_density(log_density, start)
    assert target.is_density
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(target.start))
    posterior = bl.fit(target, "map", seed=0, num_steps=300)
    assert jax.tree.structure(posterior.family.mean) == jax.tree.structure(start)
    assert np.all(np.abs(posterior.family.mean_vector()) < 0.1)


def test_bad_densities():
    with pytest.raises(ArgumentError, match="`log_density` must return one number"):
        bl.Target.from_log_density(lambda w: w, jnp.ones(3))
    with pytest.raises(ArgumentError, match="`log_density` must be a function"):
        bl.Target.from_log_density(3.0, jnp.ones(3))
    with pytest.raises(ArgumentError, match="`params` must hold floating-point arrays only"):
        bl.Target.from_log_density(jnp.sum, jnp.arange(3))
    with pytest.raises(ArgumentError, match="`params` must be finite, got NaN"):
        bl.Target.from_log_density(jnp.sum, jnp.full(3, jnp.nan))
    posterior = bl.fit(bl.Target.from_log_density(lambda w: -(w**2), jnp.ones(())), "map", seed=0)
    with pytest.raises(ArgumentError, match="bare log-density has no predictions"):
        posterior.predict(X)


# Networks


def test_mlp_shapes_names_and_activations():
    network = bl.networks.MLP([4, 2], activation="relu")
    params = network.init(jax.random.key(0), X[0], 3)
    assert tree.leaf_names({"network": params}) == [
        f"network.layers.{i}.{kind}" for i in range(3) for kind in ("weight", "bias")
    ]
    assert [leaf.shape for leaf in jax.tree.leaves(params)] == [
        (4, 3),
        (4,),
        (2, 4),
        (2,),
        (3, 2),
        (3,),
    ]
    h = X[0].astype(np.float32)
    for i, layer in enumerate(params["layers"]):
        h = np.asarray(layer.weight) @ h + np.asarray(layer.bias)
        h = h if i == 2 else np.maximum(h, 0)
    np.testing.assert_allclose(network.apply(params, X[0]), h, rtol=1e-5)


@pytest.mark.parametrize("activation", ["tanh", "gelu", "sin", jnp.cos, lambda v: v**2])
def test_any_activation(activation):
    network = bl.networks.MLP(4, activation=activation)
    params = network.init(jax.random.key(0), X[0], 1)
    linear, last = params["layers"]
    function = activation if callable(activation) else getattr(jax.nn, activation, None)
    hidden = (function or getattr(jnp, str(activation)))(linear(X[0]))
    np.testing.assert_allclose(network.apply(params, X[0]), last(hidden), rtol=1e-6)


def test_inputs_of_any_shape_are_flattened():
    network = bl.networks.MLP([2])
    params = network.init(jax.random.key(0), np.ones((4, 5)), 1)
    assert params["layers"][0].weight.shape == (2, 20)
    assert network.apply(params, np.ones((4, 5))).shape == (1,)


class Noisy(eqx.Module):
    """A module of a user's, that takes a key and has a part that is no weight."""

    linear: eqx.nn.Linear
    offset: int
    name: str

    def __call__(self, x, *, key=None):
        noise = 0.0 if key is None else jax.random.normal(key)
        return self.linear(x) + self.offset + noise


def test_equinox_modules_with_and_without_a_key():
    module = Noisy(eqx.nn.Linear(3, 1, key=jax.random.key(0)), 2, "mine")
    network = as_network(module)
    params = network.init(jax.random.key(1), X[0], 1)
    assert len(jax.tree.leaves(params)) == 2
    np.testing.assert_allclose(network.apply(params, X[0]), module(X[0]), rtol=1e-6)
    key = jax.random.key(2)
    np.testing.assert_allclose(network.apply(params, X[0], key), module(X[0], key=key), rtol=1e-6)
    plain = as_network(eqx.nn.Linear(3, 1, key=jax.random.key(0)))
    params = plain.init(jax.random.key(1), X[0], 1)
    assert plain.apply(params, X[0], key).shape == (1,)


def test_pairs_of_functions_take_what_they_ask_for():
    def no_arguments():
        return {"w": jnp.ones(3)}

    def everything(key, x, num_outputs):
        return {"w": jnp.full(x.shape, float(num_outputs))}

    def apply(params, x):
        return params["w"] @ x

    def apply_with_key(params, x, key):
        return params["w"] @ x + (0.0 if key is None else 1.0)

    key = jax.random.key(0)
    for init, value in (
        (no_arguments, 1.0),
        (everything, 5.0),
        (lambda key: {"w": jnp.ones(3)}, 1),
    ):
        network = as_network((init, apply))
        assert float(network.init(key, X[0], 5)["w"][0]) == value
    with_key = as_network((no_arguments, apply_with_key))
    params = with_key.init(key, X[0], 1)
    without = float(with_key.apply(params, X[0]))
    assert float(with_key.apply(params, X[0], key)) == pytest.approx(without + 1.0)
    assert float(network.apply(params, X[0], key)) == pytest.approx(without)


def test_a_users_own_equinox_network_is_fitted_from_where_it_stands():
    x, y = problems.wiggle()
    module = eqx.nn.MLP(1, "scalar", 5, 1, activation=jnp.tanh, key=jax.random.key(3))
    model = bl.Model(module, bl.likelihoods.Gaussian())
    _, start = model.bind((x, y), jax.random.key(0))
    for ours, theirs in zip(
        jax.tree.leaves(start["network"]),
        jax.tree.leaves(eqx.filter(module, eqx.is_inexact_array)),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)
    posterior = bl.fit(model, "map", (x, y), seed=0, num_steps=300)
    assert posterior.trace["log_joint"][-1] > posterior.trace["log_joint"][0] + 1.0
    row = posterior.predict(x[:2])
    trained = eqx.combine(posterior.family.mean["network"], module)
    np.testing.assert_allclose(row.mean, jax.vmap(trained)(jnp.asarray(x[:2])), rtol=1e-4)
    names = [part["name"] for part in posterior.summary()]
    assert "network.layers.0.weight" in names
    assert "likelihood.log_noise_scale" in names


def test_a_float64_model_computes_in_float64():
    seen = []

    def apply(params, x):
        seen.append((params["w"].dtype, x.dtype))
        return params["w"] @ x

    def init(key, x):
        return {"w": jnp.zeros(x.shape)}

    model = bl.Model((init, apply), bl.likelihoods.Gaussian(0.5), dtype="float64")
    posterior = bl.fit(model, "map", (X, Y), seed=0, num_steps=20)
    posterior.predict(X).mean
    assert {str(dtype) for pair in seen for dtype in pair} == {"float64"}
    assert posterior.family.mean["network"]["w"].dtype == np.float64


def test_network_is_initialised_in_the_users_precision():
    with user_precision():
        assert not jax.config.jax_enable_x64
    model = bl.Model(bl.networks.MLP([2]), bl.likelihoods.Gaussian())
    _, params = model.bind((X, Y), jax.random.key(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(params["network"])} == {np.dtype(np.float32)}
