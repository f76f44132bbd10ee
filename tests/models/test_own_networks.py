"""A plain class with `init` and `apply`, and no base class, is a network."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn.models.networks import as_network

X = np.linspace(-1.0, 1.0, 12)[:, None]
Y = 2 * X[:, 0]
INSTALLED = {"scale": jnp.full(3, 2.0)}  # what no hash is made of


class Bumps:
    """A sum of bumps at fixed centres, kept as an array and a list: neither can be hashed."""

    def __init__(self):
        self.centres = jnp.linspace(-1.0, 1.0, 3)
        self.settings = [INSTALLED]

    def init(self, key, x_example, num_outputs):
        return {"heights": 0.1 * jax.random.normal(key, (3, num_outputs))}

    def apply(self, params, x, key=None):
        bumps = jnp.exp(-((x[0] - self.centres) ** 2) * self.settings[0]["scale"])
        return bumps.astype(params["heights"].dtype) @ params["heights"]


class BumpsByRows(Bumps):
    def apply_rows(self, params, x):
        return jax.vmap(lambda row: self.apply(params, row))(x) + 100.0  # so that it shows


class Pair(NamedTuple):
    """Two functions, such as other libraries return."""

    init: object
    apply: object


def fit(network, **options):
    model = bl.Model(network, bl.likelihoods.Gaussian(noise_scale=0.3))
    return bl.fit(model, "map", (X, Y), seed=0, **({"num_steps": 20} | options))


@pytest.fixture(scope="module")
def bumps():
    network = Bumps()
    return network, fit(network)


def test_it_predicts_what_the_same_functions_do(bumps):
    network, posterior = bumps
    for same in (network.init, network.apply), Pair(network.init, network.apply):
        np.testing.assert_array_equal(fit(same).predict(X).mean, posterior.predict(X).mean)
    params = posterior.sample(0)["network"]
    own = [network.apply(jax.tree.map(lambda leaf: leaf[0], params), x)[0] for x in X]
    np.testing.assert_allclose(posterior.predict(X).mean, own, rtol=1e-5)


def test_the_same_object_is_compiled_once_and_another_anew(bumps, compiles):
    network, _ = bumps
    with compiles() as seen:
        fit(network)
    assert not seen
    with compiles() as seen:
        fit(Bumps())
    assert seen


def test_a_faster_function_of_rows_is_used_for_predictions(bumps):
    _, posterior = bumps
    by_rows = fit(BumpsByRows())
    np.testing.assert_allclose(by_rows.predict(X).mean, posterior.predict(X).mean + 100, rtol=1e-6)


def test_a_network_that_is_a_pytree_stays_itself():
    network = bl.networks.MLP([2])
    assert as_network(network) is network


def test_a_saved_posterior_says_that_it_needs_the_network(bumps, tmp_path):
    network, posterior = bumps
    posterior.save(tmp_path / "saved")
    with pytest.raises(bl.StorageError, match=r"cannot be saved; pass it with network="):
        bl.load(tmp_path / "saved")
    loaded = bl.load(tmp_path / "saved", network=network)
    np.testing.assert_array_equal(loaded.predict(X).mean, posterior.predict(X).mean)


def test_a_resumed_run_says_that_it_needs_the_network(bumps, tmp_path):
    network, posterior = bumps
    folder = tmp_path / "run"
    fit(network, checkpoint=folder)
    with pytest.raises(bl.ArgumentError, match="`network` must be given again"):
        bl.resume(folder, (X, Y))
    resumed = bl.resume(folder, (X, Y), network=network)
    np.testing.assert_array_equal(resumed.predict(X).mean, posterior.predict(X).mean)
