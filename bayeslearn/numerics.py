"""Small numerical tools that several folders share."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np

from bayeslearn.tree import Array

LOG_2PI = math.log(2 * math.pi)


def mean_and_error(values: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """Weighted mean of independent rows, and its standard error; weights count repetitions."""
    mean = float(np.average(values, weights=weight))
    variance = float(np.average((values - mean) ** 2, weights=weight))
    return mean, math.sqrt(variance / max(float(np.sum(weight)) - 1.0, 1.0))


def to_cholesky(factor: Array) -> Array:
    """The Cholesky factor of C C^T, from C^T = Q R as R^T.

    The product is not formed: that would square the condition number of C.
    """
    upper = jnp.linalg.qr(factor.T, mode="r")
    return upper.T * jnp.where(jnp.diagonal(upper) < 0, -1.0, 1.0)


def log_abs_det(matrix: Array) -> Array:
    """log|det A|."""
    return jnp.linalg.slogdet(matrix).logabsdet


def make_positive(values: Array, flat: float) -> Array:
    """Absolute values of curvatures or eigenvalues; those within `flat` of zero become one."""
    return jnp.where(jnp.abs(values) > flat, jnp.abs(values), 1.0)


def make_positive_definite(matrix: Array, flat: float) -> tuple[Array, Array]:
    """The symmetric matrix with `make_positive` of its eigenvalues; and the eigenvalues it had."""
    values, vectors = jnp.linalg.eigh(matrix)
    return (vectors * make_positive(values, flat)) @ vectors.T, values
