"""A network of your own, in each framework: it goes into `bl.Model` as it is.

The same small network is written in Equinox, Flax NNX, Flax Linen, Keras and as a plain function,
and fitted by VOGN from the weights it has. Frameworks that are not installed are left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")  # read when Keras is imported

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import bayeslearn as bl


def equinox() -> Any:
    return eqx.nn.MLP(1, 1, width_size=20, depth=1, activation=jnp.tanh, key=jax.random.key(0))


def flax_nnx() -> Any:
    from flax import nnx

    rngs = nnx.Rngs(0)
    return nnx.Sequential(nnx.Linear(1, 20, rngs=rngs), nnx.tanh, nnx.Linear(20, 1, rngs=rngs))


def flax_linen() -> Any:
    from flax import linen as nn

    module = nn.Sequential([nn.Dense(20), nn.tanh, nn.Dense(1)])
    # The module alone would do, and be initialised by `fit`; with variables it starts from them.
    return module, module.init(jax.random.key(0), jnp.ones((1, 1)))


def keras() -> Any:
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input((1,)), layers.Dense(20, activation="tanh"), layers.Dense(1)]
    )


def function() -> Any:
    def apply(params, x):
        return jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"]

    rng = np.random.default_rng(0)
    params = {"w1": rng.normal(size=(1, 20)), "b1": np.zeros(20), "w2": rng.normal(size=(20, 1))}
    return params, apply


NETWORKS: list[Callable[[], Any]] = [equinox, flax_nnx, flax_linen, keras, function]


def main() -> None:
    rng = np.random.default_rng(1)
    x = rng.uniform(-2.0, 2.0, size=(100, 1))
    y = np.sin(2 * x[:, 0]) + 0.2 * rng.normal(size=100)
    x_new, y_new = np.linspace(-2.0, 2.0, 50)[:, None], np.sin(np.linspace(-4.0, 4.0, 50))
    for make in NETWORKS:
        try:
            network = make()
        except ImportError as missing:
            print(f"{make.__name__:10}  not installed: {missing.name}")
            continue
        model = bl.Model(network, bl.likelihoods.Gaussian())
        posterior = bl.fit(model, bl.VOGN(), (x, y), seed=0, num_steps=1000)
        predictive = posterior.predict(x_new)
        error = bl.metrics.rmse(predictive, y_new)
        std = np.mean(predictive.epistemic**0.5)
        print(f"{make.__name__:10}  distance from the true curve {error:.3f}, expected {std:.3f}")


if __name__ == "__main__":
    main()
