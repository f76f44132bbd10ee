"""Frames: whitened coordinates of a Gaussian, in which every natural step is simple.

A frame is a mean and a factor C with covariance C C^T (C is any square matrix, not triangular).
A draw is theta = mean + C eps with eps ~ N(0, I), so that C^-1 (theta - mean) = eps needs no solve.
With g = C^T grad_mean and G = C^T grad_cov C, the gradients of the lower bound in the frame,

    prec <- C^-T f(B)^-2 C^-1   is   C <- C f(B),          B a multiple of G
    mean <- mean + C s

so a step of NGVI, VON, QBVI, MGVB or EMGVB is a choice of f and s. Parallel transport of the
affine-invariant metric is the identity here, the covariance stays positive definite whenever f
is positive, and no linear system is solved. A sum over S draws is stored as its terms
(`LowRankSum`). Momentum needs it as a matrix (`dense`), a move its eigenvalues (`spectrum`). Its
rank is at most 2S, so that a move takes that many eigenvectors, and a step costs O(k^2 S) instead
of O(k^3).

`DiagonalFrame` works leaf by leaf, `BlockFrame` on blocks of leaves (one block for a full
covariance); blocks of equal size are batched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.tree import Array, Groups, PyTree

Function = Callable[[Array], Array]
Result = TypeVar("Result")


class Spectrum(NamedTuple):
    """A symmetric matrix shift * I + sum_j values_j v_j v_j^T per block (or its diagonal).

    `vectors` has orthonormal columns (k, r). It is None in a diagonal frame, where `values` is a
    pytree.
    """

    values: PyTree
    vectors: tuple[Array, ...] | None
    shift: Array

    def scaled(self, factor: Array | float) -> Spectrum:
        """The matrix times a number."""
        return Spectrum(
            jax.tree.map(lambda v: factor * v, self.values), self.vectors, factor * self.shift
        )

    def shifted(self, amount: Array | float) -> Spectrum:
        """The matrix plus amount * I; added to `values` if these are all k eigenvalues."""
        is_complete = self.vectors is None or all(v.shape[0] == v.shape[1] for v in self.vectors)
        if not is_complete:
            return self._replace(shift=self.shift + amount)
        values = jax.tree.map(lambda v: v + jnp.asarray(amount, v.dtype), self.values)
        return self._replace(values=values)

    def clipped(self, low: float, high: float) -> tuple[Spectrum, Array, Array]:
        """Eigenvalues inside [low, high]; and the smallest and the largest before clipping.

        Those of a diagonal are clipped. A block is scaled as a whole: if its eigenvalues are
        noise, clipped ones would still be steps of full length in random directions, and the
        covariance would grow.
        """
        eigenvalues = [v + self.shift.astype(v.dtype) for v in jax.tree.leaves(self.values)]
        extremes = [(jnp.min(e), jnp.max(e)) for e in [*eigenvalues, self.shift]]
        smallest = jnp.min(jnp.stack([e[0].astype(float) for e in extremes]))
        largest = jnp.max(jnp.stack([e[1].astype(float) for e in extremes]))
        if self.vectors is not None:
            excess = jnp.maximum(largest / high, smallest / low)
            return self.scaled(1.0 / jnp.maximum(excess, 1.0)), smallest, largest
        shift = jnp.clip(self.shift, low, high)

        def clip(v: Array) -> Array:
            clipped = jnp.clip(v + self.shift.astype(v.dtype), low, high)
            return clipped - shift.astype(v.dtype)

        return Spectrum(jax.tree.map(clip, self.values), None, shift), smallest, largest


class LowRankSum(NamedTuple):
    """A symmetric matrix shift * I + factor * sym(mean_s a_s b_s^T) per block, by its terms."""

    a: tuple[Array, ...]  # (draws, size) of each block
    b: tuple[Array, ...]
    factor: Array
    shift: Array

    def scaled(self, factor: Array | float) -> LowRankSum:
        """The matrix times a number."""
        return self._replace(factor=factor * self.factor, shift=factor * self.shift)

    def shifted(self, amount: Array | float) -> LowRankSum:
        """The matrix plus amount * I."""
        return self._replace(shift=self.shift + amount)


Symmetric = Spectrum | LowRankSum


class Frame(eqx.Module):
    """A Gaussian by its mean and a factor C of its covariance (abstract).

    Vectors in the frame, such as noise and C^T gradient, are pytrees like the mean in a
    `DiagonalFrame`, and one vector per block in a `BlockFrame`.
    """

    if TYPE_CHECKING:  # fields of a subclass

        @property
        def mean(self) -> PyTree:
            """The mean, a pytree like the parameters."""

        @property
        def log_det(self) -> Array:
            """log|det C|."""

    @property
    def size(self) -> int:
        """Weights of the largest block."""
        raise NotImplementedError

    @property
    def factor_groups(self) -> Groups:
        """Leaves of each independent factor of the Gaussian, by position."""
        raise NotImplementedError

    def noise(self, key: Array, num: int) -> PyTree:
        """`num` draws of standard normal noise, along a leading axis."""
        raise NotImplementedError

    def draw(self, noise: PyTree) -> PyTree:
        """mean + C noise: one set of weights from one set of noise."""
        raise NotImplementedError

    def pull(self, gradient: PyTree) -> PyTree:
        """C^T gradient."""
        raise NotImplementedError

    def outer(self, a: PyTree, b: PyTree) -> Symmetric:
        """Symmetric part of the mean over draws of a b^T (in a diagonal frame its diagonal)."""
        raise NotImplementedError

    def quadratic(self, matrix: PyTree) -> PyTree:
        """C^T H C of each block, for `spectrum`; H a matrix (in a diagonal frame a diagonal)."""
        raise NotImplementedError

    def apply(self, spectrum: Spectrum, function: Function, step: PyTree) -> PyTree:
        """function(B) step."""
        raise NotImplementedError

    def move(self, step: PyTree, spectrum: Spectrum, function: Function) -> Frame:
        """The frame with mean + C step, and the factor C function(B)."""
        raise NotImplementedError

    def dense(self, matrix: Symmetric) -> PyTree:
        """The matrix of each block (in a diagonal frame its diagonal), as momentum stores it."""
        raise NotImplementedError

    def spectrum(self, matrix: PyTree) -> Spectrum:
        """Eigenvalues of a `Symmetric`, or of what `dense` returns."""
        raise NotImplementedError


class DiagonalFrame(Frame):
    """Independent weights: `std` is a pytree like the mean."""

    mean: PyTree
    std: PyTree
    log_det: Array  # sum of log std

    @staticmethod
    def from_prec(mean: PyTree, prec: PyTree) -> DiagonalFrame:
        """From the precision of each weight."""
        std = jax.tree.map(lambda p: 1.0 / jnp.sqrt(p), prec)
        return DiagonalFrame(mean, std, tree.total(jax.tree.map(jnp.log, std)))

    @property
    def size(self) -> int:
        """One: a block is a weight."""
        return 1

    @property
    def factor_groups(self) -> Groups:
        """Each leaf by itself."""
        return tuple((i,) for i in range(len(jax.tree.leaves(self.mean))))

    def noise(self, key: Array, num: int) -> PyTree:
        """`num` draws of standard normal noise, along a leading axis."""
        return tree.normal_like(key, self.mean, num)

    def draw(self, noise: PyTree) -> PyTree:
        """mean + std noise."""
        return jax.tree.map(lambda m, s, e: m + s * e, self.mean, self.std, noise)

    def pull(self, gradient: PyTree) -> PyTree:
        """std gradient."""
        return jax.tree.map(jnp.multiply, self.std, gradient)

    def outer(self, a: PyTree, b: PyTree) -> Spectrum:
        """The diagonal of the mean over draws of a b^T."""
        values = jax.tree.map(lambda x, y: jnp.mean(x * y, axis=0), a, b)
        return Spectrum(values, None, jnp.zeros((), float))

    def quadratic(self, matrix: PyTree) -> Spectrum:
        """C^T D C for a diagonal matrix D, given as a pytree."""
        values = jax.tree.map(lambda s, d: s**2 * d, self.std, matrix)
        return Spectrum(values, None, jnp.zeros((), float))

    def apply(self, spectrum: Spectrum, function: Function, step: PyTree) -> PyTree:
        """function(B) step."""
        shift = spectrum.shift
        return jax.tree.map(
            lambda v, s: function(v + shift.astype(v.dtype)) * s, spectrum.values, step
        )

    def move(self, step: PyTree, spectrum: Spectrum, function: Function) -> DiagonalFrame:
        """The frame with mean + std step, and std function(B)."""
        mean = self.draw(step)
        stretch = jax.tree.map(
            lambda v: function(v + spectrum.shift.astype(v.dtype)), spectrum.values
        )
        std = jax.tree.map(jnp.multiply, self.std, stretch)
        log_det = self.log_det + tree.total(jax.tree.map(jnp.log, stretch))
        return DiagonalFrame(mean, std, log_det)

    def dense(self, matrix: Symmetric) -> PyTree:
        """The diagonal of the matrix."""
        assert isinstance(matrix, Spectrum)
        return jax.tree.map(lambda v: v + matrix.shift.astype(v.dtype), matrix.values)

    def spectrum(self, matrix: PyTree) -> Spectrum:
        """From a diagonal; a spectrum is returned as it is."""
        if isinstance(matrix, Spectrum):
            return matrix
        return Spectrum(matrix, None, jnp.zeros((), float))


class BlockFrame(Frame):
    """Independent blocks of leaves, each with its own factor."""

    mean: PyTree
    factors: tuple[Array, ...]
    log_det: Array
    groups: Groups = eqx.field(static=True)

    @staticmethod
    def from_prec(mean: PyTree, precisions: tuple[Array, ...], groups: Groups) -> BlockFrame:
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
        """Weights of the largest block."""
        return max(len(factor) for factor in self.factors)

    @property
    def factor_groups(self) -> Groups:
        """The leaves of each block."""
        return self.groups

    def split(self, params: PyTree) -> tuple[Array, ...]:
        """The weights of each block as one vector."""
        leaves = jax.tree.leaves(params)
        return tuple(
            jnp.concatenate([jnp.ravel(leaves[i]) for i in group]).astype(factor.dtype)
            for group, factor in zip(self.groups, self.factors, strict=True)
        )

    def join(self, vectors: tuple[Array, ...]) -> PyTree:
        """The inverse of `split`."""
        leaves, treedef = jax.tree.flatten(self.mean)
        found: dict[int, Array] = {}
        for group, vector in zip(self.groups, vectors, strict=True):
            parts = tree.unraveler([leaves[i] for i in group])(vector)
            found |= dict(zip(group, parts, strict=True))
        return jax.tree.unflatten(treedef, [found[i] for i in range(len(leaves))])

    def noise(self, key: Array, num: int) -> tuple[Array, ...]:
        """`num` draws of standard normal noise for each block, along a leading axis."""
        sizes = [len(factor) for factor in self.factors]
        flat = jax.random.normal(key, (num, sum(sizes)), self.factors[0].dtype)
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]
        return tuple(jnp.split(flat, ends, axis=1))

    def draw(self, noise: tuple[Array, ...]) -> PyTree:
        """mean + C noise."""
        moved = self.join(_each(jnp.matmul, self.factors, noise))
        return jax.tree.map(jnp.add, self.mean, moved)

    def pull(self, gradient: PyTree) -> tuple[Array, ...]:
        """C^T gradient, for each block."""
        return _each(jnp.matmul, self.split(gradient), self.factors)

    def outer(self, a: tuple[Array, ...], b: tuple[Array, ...]) -> LowRankSum:
        """Symmetric part of the mean over draws of a b^T."""
        return LowRankSum(a, b, jnp.ones((), float), jnp.zeros((), float))

    def quadratic(self, matrix: tuple[Array, ...]) -> tuple[Array, ...]:
        """C^T H C of each block."""
        return _each(lambda c, h: c.T @ h @ c, self.factors, matrix)

    def apply(
        self, spectrum: Spectrum, function: Function, step: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        """function(B) step."""
        assert spectrum.vectors is not None
        rest = function(spectrum.shift)

        def one(s: Array, v: Array, value: Array) -> Array:
            return rest * s + v @ ((function(value + spectrum.shift) - rest) * (s @ v))

        return _each(one, step, spectrum.vectors, spectrum.values)

    def move(self, step: tuple[Array, ...], spectrum: Spectrum, function: Function) -> BlockFrame:
        """The frame with mean + C step, and the factor C function(B)."""
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
        """The matrix of each block."""
        if isinstance(matrix, LowRankSum):
            products = _each(lambda a, b: a.T @ b / len(a), matrix.a, matrix.b)
            found = tuple(matrix.factor * 0.5 * (m + m.T) for m in products)
        else:
            assert matrix.vectors is not None
            found = _each(lambda v, value: (v * value) @ v.T, matrix.vectors, matrix.values)
        return tuple(m + matrix.shift * jnp.eye(len(m), dtype=m.dtype) for m in found)

    def spectrum(self, matrix: PyTree) -> Spectrum:
        """Eigenvalues, from terms or matrices; a spectrum is returned as it is."""
        if isinstance(matrix, Spectrum):
            return matrix
        is_sum = isinstance(matrix, LowRankSum)
        pairs = _each(_eigh_of_sum, matrix.a, matrix.b) if is_sum else _each(_eigh, matrix)
        values, vectors = zip(*pairs, strict=True)
        found = Spectrum(values, vectors, jnp.zeros((), float))
        return found.scaled(matrix.factor).shifted(matrix.shift) if is_sum else found


def _each(function: Callable[..., Result], *blocks: tuple[Array, ...]) -> tuple[Result, ...]:
    """`function` of the arrays of each block; blocks of equal shapes are batched."""
    by_shape: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for i, arrays in enumerate(zip(*blocks, strict=True)):
        by_shape.setdefault(tuple(a.shape for a in arrays), []).append(i)
    found: dict[int, Result] = {}
    for same in by_shape.values():
        if len(same) == 1:
            found[same[0]] = function(*(b[same[0]] for b in blocks))
            continue
        batch = jax.vmap(function)(*(jnp.stack([b[i] for i in same]) for b in blocks))
        for n, i in enumerate(same):
            found[i] = jax.tree.map(lambda leaf, n=n: leaf[n], batch)
    return tuple(found[i] for i in range(len(blocks[0])))


def _eigh(matrix: Array) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors of the symmetric part."""
    values, vectors = jnp.linalg.eigh(0.5 * (matrix + matrix.T), symmetrize_input=False)
    return values, vectors


def _eigh_of_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors of sym(mean_s a_s b_s^T), by the cheaper of two methods."""
    num, size = a.shape
    if 2 * num >= size:
        return _eigh(a.T @ b / num)
    # Rank 2S: in an orthonormal basis Q of the span of a and b it is a 2S x 2S matrix.
    basis, upper = jnp.linalg.qr(jnp.concatenate([a, b]).T)
    values, rotation = _eigh(upper[:, :num] @ upper[:, num:].T / num)
    return values, basis @ rotation
