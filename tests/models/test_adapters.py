"""A user's own network: the framework's numbers, weights that stay, refusals."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("KERAS_BACKEND", "jax")  # read when Keras is imported, below

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn import tree
from bayeslearn.errors import ArgumentError
from bayeslearn.models.networks import as_network

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 3)).astype(np.float32)
Y = np.sin(X[:, 0]) + 0.1 * RNG.normal(size=24)
IMAGES = RNG.normal(size=(12, 4, 4, 1)).astype(np.float32)
LABELS = np.arange(12) % 3


class Given(NamedTuple):
    """What a user has: the network, the framework's own forward pass, its weights."""

    network: Any
    forward: Callable[[Any], Any]
    weights: list[Any]


def equinox_mlp() -> Given:
    module = eqx.nn.MLP(3, 1, 4, 1, activation=jnp.tanh, key=jax.random.key(3))
    weights = jax.tree.leaves(eqx.filter(module, eqx.is_inexact_array))
    return Given(module, jax.vmap(module), weights)


def nnx_mlp() -> Given:
    nnx = pytest.importorskip("flax.nnx")
    rngs = nnx.Rngs(0)
    module = nnx.Sequential(nnx.Linear(3, 4, rngs=rngs), nnx.tanh, nnx.Linear(4, 1, rngs=rngs))
    return Given(module, module, jax.tree.leaves(nnx.state(module, nnx.Param)))


def linen_mlp() -> Given:
    nn = pytest.importorskip("flax.linen")
    module = nn.Sequential([nn.Dense(4), nn.tanh, nn.Dense(1)])
    variables = module.init(jax.random.key(1), X[:1])
    return Given((module, variables), module.bind(variables), jax.tree.leaves(variables))


def set_weights(model: Any) -> None:
    """The same weights in every run: Keras draws its own from a seed of its own."""
    rng = np.random.default_rng(7)
    for variable in model.trainable_variables:
        variable.assign(0.5 * rng.normal(size=variable.shape))


def keras_mlp() -> Given:
    keras = pytest.importorskip("keras")
    layers = [keras.layers.Dense(4, activation="tanh", name="a"), keras.layers.Dense(1, name="b")]
    model = keras.Sequential([keras.Input((3,)), *layers])
    set_weights(model)
    weights = {v.path: v.value for v in model.trainable_variables}
    return Given(model, model, [weights[path] for path in sorted(weights)])


def nnx_cnn() -> Given:
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.conv = nnx.Conv(1, 2, (3, 3), rngs=rngs)
            self.norm = nnx.BatchNorm(2, momentum=0.5, rngs=rngs)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)
            self.out = nnx.Linear(32, 3, rngs=rngs)

        def __call__(self, x):
            x = nnx.relu(self.norm(self.conv(x)))
            return self.out(self.dropout(x).reshape(len(x), -1))

    module = Net(nnx.Rngs(0))
    module(1.0 + 2.0 * IMAGES)
    used = nnx.clone(module)
    used.eval()
    return Given(module, used, jax.tree.leaves(nnx.state(module, nnx.Param)))


def linen_cnn() -> Given:
    nn = pytest.importorskip("flax.linen")

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train: bool):
            x = nn.Conv(2, (3, 3))(x)
            x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.5)(x))
            x = nn.Dropout(0.5, deterministic=not train)(x)
            return nn.Dense(3)(x.reshape(len(x), -1))

    module = Net()
    variables = module.init(jax.random.key(1), IMAGES, train=False)
    _, moved = module.apply(
        variables,
        1.0 + 2.0 * IMAGES,
        train=True,
        mutable=["batch_stats"],
        rngs={"dropout": jax.random.key(2)},
    )
    variables = {**variables, **moved}
    forward = functools.partial(module.apply, variables, train=False)
    return Given((module, variables), forward, jax.tree.leaves(variables["params"]))


def keras_cnn() -> Given:
    keras = pytest.importorskip("keras")
    model = keras.Sequential(
        [
            keras.Input((4, 4, 1)),
            keras.layers.Conv2D(2, 3, padding="same", name="conv"),
            keras.layers.BatchNormalization(momentum=0.5, name="norm"),
            keras.layers.ReLU(),
            keras.layers.Dropout(0.5),
            keras.layers.Flatten(),
            keras.layers.Dense(3, name="out"),
        ]
    )
    set_weights(model)
    model(1.0 + 2.0 * IMAGES, training=True)
    weights = {v.path: v.value for v in model.trainable_variables}
    return Given(
        model,
        functools.partial(model, training=False),
        [weights[path] for path in sorted(weights)],
    )


MAKERS = {
    "equinox mlp": equinox_mlp,
    "nnx mlp": nnx_mlp,
    "linen mlp": linen_mlp,
    "keras mlp": keras_mlp,
    "nnx cnn": nnx_cnn,
    "linen cnn": linen_cnn,
    "keras cnn": keras_cnn,
}
MLPS = [name for name in MAKERS if name.endswith("mlp")]
CNNS = [name for name in MAKERS if name.endswith("cnn")]


@functools.cache
def given(name: str) -> Given:
    return MAKERS[name]()


def data(name: str) -> tuple[Any, Any]:
    return (X, Y) if name in MLPS else (IMAGES, LABELS)


@functools.cache
def model(name: str) -> bl.Model:
    likelihood = bl.likelihoods.Gaussian() if name in MLPS else bl.likelihoods.Categorical()
    return bl.Model(given(name).network, likelihood)


@jax.jit
def outputs(target: bl.Target, params: Any) -> Any:
    return target.outputs(params, target.data.x)


# The same numbers


@pytest.mark.parametrize("name", MAKERS)
def test_the_frameworks_own_outputs_from_its_own_weights(name):
    """float32 sums of at most 32 terms of order one: 1e-6 is a few roundings."""
    x, y = data(name)
    target, start = model(name).bind((x, y), jax.random.key(0))
    theirs = given(name)
    for ours, wanted in zip(jax.tree.leaves(start["network"]), theirs.weights, strict=True):
        np.testing.assert_array_equal(ours, wanted)
    with jax.enable_x64(True):
        found = outputs(target, start)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, theirs.forward(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CNNS)
def test_batch_statistics_are_those_of_training(name):
    """They are no weights, and have moved from 0 and 1, so that the test above means something."""
    network = as_network(given(name).network)
    assert len(given(name).weights) == 6
    frozen = [leaf for leaf in jax.tree.leaves(network.frozen) if leaf.shape == (2,)]
    floats = [np.asarray(leaf) for leaf in frozen if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert len(floats) == 2
    mean, var = floats
    assert np.max(np.abs(mean)) > 0.01
    assert np.max(np.abs(var - 1.0)) > 0.01


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("equinox mlp", "layers.0.weight"),
        ("nnx mlp", "layers.0.kernel"),
        ("linen mlp", "layers_0.kernel"),
        ("keras mlp", "a.kernel"),
    ],
)
def test_leaves_have_the_frameworks_names(name, wanted):
    names = tree.leaf_names(as_network(given(name).network).weights)
    assert len(names) == 4
    assert wanted in names


# Fitting


@pytest.mark.parametrize("name", ["nnx mlp", "linen mlp", "keras mlp"])
def test_fit_predict_and_fit_again_without_compiling(name, compiles):
    posterior = bl.fit(model(name), bl.VOGN(), data(name), seed=0, num_steps=30)
    predictive = posterior.predict(X)
    assert predictive.mean.shape == (24,)
    assert np.all(predictive.epistemic > 0)
    with compiles() as seen:
        again = bl.Model(given(name).network, bl.likelihoods.Gaussian())
        again = bl.fit(again, bl.VOGN(), data(name), seed=0, num_steps=30)
    assert seen == []
    np.testing.assert_array_equal(again.family.mean_vector(), posterior.family.mean_vector())


def test_hmc_takes_a_network_of_a_framework():
    name = "nnx mlp"
    algorithm = bl.HMC(num_warmup=30, num_samples=20, max_leapfrog=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bl.MixingWarning)
        posterior = bl.fit(model(name), algorithm, data(name), seed=0, num_chains=2)
    error = np.mean((posterior.predict(X).mean - Y) ** 2)
    assert error < np.var(Y)


def test_images_are_fitted_with_batch_statistics_frozen():
    name = "linen cnn"
    posterior = bl.fit(model(name), bl.BayesByBackprop(), data(name), seed=0, num_steps=20)
    probs = posterior.predict(IMAGES).mean
    np.testing.assert_allclose(np.sum(probs, axis=1), 1.0, rtol=1e-6)
    assert np.mean(np.argmax(probs, axis=1) == LABELS) > 1 / 3
    before = jax.tree.leaves(as_network(given(name).network).frozen)
    after = jax.tree.leaves(posterior.target.network.frozen)
    assert before
    for one, other in zip(before, after, strict=True):
        assert jnp.array_equal(one, other)


# What is special to one framework


def test_equinox_dropout_is_off_without_a_key():
    module = eqx.nn.Sequential(
        [eqx.nn.Linear(3, 1, key=jax.random.key(0)), eqx.nn.Dropout(0.5), eqx.nn.Identity()]
    )
    network = as_network(module)
    wanted = eqx.nn.inference_mode(module)(X[0])
    np.testing.assert_array_equal(network.apply(network.weights, X[0]), wanted)
    drawn = [network.apply(network.weights, X[0], jax.random.key(i)) for i in range(20)]
    assert any(float(value[0]) == 0.0 for value in drawn)


def test_nnx_attention_on_whole_numbers():
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(5, 4, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(
                num_heads=2, in_features=4, decode=False, rngs=rngs
            )
            self.out = nnx.Linear(4, 1, rngs=rngs)

        def __call__(self, tokens, deterministic):
            h = self.embed(tokens)
            return self.out(jnp.mean(self.attention(h, deterministic=deterministic), axis=1))

    module = Net(nnx.Rngs(0))
    tokens = np.arange(72).reshape(24, 3) % 5
    own = bl.Model(module, bl.likelihoods.Gaussian(0.3))
    target, start = own.bind((tokens, Y), jax.random.key(0))
    with jax.enable_x64(True):
        found = outputs(target, start)
        slope = jax.jit(lambda target: jax.grad(target.log_joint)(start))(target)
    np.testing.assert_allclose(found, module(tokens, True), rtol=1e-6, atol=1e-6)
    assert np.any(slope["network"]["embed"]["embedding"] != 0.0)


def test_nnx_weights_shared_or_beside_settings():
    """A weight used twice is one weight; settings that have no hash are no hindrance."""
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(3, 3, rngs=rngs)
            self.again = self.first
            self.settings = {"sizes": "unhashable"}

        def __call__(self, x):
            return self.again(jnp.tanh(self.first(x)))

    module = Net(nnx.Rngs(0))
    network = as_network(module)
    assert tree.leaf_names(network.weights) == ["again.bias", "again.kernel"]
    apply = jax.jit(lambda network, x: network.apply(network.weights, x))
    np.testing.assert_allclose(apply(network, X[0]), module(X[:1])[0], rtol=1e-5, atol=1e-6)


def test_nnx_training_afterwards_leaves_the_model_alone():
    nnx = pytest.importorskip("flax.nnx")
    module = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    network = as_network(module)
    before = np.array(module.kernel[...])
    module.kernel[...] = jnp.zeros((3, 1))
    np.testing.assert_array_equal(network.init(None, X[0], 1)["kernel"], before)


def test_linen_alone_is_initialised_and_bound_keeps_its_variables():
    nn = pytest.importorskip("flax.linen")
    module = nn.Dense(1)
    key = jax.random.key(5)
    alone = as_network(module)
    np.testing.assert_array_equal(
        alone.init(key, X[0], 1)["kernel"], module.init(key, X[:1])["params"]["kernel"]
    )
    variables = {"params": {"kernel": np.ones((3, 1)), "bias": np.zeros(1)}}
    bound = as_network(module.bind(variables))
    params = bound.init(key, X[0], 1)
    np.testing.assert_array_equal(params["kernel"], np.ones((3, 1)))
    np.testing.assert_allclose(bound.apply(params, X[0]), X[0].sum(keepdims=True), rtol=1e-6)


def test_keras_layers_that_are_not_trainable_are_frozen():
    keras = pytest.importorskip("keras")
    own = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(4, name="a"), keras.layers.Dense(1, name="b")]
    )
    own.layers[0].trainable = False
    network = as_network(own)
    assert sorted(network.weights) == ["b.bias", "b.kernel"]
    found = network.apply(network.weights, X[0])
    np.testing.assert_allclose(found, own(X[:1])[0], rtol=1e-6, atol=1e-6)


def test_parameters_with_a_function_start_there():
    params = {"w": np.arange(3.0), "b": 0.5}

    def apply(params, x):
        return params["w"] @ x + params["b"]

    own = bl.Model((params, apply), bl.likelihoods.Gaussian())
    target, start = own.bind((X, Y), jax.random.key(0))
    np.testing.assert_array_equal(start["network"]["w"], params["w"])
    with jax.enable_x64(True):
        found = outputs(target, start)
    np.testing.assert_allclose(found[:, 0], X @ params["w"] + 0.5, rtol=1e-5, atol=1e-6)


def test_an_equinox_module_may_be_the_parameters_of_a_function():
    module = eqx.nn.Linear(3, 1, key=jax.random.key(0))
    network = as_network((module, lambda module, x: 2 * module(x)))
    found = network.apply(network.init(jax.random.key(1), X[0], 1), X[0])
    np.testing.assert_allclose(found, 2 * module(X[0]), rtol=1e-6)


# Refusals


def no_linen_state():
    nn = pytest.importorskip("flax.linen")
    return nn.Sequential([nn.BatchNorm(use_running_average=True), nn.Dense(1)])


def linen_params_alone():
    nn = pytest.importorskip("flax.linen")
    return nn.Dense(1), {"kernel": np.ones((3, 1)), "bias": np.zeros(1)}


def unbuilt_keras():
    keras = pytest.importorskip("keras")
    return keras.Sequential([keras.layers.Dense(1)], name="mine")


def keras_names_twice():
    keras = pytest.importorskip("keras")

    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.a = keras.layers.Dense(3, name="same")
            self.b = keras.layers.Dense(1, name="same")

        def call(self, x):
            return self.b(self.a(x))

    own = Net()
    own(X[:1])
    return own


def two_outputs():
    nnx = pytest.importorskip("flax.nnx")
    return nnx.Linear(3, 2, rngs=nnx.Rngs(0))


def other_inputs():
    nnx = pytest.importorskip("flax.nnx")
    return nnx.Linear(7, 1, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (no_linen_state, r"come with its state.*batch_stats and no values.*\(module, variables\)"),
        (linen_params_alone, r'have a part "params".*got a Linen module with.*Write \(module, var'),
        (unbuilt_keras, r"has its weights, got the unbuilt model 'mine'. Call it once"),
        (keras_names_twice, r"one name for each weight, got same.bias, same.kernel more than once"),
        (two_outputs, r"give 1 output\(s\) for one example.*got outputs of shape \(2,\)"),
        (other_inputs, r"accept one example of shape \(3,\), but it failed"),
        (lambda: jnp.tanh, r"got a .*A function alone has no initial parameters"),
        (lambda: "mlp", r"a pair \(params, apply\) or \(init, apply\), got a str\.$"),
        (lambda: ({"w": jnp.tanh}, jnp.dot), "have arrays only as parameters"),
        (lambda: (1.0, 2.0, 3.0), "got a tuple"),
    ],
)
def test_refused(make, message):
    with pytest.raises(ArgumentError, match=message):
        bl.Model(make(), bl.likelihoods.Gaussian()).bind((X, Y), jax.random.key(0))


def test_keras_keeps_its_own_dtype():
    own = bl.Model(given("keras mlp").network, bl.likelihoods.Gaussian(), dtype="float64")
    with pytest.raises(ArgumentError, match=r"`dtype` must be that of the Keras model \(float32\)"):
        own.bind((X, Y), jax.random.key(0))


def test_keras_on_another_backend_is_refused(monkeypatch):
    keras = pytest.importorskip("keras")
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with pytest.raises(ArgumentError, match=r"got one on the torch backend. Set KERAS_BACKEND=jax"):
        as_network(given("keras mlp").network)


def test_no_framework_is_imported_unasked():
    code = (
        "import sys, jax.numpy as jnp, bayeslearn as bl\n"
        "bl.Model((jnp.ones(3), jnp.dot), bl.likelihoods.Gaussian())\n"
        "print([m for m in ('flax', 'keras') if m in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
