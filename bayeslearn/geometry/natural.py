r"""Coordinates of a Gaussian, its Fisher matrices, and natural gradients in closed form.

The Gaussian $N(\mu, \Sigma)$, `mean` and `cov`, with $P = \Sigma^{-1}$, `prec`, is an exponential
family (survey section 5):

    q(theta) = (2 pi)^(-k/2) exp(l1^T theta + tr(l2 theta theta^T) - A(l))
    natural       l1 = P mu,   l2 = -P/2                       Natural(first, second)
    expectation   m1 = mu,     m2 = Sigma + mu mu^T            Expectation(first, second)
    A(l)        = -1/4 l1^T l2^-1 l1 - 1/2 log|-2 l2|          log_partition
    m           = dA/dl,       Fisher(l) = d^2 A / dl^2

The natural gradient of a function is `Fisher^-1 gradient`, and in `l` it is the plain gradient in
`m` (eq. natgrad_lambda_grad_m). Let $g$ = `grad_mean` and $G$ = `grad_cov`, the symmetric matrix
with $d\mathcal{L} = \mathrm{tr}(G\, d\Sigma)$ (symmetrise what autodiff returns). Then

    of mu        Sigma g            of l1    g - 2 G mu
    of Sigma     2 Sigma G Sigma    of l2    G
    of Sigma^-1  -2 G

The Fisher matrix in $(\mu, \mathrm{vech}\,\Sigma)$ is block diagonal, $P$ and
$\frac12 D^\top (P \otimes P) D$ with $D$ the duplication matrix; in $(\mu, \rho)$ with
$\sigma = \mathrm{softplus}(\rho)$ it is diagonal, $1/\sigma^2$ and
$2\,\mathrm{sigmoid}(\rho)^2/\sigma^2$.

Matrices may carry leading batch axes, shared by all arguments (not in `duplication_matrix` and
`fisher_mean_cov`). The twins `*_diagonal` take vectors of variances or precisions of any shape and
treat each entry as its own one-dimensional Gaussian. Natural gradients have no preferred sign: they
go up if the gradients do.

Differs from the survey: the density constant is $(2\pi)^{-k/2}$ (L577); $A$ needs the determinant,
$\log|-2\lambda_2|$ (L600); the sufficient statistic is $\theta\theta^\top$ as a *symmetric* matrix,
in vech coordinates, since its vec makes the Fisher matrix singular (L571, L581);
$\mathcal{I}(\Sigma) = \frac12 \Sigma^{-1} \otimes \Sigma^{-1}$, not twice it (L1174).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike


class Natural(NamedTuple):
    """Natural parameters P mu and -P/2."""

    first: Array
    second: Array


class Expectation(NamedTuple):
    """Expectation parameters E[theta] and E[theta theta^T]."""

    first: Array
    second: Array


def natural_from_mean_prec(mean: Array, prec: Array) -> Natural:
    """Natural parameters from mean and precision."""
    return Natural(_times(prec, mean), -0.5 * prec)


def mean_prec_from_natural(natural: Natural) -> tuple[Array, Array]:
    """Mean and precision from natural parameters."""
    prec = -2.0 * natural.second
    return _solve(prec, natural.first), prec


def natural_from_mean_cov(mean: Array, cov: Array) -> Natural:
    """Natural parameters from mean and covariance."""
    return natural_from_mean_prec(mean, _inverse(cov))


def mean_cov_from_natural(natural: Natural) -> tuple[Array, Array]:
    """Mean and covariance from natural parameters."""
    cov = _inverse(-2.0 * natural.second)
    return _times(cov, natural.first), cov


def expectation_from_mean_cov(mean: Array, cov: Array) -> Expectation:
    """Expectation parameters from mean and covariance."""
    return Expectation(mean, cov + _outer(mean))


def mean_cov_from_expectation(expectation: Expectation) -> tuple[Array, Array]:
    """Mean and covariance from expectation parameters."""
    return expectation.first, expectation.second - _outer(expectation.first)


def expectation_from_natural(natural: Natural) -> Expectation:
    """Expectation parameters from natural ones: the gradient of `log_partition`."""
    return expectation_from_mean_cov(*mean_cov_from_natural(natural))


def natural_from_expectation(expectation: Expectation) -> Natural:
    """Natural parameters from expectation parameters."""
    return natural_from_mean_cov(*mean_cov_from_expectation(expectation))


def log_partition(natural: Natural) -> Array:
    """A(l) = -1/4 l1^T l2^-1 l1 - 1/2 log|-2 l2|, that is mu^T P mu / 2 - log|P| / 2."""
    factor = jnp.linalg.cholesky(-2.0 * natural.second)
    whitened = _solve_lower(factor, natural.first[..., None])[..., 0]
    log_det = 2.0 * jnp.sum(jnp.log(jnp.diagonal(factor, axis1=-2, axis2=-1)), axis=-1)
    return 0.5 * jnp.sum(whitened**2, axis=-1) - 0.5 * log_det


def natural_gradient_mean(cov: Array, grad_mean: Array) -> Array:
    """Natural gradient of the mean, Sigma g."""
    return _times(cov, grad_mean)


def natural_gradient_cov(cov: Array, grad_cov: Array) -> Array:
    """Natural gradient of the covariance, 2 Sigma G Sigma."""
    return 2.0 * cov @ grad_cov @ cov


def natural_gradient_prec(grad_cov: Array) -> Array:
    """Natural gradient of the precision, -2 G; the same for a diagonal."""
    return -2.0 * grad_cov


def natural_gradient_natural(mean: Array, grad_mean: Array, grad_cov: Array) -> Natural:
    """Natural gradient of the natural parameters, (g - 2 G mu, G)."""
    return Natural(grad_mean - 2.0 * _times(grad_cov, mean), grad_cov)


def natural_from_mean_prec_diagonal(mean: Array, prec: Array) -> Natural:
    """`natural_from_mean_prec` for a diagonal."""
    return Natural(prec * mean, -0.5 * prec)


def mean_prec_from_natural_diagonal(natural: Natural) -> tuple[Array, Array]:
    """`mean_prec_from_natural` for a diagonal."""
    prec = -2.0 * natural.second
    return natural.first / prec, prec


def natural_from_mean_cov_diagonal(mean: Array, var: Array) -> Natural:
    """`natural_from_mean_cov` for a diagonal of variances."""
    return natural_from_mean_prec_diagonal(mean, 1.0 / var)


def mean_cov_from_natural_diagonal(natural: Natural) -> tuple[Array, Array]:
    """`mean_cov_from_natural` for a diagonal: mean and variances."""
    mean, prec = mean_prec_from_natural_diagonal(natural)
    return mean, 1.0 / prec


def expectation_from_mean_cov_diagonal(mean: Array, var: Array) -> Expectation:
    """`expectation_from_mean_cov` for a diagonal of variances."""
    return Expectation(mean, var + mean**2)


def mean_cov_from_expectation_diagonal(expectation: Expectation) -> tuple[Array, Array]:
    """`mean_cov_from_expectation` for a diagonal: mean and variances."""
    return expectation.first, expectation.second - expectation.first**2


def expectation_from_natural_diagonal(natural: Natural) -> Expectation:
    """`expectation_from_natural` for a diagonal."""
    return expectation_from_mean_cov_diagonal(*mean_cov_from_natural_diagonal(natural))


def natural_from_expectation_diagonal(expectation: Expectation) -> Natural:
    """`natural_from_expectation` for a diagonal."""
    return natural_from_mean_cov_diagonal(*mean_cov_from_expectation_diagonal(expectation))


def log_partition_diagonal(natural: Natural) -> Array:
    """`log_partition` for a diagonal, summed over the whole array."""
    prec = -2.0 * natural.second
    return 0.5 * jnp.sum(natural.first**2 / prec - jnp.log(prec))


def natural_gradient_mean_diagonal(var: Array, grad_mean: Array) -> Array:
    """`natural_gradient_mean` for a diagonal of variances."""
    return var * grad_mean


def natural_gradient_cov_diagonal(var: Array, grad_var: Array) -> Array:
    """`natural_gradient_cov` for a diagonal: 2 sigma^4 times the gradient."""
    return 2.0 * var * grad_var * var


def natural_gradient_natural_diagonal(mean: Array, grad_mean: Array, grad_var: Array) -> Natural:
    """`natural_gradient_natural` for a diagonal."""
    return Natural(grad_mean - 2.0 * grad_var * mean, grad_var)


def vech(a: Array) -> Array:
    """Lower triangle of a symmetric matrix, row by row: shape `(..., k (k + 1) / 2)`."""
    rows, columns = np.tril_indices(a.shape[-1])
    return a[..., rows, columns]


def unvech(v: Array) -> Array:
    """Symmetric matrix from its `vech`."""
    k = (math.isqrt(8 * v.shape[-1] + 1) - 1) // 2
    return jnp.take(v, _vech_index(k), axis=-1)


def duplication_matrix(k: int, dtype: jnp.dtype | type | None = None) -> Array:
    """The matrix D with vec(A) = D vech(A) for every symmetric A of size `k`."""
    return jax.nn.one_hot(_vech_index(k).ravel(), k * (k + 1) // 2, dtype=dtype)


def fisher_mean_cov(cov: Array) -> Array:
    """Fisher matrix in (mu, vech Sigma), dense: O(k^4) memory, meant for small k and tests."""
    prec = _inverse(cov)
    duplication = duplication_matrix(cov.shape[-1], cov.dtype)
    lower = 0.5 * duplication.T @ jnp.kron(prec, prec) @ duplication
    return jax.scipy.linalg.block_diag(prec, lower)


def fisher_mean_rho(rho: Array) -> tuple[Array, Array]:
    """Diagonals of the Fisher matrix in mu and in rho, std = softplus(rho)."""
    prec = 1.0 / jax.nn.softplus(rho) ** 2
    return prec, 2.0 * jax.nn.sigmoid(rho) ** 2 * prec


def damped_solve(fisher: Array, gradient: Array, damping: ArrayLike) -> Array:
    """(F + damping tr(F)/dim I)^-1 gradient, for a vector `gradient`.

    The damping is relative to the mean eigenvalue of `fisher`, so it does not depend on its scale.
    A singular `fisher` (fewer draws than parameters) needs a positive one.
    """
    dim = fisher.shape[-1]
    mean_eigenvalue = jnp.trace(fisher, axis1=-2, axis2=-1) / dim
    level = jnp.asarray(damping, fisher.dtype) * mean_eigenvalue
    return _solve(fisher + level[..., None, None] * _eye_like(fisher), gradient)


def _times(matrix: Array, vector: Array) -> Array:
    return (matrix @ vector[..., None])[..., 0]


def _outer(vector: Array) -> Array:
    return vector[..., :, None] * vector[..., None, :]


def _solve_lower(factor: Array, b: Array, transpose: bool = False) -> Array:
    return jax.lax.linalg.triangular_solve(
        factor, b, left_side=True, lower=True, transpose_a=transpose
    )


def _solve(spd: Array, vector: Array) -> Array:
    factor = jnp.linalg.cholesky(spd)
    return _solve_lower(factor, _solve_lower(factor, vector[..., None]), transpose=True)[..., 0]


def _inverse(spd: Array) -> Array:
    root = _solve_lower(jnp.linalg.cholesky(spd), _eye_like(spd))
    return root.mT @ root


def _eye_like(matrix: Array) -> Array:
    return jnp.broadcast_to(jnp.eye(matrix.shape[-1], dtype=matrix.dtype), matrix.shape)


def _vech_index(k: int) -> np.ndarray:
    rows, columns = np.indices((k, k))
    larger, smaller = np.maximum(rows, columns), np.minimum(rows, columns)
    return larger * (larger + 1) // 2 + smaller
