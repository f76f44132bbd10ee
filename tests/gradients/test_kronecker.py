"""Kronecker factors: exact where they can be, and J Sigma J^T beside dense Jacobians."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn import tree
from bayeslearn.families import KroneckerGaussian
from bayeslearn.gradients import curvature, kronecker
from bayeslearn.gradients.kronecker import MAX_SIDE

ROWS = 6


def identity(v):
    return v


def normal(number, *shape):
    return np.asarray(jax.random.normal(jax.random.key(number), shape), np.float64)


def bound(network, x, likelihood=None, y=None, weight=None, prior=None):
    y = normal(99, len(x), 2) if y is None else y
    likelihood = likelihood or bl.likelihoods.Gaussian(noise_scale=0.5)
    model = bl.Model(network, likelihood, prior or bl.priors.Normal(), dtype="float64")
    data = (x, y) if weight is None else (x, y, weight)
    return model.bind(data, jax.random.key(0))


def gaussian(target, params, kind="gauss-newton", key=0):
    found = kronecker.factors(jax.random.key(key), target, params, target.data, kind)
    layers = kronecker.layers_of(target, params)
    prec = target.prior.broadcast(params)[1]
    return KroneckerGaussian.from_factors(params, layers, *found, prec, target.num_data)


def dense_blocks(target, params, layers):
    groups = tuple(layer.leaves for layer in layers)
    return curvature.blocks(None, target, params, target.data, groups, "gauss-newton")


def largest_error(target, params):
    """The largest distance of a layer's block from the Gauss-Newton matrix, beside its norm."""
    q = jax.jit(gaussian)(target, params)
    wanted = jax.jit(lambda t, p: dense_blocks(t, p, q.layers))(target, params)
    blocks = zip(q.to_block().blocks(), wanted, strict=False)
    return max(
        np.linalg.norm(block.prec_matrix() - exact) / np.linalg.norm(exact)
        for block, exact in blocks
    )


@pytest.mark.parametrize("hidden", [[], [4, 3]])
def test_exact_where_the_network_is_linear_and_noise_gaussian(hidden, x64):
    """Layer by layer, biases included, with rows of unequal weight and a scale for each leaf."""
    network = bl.networks.MLP(hidden, activation=identity)
    prior = bl.priors.Normal(scale={"*weight": 2.0, "*bias": 0.5})
    weight = np.array([1.0, 2.0, 0.5, 3.0, 1.0, 1.0])
    target, params = bound(network, normal(1, ROWS, 3), weight=weight, prior=prior)
    assert kronecker.notes(target, params) == []
    assert largest_error(target, params) < 1e-12


def test_the_error_that_factors_have_elsewhere(x64):
    """Where s depends on the row or positions are many: within these bounds, and not zero."""
    rows, labels = normal(2, 40, 3), np.arange(40) % 3
    target, params = bound(bl.networks.MLP([4]), rows, bl.likelihoods.Categorical(), labels)
    assert 0.1 < largest_error(target, params) < 0.4  # .31
    network = bl.networks.CNN((3,), pooling=None, hidden=(), activation=jnp.tanh)
    target, params = bound(network, normal(3, 40, 1, 4, 4), y=normal(4, 40, 2))
    assert 0.1 < largest_error(target, params) < 0.8  # .71, positions being correlated


def attention(key=None):
    """Embedding, an attention head over time, a gain, a tied and an unused weight, by hand."""

    def init(key, x, num_outputs):
        shapes = {"table": (5, 4), "place": (3, 4), "query": (4, 2, 2), "value": (4, 4)}
        shapes |= {"bias": (4,), "gain": (4,), "out": (4, num_outputs), "tied": (4, 4)}
        keys = jax.random.split(key, len(shapes))
        return {
            n: 0.5 * jax.random.normal(k, s) for (n, s), k in zip(shapes.items(), keys, strict=True)
        }

    def apply(p, words):
        x = p["table"][words] + p["place"]
        query = jnp.einsum("ti,ihj->thj", x, p["query"])
        weight = jax.nn.softmax(jnp.einsum("thj,shj->hts", query, query), axis=-1)
        value = (x @ p["value"] + p["bias"]).reshape(3, 2, 2)
        x = jnp.einsum("hts,shj->thj", weight, value).reshape(3, 4) * p["gain"]
        return jnp.tanh(jnp.tanh(x @ p["tied"]) @ p["tied"].T).mean(0) @ p["out"]

    return init, apply


NETWORKS = {
    "cnn": (bl.networks.CNN((3, 2), strides=(1, 2), pooling=None), normal(5, ROWS, 2, 6, 5), []),
    "gru": (bl.networks.GRU(hidden=(2,)), normal(7, ROWS, 3, 2), []),
    "attention": (attention(), np.arange(3 * ROWS).reshape(ROWS, 3) % 4, ["gain", "tied"]),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_covariance_of_linearised_outputs(name, x64):
    """J Sigma J^T with a dense J: every layer is made of the right leaves, in the right order."""
    network, x, alone = NETWORKS[name]
    target, params = bound(network, x)
    notes = " ".join(kronecker.notes(target, params))
    assert all(f"network.{leaf}" in notes for leaf in alone)
    assert bool(notes) == bool(alone)
    q = jax.jit(gaussian)(target, params)
    outputs, cov = jax.jit(kronecker.outputs_and_cov)(target, q, target.data.x)
    vector = tree.ravel(params)
    jacobian = jax.jit(
        jax.jacrev(lambda v: target.outputs(tree.unraveler(params)(v), target.data.x))
    )(vector)
    wanted = np.einsum("rck,kl,rel->rce", jacobian, q.cov_matrix(), jacobian)
    np.testing.assert_allclose(outputs, target.outputs(params, target.data.x), rtol=1e-12)
    np.testing.assert_allclose(cov, wanted, rtol=1e-9, atol=1e-12)


def test_layers_shared_over_positions(x64):
    """A is the mean of a a^T over positions and S the sum of s s^T, here put together by hand."""
    x = normal(8, ROWS, 3, 2)

    def init(key, x, num_outputs):
        return {"w": normal(9, 2, num_outputs), "b": normal(10, num_outputs)}

    target, params = bound((init, lambda p, x: jnp.tanh(x @ p["w"] + p["b"]).sum(0)), x)
    (layer,) = kronecker.layers_of(target, params)
    assert layer.bias is not None
    ((a, s),), squares = kronecker.factors(None, target, params, target.data, "gauss-newton")
    ones = np.concatenate([x, np.ones((ROWS, 3, 1))], axis=-1)
    np.testing.assert_allclose(a, np.einsum("rti,rtj->ij", ones, ones) / (3 * ROWS), rtol=1e-12)
    slope = 1.0 - np.tanh(x @ params["network"]["w"] + params["network"]["b"]) ** 2
    np.testing.assert_allclose(s, np.diag(np.sum(slope**2, axis=(0, 1)) / 0.25 / ROWS), rtol=1e-12)
    assert squares == ()


def test_labels_drawn_from_the_model_are_unbiased_for_gauss_newton(x64):
    """Four standard errors on 9 numbers: fails once in 1,700 with a fresh seed."""
    target, params = bound(bl.networks.MLP([3]), normal(11, 400, 2), y=normal(12, 400, 2))
    exact = kronecker.factors(None, target, params, target.data, "gauss-newton")

    def one(key):
        return kronecker.factors(key, target, params, target.data, "fisher").pairs[0][1]

    drawn = jax.jit(lambda keys: jax.lax.map(one, keys))(jax.random.split(jax.random.key(1), 200))
    error = np.std(drawn, axis=0) / np.sqrt(200)
    assert np.all(np.abs(np.mean(drawn, axis=0) - exact.pairs[0][1]) < 4 * error)


def test_value_and_gradient_in_the_same_pass(x64):
    """Also with the empirical Fisher of the noise scale, and rows that count differently."""
    weight = np.array([1.0, 2.0, 0.5, 0.0, 1.0, 3.0])
    target, params = bound(
        bl.networks.MLP([3]), normal(13, ROWS, 2), bl.likelihoods.Gaussian(), weight=weight
    )
    batch = target.data
    value, gradient, found = jax.jit(
        lambda p: kronecker.value_and_factors(None, target, p, batch, "examples")
    )(params)
    wanted, wanted_gradient, squares = jax.jit(curvature.moments)(target, params, batch)
    rows = float(target.num_data / target.scale(batch))
    np.testing.assert_allclose(value, wanted / rows, rtol=1e-12)
    np.testing.assert_allclose(tree.ravel(gradient), tree.ravel(wanted_gradient) / rows, rtol=1e-9)
    own = jax.tree.leaves(squares["likelihood"])
    np.testing.assert_allclose(found.squares[0], own[0] / rows, rtol=1e-9)


def test_a_long_side_has_its_diagonal(x64, monkeypatch):
    target, params = bound(bl.networks.MLP([], use_bias=False), normal(14, ROWS, 5))
    whole = kronecker.factors(None, target, params, target.data, "gauss-newton").pairs
    assert MAX_SIDE > 1000
    monkeypatch.setattr(kronecker, "MAX_SIDE", 4)
    ((a, s),) = kronecker.factors(None, target, params, target.data, "gauss-newton").pairs
    np.testing.assert_allclose(a, np.diag(whole[0][0]), rtol=1e-12)
    np.testing.assert_allclose(s, whole[0][1], rtol=1e-12)
