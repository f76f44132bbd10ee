"""Small numerical tools that several folders share."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np

from bayeslearn.tree import Array

LOG_2PI = math.log(2 * math.pi)
FLAT = 1e-12  # curvature that counts as zero: a standard deviation above 1e6
SINGULAR = 1e-8  # eigenvalue that counts as zero, where each weight alone has a curvature of one


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


def make_positive(values: Array, flat: float = FLAT) -> Array:
    """Absolute values of curvatures or eigenvalues; those within `flat` of zero become one."""
    return jnp.where(jnp.abs(values) > flat, jnp.abs(values), 1.0)


def make_positive_definite(matrix: Array) -> tuple[Array, Array]:
    """The symmetric matrix with `make_positive` of its eigenvalues; and the eigenvalues it had.

    They are those of the matrix whose units are each weight's own curvature: beside a curvature of
    1e6, one of 1e-6 is no rounding error. Their signs do not depend on units.
    """
    unit = jnp.sqrt(make_positive(jnp.diag(matrix)))
    units = jnp.outer(unit, unit)
    values, vectors = jnp.linalg.eigh(matrix / units)
    return units * ((vectors * make_positive(values, SINGULAR)) @ vectors.T), values
