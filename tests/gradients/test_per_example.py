"""Squares of per-example gradients in one pass, beside one gradient per example."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn import tree
from bayeslearn.data.rows import Batch
from bayeslearn.gradients import curvature, entries, per_example

ROWS = 6


def normal(number, *shape):
    return jax.random.normal(jax.random.key(number), shape)


def check(function, params, rows, fallbacks=(), tolerance=1e-5):
    """Gradient and weighted squares against vmap of vjp; and who falls back."""
    scale = jnp.linspace(0.5, 2.0, ROWS).at[2].set(0.0)
    outputs = jax.vmap(function, (None, 0))(params, rows)
    d = jax.random.normal(jax.random.key(99), outputs.shape).astype(outputs.dtype)

    @jax.jit
    def wanted(params):
        one = jax.vmap(lambda row, d: jax.vjp(lambda p: function(p, row), params)[1](d)[0])
        each = jax.tree.map(lambda g: g.astype(jnp.float32), one(rows, d))
        gradient = jax.tree.map(lambda g: jnp.sum(g, 0), each)
        return gradient, jax.tree.map(lambda g: jnp.tensordot(scale, g**2, 1), each)

    @jax.jit
    def found(params):
        outputs, pull = per_example.outputs_and_pull(function, params, rows)
        return outputs, pull(d, scale)

    mine, (gradient, squares) = found(params)
    np.testing.assert_allclose(mine, outputs, rtol=tolerance, atol=tolerance)
    for ours, theirs in zip((gradient, squares), wanted(params), strict=True):
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            most = max(float(jnp.max(jnp.abs(b))), 1e-3)  # a leaf may have no gradient at all
            np.testing.assert_allclose(
                np.asarray(a, np.float32), b, rtol=10 * tolerance, atol=tolerance * most
            )
    assert per_example.fallbacks(function, params, rows) == list(fallbacks)


def of_network(network, x, outputs=3):
    params = network.init(jax.random.key(0), x[0], outputs)
    params, static = eqx.partition(params, eqx.is_inexact_array)
    return (lambda p, row: network.apply(eqx.combine(p, static), row)), params


NETWORKS = {
    "cnn": (bl.networks.CNN(filters=(3, 4), strides=(1, 2), hidden=(5,)), (2, 9, 8)),
    "resnet": (bl.networks.ResNet(widths=(4, 6)), (2, 6, 6)),
    "filter-response": (bl.networks.ResNet(widths=(4,), norm="filter-response"), (2, 5, 5)),
    "lstm": (bl.networks.LSTM(hidden=(4, 3)), (5, 2)),
    "gru": (bl.networks.GRU(hidden=(3,), bidirectional=True), (5, 2)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_our_networks_need_no_fallback(name):
    network, shape = NETWORKS[name]
    rows = normal(1, ROWS, *shape)
    check(*of_network(network, rows), rows)


def test_an_equinox_mlp_in_single_and_in_half_precision():
    module = eqx.nn.MLP(5, 3, 6, 2, key=jax.random.key(0))
    params, static = eqx.partition(module, eqx.is_inexact_array)
    rows = normal(1, ROWS, 5)
    check(lambda p, row: eqx.combine(p, static)(row), params, rows)

    def half(p, row):
        p = jax.tree.map(lambda w: w.astype(jnp.bfloat16), p)
        return eqx.combine(p, static)(row.astype(jnp.bfloat16)).astype(jnp.float32)

    check(half, params, rows, tolerance=1e-2)


def test_a_flax_attention_block():
    nnx = pytest.importorskip("flax.nnx")

    class Block(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(4, 6, rngs=rngs)
            self.place = nnx.Param(0.1 * jnp.ones((5, 6)))
            self.attention = nnx.MultiHeadAttention(
                num_heads=2, in_features=6, qkv_features=6, decode=False, rngs=rngs
            )
            self.norm = nnx.LayerNorm(6, rngs=rngs)
            self.wide = nnx.Linear(6, 8, rngs=rngs)
            self.out = nnx.Linear(8, 3, rngs=rngs)

        def __call__(self, words):
            x = self.embed(words) + self.place[...]
            x = x + self.attention(self.norm(x))
            return self.out(jax.nn.gelu(self.wide(x)).mean(0))

    graph, params, rest = nnx.split(Block(nnx.Rngs(0)), nnx.Param, ...)
    words = jax.random.randint(jax.random.key(1), (ROWS, 5), 0, 3)
    check(lambda p, row: nnx.merge(graph, p, rest)(row), nnx.to_pure_dict(params), words)


def test_tied_and_changed_weights_fall_back_alone():
    params = {"tied": normal(1, 4, 3), "changed": normal(2, 4), "plain": normal(3, 4)}

    def function(p, row):
        hidden = jnp.tanh(row @ p["tied"])
        return hidden @ p["tied"].T * jax.nn.softplus(p["changed"]) + p["plain"]

    check(function, params, normal(4, ROWS, 4), ["changed", "tied"])


def test_calls_loops_and_rules_of_others():
    @jax.custom_vjp
    def doubled(w, x):
        return jnp.sin(x @ w)

    def backward(kept, d):
        w, x = kept
        d = d * jnp.cos(x @ w)
        return 2.0 * jnp.outer(x, d), w @ d

    doubled.defvjp(lambda w, x: (doubled(w, x), (w, x)), backward)
    dense = jax.jit(lambda w, x: x @ w)
    params = {
        "custom": normal(1, 4, 4), "first": normal(2, 4, 4), "remat": normal(3, 4),
        "step": normal(4, 4, 4), "gain": normal(5, 4), "start": normal(6, 4),
    }  # fmt: skip

    def function(p, row):
        x = doubled(p["custom"], dense(p["first"], row[0]))
        x = jax.checkpoint(lambda w, x: jnp.tanh(x * w))(p["remat"], x)

        def step(state, now):
            state = jnp.tanh(dense(p["step"], state) + now)
            return state, state * p["gain"]

        last, all_steps = jax.lax.scan(step, x + p["start"], row, reverse=True)
        return last + jnp.sum(all_steps, 0)

    check(function, params, normal(7, ROWS, 3, 4))


def test_kernels_of_every_kind():
    params = {"wide": normal(1, 3, 2, 2, 4), "deep": normal(2, 2, 2, 1, 4)}

    def function(p, row):
        options = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
        x = jax.lax.conv_general_dilated(
            row[None], p["wide"], (1, 2), ((1, 2), (0, 1)),
            lhs_dilation=(2, 1), rhs_dilation=(1, 2), **options,
        )  # fmt: skip
        x = jax.lax.conv_general_dilated(
            jnp.tanh(x), p["deep"], (1, 1), "SAME", feature_group_count=4, **options
        )
        return jnp.sum(x, (0, 1, 2))

    check(function, params, normal(3, ROWS, 5, 7, 2))


def test_a_few_rows_at_a_time_are_the_same(monkeypatch):
    rows = normal(1, ROWS, 5, 2)
    function, params = of_network(bl.networks.LSTM(hidden=(4,)), rows)
    monkeypatch.setitem(entries.CHUNK_BYTES, "cpu", 4 * 4 * 16 * 4)  # four rows, then two
    check(function, params, rows)


def test_half_the_leaves_held_and_rows_of_unequal_weight(x64):
    """The model's path: likelihood, noise scale, weights, held leaves, a float64 state."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(ROWS, 3)).astype(np.float32), rng.normal(size=ROWS)
    network = bl.networks.MLP([4])
    model = bl.Model(network, bl.likelihoods.Gaussian(), bayesian=["layers.1.*"], dtype="float32")
    target, params = model.freeze(*model.bind((x, y), jax.random.key(0)))
    params = tree.double(params)
    batch = target.data._replace(weight=jnp.asarray([1.0, 2.0, 0.5, 0.0, 1.0, 3.0]))

    def one(i):
        row = Batch(*(leaf[i : i + 1] for leaf in target.data[:2]))
        return tree.ravel(jax.grad(lambda p: target.log_likelihood(p, row)[0])(params))

    each = jnp.stack([one(i) for i in range(ROWS)])
    value, gradient, squares = jax.jit(curvature.moments)(target, params, batch)
    np.testing.assert_allclose(value, jnp.sum(target.log_likelihood(params, batch)), rtol=1e-6)
    np.testing.assert_allclose(tree.ravel(gradient), batch.weight @ each, rtol=1e-4)
    np.testing.assert_allclose(tree.ravel(squares), batch.weight @ each**2, rtol=1e-4)
    assert curvature.fallbacks(target, params) == []


def test_fit_names_the_leaves_that_fall_back():
    class Tied(eqx.Module):
        def init(self, key, x_example, num_outputs):
            return {"tied": 0.1 * jnp.ones((2, 2)), "out": jnp.ones((2, num_outputs))}

        def apply(self, params, x, key=None):
            return jnp.tanh(jnp.tanh(x @ params["tied"]) @ params["tied"]) @ params["out"]

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 2)), rng.normal(size=12)
    model = bl.Model(Tied(), bl.likelihoods.Gaussian(noise_scale=1.0))
    posterior = bl.fit(model, bl.VOGN(num_draws=1), (x, y), seed=0, num_steps=3)
    (note,) = posterior.notes
    assert "squares of tied took" in note
