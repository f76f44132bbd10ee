"""Batch normalisation: never with statistics that nothing was measured on."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")  # read when Keras is imported, below

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn.errors import ArgumentError

RNG = np.random.default_rng(0)
X = (3.0 + 2.0 * RNG.normal(size=(64, 3))).astype(np.float32)
Y = np.sin(X[:, 0])


class EquinoxNet(eqx.Module):
    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    last: eqx.nn.Linear

    def __init__(self, mode: str):
        keys = jax.random.split(jax.random.key(0))
        self.first = eqx.nn.Linear(3, 4, key=keys[0])
        self.norm = eqx.nn.BatchNorm(4, axis_name="batch", mode=mode)  # type: ignore[arg-type]
        self.last = eqx.nn.Linear(4, 1, key=keys[1])

    def __call__(self, x: Any, state: Any) -> Any:
        x, state = self.norm(self.first(x), state)
        return self.last(jnp.tanh(x)), state


def equinox_batch() -> Any:
    return eqx.nn.make_with_state(EquinoxNet)("batch")


def equinox_ema() -> Any:
    return eqx.nn.make_with_state(EquinoxNet)("ema")


def nnx() -> Any:
    nnx = pytest.importorskip("flax.nnx")
    rngs = nnx.Rngs(0)
    return nnx.Sequential(
        nnx.Linear(3, 4, rngs=rngs),
        nnx.BatchNorm(4, momentum=0.9, rngs=rngs),
        nnx.tanh,
        nnx.Linear(4, 1, rngs=rngs),
    )


def linen() -> Any:
    nn = pytest.importorskip("flax.linen")

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any, train: bool) -> Any:
            x = nn.BatchNorm(use_running_average=not train, name="norm")(nn.Dense(4)(x))
            return nn.Dense(1)(jnp.tanh(x))

    module = Net()
    return module, module.init(jax.random.key(1), X[:1], train=False)


def keras() -> Any:
    keras = pytest.importorskip("keras")
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(4, name="a"),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Activation("tanh"),
            keras.layers.Dense(1, name="b"),
        ]
    )


MAKERS = {
    "equinox batch": (equinox_batch, "norm"),
    "equinox ema": (equinox_ema, "norm"),
    "nnx": (nnx, "layers.1"),
    "linen": (linen, "norm"),
    "keras": (keras, "norm"),
}


def model(network: Any) -> bl.Model:
    return bl.Model(network, bl.likelihoods.Gaussian(0.3))


@pytest.mark.parametrize("name", MAKERS)
def test_initial_statistics_are_refused(name):
    make, layer = MAKERS[name]
    with pytest.raises(
        ArgumentError, match=rf"initial mean 0 and variance 1 in {layer}\."
    ) as error:
        model(make())
    for remedy in ("measure_batch_statistics", "GroupNorm", "Train it first"):
        assert remedy in str(error.value)


def test_an_equinox_module_without_its_state_is_refused():
    module, _ = equinox_batch()
    with pytest.raises(
        ArgumentError, match=r"come with its state.*write \(module, state\)"
    ) as error:
        model(module)
    assert "measure_batch_statistics((module, state), x)" in str(error.value)


@pytest.mark.parametrize("name", MAKERS)
def test_measured_statistics_are_those_of_the_rows(name):
    """Means and variances of the first layer's outputs, by hand; two batches are averaged."""
    make, _ = MAKERS[name]
    measured = bl.networks.measure_batch_statistics(make(), X, batch_size=32)
    weights = measured.init(jax.random.key(0), X[0], 1)
    leaves = dict(zip(bl.tree.leaf_names(weights), jax.tree.leaves(weights), strict=True))
    (kernel,) = (leaf for leaf in leaves.values() if leaf.shape in {(3, 4), (4, 3)})
    kernel = kernel if kernel.shape == (3, 4) else kernel.T
    is_first = [n for n in leaves if n in {"first.bias", "layers.0.bias", "Dense_0.bias", "a.bias"}]
    hidden = X @ np.asarray(kernel, np.float64) + np.asarray(leaves[is_first[0]])
    parts = hidden.reshape(2, 32, 4)
    mean, var = measured.statistics().values()
    np.testing.assert_allclose(mean, parts.mean((0, 1)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(var, parts.var(1).mean(0), rtol=1e-3)


@pytest.mark.parametrize("name", MAKERS)
def test_a_network_with_measured_statistics_is_a_function_of_one_row(name):
    make, _ = MAKERS[name]
    own = model(bl.networks.measure_batch_statistics(make(), X))
    posterior = bl.fit(own, bl.MAP(), (X, Y), seed=0, num_steps=300)
    whole = posterior.predict(X).mean
    np.testing.assert_allclose(posterior.predict(X[:5]).mean, whole[:5], rtol=1e-5, atol=1e-6)
    assert np.mean((whole - Y) ** 2) < np.var(Y)


def test_trained_state_of_equinox_predicts_as_equinox_does():
    module, state = equinox_batch()
    run = jax.vmap(module, in_axes=(0, None), out_axes=(0, None), axis_name="batch")
    for _ in range(3):
        _, state = run(X, state)
    wanted, _ = jax.vmap(eqx.nn.inference_mode(module), (0, None), (0, None), axis_name="batch")(
        X, state
    )
    target, start = model((module, state)).bind((X, Y), jax.random.key(0))
    with jax.enable_x64(True):
        found = jax.jit(lambda target, start: target.outputs(start, X))(target, start)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_network_without_statistics_is_refused():
    with pytest.raises(ArgumentError, match="have batch statistics, got a MLP"):
        bl.networks.measure_batch_statistics(bl.networks.MLP([3]), X)
