"""The Kronecker-factored Gaussian beside dense matrices put together by NumPy."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import scipy.stats

from bayeslearn.errors import ArgumentError
from bayeslearn.families import DiagonalGaussian, FullGaussian, KroneckerGaussian
from bayeslearn.families.kronecker import Layer, outer_factors
from bayeslearn.models.priors.gaussian import GaussianPrior

SHAPES = {"bias": (2,), "gain": (3,), "kernel": (2, 1, 3), "scale": (), "table": (4, 2)}
LAYERS = (
    Layer(weight=2, axes=(1, 2, 0), num_inputs=3, bias=0),
    Layer(weight=4, axes=(0, 1), num_inputs=4, bias=None),
)
K = sum(int(np.prod(shape)) for shape in SHAPES.values())
START = np.cumsum([0, *(int(np.prod(shape)) for shape in SHAPES.values())])


def like(vector):
    parts = np.split(np.asarray(vector), START[1:-1])
    pairs = zip(SHAPES.items(), parts, strict=True)
    return {name: part.reshape(shape) for (name, shape), part in pairs}


def ravel(params):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])


def where(number):
    """Positions in the vector of all weights of each entry of a layer's matrix."""
    of = dict(enumerate(like(np.arange(K)).values()))
    if number == 0:  # the kernel has its outputs first, the bias is the last row
        return np.vstack([of[2].transpose(1, 2, 0).reshape(3, 2), of[0]])
    return of[4]


def make(seed=0):
    rng = np.random.default_rng(seed)
    square = [rng.normal(size=(k, k)) + 2.0 * np.eye(k) for k in (4, 2, 2)]
    scale = [np.exp(0.3 * rng.normal(size=shape)) for shape in ((4, 2), (4, 2))]
    left = (square[0], np.exp(rng.normal(size=4)))  # of a table: a diagonal
    rest = (np.exp(rng.normal(size=3)), np.exp(rng.normal(size=())))
    return KroneckerGaussian(like(rng.normal(size=K)), left, square[1:], scale, rest, LAYERS)


def moments(q):
    cov = np.zeros((K, K))
    for number, (left, right, scale) in enumerate(zip(q.left, q.right, q.scale, strict=True)):
        left = np.diag(left) if left.ndim == 1 else left
        factor = np.kron(left, right) * scale.ravel()
        rows = where(number).ravel()
        cov[np.ix_(rows, rows)] = factor @ factor.T
    for leaf, std in zip((1, 3), q.rest, strict=True):
        rows = np.arange(START[leaf], START[leaf + 1])
        cov[rows, rows] = np.ravel(std) ** 2
    return ravel(q.mean), cov


def close(actual, expected, tolerance=1e-10):
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def divergence(first, second):
    (m, s), (m0, s0) = first, second
    prec = np.linalg.inv(s0)
    square = np.trace(prec @ s) + (m - m0) @ prec @ (m - m0)
    return 0.5 * (square - len(m) + np.linalg.slogdet(s0)[1] - np.linalg.slogdet(s)[1])


def test_density_entropy_and_moments():
    q = make()
    mean, cov = moments(q)
    w = np.random.default_rng(1).normal(size=K)
    exact = scipy.stats.multivariate_normal(mean, cov)
    close(q.log_prob(like(w)), exact.logpdf(w))
    close(q.entropy(), exact.entropy())
    close(q.mean_vector(), mean)
    close(q.cov_matrix(), cov)
    close(q.prec_matrix(), np.linalg.inv(cov))
    close(q.std, like(np.sqrt(np.diag(cov))))
    with jax.enable_x64(True):
        (prec,) = q.to_prior().prec_blocks(like(w), (tuple(range(5)),))
    close(prec, np.linalg.inv(cov))


def test_draws_and_pulled_gradients_are_those_of_the_dense_factor():
    q, (mean, _) = make(), moments(make())
    noise, gradient = np.random.default_rng(2).normal(size=(2, K))
    full = q.to_full()
    close(q.transform(like(noise)), like(mean + full.factor @ noise), 1e-12)
    close(q.pull(like(gradient)), like(full.factor.T @ gradient), 1e-12)
    close(q.sample(jax.random.key(0), 3), full.sample(jax.random.key(0), 3), 1e-12)


def test_kl_is_the_dense_formula():
    q, rng = make(), np.random.default_rng(3)
    prior = GaussianPrior(like(rng.normal(size=K)), like(np.exp(rng.normal(size=K))))
    independent = DiagonalGaussian(like(rng.normal(size=K)), like(np.exp(rng.normal(size=K))))
    full = FullGaussian(like(rng.normal(size=K)), rng.normal(size=(K, K)) + 2.0 * np.eye(K))
    pairs = [
        (prior, (ravel(prior.mean), np.diag(1.0 / ravel(prior.prec)))),
        (independent, (ravel(independent.mean), np.diag(ravel(independent.std) ** 2))),
        (full, (ravel(full.mean), full.factor @ full.factor.T)),
        (make(4), moments(make(4))),
    ]
    for other, exact in pairs:
        close(q.kl(other), divergence(moments(q), exact))
        if other is not prior:
            close(other.kl(q), divergence(exact, moments(q)))
    close(q.kl(q), 0.0, 1e-11)


def test_the_precision_is_the_factors_and_the_prior():
    """Exactly, where the prior has one scale for each leaf."""
    rng = np.random.default_rng(5)
    roots = [rng.normal(size=(k, k)) for k in (4, 2, 2)]
    a, s, s_table = (root @ root.T for root in roots)
    counts = np.array([0.5, 0.0, 2.0, 1.0])
    squares = (np.array([1.0, 0.0, 3.0]), np.asarray(0.7))
    scales = {"bias": 3.0, "gain": 0.5, "kernel": 0.2, "scale": 4.0, "table": 1.5}
    prior = {name: np.full(SHAPES[name], value) for name, value in scales.items()}
    q = KroneckerGaussian.from_factors(
        like(np.zeros(K)), LAYERS, ((a, s), (counts, s_table)), squares, prior, 20.0
    )
    wanted = np.diag(ravel(prior))
    for number, pair in enumerate(((a, s), (np.diag(counts), s_table))):
        rows = where(number).ravel()
        wanted[np.ix_(rows, rows)] += 20.0 * np.kron(*pair)
    for leaf, square in zip((1, 3), squares, strict=True):
        rows = np.arange(START[leaf], START[leaf + 1])
        wanted[rows, rows] += 20.0 * np.ravel(square)
    close(q.prec_matrix(), wanted, 1e-9)


def test_the_nearest_outer_product(x64):
    rows, columns = np.array([1.0, 2.0, 5.0]), np.array([0.5, 3.0])
    u, v = outer_factors(np.outer(rows, columns))
    close(np.outer(u, v), np.outer(rows, columns))
    uneven = np.outer(rows, columns)
    uneven[0, 0] *= 4.0
    u, v = outer_factors(uneven)
    close(np.mean(np.log(np.outer(u, v) / uneven), axis=1), np.zeros(3))


def test_layers_that_do_not_fit_are_refused():
    q = make()
    with pytest.raises(ArgumentError, match="`layers` must have each of the 5 leaves at most once"):
        KroneckerGaussian(q.mean, q.left, q.right, q.scale, q.rest, (LAYERS[0], LAYERS[0]))
    with pytest.raises(ArgumentError, match="`scale` must cover 8 weights"):
        KroneckerGaussian(q.mean, q.right, q.right, q.scale, q.rest, LAYERS)
    with pytest.raises(ArgumentError, match="`rest` must have the shapes"):
        KroneckerGaussian(q.mean, q.left, q.right, q.scale, q.rest[:1], LAYERS)
