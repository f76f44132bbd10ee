"""A Gaussian seen from inside: whitened coordinates, in which every natural step is simple.

A frame is a mean and a factor C with covariance C C^T (C is any square matrix, not triangular).
A draw is theta = mean + C eps with eps ~ N(0, I), and C^-1 (theta - mean) = eps needs no solve.
With g = C^T grad_mean and G = C^T grad_cov C, the gradients of the lower bound in the frame,

    prec <- C^-T f(B)^-2 C^-1   is   C <- C f(B),          B a multiple of G
    mean <- mean + C s

so a step of NGVI, VON, QBVI, MGVB or EMGVB is a choice of f and s. Parallel transport of the
affine-invariant metric is the identity here, the covariance stays positive definite whenever f
is positive, and no system is solved. A sum over S draws is kept as its terms (`LowRankSum`) until it is
needed: as a matrix by momentum, decomposed (`Spectrum`) by a move. Its rank is at most 2S, so that
a move takes that many eigenvectors, and a step costs O(k^2 S) and not O(k^3).

Two frames: `DiagonalFrame` works leaf by leaf, `BlockFrame` on blocks of leaves (one block for a
full covariance), those of equal size batched.
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
        """Eigenvalues inside [low, high]; the smallest and the largest before that.

        Those of a diagonal are clipped. A block is scaled as a whole: where its eigenvalues are
        noise, clipped ones would still be steps of full length in random directions, from which a
        spread of its own grows.
        """
        eigenvalues = [v + self.shift.astype(v.dtype) for v in jax.tree.leaves(self.values)]
        ends = [(jnp.min(e), jnp.max(e)) for e in [*eigenvalues, self.shift]]
        smallest = jnp.min(jnp.stack([e[0].astype(jnp.float64) for e in ends]))
        largest = jnp.max(jnp.stack([e[1].astype(jnp.float64) for e in ends]))
        if self.vectors is not None:
            over = jnp.maximum(largest / high, smallest / low)
            return self.scaled(1.0 / jnp.maximum(over, 1.0)), smallest, largest
        shift = jnp.clip(self.shift, low, high)

        def hold(v: Array) -> Array:
            held = jnp.clip(v + self.shift.astype(v.dtype), low, high)
            return held - shift.astype(v.dtype)

        return Spectrum(jax.tree.map(hold, self.values), None, shift), smallest, largest


class LowRankSum(NamedTuple):
    """A symmetric matrix shift * I + factor * sym(mean_s a_s b_s^T) per block, as its terms."""

    a: tuple[Array, ...]  # (draws, size) of each block
    b: tuple[Array, ...]
    factor: Array
    shift: Array

    def scaled(self, factor: Any) -> LowRankSum:
        return self._replace(factor=factor * self.factor, shift=factor * self.shift)

    def shifted(self, amount: Any) -> LowRankSum:
        return self._replace(shift=self.shift + amount)


Symmetric = Spectrum | LowRankSum


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

    def spectrum(self, matrix: Any) -> Spectrum:
        """From a diagonal; a spectrum is left as it is."""
        if isinstance(matrix, Spectrum):
            return matrix
        return Spectrum(matrix, None, jnp.zeros((), jnp.float64))


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
        moved = self.join(_each(jnp.matmul, self.factors, noise))
        return jax.tree.map(jnp.add, self.mean, moved)

    def pull(self, gradient: PyTree) -> tuple[Array, ...]:
        return _each(jnp.matmul, self.split(gradient), self.factors)

    def outer(self, a: tuple[Array, ...], b: tuple[Array, ...]) -> LowRankSum:
        """Symmetric part of the mean over draws of a b^T."""
        return LowRankSum(a, b, jnp.ones((), jnp.float64), jnp.zeros((), jnp.float64))

    def quadratic(self, matrices: tuple[Array, ...]) -> tuple[Array, ...]:
        """C^T H C."""
        return _each(lambda c, h: c.T @ h @ c, self.factors, matrices)

    def apply(
        self, spectrum: Spectrum, function: Function, step: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        assert spectrum.vectors is not None
        rest = function(spectrum.shift)

        def one(s: Array, v: Array, value: Array) -> Array:
            return rest * s + v @ ((function(value + spectrum.shift) - rest) * (s @ v))

        return _each(one, step, spectrum.vectors, spectrum.values)

    def move(self, step: tuple[Array, ...], spectrum: Spectrum, function: Function) -> BlockFrame:
        assert spectrum.vectors is not None
        rest = function(spectrum.shift)

        def one(c: Array, v: Array, value: Array) -> tuple[Array, Array]:
            stretch = function(value + spectrum.shift)
            log_det = jnp.sum(jnp.log(stretch)) + (len(c) - len(value)) * jnp.log(rest)
            return rest * c + (c @ v) * (stretch - rest) @ v.T, log_det

        moved = _each(one, self.factors, spectrum.vectors, spectrum.values)
        factors, log_dets = zip(*moved, strict=True)
        log_det = sum(log_dets, start=self.log_det)
        return BlockFrame(self.draw(step), factors, log_det, self.groups)

    def dense(self, matrix: Symmetric) -> tuple[Array, ...]:
        if isinstance(matrix, LowRankSum):
            products = _each(lambda a, b: a.T @ b / len(a), matrix.a, matrix.b)
            found = tuple(matrix.factor * 0.5 * (m + m.T) for m in products)
        else:
            assert matrix.vectors is not None
            found = _each(lambda v, value: (v * value) @ v.T, matrix.vectors, matrix.values)
        return tuple(m + matrix.shift * jnp.eye(len(m), dtype=m.dtype) for m in found)

    def spectrum(self, matrix: Any) -> Spectrum:
        """Decomposed, from terms or matrices; a spectrum is left as it is."""
        if isinstance(matrix, Spectrum):
            return matrix
        is_outer = isinstance(matrix, LowRankSum)
        pairs = _each(_mean_outer, matrix.a, matrix.b) if is_outer else _each(_eigh, matrix)
        values, vectors = zip(*pairs, strict=True)
        found = Spectrum(values, vectors, jnp.zeros((), jnp.float64))
        return found.scaled(matrix.factor).shifted(matrix.shift) if is_outer else found


def _each(function: Callable[..., Any], *blocks: tuple[Array, ...]) -> tuple[Any, ...]:
    """`function` of each block's arrays, those of equal shapes in one batch."""
    places: dict[Any, list[int]] = {}
    for i, arrays in enumerate(zip(*blocks, strict=True)):
        places.setdefault(tuple(a.shape for a in arrays), []).append(i)
    found: dict[int, Any] = {}
    for same in places.values():
        if len(same) == 1:
            found[same[0]] = function(*(b[same[0]] for b in blocks))
            continue
        batch = jax.vmap(function)(*(jnp.stack([b[i] for i in same]) for b in blocks))
        for n, i in enumerate(same):
            found[i] = jax.tree.map(lambda leaf, n=n: leaf[n], batch)
    return tuple(found[i] for i in range(len(blocks[0])))


def _eigh(matrix: Array) -> tuple[Array, Array]:
    values, vectors = jnp.linalg.eigh(0.5 * (matrix + matrix.T), symmetrize_input=False)
    return values, vectors


def _mean_outer(a: Array, b: Array) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors of sym(mean_s a_s b_s^T), by the cheaper of two ways."""
    num, size = a.shape
    if 2 * num >= size:
        return _eigh(a.T @ b / num)
    # Rank 2S: all of it lives in the span of the draws, Q; there it is a 2S x 2S matrix.
    basis, upper = jnp.linalg.qr(jnp.concatenate([a, b]).T)
    values, rotation = _eigh(upper[:, :num] @ upper[:, num:].T / num)
    return values, basis @ rotation
