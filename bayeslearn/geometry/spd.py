r"""Symmetric positive definite (SPD) matrices under the affine-invariant metric.

A point is `z` ($\zeta$ in the survey, sections 8.1 and 8.2), a covariance or a precision. A tangent
vector `xi` ($\xi$) is a symmetric matrix of the same shape. Everything is computed in coordinates
whitened by the Cholesky factor $L$, $Z = LL^\top$, $B = L^{-1}\xi L^{-\top}$, where the metric is
Euclidean and only symmetric matrices are ever decomposed:

    inner(z, a, b)               tr(Z^-1 a Z^-1 b)
    riemannian_gradient(z, G)    Z G Z, with dloss = tr(G dZ); G is symmetrised first
    retract(z, xi)               Z + xi + xi Z^-1 xi / 2  =  L (I + B + B^2/2) L^T
    exp_map(z, xi)               L exp(B) L^T
    log_map(z, y)                L log(W) L^T,  W = L^-1 Y L^-T
    transport(z, y, xi)          E xi E^T,  E = (Y Z^-1)^(1/2) = L W^(1/2) L^-1
    transport_along(z, eta, xi)  Q xi Q^T,  Q = Z^(1/2) exp(Z^(-1/2) eta Z^(-1/2) / 2) Z^(-1/2)
    distance(z, y)               |log W| (Frobenius)

Full matrices have shape `(..., k, k)`: leading axes are a batch of separate manifolds (the blocks
of a block-diagonal covariance) and must agree between the arguments; reductions keep them. The
twins `*_diagonal` take the positive diagonal itself, of any shape, and reduce over all of it.

The Fisher metric of a Gaussian is half of this one, so its gradient is twice as long, `2 Z G Z`
(`natural.natural_gradient_cov`).

The retraction agrees with the exponential map to second order and keeps at least half of `z`, but
is not monotone: it multiplies a whitened direction by $1 + c + c^2/2 \ge 1/2$, so $c = -3$
*enlarges* it 2.5 times. `clip_tangent` clips $|c|$ to a trust region.

Differs from the survey:

- Tangent form of the transport (L1118-1125): printed with the *destination* in the exponential;
  it holds for a *tangent* vector `eta` whose destination is `exp_map(z, eta)`. For a destination
  use `transport`.
- `transport` (L1131) is presented as an approximation; it is the exact parallel transport.
- The projection (L1104) is not the identity but the symmetrisation.
- A retraction (L1056) need not project, and this one is second order.

First derivatives are right at any point, repeated eigenvalues included (the plain derivative of
`eigh` is NaN there). Exceptions: `clip_tangent` and `frame_step`, which are steps of an optimiser
and use `eigh` directly; `norm` and `distance` at zero, which have no derivative there.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike


def symmetrize(a: Array) -> Array:
    """Symmetric part of `a`: the projection onto the tangent space."""
    return 0.5 * (a + a.mT)


def inner(z: Array, a: Array, b: Array) -> Array:
    """Inner product tr(Z^-1 a Z^-1 b) of two tangent vectors at `z`."""
    factor = jnp.linalg.cholesky(z)
    return jnp.sum(_whiten(factor, a) * _whiten(factor, b), axis=(-2, -1))


def norm(z: Array, xi: Array) -> Array:
    """Length of a tangent vector at `z`."""
    return jnp.sqrt(jnp.sum(_whiten(jnp.linalg.cholesky(z), xi) ** 2, axis=(-2, -1)))


def riemannian_gradient(z: Array, euclidean: Array) -> Array:
    """Gradient Z G Z from the matrix G of partial derivatives (the Fisher metric gives 2 Z G Z)."""
    return symmetrize(z @ symmetrize(euclidean) @ z)


def retract(z: Array, xi: Array) -> Array:
    """Second-order step Z + xi + xi Z^-1 xi / 2."""
    factor = jnp.linalg.cholesky(z)
    # I + B + B^2/2 = (I + (I + B)^2) / 2: two positive terms, so nothing cancels.
    root = factor + factor @ _whiten(factor, xi)
    return 0.5 * (z + root @ root.mT)


def retraction_eigenvalues(b: Array) -> Array:
    """Eigenvalues of I + B + B^2/2 from those of B, a whitened step: never below one half."""
    return 1.0 + b + 0.5 * b**2


def exp_map(z: Array, xi: Array) -> Array:
    """End of the geodesic that leaves `z` with velocity `xi`, after unit time."""
    factor = jnp.linalg.cholesky(z)
    root = factor @ _spectral_exp(0.5 * _whiten(factor, xi))
    return root @ root.mT


def log_map(z: Array, y: Array) -> Array:
    """Tangent vector at `z` whose `exp_map` is `y`."""
    factor = jnp.linalg.cholesky(z)
    return _colour(factor, _spectral_log(_whiten(factor, y)))


def transport(z: Array, y: Array, xi: Array) -> Array:
    """Parallel transport of `xi` from `z` to `y` along the geodesic between them."""
    factor = jnp.linalg.cholesky(z)
    root = factor @ _spectral_sqrt(_whiten(factor, y))
    return _colour(root, _whiten(factor, xi))


def transport_along(z: Array, eta: Array, xi: Array) -> Array:
    """Parallel transport of `xi` from `z` to `exp_map(z, eta)`."""
    factor = jnp.linalg.cholesky(z)
    root = factor @ _spectral_exp(0.5 * _whiten(factor, eta))
    return _colour(root, _whiten(factor, xi))


def squared_distance(z: Array, y: Array) -> Array:
    """Square of `distance`, differentiable also where `y` equals `z`."""
    eigenvalues = jnp.linalg.eigvalsh(_whiten(jnp.linalg.cholesky(z), y))
    return jnp.sum(jnp.log(eigenvalues) ** 2, axis=-1)


def distance(z: Array, y: Array) -> Array:
    """Length of the geodesic from `z` to `y`."""
    return jnp.sqrt(squared_distance(z, y))


def clip_tangent(z: Array, xi: Array, radius: ArrayLike | None) -> tuple[Array, Array]:
    """Clip the eigenvalues of the whitened step L^-1 xi L^-T to [-radius, radius].

    Returns the step and whether it was clipped. If it was not, or with `radius=None`, the step is
    returned unchanged.
    """
    if radius is None:
        return xi, jnp.zeros(z.shape[:-2], bool)
    factor = jnp.linalg.cholesky(z)
    eigenvalues, vectors = jnp.linalg.eigh(_whiten(factor, xi))
    inside, is_clipped = _clip(eigenvalues, radius)
    root = factor @ vectors
    clipped = symmetrize((root * inside[..., None, :]) @ root.mT)
    return jnp.where(is_clipped[..., None, None], clipped, xi), is_clipped


def frame_step(
    frame: Array,
    inverse_frame: Array,
    momentum: Array,
    step: ArrayLike,
    radius: ArrayLike | None = None,
) -> tuple[Array, Array, Array]:
    r"""One retraction step in a moving frame: no solve and no Cholesky factor.

    `frame` is any $G$ with $Z = GG^\top$ (not triangular), `inverse_frame` its inverse transpose
    $G^{-\top}$, and `momentum` the symmetric matrix $M$ in the coordinates of the frame, that is
    the tangent vector $G M G^\top$. With $B$ = `step` $M$, its eigenvalues clipped to
    `[-radius, radius]` unless `radius` is None, and $Q = (I + B + B^2/2)^{1/2}$,

        G <- G Q,    G^-T <- G^-T Q^-1

    so that $Z$ becomes `retract(z, step * G M G^T)`. Parallel transport to the new point is
    $G M G^\top \to GQ\,M\,QG^\top$, hence the identity on $M$: `momentum` is unchanged.

    Returns the new frame, the new inverse transpose, and whether the step was clipped.
    """
    eigenvalues, vectors = jnp.linalg.eigh(jnp.asarray(step, momentum.dtype) * momentum)
    inside, is_clipped = _clip(eigenvalues, radius)
    root = jnp.sqrt(retraction_eigenvalues(inside))[..., None, :]
    stretch, shrink = (vectors * root) @ vectors.mT, (vectors / root) @ vectors.mT
    return frame @ stretch, inverse_frame @ shrink, is_clipped


def inner_diagonal(z: Array, a: Array, b: Array) -> Array:
    """`inner` for diagonals: sum a b / z^2 over the whole array."""
    return jnp.sum((a / z) * (b / z))


def norm_diagonal(z: Array, xi: Array) -> Array:
    """`norm` for diagonals."""
    return jnp.sqrt(jnp.sum((xi / z) ** 2))


def riemannian_gradient_diagonal(z: Array, euclidean: Array) -> Array:
    """`riemannian_gradient` for diagonals: z^2 G."""
    return z * euclidean * z


def retract_diagonal(z: Array, xi: Array) -> Array:
    """`retract` for diagonals: z + xi + xi^2 / (2 z)."""
    return 0.5 * (z + (z + xi) ** 2 / z)


def exp_map_diagonal(z: Array, xi: Array) -> Array:
    """`exp_map` for diagonals."""
    return z * jnp.exp(xi / z)


def log_map_diagonal(z: Array, y: Array) -> Array:
    """`log_map` for diagonals."""
    return z * jnp.log(y / z)


def transport_diagonal(z: Array, y: Array, xi: Array) -> Array:
    """`transport` for diagonals: (y / z) xi."""
    return (y / z) * xi


def transport_along_diagonal(z: Array, eta: Array, xi: Array) -> Array:
    """`transport_along` for diagonals."""
    return jnp.exp(eta / z) * xi


def squared_distance_diagonal(z: Array, y: Array) -> Array:
    """`squared_distance` for diagonals."""
    return jnp.sum(jnp.log(y / z) ** 2)


def distance_diagonal(z: Array, y: Array) -> Array:
    """`distance` for diagonals."""
    return jnp.sqrt(squared_distance_diagonal(z, y))


def clip_tangent_diagonal(z: Array, xi: Array, radius: ArrayLike | None) -> tuple[Array, Array]:
    """`clip_tangent` for diagonals: clips xi / z; and whether any entry was clipped."""
    if radius is None:
        return xi, jnp.zeros((), bool)
    bound = jnp.asarray(radius, xi.dtype)
    beyond = jnp.abs(xi / z) > bound
    return jnp.where(beyond, jnp.sign(xi) * bound * z, xi), jnp.any(beyond)


def frame_step_diagonal(
    frame: Array,
    inverse_frame: Array,
    momentum: Array,
    step: ArrayLike,
    radius: ArrayLike | None = None,
) -> tuple[Array, Array, Array]:
    """`frame_step` for diagonals: z = frame^2 and inverse_frame = 1 / frame, entry by entry."""
    whitened = jnp.asarray(step, momentum.dtype) * momentum
    inside, is_clipped = _clip(whitened.ravel(), radius)
    root = jnp.sqrt(retraction_eigenvalues(inside)).reshape(whitened.shape)
    return frame * root, inverse_frame / root, is_clipped


def _whiten(factor: Array, a: Array) -> Array:
    """L^-1 a L^-T for symmetric `a`."""
    solve = jax.lax.linalg.triangular_solve
    half = solve(factor, a, left_side=True, lower=True)
    return symmetrize(solve(factor, half, left_side=False, lower=True, transpose_a=True))


def _colour(factor: Array, b: Array) -> Array:
    """F b F^T, the inverse of `_whiten` when F is L."""
    return symmetrize(factor @ b @ factor.mT)


def _clip(eigenvalues: Array, radius: ArrayLike | None) -> tuple[Array, Array]:
    """Eigenvalues inside [-radius, radius], and whether any was outside."""
    if radius is None:
        return eigenvalues, jnp.zeros(eigenvalues.shape[:-1], bool)
    bound = jnp.asarray(radius, eigenvalues.dtype)
    is_clipped = jnp.any(jnp.abs(eigenvalues) > bound, axis=-1)
    return jnp.clip(eigenvalues, -bound, bound), is_clipped


def _spectral(
    function: Callable[[Array], Array], divided_difference: Callable[[Array, Array], Array]
) -> Callable[[Array], Array]:
    """Lift a scalar function to symmetric matrices, with its derivative by divided differences.

    With A = V diag(w) V^T the derivative is V (K * V^T dA V) V^T, K_ij = (f(w_i) - f(w_j)) /
    (w_i - w_j), which stays finite when eigenvalues meet.
    """

    def value(eigenvalues: Array, vectors: Array) -> Array:
        return symmetrize((vectors * function(eigenvalues)[..., None, :]) @ vectors.mT)

    @jax.custom_jvp
    def lifted(a: Array) -> Array:
        return value(*jnp.linalg.eigh(a))

    @lifted.defjvp
    def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        eigenvalues, vectors = jnp.linalg.eigh(primals[0])
        rotated = vectors.mT @ symmetrize(tangents[0]) @ vectors
        kernel = divided_difference(eigenvalues[..., :, None], eigenvalues[..., None, :])
        return value(eigenvalues, vectors), vectors @ (kernel * rotated) @ vectors.mT

    return lifted


def _ratio(function: Callable[[Array], Array], x: Array) -> Array:
    """function(x) / x with its limit 1 at zero."""
    safe = jnp.where(x == 0, 1, x)
    return jnp.where(x == 0, 1, function(safe) / safe)


def _exp_difference(a: Array, b: Array) -> Array:
    return jnp.exp(0.5 * (a + b)) * _ratio(jnp.sinh, 0.5 * (a - b))


def _log_difference(a: Array, b: Array) -> Array:
    smaller = jnp.minimum(a, b)
    return _ratio(jnp.log1p, jnp.abs(a - b) / smaller) / smaller


def _sqrt_difference(a: Array, b: Array) -> Array:
    return 1.0 / (jnp.sqrt(a) + jnp.sqrt(b))


_spectral_exp = _spectral(jnp.exp, _exp_difference)
_spectral_log = _spectral(jnp.log, _log_difference)
_spectral_sqrt = _spectral(jnp.sqrt, _sqrt_difference)
