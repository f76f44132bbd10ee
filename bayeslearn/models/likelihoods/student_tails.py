"""The upper tail of Student's t from tables.

The incomplete beta function costs a hundred times a Gaussian's distribution function, and a
quantile needs sixty values for each draw. A table holds the tail at sinh(i TAIL_STEP) and its slope
in i; interpolation is accurate to about 1e-10, up to z = 1e5.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betainc

from bayeslearn.tree import Array

TAIL_STEP, TAIL_NODES = 0.01, 1220
NUM_TERMS = 33  # of the expansion in 1 / dof: exact to 1e-13
MIN_DOF = 2.0


@jax.jit
def student_tails(dof: Array) -> Array:
    """The table of one t, with any degrees of freedom: (nodes, 2)."""
    at = TAIL_STEP * jnp.arange(TAIL_NODES, dtype=jnp.result_type(float))
    z = jnp.sinh(at)
    tail = 0.5 * betainc(0.5 * dof, 0.5, dof / (dof + z**2))
    density = jnp.exp(jax.scipy.stats.t.logpdf(z, dof))
    return jnp.stack([tail, -density * jnp.cosh(at) * TAIL_STEP], axis=1)


def expanded_tails(dof: Array) -> Array:
    """The same for degrees of freedom above 2, as a sum of Chebyshev polynomials in 1 / dof."""
    angle = jnp.arccos(jnp.clip(2.0 * MIN_DOF / dof - 1.0, -1.0, 1.0))
    terms = jnp.cos(angle[..., None] * jnp.arange(NUM_TERMS))
    return jnp.tensordot(terms, jnp.asarray(_coefficients(), terms.dtype), axes=1)


@functools.cache
def _coefficients() -> np.ndarray:
    """Of the polynomials: (terms, nodes, 2)."""
    from scipy.special import stdtr
    from scipy.stats import t

    angles = np.pi * (np.arange(NUM_TERMS) + 0.5) / NUM_TERMS
    dof = 2.0 * MIN_DOF / (np.cos(angles) + 1.0)
    at = TAIL_STEP * np.arange(TAIL_NODES)
    z = np.sinh(at)
    slope = -np.stack([t.pdf(z, own) for own in dof]) * np.cosh(at) * TAIL_STEP
    tables = np.stack([np.stack([stdtr(own, -z) for own in dof]), slope], axis=-1)
    cosines = np.cos(np.arange(NUM_TERMS)[:, None] * angles)
    found = 2.0 / NUM_TERMS * np.tensordot(cosines, tables, axes=1)
    found[0] /= 2.0
    return found


def interpolated_cdf(z: Array, tails: Array) -> Array:
    """Distribution function at z, from a table (nodes, 2)."""
    at = jnp.minimum(jnp.arcsinh(jnp.abs(z)) / TAIL_STEP, len(tails) - 1.001)
    index = jnp.floor(at).astype(jnp.int32)
    s = at - index
    (left, left_slope), (right, right_slope) = tails[index].T, tails[index + 1].T
    curve = s**2 * (3.0 - 2.0 * s)  # cubic Hermite interpolation
    tail = left + curve * (right - left)
    tail = tail + s * (1.0 - s) * ((1.0 - s) * left_slope - s * right_slope)
    return jnp.where(z < 0, tail, 1.0 - tail)
