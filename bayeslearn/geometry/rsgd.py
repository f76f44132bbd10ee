r"""Riemannian (stochastic) gradient descent with transported momentum; it *minimises* `loss`.

From a point `z` ($\zeta_t$, survey section 8.1) the tangent step is taken on the manifold by a
retraction $R$, and the momentum `m` follows by a transport $\mathcal{T}$ (section 8.2):

    z_{t+1} = R_{z_t}(-learning_rate * m_t)
    m_{t+1} = momentum * T_{z_t -> z_{t+1}}(m_t) + (1 - momentum) * grad loss(z_{t+1})

with $m_0$ the gradient at the start and `momentum` the survey's $\omega$. The Riemannian gradient
`grad` follows from the Euclidean one that autodiff returns.

Two manifolds are defined. `SPD` is the affine-invariant one of `spd`. `SPHERE` is the survey's
example, the unit vectors under the Euclidean metric, batched over leading axes:

    gradient    (I - x x^T) g
    retraction  (x + v) / |x + v|
    transport   (I - y y^T) v

Differs from the survey: it writes argmin (L989) over an ascent step (L997); here the step goes
down. The transport starts at $\zeta_t$, not at a fixed $\zeta$ (L1137).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from bayeslearn.geometry import spd


class Manifold(NamedTuple):
    """The operations of a manifold that descent needs."""

    riemannian_gradient: Callable[[Array, Array], Array]  # (point, euclidean gradient)
    retract: Callable[[Array, Array], Array]  # (point, tangent)
    transport: Callable[[Array, Array, Array], Array]  # (origin, destination, tangent at origin)


class RSGDState(NamedTuple):
    """A point and the momentum, a tangent vector there."""

    point: Array
    momentum: Array


class RSGDResult(NamedTuple):
    """The last point and the loss after every step, so `losses[-1]` is the loss at `point`."""

    point: Array
    losses: Array


def rsgd_step(
    manifold: Manifold,
    loss: Callable[[Array], Array],
    state: RSGDState,
    learning_rate: ArrayLike,
    momentum: ArrayLike,
) -> tuple[RSGDState, Array]:
    """One step; returns the state and the loss at the new point.

    For stochastic descent call it in your own scan, with a `loss` that closes over the batch.
    """
    origin, tangent = state
    rate, weight = (jnp.asarray(number, origin.dtype) for number in (learning_rate, momentum))
    point = manifold.retract(origin, -rate * tangent)
    value, euclidean = jax.value_and_grad(loss)(point)
    gradient = manifold.riemannian_gradient(point, euclidean)
    transported = manifold.transport(origin, point, tangent)
    return RSGDState(point, weight * transported + (1.0 - weight) * gradient), value


def rsgd(
    manifold: Manifold,
    loss: Callable[[Array], Array],
    start: Array,
    *,
    learning_rate: ArrayLike,
    momentum: ArrayLike = 0.0,
    num_steps: int,
) -> RSGDResult:
    """Minimise `loss` over the manifold from `start`, as one compiled scan of `num_steps` steps."""

    def body(state: RSGDState, _: None) -> tuple[RSGDState, Array]:
        return rsgd_step(manifold, loss, state, learning_rate, momentum)

    first = manifold.riemannian_gradient(start, jax.grad(loss)(start))
    state, losses = jax.lax.scan(body, RSGDState(start, first), length=num_steps)
    return RSGDResult(state.point, losses)


def _sphere_project(x: Array, v: Array) -> Array:
    return v - jnp.sum(x * v, axis=-1, keepdims=True) * x


def _sphere_retract(x: Array, v: Array) -> Array:
    moved = x + v
    return moved / jnp.linalg.norm(moved, axis=-1, keepdims=True)


def _sphere_transport(x: Array, y: Array, v: Array) -> Array:
    del x
    return _sphere_project(y, v)


SPD = Manifold(spd.riemannian_gradient, spd.retract, spd.transport)
SPHERE = Manifold(_sphere_project, _sphere_retract, _sphere_transport)
