"""Riemannian descent on the sphere and on SPD matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from bayeslearn.geometry import spd
from bayeslearn.geometry.rsgd import SPD, SPHERE, RSGDState, rsgd, rsgd_step

K = 3


@pytest.fixture(autouse=True)
def _strict_double():
    with (
        jax.enable_x64(True),
        jax.numpy_dtype_promotion("strict"),
        jax.numpy_rank_promotion("raise"),
    ):
        yield


def random_spd(seed, k=K):
    root = np.random.default_rng(seed).normal(size=(k, k + 2))
    return jnp.asarray(root @ root.T / k)


def close(actual, expected, tolerance=1e-8):
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def likelihood_loss(sample_cov):
    """Negative mean Gaussian log-likelihood of the covariance, without its constant."""

    def loss(cov):
        trace = jnp.trace(jnp.linalg.solve(cov, sample_cov))
        return 0.5 * (jnp.linalg.slogdet(cov)[1] + trace)

    return loss


# Sphere: the survey's unit sphere in three dimensions


def test_sphere_operations():
    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(v / np.linalg.norm(v)) for v in rng.normal(size=(2, 3)))
    g = jnp.asarray(rng.normal(size=3))
    tangent = SPHERE.riemannian_gradient(x, g)
    close(tangent, (np.eye(3) - np.outer(x, x)) @ g, 1e-14)
    moved = SPHERE.retract(x, tangent)
    close(jnp.linalg.norm(moved), 1.0, 1e-14)
    close(moved, (x + tangent) / np.sqrt(1 + tangent @ tangent), 1e-14)
    close(SPHERE.transport(x, y, tangent), (np.eye(3) - np.outer(y, y)) @ tangent, 1e-14)
    assert abs(float(jnp.linalg.norm(x - 0.1 * g)) - 1.0) > 1e-2  # the Euclidean step leaves it


@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_leading_eigenvector_on_the_sphere(momentum):
    basis = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    a = jnp.asarray((basis * np.array([3.0, 2.0, 0.5])) @ basis.T)
    start = jnp.asarray(basis @ np.array([0.2, 0.9, np.sqrt(1 - 0.85)]))
    result = rsgd(
        SPHERE, lambda x: -x @ a @ x, start, learning_rate=0.2, momentum=momentum, num_steps=300
    )
    close(jnp.linalg.norm(result.point), 1.0, 1e-14)
    close(jnp.abs(result.point @ basis[:, 0]), 1.0, 1e-12)
    assert result.losses.shape == (300,)
    close(result.losses[-1], -3.0)
    close(result.losses[-1], -result.point @ a @ result.point, 1e-14)
    assert result.losses[0] > -2.9


# SPD


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_maximum_likelihood_covariance(momentum):
    sample_cov = random_spd(2)
    loss = likelihood_loss(sample_cov)
    start = 3.0 * jnp.eye(K)
    settings = {"learning_rate": 0.8, "momentum": momentum, "num_steps": 150}
    result = jax.jit(lambda z: rsgd(SPD, loss, z, **settings))(start)
    close(result.point, sample_cov)
    assert result.losses[-1] < loss(start)
    close(result.losses[-1], loss(result.point), 1e-13)


def test_karcher_mean_of_two_matrices_is_the_geometric_mean():
    a, b = random_spd(3), random_spd(4)

    def loss(z):
        return 0.5 * (spd.squared_distance(z, a) + spd.squared_distance(z, b))

    run = jax.jit(lambda start: rsgd(SPD, loss, start, learning_rate=0.4, num_steps=60))
    result = run(jnp.eye(K))
    root = np.real(scipy.linalg.sqrtm(np.asarray(a)))
    inverse = np.linalg.inv(root)
    geometric = root @ np.real(scipy.linalg.sqrtm(inverse @ b @ inverse)) @ root
    close(result.point, geometric)


def test_karcher_mean_is_stationary_and_equivariant():
    matrices = jnp.stack([random_spd(seed) for seed in (5, 6, 7)])
    change = jnp.asarray(np.random.default_rng(8).normal(size=(K, K)))

    @jax.jit
    def mean_of(points, start):
        def loss(z):
            copies = jnp.broadcast_to(z, points.shape)
            return jnp.mean(0.5 * spd.squared_distance(copies, points))

        settings = {"learning_rate": 0.7, "momentum": 0.2, "num_steps": 80}
        return rsgd(SPD, loss, start, **settings).point

    mean = mean_of(matrices, jnp.eye(K))
    pulls = jax.vmap(lambda y: spd.log_map(mean, y))(matrices)
    close(jnp.sum(pulls, axis=0), np.zeros((K, K)))
    moved = mean_of(jax.vmap(lambda y: change @ y @ change.T)(matrices), change @ change.T)
    close(moved, change @ mean @ change.T)


def test_momentum_is_transported():
    sample_cov, rate, weight = random_spd(2), 0.3, 0.8
    loss = likelihood_loss(sample_cov)
    target = np.asarray(sample_cov)

    def gradient(z):  # Z G Z with G = (Z^-1 - Z^-1 S Z^-1) / 2
        return 0.5 * (z - target)

    z = 3.0 * np.eye(K) + 0.5
    start, m = jnp.asarray(z), gradient(z)
    for _ in range(12):
        xi = -rate * m
        new = z + xi + 0.5 * xi @ np.linalg.inv(z) @ xi
        e = np.real(scipy.linalg.sqrtm(new @ np.linalg.inv(z)))
        z, m = new, weight * e @ m @ e.T + (1 - weight) * gradient(new)
    result = rsgd(SPD, loss, start, learning_rate=rate, momentum=weight, num_steps=12)
    close(result.point, z, 1e-10)
    # Not yet converged, so the last loss can only be that of the last point.
    close(result.losses[-1], loss(result.point), 1e-13)


def test_stochastic_descent_through_the_step():
    rng = np.random.default_rng(9)
    data = jnp.asarray(rng.normal(size=(400, K)) @ np.linalg.cholesky(random_spd(2)).T)
    target = data.T @ data / 400
    batches = data.reshape(40, 10, K)

    def body(state, inputs):
        batch, rate = inputs
        state, _ = rsgd_step(SPD, likelihood_loss(batch.T @ batch / 10), state, rate, 0.5)
        return state, state.point

    # The gradient is (Z - S_batch) / 2, so these rates make Z nearly the running mean of S_batch:
    # at the end of a pass the error is O(1/t), and four times the steps should quarter it.
    start = RSGDState(3.0 * jnp.eye(K), jnp.zeros((K, K)))
    rates = 2.0 / (2.0 + jnp.arange(1600.0))
    _, points = jax.lax.scan(body, start, (jnp.tile(batches, (40, 1, 1)), rates))
    errors = [float(spd.distance(z, target)) for z in (start.point, points[399], points[1599])]
    assert errors[1] < errors[0] / 4
    assert errors[2] < errors[1] / 2


def test_rate_is_dynamic_and_dtype_is_kept():
    loss = likelihood_loss(random_spd(2).astype(jnp.float32))
    traces = []

    @jax.jit
    def run(rate, weight):
        traces.append(1)
        start = jnp.eye(K, dtype=jnp.float32)
        return rsgd(SPD, loss, start, learning_rate=rate, momentum=weight, num_steps=3)

    slow, fast = run(jnp.float64(0.1), 0.0), run(jnp.float64(0.5), 0.5)
    assert len(traces) == 1
    assert slow.point.dtype == slow.losses.dtype == jnp.float32
    assert not jnp.array_equal(slow.point, fast.point)
