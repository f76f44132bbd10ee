"""Weights that are given: no method moves them, at any size, and a random body is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import bayeslearn as bl
from bayeslearn.algorithms import conjugate, laplace

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 3)).astype(np.float32)
Y = np.tanh(X @ [1.0, -2.0, 0.5]) + 0.1 * rng.normal(size=60)


def body(widths, inputs=3, seed=0):
    """A network with weights: tanh layers, and a linear one that alone is Bayesian."""
    draw = np.random.default_rng(seed)
    sizes = [inputs, *widths]
    layers = [draw.normal(size=pair) / pair[0] ** 0.5 for pair in zip(sizes, widths, strict=False)]
    params = {"body": [jnp.asarray(w, jnp.float32) for w in layers]}
    params["last"] = jnp.zeros((widths[-1],), jnp.float32)

    def apply(params, x):
        for w in params["body"]:
            x = jnp.tanh(x @ w)
        return x @ params["last"]

    return params, apply


def model(network, **options):
    noise = bl.likelihoods.Gaussian(noise_scale=0.3)
    return bl.Model(network, noise, bayesian="last*", frozen="given", **options)


def brief(name):
    """A method with as few steps as it can do."""
    if name == "ensemble":
        return bl.Ensemble(num_members=2)
    if name == "mile":
        return bl.MILE(num_members=2, sampler=bl.MCLMC(num_warmup=20, num_samples=4))
    return problems.quick(name)


def short_run(name):
    """Options of `fit` to go with it."""
    if bl.ALGORITHMS[name].auto_steps == 1:
        return {}
    if bl.ALGORITHMS[name].capabilities.is_sampler:
        return {"num_chains": 1}
    return {"num_steps": {"swag": 32, "sghmc": 20}.get(name, 4)}


@pytest.mark.filterwarnings("ignore::bayeslearn.MixingWarning")
@pytest.mark.parametrize("name", bl.ALGORITHMS)
def test_no_method_moves_a_bit_of_them(name):
    network = bl.networks.MLP([4])
    weights = network.init(jax.random.key(1), X[0], 1)
    noise = bl.likelihoods.Gaussian(noise_scale=0.3)
    last = bl.Model((weights, network.apply), noise, bayesian="layers.1.*", frozen="given")
    found = bl.fit(last, brief(name), (X, Y), seed=0, **short_run(name))
    for part in ("weight", "bias"):
        frozen, given = found.target.frozen["layers"][0], weights["layers"][0]
        np.testing.assert_array_equal(getattr(frozen, part), getattr(given, part))
    assert [w.shape for w in jax.tree.leaves(found.family.mean["network"])] == [(1, 4), (1,)]
    assert np.all(np.isfinite(found.predict(X).mean))


def test_a_network_without_weights_is_not_frozen_at_random():
    noise = bl.likelihoods.Gaussian(noise_scale=0.3)
    last = bl.Model(bl.networks.MLP([4]), noise, bayesian="layers.1.*", frozen="given")
    with pytest.raises(bl.ArgumentError, match="at random"):
        bl.fit(last, bl.Laplace(), (X, Y), seed=0)
    start = bl.fit(bl.Model(bl.networks.MLP([4]), noise), bl.MAP(), (X, Y), seed=0, num_steps=5)
    found = bl.fit(last, bl.Laplace(), (X, Y), seed=0, init=start.family.mean)
    np.testing.assert_array_equal(
        found.target.frozen["layers"][0].weight,
        start.family.mean["network"]["layers"][0].weight,
    )


@pytest.mark.parametrize("algorithm", [bl.Conjugate(), bl.Laplace()])
def test_the_last_layer_of_a_large_body_has_the_posterior_of_all_rows(algorithm):
    """12,000 frozen weights: q is that of a linear regression on all 3,000 rows' features."""
    draw = np.random.default_rng(1)
    x = draw.normal(size=(3000, 10)).astype(np.float32)
    y = np.sin(2 * x[:, 0]) + 0.3 * draw.normal(size=3000)
    params, apply = body([300, 30], 10)
    assert sum(w.size for w in params["body"]) == 12_000
    found = bl.fit(model((params, apply)), algorithm, (x, y), seed=0)
    features = x
    for w in params["body"]:
        features = np.tanh(features @ np.asarray(w))
    features = features.astype(float)
    prior = float(np.ravel(jax.tree.leaves(found.target.prior.prec["network"])[0])[0])
    prec = prior * np.eye(30) + features.T @ features / 0.09
    mean = np.linalg.solve(prec, features.T @ y / 0.09)
    # The network computes in single precision.
    np.testing.assert_allclose(found.family.prec_matrix(), prec, rtol=1e-3, atol=1e-3 * prec.max())
    np.testing.assert_allclose(found.family.mean_vector(), mean, atol=1e-3)


def test_kronecker_factors_of_a_large_network_are_those_of_all_rows(monkeypatch):
    seen = []
    true = laplace.kronecker.value_and_factors

    def factors(key, target, params, batch, kind):
        seen.append(len(target.data.y))
        return true(key, target, params, batch, kind)

    monkeypatch.setattr(laplace.kronecker, "value_and_factors", factors)
    x = rng.normal(size=(700, 100)).astype(np.float32)
    algorithm = bl.Laplace(covariance="kronecker", newton_steps=0)
    whole = bl.Model(bl.networks.MLP([120]), bl.likelihoods.Gaussian(noise_scale=0.3))
    bl.fit(whole, algorithm, (x, x[:, 0]), seed=0, num_steps=3, batch_size=50)
    assert set(seen) == {700}


def peak(function, *arguments):
    """Bytes that the compiled function needs beside its arguments."""
    return jax.jit(function).lower(*arguments).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("name", ["laplace", "conjugate"])
def test_memory_does_not_grow_with_the_rows(name, monkeypatch, x64):
    monkeypatch.setattr(conjugate, "JACOBIAN_SIZE", 1)
    algorithm, partial = bl.ALGORITHMS[name](), model(body([50, 20]))

    def needed(rows):
        x = rng.normal(size=(rows, 3)).astype(np.float32)
        target, params = partial.freeze(*partial.bind((x, x[:, 0]), jax.random.key(0)))
        return peak(algorithm.init, jax.random.key(0), target, params)

    small, large = needed(2048), needed(20_480)
    # What remains is a copy of the rows in chunks: x, y and weights, 24 bytes a row.
    assert large - small < 60 * (20_480 - 2048)
    assert small > 1024 * 50 * 4  # a chunk's activations, which did grow


def test_exact_posteriors_by_batches_are_those_of_all_rows(monkeypatch, x64):
    """Known and unknown noise, rows with weights; the tolerance is that of single precision."""
    x = rng.normal(size=(2500, 3))
    y = x @ [1.0, -2.0, 0.5] + 0.3 * rng.normal(size=2500)
    weight = rng.integers(0, 3, size=2500).astype(float)
    for likelihood in (bl.likelihoods.Gaussian(noise_scale=0.3), bl.likelihoods.Gaussian()):
        linear = bl.Model(bl.networks.MLP([]), likelihood, dtype="float64")
        target, params = linear.bind((x, y, weight), jax.random.key(0))
        whole = bl.Conjugate().init(jax.random.key(0), target, params)
        with monkeypatch.context() as patch:
            patch.setattr(conjugate, "JACOBIAN_SIZE", 1)
            parts = bl.Conjugate().init(jax.random.key(0), target, params)
        for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-9)
