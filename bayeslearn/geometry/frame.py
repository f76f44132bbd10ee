"""A Gaussian seen from inside: whitened coordinates, in which every natural step is simple.

A frame is a mean and a factor C with covariance C C^T (C is any square matrix, not triangular).
A draw is theta = mean + C eps with eps ~ N(0, I), and C^-1 (theta - mean) = eps needs no solve.
With g = C^T grad_mean and G = C^T grad_cov C, the gradients of the lower bound in the frame,

    prec <- C^-T f(B)^-2 C^-1   is   C <- C f(B),          B a multiple of G
    mean <- mean + C s

so a step of NGVI, VON, QBVI, MGVB or EMGVB is a choice of f and s. Parallel transport of the
affine-invariant metric is the identity here, the covariance stays positive definite whenever f
is positive, and no system is solved. A sum over S draws has rank at most 2S: `Spectrum` then
holds that many eigenvectors, and a step costs O(k^2 S) and not O(k^3).

Two frames: `DiagonalFrame` works leaf by leaf, `BlockFrame` on blocks of leaves (one block for a
full covariance).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.tree import Array, PyTree

Function = Callable[[Array], Array]


class Spectrum(NamedTuple):
    """A symmetric matrix shift * I + sum_j values_j v_j v_j^T per block (or its diagonal).

    `vectors` has orthonormal columns (k, r), or is None for the diagonal frame, whose `values`
    are a pytree.
    """

    values: PyTree
    vectors: tuple[Array, ...] | None
    shift: Array

    def scaled(self, factor: Any) -> Spectrum:
        return Spectrum(
            jax.tree.map(lambda v: factor * v, self.values), self.vectors, factor * self.shift
        )

    def shifted(self, amount: Any) -> Spectrum:
        """The matrix plus amount * I; in the values themselves where those are all there are."""
        is_whole = self.vectors is None or all(v.shape[0] == v.shape[1] for v in self.vectors)
        if not is_whole:
            return self._replace(shift=self.shift + amount)
        values = jax.tree.map(lambda v: v + jnp.asarray(amount, v.dtype), self.values)
        return self._replace(values=values)

    def clipped(self, low: float, high: float) -> tuple[Spectrum, Array, Array]:
        """Eigenvalues held inside [low, high]; the smallest and the largest before that."""
        eigenvalues = [v + self.shift.astype(v.dtype) for v in jax.tree.leaves(self.values)]
        ends = [(jnp.min(e), jnp.max(e)) for e in [*eigenvalues, self.shift]]
        smallest = jnp.min(jnp.stack([e[0].astype(jnp.float64) for e in ends]))
        largest = jnp.max(jnp.stack([e[1].astype(jnp.float64) for e in ends]))
        shift = jnp.clip(self.shift, low, high)

        def hold(v: Array) -> Array:
            held = jnp.clip(v + self.shift.astype(v.dtype), low, high)
            return held - shift.astype(v.dtype)

        held = Spectrum(jax.tree.map(hold, self.values), self.vectors, shift)
        return held, smallest, largest


class DiagonalFrame(eqx.Module):
    """Independent weights: `std` is a pytree like the mean."""

    mean: PyTree
    std: PyTree
    log_det: Array  # sum of log std

    @staticmethod
    def start(mean: PyTree, prec: PyTree) -> DiagonalFrame:
        std = jax.tree.map(lambda p: 1.0 / jnp.sqrt(p), prec)
        return DiagonalFrame(mean, std, tree.total(jax.tree.map(jnp.log, std)))

    @property
    def size(self) -> int:
        """The largest block."""
        return 1

    def noise(self, key: Array, num: int) -> PyTree:
        return tree.normal_like(key, self.mean, num)

    def draw(self, noise: PyTree) -> PyTree:
        """One set of weights from one set of noise."""
        return jax.tree.map(lambda m, s, e: m + s * e, self.mean, self.std, noise)

    def pull(self, gradient: PyTree) -> PyTree:
        """C^T gradient."""
        return jax.tree.map(jnp.multiply, self.std, gradient)

    def outer(self, a: PyTree, b: PyTree) -> Spectrum:
        """Symmetric part of the mean over draws of a b^T (its diagonal)."""
        values = jax.tree.map(lambda x, y: jnp.mean(x * y, axis=0), a, b)
        return Spectrum(values, None, jnp.zeros((), jnp.float64))

    def quadratic(self, diagonal: PyTree) -> Spectrum:
        """C^T D C for a diagonal D, given as a pytree."""
        values = jax.tree.map(lambda s, d: s**2 * d, self.std, diagonal)
        return Spectrum(values, None, jnp.zeros((), jnp.float64))

    def apply(self, spectrum: Spectrum, function: Function, step: PyTree) -> PyTree:
        """function(B) step."""
        shift = spectrum.shift
        return jax.tree.map(
            lambda v, s: function(v + shift.astype(v.dtype)) * s, spectrum.values, step
        )

    def move(self, step: PyTree, spectrum: Spectrum, function: Function) -> DiagonalFrame:
        """mean + C step, and the factor C function(B)."""
        mean = self.draw(step)
        stretch = jax.tree.map(
            lambda v: function(v + spectrum.shift.astype(v.dtype)), spectrum.values
        )
        std = jax.tree.map(jnp.multiply, self.std, stretch)
        log_det = self.log_det + tree.total(jax.tree.map(jnp.log, stretch))
        return DiagonalFrame(mean, std, log_det)

    def dense(self, spectrum: Spectrum) -> PyTree:
        """The matrix itself (here its diagonal), as momentum keeps it."""
        return jax.tree.map(lambda v: v + spectrum.shift.astype(v.dtype), spectrum.values)

    def spectrum(self, dense: PyTree) -> Spectrum:
        return Spectrum(dense, None, jnp.zeros((), jnp.float64))


class BlockFrame(eqx.Module):
    """Blocks of leaves, each with its own factor; blocks are independent of each other."""

    mean: PyTree
    factors: tuple[Array, ...]
    log_det: Array
    groups: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    @staticmethod
    def start(
        mean: PyTree, precisions: tuple[Array, ...], groups: tuple[tuple[int, ...], ...]
    ) -> BlockFrame:
        """From the precision of each block: P = L L^T, C = L^-T."""
        factors = []
        for prec in precisions:
            lower = jnp.linalg.cholesky(prec)
            identity = jnp.eye(len(prec), dtype=prec.dtype)
            solved = jax.scipy.linalg.solve_triangular(lower, identity, lower=True, trans=1)
            factors.append(solved)
        log_det = sum(jnp.sum(jnp.log(jnp.diagonal(f))) for f in factors)
        return BlockFrame(mean, tuple(factors), jnp.asarray(log_det), groups)

    @property
    def size(self) -> int:
        return max(len(factor) for factor in self.factors)

    def split(self, params: PyTree) -> tuple[Array, ...]:
        """The weights of each block as one vector."""
        leaves = jax.tree.leaves(params)
        return tuple(
            jnp.concatenate([jnp.ravel(leaves[i]) for i in group]).astype(factor.dtype)
            for group, factor in zip(self.groups, self.factors, strict=True)
        )

    def join(self, vectors: tuple[Array, ...]) -> PyTree:
        leaves, treedef = jax.tree.flatten(self.mean)
        found: list[Any] = [None] * len(leaves)
        for group, vector in zip(self.groups, vectors, strict=True):
            pieces = tree.unraveler([leaves[i] for i in group])(vector)
            for i, piece in zip(group, pieces, strict=True):
                found[i] = piece
        return jax.tree.unflatten(treedef, found)

    def noise(self, key: Array, num: int) -> tuple[Array, ...]:
        sizes = [len(factor) for factor in self.factors]
        flat = jax.random.normal(key, (num, sum(sizes)), self.factors[0].dtype)
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]
        return tuple(jnp.split(flat, ends, axis=1))

    def draw(self, noise: tuple[Array, ...]) -> PyTree:
        moved = self.join(tuple(c @ e for c, e in zip(self.factors, noise, strict=True)))
        return jax.tree.map(jnp.add, self.mean, moved)

    def pull(self, gradient: PyTree) -> tuple[Array, ...]:
        return tuple(g @ c for c, g in zip(self.factors, self.split(gradient), strict=True))

    def outer(self, a: tuple[Array, ...], b: tuple[Array, ...]) -> Spectrum:
        pairs = [_mean_outer(x, y) for x, y in zip(a, b, strict=True)]
        values, vectors = zip(*pairs, strict=True)
        return Spectrum(values, vectors, jnp.zeros((), jnp.float64))

    def apply(
        self, spectrum: Spectrum, function: Function, step: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        assert spectrum.vectors is not None
        rest = function(spectrum.shift)
        return tuple(
            rest * s + v @ ((function(value + spectrum.shift) - rest) * (v.T @ s))
            for s, v, value in zip(step, spectrum.vectors, spectrum.values, strict=True)
        )

    def move(self, step: tuple[Array, ...], spectrum: Spectrum, function: Function) -> BlockFrame:
        assert spectrum.vectors is not None
        rest = function(spectrum.shift)
        factors, log_det = [], self.log_det
        for c, v, value in zip(self.factors, spectrum.vectors, spectrum.values, strict=True):
            stretch = function(value + spectrum.shift)
            factors.append(rest * c + (c @ v) * (stretch - rest) @ v.T)
            log_det = log_det + jnp.sum(jnp.log(stretch))
            log_det = log_det + (len(c) - len(value)) * jnp.log(rest)
        return BlockFrame(self.draw(step), tuple(factors), log_det, self.groups)

    def dense(self, spectrum: Spectrum) -> tuple[Array, ...]:
        assert spectrum.vectors is not None
        return tuple(
            (v * value) @ v.T + spectrum.shift * jnp.eye(len(v), dtype=v.dtype)
            for v, value in zip(spectrum.vectors, spectrum.values, strict=True)
        )

    def spectrum(self, dense: tuple[Array, ...]) -> Spectrum:
        pairs = [jnp.linalg.eigh(0.5 * (m + m.T)) for m in dense]
        return Spectrum(
            tuple(values for values, _ in pairs),
            tuple(vectors for _, vectors in pairs),
            jnp.zeros((), jnp.float64),
        )


def _mean_outer(a: Array, b: Array) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors of sym(mean_s a_s b_s^T), by the cheaper of two ways."""
    num, size = a.shape
    if 2 * num >= size:
        matrix = a.T @ b / num
        return jnp.linalg.eigh(0.5 * (matrix + matrix.T))
    # Rank 2S: all of it lives in the span of the draws, Q; there it is a 2S x 2S matrix.
    basis, _ = jnp.linalg.qr(jnp.concatenate([a, b]).T)
    left, right = a @ basis, b @ basis
    small = left.T @ right / num
    values, rotation = jnp.linalg.eigh(0.5 * (small + small.T))
    return values, basis @ rotation
