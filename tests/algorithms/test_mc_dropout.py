"""MC dropout: masks where they belong, moments and densities by enumeration, the paper's loss."""

from __future__ import annotations

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from scipy import stats

import bayeslearn as bl
from bayeslearn.errors import ArgumentError
from bayeslearn.models.networks.masked import (
    MaskedMatrix,
    MaskedNetwork,
    draw_masks,
    find_sites,
    masked_weights,
)

RNG = np.random.default_rng(0)
KEEP = 0.8
# Every statistical test allows 4.5 standard errors: correct code fails one in 150,000 comparisons.
ERRORS = 4.5


def within(found, wanted, values):
    """The mean of `values` along their first axis is `wanted`."""
    error = np.std(values, axis=0, ddof=1) / np.sqrt(len(values))
    np.testing.assert_array_less(np.abs(found - wanted), ERRORS * error + 1e-12)


def linear_target(noise_scale=0.5, num_inputs=4, num_outputs=3, rows=5, **options):
    model = bl.Model(
        bl.networks.MLP([], **options),
        bl.likelihoods.Gaussian(noise_scale),
        dtype="float64",
    )
    x = RNG.normal(size=(rows, num_inputs))
    y = RNG.normal(size=(rows, num_outputs))
    with jax.enable_x64(True):
        return model, (x, y), model.bind((x, y), jax.random.key(0))


def wrapped(model, data, **options):
    return bl.fit(model, bl.MCDropout(train=False, **options), data, seed=0, num_steps=1)


@pytest.fixture(scope="module")
def linear():
    """A linear layer that keeps its weights: model, data, x, and M without 1 / keep."""
    model, data, _ = linear_target()
    posterior = wrapped(model, data, keep=KEEP)
    layer = posterior.family.mean["network"]["layers"][0]
    return posterior, data[0][0], np.asarray(layer.weight) / KEEP, np.asarray(layer.bias)


# The distribution of the weights


def test_moments_of_a_linear_layer_are_those_of_the_formula(linear):
    posterior, x, m, _ = linear
    q = posterior.family
    wanted = m @ np.diag(KEEP * (1 - KEEP) * x**2) @ m.T
    sizes = [np.size(leaf) for leaf in jax.tree.leaves(q.mean)]
    assert sizes == [12, 3]
    found = np.asarray(q.cov_matrix())
    np.testing.assert_array_equal(found[12:], 0.0)
    project = np.kron(np.eye(3), x)
    np.testing.assert_allclose(project @ found[:12, :12] @ project.T, wanted, atol=1e-12)
    np.testing.assert_allclose(project @ q.mean_vector()[:12], KEEP * m @ x, atol=1e-12)
    std = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(q.std)])
    np.testing.assert_allclose(std**2, np.diag(found), atol=1e-12)


@pytest.mark.parametrize("noise", ["bernoulli", "gaussian"])
def test_draws_have_these_moments(linear, noise):
    posterior, x, m, bias = linear
    q = eqx.tree_at(lambda f: f.keeps, posterior.family, (np.float64(KEEP),))
    q = type(q)(q.mean, q.keeps, q.sites, noise)
    layer = q.sample(jax.random.key(1), 20_000)["network"]["layers"][0]
    values = np.asarray(layer.weight) @ x
    within(values.mean(axis=0), KEEP * m @ x, values)
    cov = m @ np.diag(KEEP * (1 - KEEP) * x**2) @ m.T
    centred = values - KEEP * m @ x
    products = np.einsum("si,sj->sij", centred, centred)
    within(products.mean(axis=0), cov, products)
    np.testing.assert_array_equal(layer.bias, np.broadcast_to(bias, (20_000, 3)))
    if noise == "bernoulli":
        ratios = np.asarray(layer.weight) / (KEEP * m)
        np.testing.assert_allclose(np.unique(ratios.round(6)), [0.0, 1 / KEEP])


def test_the_predictive_density_is_the_sum_over_all_masks(linear):
    posterior, x, m, bias = linear
    y, num = np.array([[0.3, -0.2, 0.9]]), 20_000
    predictive = posterior.predict(x[None], num_samples=num)
    masks = np.array(list(itertools.product((0, 1), repeat=4)))
    weights = np.prod(np.where(masks, KEEP, 1 - KEEP), axis=1)
    means = (masks * x) @ m.T + bias

    def check(found, values):
        exact = weights @ values
        error = np.sqrt(weights @ (values - exact) ** 2 / num)
        np.testing.assert_array_less(np.abs(found - exact), ERRORS * error)

    check(np.exp(predictive.log_prob(y)[0]), stats.norm.pdf(y, means, 0.5).prod(axis=1))
    check(predictive.mean[0], means)
    # 1 / tau and the variance of the means
    check(predictive.variance[0], 0.5**2 + (means - weights @ means) ** 2)


# The objective


def test_the_penalty_is_the_papers(x64):
    """N tau (sum of lambda_i |M_i|^2 + lambda_b |b_i|^2) with lambda_i = p_i l^2 / (2 tau N)."""
    scale, noise = 0.4, 0.3
    model = bl.Model(
        bl.networks.MLP([5]), bl.likelihoods.Gaussian(noise), bl.priors.Normal(scale=scale)
    )
    x, y = problems.wiggle()
    target, params = model.bind((x, y), jax.random.key(0))
    algorithm = bl.MCDropout(keep=0.7, keep_by_layer={"layers.0.*": 0.9})
    num_data, tau, length = len(y), noise**-2, 1 / scale

    def loss(params):
        first, second = params["network"]["layers"]
        total = 0.0
        for layer, keep in ((first, 0.9), (second, 0.7)):
            lambda_weights = keep * length**2 / (2 * tau * num_data)
            lambda_bias = length**2 / (2 * tau * num_data)
            total += lambda_weights * np.sum((np.asarray(layer.weight, float) / keep) ** 2)
            total += lambda_bias * np.sum(np.asarray(layer.bias, float) ** 2)
        return num_data * tau * total

    @jax.jit
    def penalty(params):
        state = algorithm.init(jax.random.key(0), target, params)
        _, info = algorithm.step(jax.random.key(0), target, state, target.data)
        return -(info.log_joint + info.nll)

    other = jax.tree.map(lambda w: 2.0 * w + 0.1, params)
    np.testing.assert_allclose(
        penalty(other) - penalty(params), loss(other) - loss(params), rtol=1e-5
    )


def test_the_gradient_vanishes_at_the_closed_form_of_a_linear_network(x64):
    """Averaged over masks the loss is a ridge regression with (1 - p) / p diag(X^T X) added."""
    problem = problems.regression()
    target, params = problem.model.bind((problem.x, problem.y), jax.random.key(0))
    x, noise, prec = problem.x, 0.7, 0.5
    matrix = x.T @ x
    system = matrix + (1 - KEEP) / KEEP * np.diag(np.diag(matrix))
    system += noise**2 * prec / KEEP * np.eye(4)
    best = np.linalg.solve(system, x.T @ problem.y)
    algorithm = bl.MCDropout(keep=KEEP, optimizer="sgd", learning_rate=1.0, power=0.0)

    @jax.jit
    @jax.vmap
    def moved(key):
        start = jax.tree.map(lambda w: jnp.asarray(best).reshape(w.shape), params)
        state = algorithm.init(key, target, start)
        new, info = algorithm.step(key, target, state, target.data)
        return jnp.ravel(new.position["network"]["layers"][0].weight) - best, info.log_joint

    steps, log_joints = moved(jax.random.split(jax.random.key(0), 4000))
    within(np.mean(steps, axis=0), 0.0, np.asarray(steps))
    residual = problem.y - x @ best
    squares = residual @ residual + (1 - KEEP) / KEEP * np.diag(matrix) @ best**2
    wanted = -0.5 * squares / noise**2 - 30 * np.log(2 * np.pi * noise**2)
    wanted += 2 * np.log(prec / (2 * np.pi)) - 0.5 * prec / KEEP * best @ best
    within(np.mean(log_joints), wanted, np.asarray(log_joints))


def test_each_row_has_its_mask_in_training_and_all_share_one_in_prediction():
    rows = 64
    model = bl.Model(
        bl.networks.MLP([], use_bias=False), bl.likelihoods.Gaussian(1.0), dtype="float64"
    )
    data = (np.ones((rows, 1)), np.zeros(rows))
    posterior = wrapped(model, data, keep=0.5)
    weight = float(jax.tree.leaves(posterior.family.mean)[0][0, 0])
    # A row's term is one of two; were the mask shared, all rows would have the same one.
    constant = 0.5 * rows * np.log(2 * np.pi)
    with_weight = (posterior.trace["nll"][0] - constant) / (0.5 * (weight / 0.5) ** 2)
    np.testing.assert_allclose(with_weight, round(with_weight), atol=1e-9)
    assert 0 < round(with_weight) < rows  # else one in 2^63
    for seed in range(5):
        mean = posterior.predict(np.ones((3, 1)), num_samples=3, seed=seed).mean
        np.testing.assert_array_equal(mean, mean[0])


def test_the_noise_scale_has_no_mask_and_keeps_its_own_prior(x64):
    target, params = problems.small_model().bind(problems.wiggle(), jax.random.key(0))
    algorithm = bl.MCDropout(keep=0.5)
    state = algorithm.init(jax.random.key(0), target, params)
    q = algorithm.approximation(target, state)
    draws = q.sample(jax.random.key(1), 50)["likelihood"]["log_noise_scale"]
    np.testing.assert_array_equal(draws, np.broadcast_to(draws[0], (50, 1)))
    np.testing.assert_array_equal(q.std["likelihood"]["log_noise_scale"], 0.0)

    @jax.jit
    def log_prior(params):
        state = algorithm.init(jax.random.key(0), target, params)
        info = algorithm.step(jax.random.key(0), target, state, target.data)[1]
        return info.log_joint + info.nll

    center = float(target.likelihood.center[0])
    own = params["likelihood"]["log_noise_scale"]
    moved = {**params, "likelihood": {"log_noise_scale": own + 1.5}}
    wanted = stats.norm.logpdf(center + 1.5, center) - stats.norm.logpdf(center, center)
    np.testing.assert_allclose(log_prior(moved) - log_prior(params), wanted, rtol=1e-6)


# Where masks go


def gru(params, x):
    return jax.lax.scan(lambda h, v: (params["cell"](v, h), None), jnp.zeros(3), x)[0]


def lstm(params, x):
    start = (jnp.zeros(3), jnp.zeros(3))
    return jax.lax.scan(lambda h, v: (params["cell"](v, h), None), start, x)[0][0]


class Bilinear(eqx.Module):
    left: jax.Array
    right: jax.Array

    def __call__(self, x):
        return jnp.tanh(self.left @ x) @ self.right

    def input_axes(self):
        return {"left": -1, "right": -2}


def keys(num):
    return jax.random.split(jax.random.key(4), num)


NETWORKS = {
    "dense": (
        lambda: {"a": eqx.nn.Linear(4, 3, key=keys(1)[0])},
        lambda p, x: p["a"](x),
        (4,),
        [(4,)],
    ),
    "convolution": (
        lambda: {"a": eqx.nn.Conv2d(4, 6, 3, key=keys(1)[0])},
        lambda p, x: p["a"](x),
        (4, 5, 5),
        [(4,)],
    ),
    "grouped convolution": (
        lambda: {"a": eqx.nn.Conv1d(4, 6, 2, groups=2, key=keys(1)[0])},
        lambda p, x: p["a"](x),
        (4, 5),
        [(4,)],
    ),
    "transposed convolution": (
        lambda: {"a": eqx.nn.ConvTranspose2d(4, 2, 3, stride=2, key=keys(1)[0])},
        lambda p, x: p["a"](x),
        (4, 3, 3),
        [(4,)],
    ),
    "gru": (lambda: {"cell": eqx.nn.GRUCell(4, 3, key=keys(1)[0])}, gru, (6, 4), [(3,), (4,)]),
    "lstm": (lambda: {"cell": eqx.nn.LSTMCell(4, 3, key=keys(1)[0])}, lstm, (6, 4), [(3,), (4,)]),
    "attention": (
        lambda: {"a": eqx.nn.MultiheadAttention(2, 4, key=keys(1)[0])},
        lambda p, x: p["a"](x, x, x),
        (3, 4),
        [(4,)] * 4,
    ),
    "a layer that opts in": (
        lambda: {
            "a": Bilinear(
                jax.random.normal(keys(2)[0], (3, 4)), jax.random.normal(keys(2)[1], (5, 2))
            )
        },
        lambda p, x: p["a"](x),
        (4, 5),
        [(4,), (5,)],
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_masks_of_a_row_act_as_masked_weights_do(name):
    """Two ways to the same numbers: activations are masked in training, weights in a draw."""
    init, apply, shape, mask_shapes = NETWORKS[name]
    params = init()
    sites = find_sites(params)
    assert sorted(site.mask_shape for site in sites) == sorted(mask_shapes)
    masks = draw_masks(jax.random.key(5), sites, [0.5] * len(sites), "gaussian", 7)
    x = jax.random.normal(jax.random.key(6), (7, *shape))
    network = MaskedNetwork(bl.networks.FunctionNetwork(init, apply))
    named = dict(zip([site.name for site in sites], masks, strict=True))

    @jax.jit
    def three_ways(x, masks, named):
        return (
            jax.vmap(lambda row: network.apply(params, row))((x, named)),
            jax.vmap(lambda z, v: apply(masked_weights(params, sites, z), v))(masks, x),
            jax.vmap(lambda v: apply(params, v))(x),
        )

    by_row, by_weight, unmasked = three_ways(x, masks, named)
    np.testing.assert_allclose(by_row, by_weight, rtol=2e-5, atol=1e-5)
    assert not np.allclose(by_row, unmasked, atol=1e-2)


def test_a_convolution_loses_whole_channels():
    layer = eqx.nn.Conv2d(4, 6, 3, groups=2, key=keys(1)[0])
    mask = jnp.array([1.0, 0.0, 0.0, 1.0])
    x = jax.random.normal(jax.random.key(6), (4, 5, 5))
    masked = masked_weights(layer, find_sites(layer), [mask])
    np.testing.assert_allclose(masked(x), layer(x * mask[:, None, None]), rtol=1e-5, atol=1e-6)


def test_a_recurrent_cell_has_the_same_two_masks_at_every_step():
    """By hand: gates see the masked input and state, the state itself is carried on whole."""
    params = NETWORKS["gru"][0]()
    cell = params["cell"]
    sites = find_sites(params)
    masks = {site.name: mask for site, mask in zip(sites, draw_two(sites), strict=True)}
    x = np.asarray(jax.random.normal(jax.random.key(6), (6, 4)))
    w, u = np.asarray(cell.weight_ih), np.asarray(cell.weight_hh)
    h = np.zeros(3)

    def sigmoid(v):
        return 1 / (1 + np.exp(-v))

    for value in x:
        i = np.split(w @ (masks["cell.weight_ih"] * value) + np.asarray(cell.bias), 3)
        s = np.split(u @ (masks["cell.weight_hh"] * h), 3)
        new = np.tanh(i[2] + sigmoid(i[0] + s[0]) * (s[2] + np.asarray(cell.bias_n)))
        h = new + sigmoid(i[1] + s[1]) * (h - new)
    network = MaskedNetwork(bl.networks.FunctionNetwork(NETWORKS["gru"][0], gru))
    np.testing.assert_allclose(network.apply(params, (x, masks)), h, rtol=1e-5, atol=1e-6)


def draw_two(sites):
    return draw_masks(jax.random.key(8), sites, [0.5, 0.5], "bernoulli")


def test_arrays_outside_of_layers_are_read_as_inputs_by_outputs():
    params = {"w": jnp.ones((2, 3, 4, 5)), "b": jnp.ones(5)}
    (site,) = find_sites(params)
    assert (site.name, site.mask_shape) == ("w", (4,))
    masked = masked_weights(params, [site], [jnp.array([1.0, 0.0, 2.0, 0.0])])
    np.testing.assert_array_equal(masked["w"][1, 2, :, 3], [1.0, 0.0, 2.0, 0.0])
    np.testing.assert_array_equal(masked["b"], 1.0)


def test_a_masked_matrix_is_an_array_where_it_is_not_a_product():
    (site,) = find_sites({"a": eqx.nn.Linear(3, 2, key=keys(1)[0])})
    weight, mask, x = jnp.arange(6.0).reshape(2, 3), jnp.array([1.0, 0.0, 2.0]), jnp.ones(3)
    matrix = MaskedMatrix(weight, mask, site)
    np.testing.assert_allclose(jnp.einsum("ij,j->i", matrix, x), matrix @ x)
    np.testing.assert_allclose(jnp.asarray(matrix) @ x, matrix @ x)


@pytest.mark.parametrize(
    ("options", "keeps"),
    [
        ({}, {"layers.0.weight": 0.9, "layers.1.weight": 0.9, "layers.2.weight": 0.9}),
        ({"mask_input": False}, {"layers.1.weight": 0.9, "layers.2.weight": 0.9}),
        (
            {"keep_by_layer": {"layers.1.*": 0.5, "layers.2.*": 1.0}},
            {"layers.0.weight": 0.9, "layers.1.weight": 0.5},
        ),
        (
            {"keep_by_layer": {"layers.0.*": 0.6}, "mask_input": False},
            {"layers.0.weight": 0.6, "layers.1.weight": 0.9, "layers.2.weight": 0.9},
        ),
    ],
    ids=["all", "not the input", "by layer", "the input by name"],
)
def test_each_layer_has_its_own_probability(options, keeps, x64):
    model = bl.Model(bl.networks.MLP([4, 4]), bl.likelihoods.Gaussian(0.1))
    target, params = model.bind(problems.wiggle(), jax.random.key(0))
    algorithm = bl.MCDropout(keep=0.9, **options)
    algorithm.check(target, params)
    q = algorithm.approximation(target, algorithm.init(jax.random.key(0), target, params))
    found = {s.name: float(k) for s, k in zip(q.sites, q.keeps, strict=True)}
    assert found == pytest.approx(keeps)
    for name, layer, std in zip(
        ("layers.0.weight", "layers.1.weight", "layers.2.weight"),
        q.mean["network"]["layers"],
        q.std["network"]["layers"],
        strict=True,
    ):
        keep = keeps.get(name, 1.0)
        wanted = np.abs(layer.weight) * np.sqrt((1 - keep) / keep)
        np.testing.assert_allclose(std.weight, wanted, rtol=1e-6)


# Equinox modules


class OwnDropout(eqx.Module):
    first: eqx.nn.Linear
    dropout: eqx.nn.Dropout
    last: eqx.nn.Linear

    def __call__(self, x, key=None):
        return self.last(self.dropout(jnp.tanh(self.first(x)), key=key))


@pytest.fixture(scope="module")
def own():
    first, last = keys(2)
    return OwnDropout(
        eqx.nn.Linear(1, 3, key=first), eqx.nn.Dropout(0.25), eqx.nn.Linear(3, 1, key=last)
    )


@pytest.fixture(scope="module")
def own_posterior(own):
    model = bl.Model(own, bl.likelihoods.Gaussian())
    data = problems.wiggle()
    return bl.fit(model, bl.MCDropout(train=False), data, seed=0, num_steps=20, validation=data)


def test_an_equinox_modules_own_dropout_is_used(own, own_posterior):
    q = own_posterior.family
    assert q.has_own_masks
    predictive = own_posterior.predict(np.array([[0.7], [0.7]]), num_samples=4000)
    np.testing.assert_array_equal(predictive.mean[0], predictive.mean[1])  # one key for all rows
    hidden = np.tanh(np.asarray(own.first(jnp.array([0.7]))))
    terms = np.asarray(own.last.weight)[0] * hidden
    mean, variance = terms.sum() + float(own.last.bias[0]), (0.25 / 0.75) * np.sum(terms**2)
    assert abs(predictive.mean[0] - mean) < ERRORS * np.sqrt(variance / 4000) + 1e-6
    masks = np.array(list(itertools.product((0, 1), repeat=3)))
    weights = np.prod(np.where(masks, 0.75, 0.25), axis=1)
    squares = (masks @ terms / 0.75 - terms.sum()) ** 2
    error = np.sqrt(weights @ (squares - variance) ** 2 / 4000)
    assert abs(predictive.epistemic[0] - variance) < ERRORS * error
    # in training each row has masks of its own: some of the 80 losses differ from step to step
    assert len(np.unique(own_posterior.trace["nll"])) == 20
    assert np.all(np.isfinite(own_posterior.trace["eval_validation"]))


def test_dropout_that_drops_nothing_is_no_mask_of_the_network(own):
    """Attention has a layer of probability 0, for which a network was refused."""
    idle = eqx.tree_at(lambda net: net.dropout, own, eqx.nn.Dropout(0.0))
    model = bl.Model(idle, bl.likelihoods.Gaussian())
    found = bl.fit(model, bl.MCDropout(), problems.wiggle(), seed=0, num_steps=3)
    assert not found.family.has_own_masks


def test_a_network_trained_elsewhere_keeps_its_weights(own, own_posterior):
    found = own_posterior.family.mean["network"]
    for ours, theirs in zip(jax.tree.leaves(found), leaves(own), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    noise = own_posterior.family.mean["likelihood"]["log_noise_scale"]
    start = np.log(problems.wiggle()[1].std())
    assert abs(float(noise[0]) - start) > 0.01  # it is not a weight, and is learned


def leaves(module):
    return jax.tree.leaves(eqx.filter(module, eqx.is_inexact_array))


def test_an_equinox_module_without_dropout_is_masked_like_our_own():
    module = eqx.nn.MLP(1, 1, 5, 1, activation=jnp.tanh, key=keys(1)[0])
    x, y = problems.wiggle()
    ours = bl.networks.MLP([5])
    noise = bl.likelihoods.Gaussian(0.3)
    theirs = wrapped(bl.Model(module, noise), (x, y))
    params = {
        "network": {"layers": list(theirs.family.mean["network"].layers)},
        "likelihood": {},
    }
    algorithm = bl.MCDropout(train=False)
    same = bl.fit(bl.Model(ours, noise), algorithm, (x, y), seed=0, num_steps=1, init=params)
    for name in theirs.trace:
        np.testing.assert_allclose(theirs.trace[name], same.trace[name], rtol=1e-6)
    draws = (jax.tree.leaves(p.sample(0, 5)) for p in (theirs, same))
    for left, right in zip(*draws, strict=True):
        np.testing.assert_array_equal(left, right)


# What it cannot do


def test_its_std_does_not_shrink_with_the_data():
    """The known bias: with 16 times the rows an exact posterior has a quarter of the std."""
    problem = problems.regression()
    stds = []
    for copies in (1, 16):
        x, y = np.tile(problem.x, (copies, 1)), np.tile(problem.y, copies)
        posterior = bl.fit(
            problem.model, bl.MCDropout(keep=0.9), (x, y), seed=0, num_steps=1500, batch_size=60
        )
        stds.append(np.ravel(jax.tree.leaves(posterior.family.std)[0]))
    ratio = np.linalg.norm(stds[1]) / np.linalg.norm(stds[0])
    assert ratio > 0.9


def test_it_has_no_density():
    assert not any(hasattr(bl.families.Dropout, n) for n in ("log_prob", "entropy", "kl"))
    assert not bl.MCDropout.capabilities.has_lower_bound


MESSAGES = {
    "keep": ({"keep": 0.0}, r"`keep` must be greater than 0"),
    "drop": ({"keep": 1.05}, r"`keep` must be at most 1"),
    "noise": ({"noise": "uniform"}, r"`noise` must be one of 'bernoulli', 'gaussian'"),
    "pairs": ({"keep_by_layer": 0.5}, r"`keep_by_layer` must map name patterns"),
    "values": ({"keep_by_layer": {"*": 0.0}}, r"above 0 and at most 1, got 0.0 for '\*'"),
    "flags": ({"keep_by_layer": {"*": True}}, r"above 0 and at most 1, got True for '\*'"),
    "pattern": (
        {"keep_by_layer": {"layer.9": 0.5}},
        r"name weights with a mask: layers.0.weight, layers.1.weight, got the pattern 'layer.9'",
    ),
    "twice": (
        {"keep_by_layer": {"*": 0.5, "layers.0.*": 0.6}},
        r"give one to each, got two values for layers.0.weight",
    ),
    "no own masks": ({"masks": "network"}, r"`network` must draw masks from its key"),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_bad_arguments_are_refused(case):
    options, message = MESSAGES[case]
    with pytest.raises(ArgumentError, match=message):
        bl.fit(problems.small_model(), bl.MCDropout(**options), problems.wiggle(), seed=0)


class Bare(eqx.Module):
    w: jax.Array

    def __call__(self, x):
        return x @ self.w


def test_networks_it_cannot_mask_are_refused(own):
    data = problems.wiggle()
    noise = bl.likelihoods.Gaussian(0.3)
    bare = bl.Model(Bare(jnp.ones((1, 1))), noise)
    with pytest.raises(ArgumentError, match=r"have dense, .* layers.*def input_axes"):
        bl.fit(bare, "mc-dropout", data, seed=0)
    one = bl.Model(bl.networks.MLP([]), noise)
    with pytest.raises(ArgumentError, match="Leave mask_input at True"):
        bl.fit(one, bl.MCDropout(mask_input=False), data, seed=0)
    off = bl.Model(eqx.nn.inference_mode(own), noise)
    with pytest.raises(ArgumentError, match=r"inference_mode\(module, value=False\)"):
        bl.fit(off, "mc-dropout", data, seed=0)
    with pytest.raises(ArgumentError, match="`keep` must be left out: the network draws"):
        bl.fit(bl.Model(own, noise), bl.MCDropout(keep=0.5), data, seed=0)
