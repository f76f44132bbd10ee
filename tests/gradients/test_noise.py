"""The cheap generator: normal, uncorrelated over steps and weights, and fit to be sharded."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import bayeslearn as bl
from bayeslearn import tree
from bayeslearn.gradients import noise

PARAMS = {"a": jnp.zeros((50, 40)), "b": jnp.zeros(40), "c": jnp.zeros((40, 24))}
STEPS = 400


@pytest.fixture(scope="module")
def drawn():
    """(steps, weights): one draw of each step's own key."""
    keys = jax.random.split(jax.random.key(0), STEPS)
    one = jax.jit(jax.vmap(lambda k: tree.ravel(noise.normal_like(k, PARAMS, 1))))
    return np.asarray(one(keys), np.float64)


def test_moments_and_distribution(drawn):
    values = drawn.ravel()
    n = len(values)
    for power, wanted, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(np.mean(values**power) - wanted) < 4 * np.sqrt(variance / n)
    assert stats.kstest(values, "norm").pvalue > 1e-3
    for shares in (np.mean(drawn < -1, axis=0), np.mean(drawn < -1, axis=1)):
        z = (shares - stats.norm.cdf(-1)) / np.std(shares)
        assert abs(np.mean(z)) < 4 / np.sqrt(len(z))


def test_no_correlation_between_steps_or_weights(drawn):
    n = drawn.size
    for lag in (1, 2, 3, 40, 64):  # neighbours in a leaf, in a column, in a word
        assert abs(np.mean(drawn[:, lag:] * drawn[:, :-lag])) < 4.5 / np.sqrt(n)
        assert abs(np.mean(drawn[lag:] * drawn[:-lag])) < 4.5 / np.sqrt(n)
        squares = drawn**2 - 1
        assert abs(np.mean(squares[:, lag:] * squares[:, :-lag])) < 4.5 * 2 / np.sqrt(n)
    steps, weights = drawn.shape
    across = drawn @ drawn.T / weights  # all pairs of steps
    pairs = across[np.triu_indices(steps, 1)]
    assert np.abs(pairs).max() < 6 / np.sqrt(weights)
    np.testing.assert_allclose(np.std(pairs), 1 / np.sqrt(weights), rtol=0.02)
    along = drawn.T @ drawn / steps  # all pairs of weights
    pairs = along[np.triu_indices(weights, 1)]
    np.testing.assert_allclose(np.std(pairs), 1 / np.sqrt(steps), rtol=0.02)
    assert np.abs(pairs).max() < 7 / np.sqrt(steps)


def test_keys_that_follow_each_other():
    """Steps' keys are folded from their numbers; the words of two may be any."""
    one = jax.jit(lambda key: noise.normal_like(key, PARAMS, 2)["a"])
    draws = [np.asarray(one(jax.random.fold_in(jax.random.key(1), t))) for t in range(3)]
    rows = np.concatenate(draws).reshape(6, -1)
    correlation = np.corrcoef(rows)[np.triu_indices(6, 1)]
    assert np.abs(correlation).max() < 4 / np.sqrt(rows.shape[1])
    words = jnp.asarray([[1, 2], [1, 3], [2, 2], [0, 0]], jnp.uint32)  # as alike as can be
    alike = jax.jit(jax.vmap(lambda w: noise._one_draw(w, PARAMS)["a"]))(words)
    rows = np.asarray(alike).reshape(4, -1)
    assert np.abs(np.corrcoef(rows)[np.triu_indices(4, 1)]).max() < 4 / np.sqrt(rows.shape[1])


def test_a_number_depends_on_key_draw_and_place_alone():
    key = jax.random.key(3)

    def drawn(params, num, of=lambda leaf: leaf, **options):
        return jax.jit(lambda: of(noise.normal_like(key, params, num)["c"]), **options)()

    def same(a, b):  # to rounding: other programs multiply and add in other ways
        np.testing.assert_allclose(np.ravel(a), np.ravel(b), rtol=1e-5, atol=1e-6)

    whole = drawn(PARAMS, 3)
    same(drawn(PARAMS, 2), whole[:2])
    same(drawn(jax.tree.map(lambda w: w.reshape(-1), PARAMS), 3), whole)
    same(drawn(PARAMS, 3, lambda leaf: leaf[1:, 7:9]), whole[1:, 7:9])
    assert not np.array_equal(whole[0], whole[1])
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("weights",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "weights"))
    same(drawn(PARAMS, 3, out_shardings=rows), whole)


def test_the_quantile(x64):
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32)
    bits[:4] = [0, 2**31 - 1, 2**31, 2**32 - 1]
    t = ((bits & 0x7FFFFFFF).astype(np.float64) + 0.5) * 2.0**-31
    wanted = np.where(bits >> 31, 1.0, -1.0) * special.ndtri(t / 2)
    found = np.asarray(noise._quantile(jnp.asarray(bits)))
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-7)


def test_dtypes_and_the_other_generator(x64):
    params = {"half": jnp.zeros(300, jnp.bfloat16), "double": jnp.zeros(20_000, jnp.float64)}
    values = noise.normal_like(jax.random.key(0), params, 1)
    assert values["half"].dtype == jnp.bfloat16
    assert values["double"].dtype == jnp.float64
    assert stats.kstest(np.asarray(values["double"][0]), "norm").pvalue > 1e-3
    assert len(np.unique(np.asarray(values["double"]) * 2**30 % 1)) > 19_000  # finer than float32
    theirs = noise.normal_like(jax.random.key(0), PARAMS, 2, "jax")
    ours = tree.normal_like(jax.random.key(0), PARAMS, 2)
    np.testing.assert_array_equal(theirs["a"], ours["a"])
    with pytest.raises(bl.errors.ArgumentError, match="noise"):
        bl.VOGN(noise="other")
