r"""What MCLMC and MAMS share: isokinetic dynamics at fixed energy.

Position x, unit vector u, d dimensions, g the gradient of the log-density. In coordinates divided
by the scales s (`scale`, a vector or a Cholesky factor), with s^T g in place of g:

    momentum step of length eps, with n = |g|, e = g / n, delta = eps n / (d - 1), c = u.e and
    z = exp(-delta):
        u  <- [2 z u + e ((1 - z^2) + c (1 + z^2 - 2 z))] / [(1 + z^2) + c (1 - z^2)], normalised
        dK  = (d - 1) (delta - log 2 + log(1 + c + (1 - c) z^2))
    position step of length eps:  x <- x + eps s u

The minimal-norm integrator (lambda = 0.1932) takes two gradients a step: momentum lambda eps,
position eps / 2, momentum (1 - 2 lambda) eps, position eps / 2, momentum lambda eps. The energy
error of a step is the sum of its dK plus the change of -log-density; it grows like eps^3.

References: Robnik, De Luca, Silverstein and Seljak (2023), Microcanonical Hamiltonian Monte Carlo;
Robnik, Cohn-Gordon and Seljak (2025), Metropolis adjusted microcanonical sampling.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from bayeslearn.models.target import Target
from bayeslearn.tree import Array

LAMBDA = 0.1931833275037836
ValueAndGrad = Callable[[Array], tuple[Array, Array]]


class TrajectoryPoint(NamedTuple):
    """A point of a trajectory: position and direction as vectors, with the density there."""

    position: Array
    direction: Array
    log_density: Array
    gradient: Array


def by_layer(target: Target) -> Target:
    """The target that evaluates all rows layer by layer, where its network can."""
    return dataclasses.replace(target, by_layer=True)


def scaled(scale: Array, vector: Array) -> Array:
    """The vector times scales (k,), or a matrix (k, k)."""
    return scale * vector if scale.ndim == 1 else scale @ vector


def momentum_step(direction: Array, gradient: Array, step_size: Array) -> tuple[Array, Array]:
    """The new direction u, and the change dK of the kinetic energy."""
    d = direction.size
    norm = jnp.linalg.norm(gradient)
    unit = gradient / jnp.maximum(norm, jnp.finfo(gradient.dtype).tiny)
    delta = step_size * norm / (d - 1)
    cosine = direction @ unit
    z = jnp.exp(-delta)
    new = 2 * z * direction + unit * ((1 - z**2) + cosine * (1 + z**2 - 2 * z))
    kinetic = (d - 1) * (delta - jnp.log(2.0) + jnp.log(1 + cosine + (1 - cosine) * z**2))
    return new / jnp.linalg.norm(new), kinetic


def integrate(
    value_and_grad: ValueAndGrad, point: TrajectoryPoint, step_size: Array, scale: Array
) -> tuple[TrajectoryPoint, Array]:
    """One minimal-norm step: the new point, and its energy error."""
    direction, kinetic = momentum_step(
        point.direction, scaled(scale.T, point.gradient), LAMBDA * step_size
    )
    fractions = jnp.array([1 - 2 * LAMBDA, LAMBDA], point.position.dtype)

    def half(i: int, carry: tuple[TrajectoryPoint, Array]) -> tuple[TrajectoryPoint, Array]:
        (position, direction, _, _), kinetic = carry
        position = position + 0.5 * step_size * scaled(scale, direction)
        log_density, gradient = value_and_grad(position)
        pull = scaled(scale.T, gradient)
        direction, change = momentum_step(direction, pull, fractions[i] * step_size)
        return TrajectoryPoint(position, direction, log_density, gradient), kinetic + change

    # A loop, so that the gradient is compiled once.
    new, kinetic = jax.lax.fori_loop(0, 2, half, (point._replace(direction=direction), kinetic))
    return new, kinetic - (new.log_density - point.log_density)


def random_direction(key: Array, size: int) -> Array:
    """Uniform on the unit sphere."""
    noise = jax.random.normal(key, (size,), jnp.float64)
    return noise / jnp.linalg.norm(noise)


def refresh(key: Array, direction: Array, step_size: Array, length: Array) -> Array:
    """Partial refresh of the direction, which decorrelates over the given length."""
    d = direction.size
    strength = jnp.sqrt(jnp.expm1(2.0 * step_size / length) / d)
    noise = jax.random.normal(key, direction.shape, direction.dtype)
    new = direction + strength * noise
    return new / jnp.linalg.norm(new)
