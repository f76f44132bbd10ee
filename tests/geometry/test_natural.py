"""Gaussian coordinates and natural gradients against autodiff and brute-force Fisher solves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from bayeslearn.geometry import natural

K = 3


@pytest.fixture(autouse=True)
def _strict_double():
    with (
        jax.enable_x64(True),
        jax.numpy_dtype_promotion("strict"),
        jax.numpy_rank_promotion("raise"),
    ):
        yield


def gaussian(seed, batch=()):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(*batch, K, K + 2))
    return jnp.asarray(rng.normal(size=(*batch, K))), jnp.asarray(root @ np.swapaxes(root, -1, -2))


def diagonal_gaussian(seed, shape=(K,)):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.normal(size=shape)), jnp.asarray(np.exp(rng.normal(size=shape)))


def close(actual, expected, tolerance=1e-10):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance),
        tuple(actual) if isinstance(actual, tuple) else actual,
        tuple(expected) if isinstance(expected, tuple) else expected,
    )


def objective(mean, cov):
    """A smooth function of (mean, cov), with no special structure."""
    weights = jnp.arange(1.0, K + 1.0, dtype=mean.dtype)
    sym = 0.5 * (cov + cov.T)
    fourth = jnp.sum(jnp.sin(sym) * (weights[:, None] + weights[None, :]))
    return jnp.sum(jnp.cos(weights * mean)) + mean @ sym @ mean + 0.3 * fourth


def gradients(mean, cov):
    grad_mean, grad_cov = jax.jit(jax.grad(objective, argnums=(0, 1)))(mean, cov)
    return grad_mean, 0.5 * (grad_cov + grad_cov.T)


def flat_natural(lambdas):
    """Minimal coordinates dual to (theta, vech(theta theta^T)): off-diagonals count twice."""
    second = natural.duplication_matrix(K, jnp.float64).T @ lambdas.second.ravel()
    return jnp.concatenate([lambdas.first, second])


def from_flat(flat):
    full = natural.unvech(flat[K:])
    return natural.Natural(flat[:K], 0.5 * (full + jnp.diag(jnp.diag(full))))


@jax.jit
def partition_hessian(flat):
    return jax.hessian(lambda f: natural.log_partition(from_flat(f)))(flat)


# Coordinates


def test_parameters_as_defined():
    mean, cov = gaussian(0)
    prec = np.linalg.inv(cov)
    close(natural.natural_from_mean_cov(mean, cov), (prec @ mean, -0.5 * prec))
    close(natural.natural_from_mean_prec(mean, jnp.asarray(prec)), (prec @ mean, -0.5 * prec))
    close(
        natural.expectation_from_mean_cov(mean, cov), (mean, np.asarray(cov) + np.outer(mean, mean))
    )


@pytest.mark.parametrize("batch", [(), (2,)])
def test_round_trips(batch):
    mean, cov = gaussian(1, batch)
    prec = np.linalg.inv(cov)
    lambdas = natural.natural_from_mean_cov(mean, cov)
    expectation = natural.expectation_from_mean_cov(mean, cov)
    close(natural.mean_cov_from_natural(lambdas), (mean, cov))
    close(natural.mean_prec_from_natural(lambdas), (mean, prec))
    close(natural.mean_cov_from_expectation(expectation), (mean, cov))
    close(natural.expectation_from_natural(lambdas), expectation)
    close(natural.natural_from_expectation(expectation), lambdas)


def test_diagonal_round_trips():
    mean, var = diagonal_gaussian(2, (2, K))
    lambdas = natural.natural_from_mean_cov_diagonal(mean, var)
    expectation = natural.expectation_from_mean_cov_diagonal(mean, var)
    close(natural.mean_cov_from_natural_diagonal(lambdas), (mean, var))
    close(natural.mean_prec_from_natural_diagonal(lambdas), (mean, 1 / var))
    close(natural.natural_from_mean_prec_diagonal(mean, 1 / var), lambdas)
    close(natural.mean_cov_from_expectation_diagonal(expectation), (mean, var))
    close(natural.expectation_from_natural_diagonal(lambdas), expectation)
    close(natural.natural_from_expectation_diagonal(expectation), lambdas)


def test_diagonal_twins_equal_full():
    mean, var = diagonal_gaussian(3)
    cov = jnp.diag(var)
    lambdas = natural.natural_from_mean_cov_diagonal(mean, var)
    full = natural.natural_from_mean_cov(mean, cov)
    close((lambdas.first, jnp.diag(lambdas.second)), full)
    close(natural.log_partition_diagonal(lambdas), natural.log_partition(full))
    m = natural.expectation_from_mean_cov_diagonal(mean, var)
    full_m = natural.expectation_from_mean_cov(mean, cov)
    close((m.first, m.second), (full_m.first, jnp.diag(full_m.second)))
    grad_mean, grad_cov = gradients(mean, cov)
    grad_var = jnp.diag(grad_cov)
    only_diagonal = jnp.diag(grad_var)
    close(
        natural.natural_gradient_mean_diagonal(var, grad_mean),
        natural.natural_gradient_mean(cov, grad_mean),
    )
    close(
        jnp.diag(natural.natural_gradient_cov_diagonal(var, grad_var)),
        natural.natural_gradient_cov(cov, only_diagonal),
    )
    twin = natural.natural_gradient_natural_diagonal(mean, grad_mean, grad_var)
    close(
        (twin.first, jnp.diag(twin.second)),
        natural.natural_gradient_natural(mean, grad_mean, only_diagonal),
    )


def test_vech():
    _, cov = gaussian(0, (2,))
    v = natural.vech(cov)
    assert v.shape == (2, K * (K + 1) // 2)
    close(natural.unvech(v), cov, 1e-15)
    duplication = natural.duplication_matrix(K, jnp.float64)
    close(duplication @ v[0], cov[0].ravel(), 1e-15)
    np.testing.assert_array_equal(natural.vech(jnp.arange(9).reshape(3, 3)), [0, 3, 4, 6, 7, 8])


# Log-partition


def test_log_partition_normalises_the_density():
    mean, cov = gaussian(0)
    lambdas = natural.natural_from_mean_cov(mean, cov)
    theta = jnp.asarray([0.3, -1.2, 0.8])
    inside = lambdas.first @ theta + theta @ lambdas.second @ theta
    log_density = inside - natural.log_partition(lambdas) - 0.5 * K * np.log(2 * np.pi)
    close(log_density, scipy.stats.multivariate_normal(mean, cov).logpdf(theta))


def test_log_partition_gradient_is_the_expectation():
    mean, cov = gaussian(0)
    lambdas = natural.natural_from_mean_cov(mean, cov)
    close(
        jax.jit(jax.grad(natural.log_partition))(lambdas),
        natural.expectation_from_mean_cov(mean, cov),
    )
    mean, var = diagonal_gaussian(1)
    lambdas = natural.natural_from_mean_cov_diagonal(mean, var)
    close(
        jax.grad(natural.log_partition_diagonal)(lambdas),
        natural.expectation_from_mean_cov_diagonal(mean, var),
    )


def test_log_partition_hessian_is_the_fisher_matrix():
    mean, cov = gaussian(0)
    flat = flat_natural(natural.natural_from_mean_cov(mean, cov))
    close(flat_natural(from_flat(flat)), flat, 1e-14)
    hessian = partition_hessian(flat)

    def mean_vech(f):
        got_mean, got_cov = natural.mean_cov_from_natural(from_flat(f))
        return jnp.concatenate([got_mean, natural.vech(got_cov)])

    jacobian = jax.jit(jax.jacobian(mean_vech))(flat)
    close(jacobian.T @ natural.fisher_mean_cov(cov) @ jacobian, hessian)
    assert np.linalg.eigvalsh(hessian)[0] > 1e-4


# Fisher matrices and natural gradients


def test_fisher_mean_cov_is_the_hessian_of_the_divergence():
    mean, cov = gaussian(0)

    def divergence(flat):
        other_mean, other_cov = flat[:K], natural.unvech(flat[K:])
        gap = mean - other_mean
        trace = jnp.trace(jnp.linalg.solve(other_cov, cov + jnp.outer(gap, gap)))
        return 0.5 * (trace + jnp.linalg.slogdet(other_cov)[1])

    flat = jnp.concatenate([mean, natural.vech(cov)])
    close(jax.jit(jax.hessian(divergence))(flat), natural.fisher_mean_cov(cov))


def test_fisher_mean_rho_is_the_hessian_of_the_divergence():
    mean, rho = jnp.asarray([0.5, -1.0]), jnp.asarray([-2.0, 1.5])
    std = jax.nn.softplus(rho)

    def divergence(flat):
        other = jax.nn.softplus(flat[2:])
        return jnp.sum(jnp.log(other) + (std**2 + (mean - flat[:2]) ** 2) / (2 * other**2))

    hessian = jax.jit(jax.hessian(divergence))(jnp.concatenate([mean, rho]))
    close(hessian, jnp.diag(jnp.concatenate(natural.fisher_mean_rho(rho))))


def test_natural_gradients_of_mean_and_covariance():
    mean, cov = gaussian(0)
    grad_mean, grad_cov = gradients(mean, cov)
    flat = jnp.concatenate([mean, natural.vech(cov)])
    plain = jax.jit(jax.grad(lambda f: objective(f[:K], natural.unvech(f[K:]))))(flat)
    brute = np.linalg.solve(natural.fisher_mean_cov(cov), plain)
    close(natural.natural_gradient_mean(cov, grad_mean), brute[:K], 1e-8)
    close(natural.natural_gradient_cov(cov, grad_cov), natural.unvech(brute[K:]), 1e-8)


def test_natural_gradient_of_the_precision():
    mean, cov = gaussian(0)
    _, grad_cov = gradients(mean, cov)
    coordinates = natural.vech(jnp.asarray(np.linalg.inv(cov)))
    to_cov = lambda v: natural.vech(jnp.linalg.inv(natural.unvech(v)))  # noqa: E731
    jacobian = jax.jit(jax.jacobian(to_cov))(coordinates)
    fisher = jacobian.T @ natural.fisher_mean_cov(cov)[K:, K:] @ jacobian
    plain = jax.jit(jax.grad(lambda v: objective(mean, natural.unvech(to_cov(v)))))(coordinates)
    brute = natural.unvech(np.linalg.solve(fisher, plain))
    close(natural.natural_gradient_prec(grad_cov), brute, 1e-8)


def test_natural_gradient_of_the_natural_parameters():
    mean, cov = gaussian(0)
    got = natural.natural_gradient_natural(mean, *gradients(mean, cov))
    flat = flat_natural(natural.natural_from_mean_cov(mean, cov))
    hessian = partition_hessian(flat)
    through = lambda f: objective(*natural.mean_cov_from_natural(from_flat(f)))  # noqa: E731
    plain = jax.jit(jax.grad(through))(flat)
    close(flat_natural(got), np.linalg.solve(hessian, plain), 1e-8)
    # and it is the plain gradient in the expectation parameters
    expectation = natural.expectation_from_mean_cov(mean, cov)
    dual = jax.grad(lambda m: objective(*natural.mean_cov_from_expectation(m)))(expectation)
    close(got, (dual.first, 0.5 * (dual.second + dual.second.T)))


# Damping


@pytest.mark.parametrize("batch", [(), (2,)])
def test_damped_solve(batch):
    gradient, fisher = gaussian(4, batch)
    close(
        natural.damped_solve(fisher, gradient, 0.0),
        np.linalg.solve(fisher, np.asarray(gradient)[..., None])[..., 0],
    )
    level = 0.2 * np.trace(fisher, axis1=-2, axis2=-1)[..., None, None] / K
    shifted = np.asarray(fisher) + level * np.eye(K)
    got = natural.damped_solve(fisher, gradient, 0.2)
    close(got, np.linalg.solve(shifted, np.asarray(gradient)[..., None])[..., 0])
    # relative: scaling the Fisher matrix scales the step
    close(natural.damped_solve(10.0 * fisher, gradient, 0.2), got / 10.0)


def test_damped_solve_of_a_singular_matrix_is_finite():
    direction = jnp.asarray([1.0, 2.0, -1.0])
    singular = direction[:, None] * direction[None, :]
    got = natural.damped_solve(singular, direction, 0.3)
    close(got, direction / (6.0 + 0.3 * 2.0))


# Transformations of JAX


def test_batch_equals_loop_and_dtype_is_kept():
    mean, cov = gaussian(5, (2,))
    grad_mean, grad_cov = gaussian(6, (2,))

    def everything(mean, cov, grad_mean, grad_cov):
        lambdas = natural.natural_from_mean_cov(mean, cov)
        return (
            lambdas,
            natural.expectation_from_natural(lambdas),
            natural.mean_prec_from_natural(lambdas),
            natural.log_partition(lambdas),
            natural.natural_gradient_mean(cov, grad_mean),
            natural.natural_gradient_cov(cov, grad_cov),
            natural.natural_gradient_natural(mean, grad_mean, grad_cov),
            natural.damped_solve(cov, grad_mean, np.float64(0.1)),
        )

    arguments = (mean, cov, grad_mean, grad_cov)
    batched = jax.tree.leaves(jax.jit(everything)(*arguments))
    mapped = jax.tree.leaves(jax.jit(jax.vmap(everything))(*arguments))
    for one, other in zip(batched, mapped, strict=True):
        close(one, other, 1e-9)
    single = [jax.ShapeDtypeStruct(a.shape, jnp.float32) for a in arguments]
    shapes = jax.eval_shape(everything, *single)
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype("float32")}
    assert natural.fisher_mean_cov(cov[0].astype(jnp.float32)).dtype == jnp.float32
