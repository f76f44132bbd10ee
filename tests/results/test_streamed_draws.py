"""Many draws of many weights: made where they are used, the same predictions in little memory."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn.families import (
    DiagonalGaussian,
    FullGaussian,
    KroneckerGaussian,
    LowRankGaussian,
    Mixture,
    Point,
    streamed,
)
from bayeslearn.families.kronecker import Layer
from bayeslearn.results.predictive import Predictive

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 3)).astype(np.float32)
Y = X[:, 0] + 0.1 * RNG.normal(size=20)


@pytest.fixture(scope="module")
def posterior() -> bl.Posterior:
    model = bl.Model(bl.networks.MLP([4]), bl.likelihoods.Gaussian())
    return bl.fit(model, bl.MAP(), (X, Y), seed=0, num_steps=50)


def family(kind: str, mean) -> bl.families.Family:
    std = jax.tree.map(lambda w: jnp.full_like(w, 0.1), mean)
    if kind == "diagonal":
        return DiagonalGaussian(mean, std)
    if kind == "full":
        return FullGaussian.from_std(mean, std)
    if kind == "low rank":
        factor = jax.tree.map(lambda w: jnp.stack([0.1 * w, 0.2 + 0 * w]), mean)
        return LowRankGaussian(mean, std, factor)
    if kind == "kronecker":
        leaves = jax.tree.leaves(mean)
        (at,) = (i for i, w in enumerate(leaves) if w.shape in {(3, 4), (4, 3)})
        rows, columns = leaves[at].shape
        parts = np.eye(rows) + 0.1, np.eye(columns) - 0.1, np.full((rows, columns), 0.1)
        rest = tuple(0.1 + 0 * w for i, w in enumerate(leaves) if i != at)
        layers = [Layer(at, (0, 1), rows, None)]
        return KroneckerGaussian(mean, *([jnp.asarray(part)] for part in parts), rest, layers)
    if kind == "points":
        return Mixture(tuple(Point(jax.tree.map(lambda w, i=i: w + i, mean)) for i in range(3)))
    return Mixture((family("diagonal", mean), family("low rank", mean)))


KINDS = ("diagonal", "full", "low rank", "kronecker", "points", "mixture")


@pytest.mark.parametrize("kind", KINDS)
def test_streamed_draws_predict_as_the_same_draws_together(posterior, kind, monkeypatch):
    """Summation over draws in another order: 1e-10 of the numbers."""
    q = family(kind, posterior.family.mean)
    own = dataclasses.replace(posterior, family=q)
    monkeypatch.setattr(streamed, "MAX_BYTES", 0)
    found = own.predict(X, num_samples=24)
    draws = found._draws
    assert isinstance(draws, streamed.StreamedDraws)
    with jax.enable_x64(True):
        together = draws.at(jnp.arange(draws.num))
    target = own.algorithm.predictive_target(own.target, q)
    wanted = Predictive(target, together, X)
    assert found.num_samples == wanted.num_samples
    for quantity in ("mean", "epistemic", "aleatoric"):
        np.testing.assert_allclose(
            getattr(found, quantity), getattr(wanted, quantity), rtol=1e-6, atol=1e-9
        )
    np.testing.assert_allclose(found.log_prob(Y), wanted.log_prob(Y), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found.quantiles([0.2]), wanted.quantiles([0.2]), rtol=1e-5)
    np.testing.assert_allclose(found.sample(1, 5), wanted.sample(1, 5), rtol=1e-5, atol=1e-6)


def test_members_of_a_mixture_come_in_turn(posterior, monkeypatch):
    q = family("points", posterior.family.mean)
    monkeypatch.setattr(streamed, "MAX_BYTES", 0)
    draws = streamed.draws_of(q, jax.random.key(0), 6)
    with jax.enable_x64(True):
        found = jax.tree.leaves(draws.at(jnp.arange(6)))[0]
        mean = jax.tree.leaves(posterior.family.mean)[0]
    steps = np.sort(np.ravel(np.asarray(found - mean)[..., :1].reshape(6, -1)[:, 0]))
    np.testing.assert_allclose(steps, [0, 0, 1, 1, 2, 2], atol=1e-6)


def test_an_ensemble_of_linearised_members_is_streamed(monkeypatch):
    """Each draw with its member's network: moments as of draws together, to Monte Carlo error."""
    model = bl.Model(bl.networks.MLP([3]), bl.likelihoods.Gaussian(0.3))
    algorithm = bl.Ensemble(num_members=2, member=bl.Laplace())
    own = bl.fit(model, algorithm, (X, Y), seed=0, num_steps=60)
    wanted = own.predict(X, num_samples=4000)
    monkeypatch.setattr(streamed, "MAX_BYTES", 0)
    found = own.predict(X, num_samples=4000)
    np.testing.assert_allclose(found.mean, wanted.mean, atol=0.05)
    np.testing.assert_allclose(found.epistemic, wanted.epistemic, rtol=0.2)


def test_small_draws_are_those_of_sample(posterior):
    q = family("diagonal", posterior.family.mean)
    key = jax.random.key(3)
    with jax.enable_x64(True):
        found, wanted = streamed.draws_of(q, key, 5), q.sample(key, 5)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(one, other)


CHILD = """
import dataclasses, resource, jax, jax.numpy as jnp, numpy as np, bayeslearn as bl
x = np.random.default_rng(0).normal(size=(10, 100)).astype(np.float32)
model = bl.Model(bl.networks.MLP([1300, 1300]), bl.likelihoods.Gaussian(0.3))
own = bl.fit(model, bl.MAP(), (x, x[:, 0]), seed=0, num_steps=1)
std = jax.tree.map(lambda w: 0.01 + 0 * w, own.family.mean)
q = bl.families.DiagonalGaussian(own.family.mean, std)
own = dataclasses.replace(own, family=q)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
own.predict(x, num_samples=64).mean
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_memory_is_that_of_a_few_draws():
    """64 draws of 1.8 million weights are 460 MB; sampled together they took four times that."""
    ended = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, check=True
    )
    assert float(ended.stdout) < 200
