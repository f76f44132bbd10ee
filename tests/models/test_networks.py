"""Every network: shapes, gradients, precision, fitting; and what each one promises."""

from __future__ import annotations

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn import tree
from bayeslearn.errors import ArgumentError
from bayeslearn.models.networks import parts

RNG = np.random.default_rng(0)
IMAGE = RNG.normal(size=(8, 8))
COLOURED = RNG.normal(size=(3, 8, 8))
SERIES = RNG.normal(size=(7, 3))
PADDED = {"values": SERIES, "mask": np.array([1, 1, 1, 1, 1, 0, 0])}

nets = bl.networks

# A network and an example for it. A new network is tested by being listed here.
NETWORKS = {
    "mlp": (nets.MLP([4]), SERIES),
    "cnn": (nets.CNN([2, 3], hidden=[4]), IMAGE),
    "cnn-coloured": (nets.CNN([2], 5, 2, "mean", hidden=[], activation="tanh"), COLOURED),
    "resnet": (nets.ResNet([2, 4]), IMAGE),
    "resnet-filter-response": (nets.ResNet([2], norm="filter-response"), COLOURED),
    "rnn": (nets.RNN([3], activation="sin"), SERIES),
    "rnn-deep": (nets.RNN([3, 2], bidirectional=True, output="mean"), PADDED),
    "lstm": (nets.LSTM([3, 2]), PADDED),
    "lstm-bidirectional": (nets.LSTM([3], bidirectional=True), PADDED),
    "gru": (nets.GRU([3]), PADDED),
    "gru-bidirectional": (nets.GRU([3, 2], bidirectional=True, output="mean"), SERIES),
    "rbf": (nets.RBF(5), SERIES[0]),
    "bl": (nets.BL([(4, 3)], activation="tanh"), SERIES),
    "tabl": (nets.TABL([(4, 3)]), SERIES),
    "bag": (nets.BagOfFeatures(4, hidden=[3]), PADDED),
    "bag-temporal": (nets.BagOfFeatures(4, windows=[0.25, 0.5, 1.0]), SERIES),
}
of_every_network = pytest.mark.parametrize("name", NETWORKS)
# One of each class.
FITTED = {type(network): name for name, (network, _) in reversed(NETWORKS.items())}
of_every_class = pytest.mark.parametrize("name", FITTED.values())


@functools.cache
def made(name: str):
    """The network's `apply`, compiled once for all tests, params and an example."""
    network, example = NETWORKS[name]
    with jax.enable_x64(False):  # also for a test in double precision that comes first
        return eqx.filter_jit(network.apply), init(network, example), example


def init(network, example, num_outputs: int = 2, seed: int = 0):
    return eqx.filter_jit(network.init)(jax.random.key(seed), example, num_outputs)


def test_every_exported_network_is_listed():
    listed = {type(network).__name__ for network, _ in NETWORKS.values()}
    classes = {n for n in nets.__all__ if isinstance(getattr(nets, n), type)}
    ours = {n for n in classes if not n.endswith("Network")}
    assert listed == ours


@of_every_network
def test_one_example_and_batches(name):
    """Outputs are finite numbers that depend on the input; a batch is its rows."""
    apply, params, example = made(name)
    rows = jax.tree.map(lambda leaf: np.stack([leaf, 0.5 * leaf, leaf[::-1]]), example)
    outputs = jax.vmap(apply, (None, 0))(params, rows)
    assert outputs.shape == (3, 2)
    assert outputs.dtype == jnp.float32
    assert np.all(np.isfinite(outputs))
    assert np.ptp(outputs, axis=0).min() > 1e-4
    np.testing.assert_allclose(apply(params, example), outputs[0], rtol=1e-5, atol=1e-6)


@of_every_class
def test_initialisation_follows_the_key(name):
    apply, params, example = made(name)
    network, _ = NETWORKS[name]
    again, other = init(network, example), init(network, example, seed=1)
    assert eqx.tree_equal(params, again)
    difference = apply(params, example) - apply(other, example)
    assert np.abs(difference).min() > 1e-6
    assert np.abs(tree.ravel(params)).max() < 5.0


@of_every_class
def test_leaf_names_tell_layers_apart(name):
    _, params, _ = made(name)
    names = tree.leaf_names(params)
    assert len(set(names)) == len(names)
    assert not any("<" in part or "[" in part for part in names)


@of_every_class
def test_gradients(name, x64):
    """Against finite differences in double precision; every leaf has a part in the output."""
    _, params, example = made(name)
    network, _ = NETWORKS[name]
    rng = np.random.default_rng(1)

    def direction():
        return jax.tree.map(lambda w: rng.normal(size=w.shape), params)

    # Not at the start, where a gradient may vanish by symmetry.
    params = jax.tree.map(lambda w, d: w + 0.1 * d, tree.double(params), direction())
    weights = np.array([1.0, -0.7])

    @jax.jit
    def value_and_gradient(p):
        return jax.value_and_grad(lambda q: weights @ network.apply(q, example))(p)

    def moved(step, along):
        return value_and_gradient(jax.tree.map(lambda w, d: w + step * d, params, along))[0]

    gradient = value_and_gradient(params)[1]
    for _ in range(3):
        along, step = direction(), 1e-6
        slope = (moved(step, along) - moved(-step, along)) / (2 * step)
        wanted = tree.total(jax.tree.map(jnp.multiply, gradient, along))
        np.testing.assert_allclose(slope, wanted, rtol=1e-6, atol=1e-8)
    for path, leaf in zip(tree.leaf_names(params), jax.tree.leaves(gradient), strict=True):
        assert np.abs(leaf).max() > 0, path


@of_every_class
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_computes_in_the_dtype_of_its_weights(name, dtype, x64):
    apply, params, example = made(name)
    example = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), example)
    outputs = apply(tree.cast(params, dtype), example)
    assert outputs.dtype == dtype
    exact = apply(tree.double(params), jax.tree.map(lambda leaf: leaf * 1.0, example))
    tolerance = 0.1 if dtype == "bfloat16" else 1e-12  # 8 and 53 bits
    np.testing.assert_allclose(outputs.astype(float), exact, atol=tolerance)


@of_every_class
def test_apply_only_calls_layers(name):
    """A layer wrapped in another that has no weights of its own still serves."""
    apply, params, example = made(name)

    def is_layer(node):
        return isinstance(node, eqx.Module) and callable(node)

    wrapped = jax.tree.map(lambda layer: Halved(layer), params, is_leaf=is_layer)
    assert isinstance(jax.tree.leaves(wrapped, is_leaf=is_layer)[0], Halved)
    found = apply(wrapped, example)
    assert found.shape == (2,)
    assert np.abs(found - apply(params, example)).max() > 1e-5


class Halved(eqx.Module):
    layer: eqx.Module

    def __call__(self, x, *state):
        return self.layer(0.5 * x, *state)


# Compiling a fit takes seconds: one for each class and not for its variants, most of them slow.
@of_every_class
def test_fits_inside_a_model(name):
    network, example = NETWORKS[name]
    noise = np.random.default_rng(2).normal(size=12)
    values = example["values"] if isinstance(example, dict) else example
    x = noise.reshape(-1, *[1] * values.ndim) * values
    if isinstance(example, dict):
        x = {"values": x, "mask": np.stack([example["mask"]] * 12)}
    model = bl.Model(network, bl.likelihoods.Gaussian())
    posterior = bl.fit(model, bl.MAP(), (x, noise), seed=0, num_steps=30)
    assert posterior.trace["nll"][-1] < posterior.trace["nll"][0]
    assert np.all(np.isfinite(posterior.family.mean_vector()))


# Images


@pytest.mark.parametrize("network", [nets.CNN([2], hidden=[]), nets.ResNet([2])])
def test_channels_may_come_first_or_last(network):
    last = eqx.tree_at(lambda n: n, network, type(network)(**vars(network) | {"channels": "last"}))
    params = init(network, COLOURED, 1)
    swapped = np.moveaxis(COLOURED, 0, -1)
    other = init(last, swapped, 1)
    assert eqx.tree_equal(params, other)
    np.testing.assert_array_equal(network.apply(params, COLOURED), last.apply(params, swapped))
    grey = init(network, IMAGE, 1)
    np.testing.assert_array_equal(network.apply(grey, IMAGE), network.apply(grey, IMAGE[None]))
    np.testing.assert_array_equal(network.apply(grey, IMAGE), last.apply(grey, IMAGE[..., None]))


def test_images_of_whole_numbers():
    image = np.arange(64, dtype=np.uint8).reshape(8, 8)
    for network in (nets.CNN([2]), nets.ResNet([2])):
        params = init(network, image, 1)
        np.testing.assert_array_equal(
            network.apply(params, image), network.apply(params, image.astype(np.float32))
        )


@pytest.mark.parametrize("pooling", ["max", "mean"])
def test_pooling(pooling):
    """Windows by hand; what does not fill a window is left out."""
    network = nets.CNN([1], pooling=pooling)
    image = np.arange(20.0).reshape(1, 4, 5)
    wanted = {"max": [[6, 8], [16, 18]], "mean": [[3, 5], [13, 15]]}[pooling]
    np.testing.assert_array_equal(network._pool(jnp.asarray(image))[0], wanted)


def test_strides_pools_and_dense_sizes():
    network = nets.CNN([2, 5], [3, 1], [2, 1], "max", 2, [7])
    params = network.init(jax.random.key(0), np.zeros((16, 12)), 3)
    assert [c.weight.shape for c in params["convolutions"]] == [(2, 1, 3, 3), (5, 2, 1, 1)]
    # 16 x 12 -> 8 x 6 -> 4 x 3 -> (same) -> 2 x 1
    assert [layer.weight.shape for layer in params["layers"]] == [(7, 10), (3, 7)]


def test_filter_response_by_hand():
    x = jnp.asarray(COLOURED, jnp.float32)
    norm = eqx.tree_at(
        lambda n: (n.weight, n.bias),
        nets.resnet.FilterResponseNorm(3),
        (jnp.arange(1.0, 4.0), jnp.ones(3)),
    )
    size = np.sqrt(np.mean(COLOURED**2, axis=(1, 2), keepdims=True) + 1e-5)
    scaled = np.arange(1, 4)[:, None, None] * COLOURED / size
    # Rounding in single precision is relative to the summands, which may cancel.
    tolerance = 8 * np.finfo(np.float32).eps * (np.abs(scaled) + 1.0)
    assert np.all(np.abs(np.asarray(norm(x), np.float64) - (scaled + 1.0)) <= tolerance)


@pytest.mark.parametrize("norm", ["group", "filter-response"])
def test_normalisation_keeps_examples_apart(norm):
    """An example's output is the same in any company, and hardly moves when it is rescaled."""
    network = nets.ResNet([2, 4], norm=norm)
    params = init(network, IMAGE)
    rows = np.stack([IMAGE, 100 * COLOURED[0], -IMAGE])
    others = np.stack([IMAGE, IMAGE.T, 0 * IMAGE])
    batched = jax.vmap(network.apply, (None, 0))
    np.testing.assert_array_equal(batched(params, rows)[0], batched(params, others)[0])
    no_bias = eqx.tree_at(
        lambda p: p["stem"]["convolution"].bias, params, jnp.zeros((2, 1, 1), jnp.float32)
    )
    np.testing.assert_allclose(
        network.apply(no_bias, IMAGE), network.apply(no_bias, 50 * IMAGE), atol=1e-3
    )


def test_a_block_whose_branch_is_silent_passes_its_input_on():
    network = nets.ResNet([2], blocks=3)
    params = init(network, IMAGE, 1)
    silent = jax.tree.map(jnp.zeros_like, params["blocks"])
    none = params | {"blocks": []}
    np.testing.assert_array_equal(
        network.apply(params | {"blocks": silent}, IMAGE), network.apply(none, IMAGE)
    )


# Sequences

MASKED = {
    "rnn": nets.RNN([3, 2]),
    "rnn-mean": nets.RNN([3], output="mean"),
    "lstm": nets.LSTM([3]),
    "lstm-both": nets.LSTM([3], bidirectional=True),
    "gru": nets.GRU([3]),
    "gru-both": nets.GRU([3, 2], bidirectional=True, output="mean"),
    "bag": nets.BagOfFeatures(4),
    "bag-temporal": nets.BagOfFeatures(4, windows=[0.3, 0.6, 1.0]),
}


@pytest.mark.parametrize("name", MASKED)
def test_padding_changes_nothing(name):
    """Rubbish before, between and after: the outputs and gradients of the series alone."""
    network = MASKED[name]
    params = init(network, SERIES)
    mask = np.array([0, 1, 1, 1, 0, 0, 1, 1, 1, 1, 0])
    values = np.full((11, 3), np.nan)
    values[mask == 1] = SERIES

    @eqx.filter_jit
    def outputs_and_gradient(x):
        outputs, pull = jax.vjp(lambda p: network.apply(p, x), params)
        return outputs, tree.ravel(pull(jnp.ones(2)))

    alone, slope = outputs_and_gradient(SERIES)
    for padding in (0.0, 1e30, np.nan):
        padded = {"values": np.nan_to_num(values, nan=padding), "mask": mask}
        found, gradient = outputs_and_gradient(padded)
        np.testing.assert_allclose(found, alone, rtol=2e-6, atol=1e-7)
        np.testing.assert_allclose(gradient, slope, rtol=1e-4, atol=1e-6)


def test_masks_of_any_type():
    for kind in (bool, np.int32, np.float32):
        values, mask = parts.as_sequence(PADDED | {"mask": PADDED["mask"].astype(kind)})
        np.testing.assert_array_equal(mask, PADDED["mask"] == 1)
        np.testing.assert_array_equal(values[5:], 0.0)
        np.testing.assert_allclose(values[:5], SERIES[:5], rtol=1e-6)


@pytest.mark.parametrize("name", MASKED)
def test_nothing_but_padding_is_finite(name):
    network = MASKED[name]
    params = init(network, SERIES)
    empty = {"values": np.full((4, 3), 5.0), "mask": np.zeros(4)}
    assert np.all(np.isfinite(network.apply(params, empty)))


@pytest.mark.parametrize("cls", [nets.RNN, nets.LSTM, nets.GRU])
def test_recurrence_is_the_cell_in_a_loop(cls):
    network = cls([3, 2])
    params = init(network, SERIES)
    x = jnp.asarray(SERIES, jnp.float32)
    for layer, size in zip(params["cells"], (3, 2), strict=True):
        state = jnp.zeros(size)
        state = (state, state) if cls is nets.LSTM else state
        shown = []
        for row in x:
            state = layer["forward"](row, state)
            shown.append(state[0] if cls is nets.LSTM else state)
        x = jnp.stack(shown)
    np.testing.assert_allclose(network.apply(params, SERIES), params["readout"](x[-1]), rtol=1e-5)
    mean = cls([3, 2], output="mean").apply(params, SERIES)
    np.testing.assert_allclose(mean, params["readout"](jnp.mean(x, axis=0)), rtol=1e-5)


@pytest.mark.parametrize("cls", [nets.RNN, nets.LSTM, nets.GRU])
def test_the_backward_cell_is_the_forward_cell_on_the_reversed_series(cls):
    """Swap the cells (and the read-out's halves), reverse time: the same output."""
    network = cls([3], bidirectional=True)
    params = init(network, PADDED)
    (layer,), readout = params["cells"], params["readout"]
    halves = jnp.concatenate([readout.weight[:, 3:], readout.weight[:, :3]], axis=1)
    swapped = {
        "cells": [{"forward": layer["backward"], "backward": layer["forward"]}],
        "readout": eqx.tree_at(lambda r: r.weight, readout, halves),
    }
    reversed_ = {name: leaf[::-1] for name, leaf in PADDED.items()}
    found = network.apply(swapped, reversed_)
    np.testing.assert_allclose(found, network.apply(params, PADDED), rtol=1e-5, atol=1e-6)
    assert np.abs(found - network.apply(params, reversed_)).max() > 1e-4


# Radial units, attention, histograms


def test_radial_units_by_hand(x64):
    units = init(nets.RBF(4, scale=2.0, width=0.5), SERIES[0])["units"]
    np.testing.assert_allclose(units.log_widths, np.log(0.5), rtol=1e-6)
    widths = np.array([0.5, 1.0, 2.0, 5.0])
    units = eqx.tree_at(lambda u: u.log_widths, tree.double(units), jnp.log(widths))
    squares = np.sum((SERIES[0] - np.asarray(units.centres)) ** 2, axis=1)
    found = units(jnp.asarray(SERIES[0]))
    np.testing.assert_allclose(found, np.exp(-squares / (2 * widths**2)), rtol=1e-10)
    np.testing.assert_allclose(units(units.centres[2])[2], 1.0, rtol=1e-12)


def test_centres_start_with_the_scale_asked_for():
    centres = nets.RBF(2000, scale=3.0).init(jax.random.key(0), SERIES[0], 1)["units"].centres
    # 6000 draws: the standard error of their deviation is 0.9 %; five of them.
    np.testing.assert_allclose(np.std(centres), 3.0, rtol=0.046)


def test_bilinear_layer_by_hand():
    network = nets.BL([])
    params = init(network, SERIES)
    layer = eqx.tree_at(lambda la: la.bias, params["layers"][0], jnp.array([[1.0], [2.0]]))
    wanted = np.asarray(layer.feature_weight) @ SERIES.T @ np.asarray(layer.time_weight)
    found = network.apply({"layers": [layer]}, SERIES)
    np.testing.assert_allclose(found, wanted[:, 0] + [1.0, 2.0], rtol=1e-5)


def test_attention_by_hand():
    network = nets.TABL([])
    layer = init(network, SERIES)["layers"][0]
    layer = eqx.tree_at(lambda la: la.mix_logit, layer, jnp.asarray(0.8))
    weight = np.asarray(layer.square_weight())
    np.testing.assert_allclose(np.diag(weight), 1 / 7, rtol=1e-6)
    others = np.asarray(layer.attention_weight)
    for i in range(7):
        np.testing.assert_array_equal(np.delete(weight[i], i), others[i])

    mixed = np.asarray(layer.feature_weight) @ SERIES.T
    attention = np.asarray(layer.attention(jnp.asarray(mixed, jnp.float32)))
    np.testing.assert_allclose(attention.sum(axis=1), 1.0, rtol=1e-5)
    assert np.all(attention > 0)
    energy = np.exp(mixed @ weight)
    np.testing.assert_allclose(attention, energy / energy.sum(axis=1, keepdims=True), rtol=1e-4)
    share = 1 / (1 + np.exp(-0.8))
    joined = (share * mixed * attention + (1 - share) * mixed) @ np.asarray(layer.time_weight)
    np.testing.assert_allclose(network.apply({"layers": [layer]}, SERIES), joined[:, 0], rtol=1e-4)


def test_without_its_share_attention_is_the_bilinear_layer():
    layer = nets.TABL([]).init(jax.random.key(0), SERIES, 2)["layers"][0]
    layer = eqx.tree_at(lambda la: la.mix_logit, layer, jnp.asarray(-jnp.inf))
    x = jnp.asarray(SERIES.T, jnp.float32)
    np.testing.assert_allclose(layer(x), nets.tabl.Bilinear.__call__(layer, x), rtol=1e-6)


def test_histograms_sum_to_one_and_forget_the_order():
    network = nets.BagOfFeatures(5)
    params = init(network, SERIES)
    for x in (SERIES, PADDED, 100 * SERIES):
        np.testing.assert_allclose(network.histograms(params, x).sum(axis=1), 1.0, rtol=1e-5)
    shuffled = SERIES[[3, 1, 6, 0, 2, 5, 4]]
    np.testing.assert_allclose(
        network.apply(params, shuffled), network.apply(params, SERIES), rtol=1e-5
    )
    temporal = nets.BagOfFeatures(5, windows=[0.5, 1.0])
    params = init(temporal, SERIES)
    difference = temporal.apply(params, SERIES) - temporal.apply(params, SERIES[::-1])
    assert np.abs(difference).max() > 1e-4


def test_windows_end_with_the_series():
    """Each window holds the last steps alone, by their own count; 0.3 of 10 steps are 3."""
    network = nets.BagOfFeatures(4, windows=[0.3, 0.55, 1.0, 0.01])
    mask = jnp.array([1, 0, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 0], bool)
    there = np.flatnonzero(mask)
    for row, steps in zip(network._window_weights(mask), (3, 6, 10, 1), strict=True):
        np.testing.assert_array_equal(np.flatnonzero(row), there[-steps:])
    params = init(network, SERIES, 1)
    assigned = np.stack([params["codebook"](row) for row in jnp.asarray(SERIES)])
    wanted = [assigned[-steps:].mean(axis=0) for steps in (3, 4, 7, 1)]
    np.testing.assert_allclose(network.histograms(params, SERIES), wanted, rtol=1e-5)


def test_codewords_far_apart_count_what_is_near():
    network = nets.BagOfFeatures(2, hidden=[])
    params = network.init(jax.random.key(0), SERIES[:, :1], 1)
    codebook = eqx.tree_at(lambda c: c.codewords, params["codebook"], jnp.array([[-9.0], [9.0]]))
    series = np.array([-9.0, -9.0, 9.0, -9.0])[:, None]
    found = network.histograms(params | {"codebook": codebook}, series)
    np.testing.assert_allclose(found, [[0.75, 0.25]], atol=1e-6)


# Refusals


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nets.MLP([0]), "`hidden` must be positive layer sizes"),
        (lambda: nets.CNN([0]), r"`filters` must be positive numbers of channels, got \[0\]"),
        (lambda: nets.CNN([]), "`filters` must have at least one convolution"),
        (lambda: nets.CNN([2], [3, 3]), "`kernel_sizes` must be positive, one for each of the 1"),
        (lambda: nets.CNN([2], strides=-1), "`strides` must be positive, got -1"),
        (lambda: nets.CNN([2], pooling="sum"), "`pooling` must be one of 'max', 'mean', None"),
        (lambda: nets.CNN([2], pool_size=0), "`pool_size` must be a whole number of at least 1"),
        (lambda: nets.CNN([2], channels="middle"), "`channels` must be one of 'first', 'last'"),
        (lambda: nets.CNN([2], activation="no"), "`activation` must be a function or a name"),
        (lambda: nets.ResNet([]), "`widths` must have at least one stage"),
        (lambda: nets.ResNet([2, 4], [1]), "`blocks` must be .*one for each of the 2 layers"),
        (
            lambda: nets.ResNet([2], norm="batch"),
            "`norm` must be one of 'group', 'filter-response'",
        ),
        (lambda: nets.ResNet([2], groups=1.5), "`groups` must be a whole number"),
        (lambda: nets.RNN([]), "`hidden` must have at least one layer"),
        (lambda: nets.LSTM([2.5]), r"`hidden` must be positive layer sizes.*got \[2.5\]"),
        (lambda: nets.GRU(output="first"), "`output` must be one of 'last', 'mean', got 'first'"),
        (lambda: nets.GRU(bidirectional="yes"), "`bidirectional` must be True or False"),
        (lambda: nets.RNN(activation=3), "`activation` must be a function or a name"),
        (lambda: nets.RBF(0), "`num_units` must be a whole number of at least 1, got 0"),
        (lambda: nets.RBF(scale=0.0), "`scale` must be a positive number, got 0.0"),
        (lambda: nets.RBF(width=np.nan), "`width` must be a positive number, got nan"),
        (lambda: nets.TABL([3]), r"`hidden` must be pairs \(features, times\)"),
        (lambda: nets.TABL("wide"), r"`hidden` must be pairs \(features, times\).*got 'wide'"),
        (lambda: nets.BagOfFeatures(0), "`num_codewords` must be a whole number"),
        (
            lambda: nets.BagOfFeatures(windows=[]),
            "`windows` must be fractions above 0 and at most 1",
        ),
        (lambda: nets.BagOfFeatures(windows=[1.5]), r"`windows` must be fractions.*got \[1.5\]"),
        (lambda: nets.BagOfFeatures(windows=0.5), "`windows` must be fractions"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


@pytest.mark.parametrize(
    ("network", "example", "message"),
    [
        (nets.CNN([2]), np.ones(5), r"`x` must be one image.*got an example of shape \(5,\)"),
        (nets.CNN([2, 2]), np.ones((3, 3)), r"`x` must be larger than .*got images of \(3, 3\)"),
        (nets.ResNet([2]), np.ones((1, 2, 3, 4)), "`x` must be one image"),
        (nets.GRU([2]), np.ones(5), r"`x` must be \(time, features\).*Write x\[..., None\]"),
        (nets.LSTM([2]), {"values": SERIES}, r"`x` must hold \"values\" and \"mask\""),
        (
            nets.RNN([2]),
            {"values": SERIES, "mask": np.ones(3)},
            r"`x` must have masks of \(7,\), got a mask of shape \(3,\)",
        ),
        (nets.TABL([]), PADDED, r"`x` must be \(time, features\): bilinear layers"),
        (nets.TABL([(2, 1)]), SERIES, "`x` must leave two times or more to attend to"),
        (nets.BagOfFeatures(2), np.ones((0, 3)), r"`x` must be \(time, features\)"),
    ],
)
def test_bad_examples(network, example, message):
    with pytest.raises(ArgumentError, match=message):
        init(network, example, 1)


def test_params_without_floats_are_distinguished():
    """A wrapper may carry keys and flags beside the weights."""
    params = {"w": jnp.ones(2, jnp.bfloat16), "key": jax.random.key(0), "flag": jnp.array(True)}
    assert parts.dtype_of(params) == jnp.bfloat16


@of_every_class
def test_a_saved_network_comes_back(name, tmp_path):
    network, example = NETWORKS[name]
    _, params, _ = made(name)
    likelihood, y = bl.likelihoods.Gaussian(0.5).bind(np.zeros((2, 2)))
    target = bl.Target(
        network=network,
        likelihood=likelihood,
        prior=None,
        data=None,
        num_data=np.asarray(2.0),
        dtypes=tuple(str(leaf.dtype) for leaf in jax.tree.leaves(params)),
    )
    rows = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), example)
    target = target.with_data(target.batch((rows, y)))
    family = bl.families.Point({"network": params, "likelihood": {}})
    report = {"trace": {}, "elbo": None, "stopped": "", "notes": (), "seed": 0}
    times = {"wall_time": 0.0, "compile_time": 0.0}
    bl.Posterior(target, bl.MAP(), family, None, **report, **times).save(tmp_path / "run")
    loaded = bl.load(tmp_path / "run")
    assert loaded.target.network == network
    assert jax.tree.structure(loaded.family) == jax.tree.structure(family)
    for left, right in zip(jax.tree.leaves(loaded.family), jax.tree.leaves(family), strict=True):
        np.testing.assert_array_equal(left, right)
