r"""The Gaussian with a Kronecker-factored covariance for each layer.

The weights of a layer are a matrix W (inputs, outputs), its biases the last row. With E a matrix of
independent standard normal numbers,

    W = mean + L (scale * E) R^T,        cov(vec W) = (L (x) R) diag(scale^2) (L (x) R)^T

L (inputs, inputs) and R (outputs, outputs) are any invertible matrices, or diagonal ones, stored as
vectors. `from_factors` makes the Gaussian with the precision N A (x) S + P, A and S the factors of
the curvature and P the precision of the prior: with P = D_A (x) D_S diagonal,

    D_A^-1/2 A D_A^-1/2 = U_A diag(l_A) U_A^T,   L = D_A^-1/2 U_A,   the same for S and R,
    scale = (N l_A l_S + 1)^-1/2

which is exact where P is an outer product over inputs and outputs (one scale for each leaf, say);
other precisions are replaced by the outer product that is nearest in their logarithms. All that is
asked of it costs a few products of these matrices, and nothing of the size of W (x) W is formed,
but by `cov_matrix`, `prec_matrix`, `to_full` and `to_prior`. Leaves that belong to no layer are
independent, with the standard deviations `rest`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.errors import Shown, refuse
from bayeslearn.families.base import Gaussian
from bayeslearn.families.block import BlockGaussian
from bayeslearn.families.full import FullGaussian
from bayeslearn.models.priors.base import BoundPrior
from bayeslearn.models.priors.correlated import BlockPrior
from bayeslearn.models.priors.gaussian import GaussianPrior
from bayeslearn.precision import double_precision
from bayeslearn.tree import Array, PyTree

Leaves = Sequence[Array] | dict[int, Array]  # by position


class Layer(NamedTuple):
    """The leaves of one matrix (inputs, outputs), as positions among all leaves.

    The weight in the order `axes` of its axes has `num_inputs` rows. The bias is one more row; a
    layer may have no weight, or no bias.
    """

    weight: int | None
    axes: tuple[int, ...]
    num_inputs: int
    bias: int | None

    @property
    def leaves(self) -> tuple[int, ...]:
        """Positions of its leaves, in their order."""
        return tuple(sorted(i for i in (self.weight, self.bias) if i is not None))

    def matrix(self, leaves: Leaves) -> Array:
        """The matrix of its leaves."""
        parts = []
        if self.weight is not None:
            parts.append(leaves[self.weight].transpose(self.axes).reshape(self.num_inputs, -1))
        if self.bias is not None:
            parts.append(leaves[self.bias].reshape(1, -1))
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts)

    def split(self, matrix: Array, like: Leaves) -> dict[int, Array]:
        """The leaves of a matrix: the inverse of `matrix`."""
        found = {}
        if self.weight is not None:
            shape = [like[self.weight].shape[i] for i in self.axes]
            back = sorted(range(len(self.axes)), key=lambda i: self.axes[i])
            found[self.weight] = matrix[: self.num_inputs].reshape(shape).transpose(back)
        if self.bias is not None:
            found[self.bias] = matrix[-1].reshape(like[self.bias].shape)
        return found


def _as_layers(layers: Iterable[Sequence]) -> tuple[Layer, ...]:
    return tuple(Layer(*layer)._replace(axes=tuple(layer[1])) for layer in layers)


class KroneckerGaussian(Gaussian):
    """Independent layers, the covariance of each a Kronecker product in a basis of its own."""

    mean: PyTree
    left: tuple[Array, ...] = eqx.field(converter=tuple)
    right: tuple[Array, ...] = eqx.field(converter=tuple)
    scale: tuple[Array, ...] = eqx.field(converter=tuple)
    rest: tuple[Array, ...] = eqx.field(converter=tuple)
    layers: tuple[Layer, ...] = eqx.field(static=True, converter=_as_layers)

    def __check_init__(self) -> None:
        leaves = jax.tree.leaves(self.mean)
        covered = [i for layer in self.layers for i in layer.leaves]
        if len(set(covered)) != len(covered) or not set(covered) <= set(range(len(leaves))):
            refuse("layers", self.layers, f"have each of the {len(leaves)} leaves at most once")
        shapes = [jnp.shape(leaves[i]) for i in self.alone]
        if [jnp.shape(std) for std in self.rest] != shapes:
            refuse("rest", Shown(f"{len(self.rest)} arrays"), f"have the shapes {shapes}")
        for layer, *arrays in zip(self.layers, self.left, self.right, self.scale, strict=True):
            size = sum(jnp.size(leaves[i]) for i in layer.leaves)
            sides = len(arrays[0]), len(arrays[1])
            if sides != jnp.shape(arrays[2]) or sides[0] * sides[1] != size:
                refuse("scale", Shown(f"shape {jnp.shape(arrays[2])}"), f"cover {size} weights")

    @classmethod
    @double_precision
    def from_factors(
        cls,
        mean: PyTree,
        layers: Iterable[Layer],
        factors: Iterable[tuple[Array, Array]],
        squares: Sequence[Array],
        prior_prec: PyTree,
        num_data: Array | float,
    ) -> KroneckerGaussian:
        """The Gaussian with the precision `num_data` A (x) S + prior of each layer.

        `factors` are A and S, `squares` the curvature per datum of the leaves that have no layer,
        `prior_prec` a tree like `mean`.
        """
        precs = jax.tree.leaves(tree.double(prior_prec))
        layers, parts = _as_layers(layers), []
        for layer, (a, s) in zip(layers, factors, strict=True):
            of_inputs, of_outputs = outer_factors(layer.matrix(precs))
            left, l_a = whitened_basis(a, of_inputs)
            right, l_s = whitened_basis(s, of_outputs)
            parts.append((left, right, jax.lax.rsqrt(num_data * jnp.outer(l_a, l_s) + 1.0)))
        lefts, rights, scales = (tuple(part[i] for part in parts) for i in range(3))
        pairs = zip(squares, _alone(layers, len(precs)), strict=True)
        rest = tuple(jax.lax.rsqrt(num_data * h + precs[i]) for h, i in pairs)
        return cls(mean, lefts, rights, scales, rest, layers)

    @property
    def alone(self) -> tuple[int, ...]:
        """Positions of the leaves that belong to no layer."""
        return _alone(self.layers, len(jax.tree.leaves(self.mean)))

    def _join(self, matrices: Iterable[Array], others: Iterable[Array]) -> PyTree:
        """A tree like the mean, of a matrix for each layer and the leaves without one."""
        leaves, treedef = jax.tree.flatten(self.mean)
        found = dict(zip(self.alone, others, strict=True))
        for layer, matrix in zip(self.layers, matrices, strict=True):
            found |= layer.split(matrix, leaves)
        return jax.tree.unflatten(treedef, [found[i] for i in range(len(leaves))])

    def _parts(self, values: PyTree) -> tuple[list[Array], list[Array]]:
        """The matrix of each layer, and the leaves without one: the inverse of `_join`."""
        leaves = jax.tree.leaves(tree.double(values))
        return [layer.matrix(leaves) for layer in self.layers], [leaves[i] for i in self.alone]

    def bases(self) -> Iterable[tuple[Array, Array, Array]]:
        """L, R and the scale of each layer."""
        return zip(self.left, self.right, self.scale, strict=True)

    @property
    @double_precision
    def std(self) -> PyTree:
        """Standard deviation of each weight."""
        variances = [_sandwich(left**2, scale**2, right**2) for left, right, scale in self.bases()]
        return self._join(map(jnp.sqrt, variances), self.rest)

    @double_precision
    def mean_vector(self) -> Array:
        """The mean as one vector (k,)."""
        return tree.ravel(tree.double(self.mean))

    @double_precision
    def cov_matrix(self) -> Array:
        """The dense covariance matrix (k, k)."""
        return self.to_block().cov_matrix()

    @double_precision
    def prec_matrix(self) -> Array:
        """The dense precision matrix (k, k)."""
        return self.to_block().prec_matrix()

    @double_precision
    def to_block(self) -> BlockGaussian:
        """The same Gaussian with a dense factor for each layer; the same noise, the same draw."""
        like, factors = jax.tree.leaves(self.mean), []
        for layer, left, right, scale in zip(
            self.layers, self.left, self.right, self.scale, strict=True
        ):
            tree.check_dense(scale.size, "the factors themselves")
            factors.append(_dense_factor(layer, left, right, scale, like))
        groups = [layer.leaves for layer in self.layers]
        factors += [jnp.diag(jnp.ravel(std)) for std in self.rest]
        groups += [(i,) for i in self.alone]
        return BlockGaussian(tree.double(self.mean), tuple(factors), tuple(groups))

    @double_precision
    def to_full(self) -> FullGaussian:
        """The same Gaussian with one dense factor; the same noise gives the same weights."""
        return self.to_block().to_full()

    @double_precision
    def to_prior(self) -> BlockPrior:
        """The same Gaussian as a prior, for new data: a dense precision for each layer."""
        return self.to_block().to_prior()

    @double_precision
    def factor_times(self, noise: PyTree) -> PyTree:
        """C noise, C the factor of the covariance: L (scale * noise) R^T for each layer."""
        matrices, others = self._parts(noise)
        moved = [
            _sandwich(left, scale * e, right)
            for e, (left, right, scale) in zip(matrices, self.bases(), strict=True)
        ]
        return self._join(moved, [s * e for s, e in zip(self.rest, others, strict=True)])

    @double_precision
    def transform(self, noise: PyTree) -> PyTree:
        """mean + C noise; noise is a pytree like the parameters."""
        steps = self.factor_times(noise)
        return jax.tree.map(lambda m, s: m + s.astype(jnp.result_type(m)), self.mean, steps)

    @double_precision
    def pull(self, gradient: PyTree) -> PyTree:
        """C^T gradient, the transpose of `factor_times`."""
        matrices, others = self._parts(gradient)
        moved = [
            scale * _sandwich(left.T, g, right.T)
            for g, (left, right, scale) in zip(matrices, self.bases(), strict=True)
        ]
        return self._join(moved, [s * g for s, g in zip(self.rest, others, strict=True)])

    @double_precision
    def sample(self, key: Array, num: int) -> PyTree:
        """`num` draws along a leading axis."""
        return jax.vmap(self.transform)(tree.normal_like(key, self.mean, num))

    @property
    @double_precision
    def log_det(self) -> Array:
        """log|det C|, half the log-determinant of the covariance."""
        found = tree.total([jnp.log(std) for std in self.rest])
        for left, right, scale in self.bases():
            found = found + jnp.sum(jnp.log(scale))
            found = found + len(right) * _log_abs_det(left) + len(left) * _log_abs_det(right)
        return found

    @double_precision
    def log_prob(self, params: PyTree) -> Array:
        """Log-density at one set of parameters."""
        matrices, others = self._parts(
            jax.tree.map(jnp.subtract, tree.double(params), tree.double(self.mean))
        )
        z = [
            _solve(left, _solve(right, w.T).T) / scale
            for w, (left, right, scale) in zip(matrices, self.bases(), strict=True)
        ]
        z += [w / std for w, std in zip(others, self.rest, strict=True)]
        square, k = tree.total([jnp.square(part) for part in z]), tree.size(self.mean)
        return -0.5 * square - self.log_det - 0.5 * k * jnp.log(2 * jnp.pi)

    @double_precision
    def entropy(self) -> Array:
        """Differential entropy in nats."""
        return 0.5 * tree.size(self.mean) * jnp.log(2 * jnp.pi * jnp.e) + self.log_det

    @double_precision
    def kl(self, other: Gaussian | BoundPrior) -> Array:
        """KL(self || other), from the factors where `other` is independent or has the same layers.

        For other Gaussians it is computed with a dense matrix for each layer.
        """
        if isinstance(other, Gaussian) and other.is_independent:
            other = other.to_prior()
        if isinstance(other, KroneckerGaussian) and other.layers == self.layers:
            return self._kl_same(other)
        if not isinstance(other, GaussianPrior):
            return self.to_block().kl(other)
        mean, prec = other.broadcast(tree.double(self.mean))

        def term(m: Array, s: Array, m0: Array, p0: Array) -> Array:
            return 0.5 * (p0 * (s**2 + (m - m0) ** 2) - 1.0 - jnp.log(p0))

        terms = jax.tree.map(term, tree.double(self.mean), self.std, mean, prec)
        return tree.total(terms) - self.log_det

    def _kl_same(self, other: KroneckerGaussian) -> Array:
        """The trace is a sum over the entries of L0^-1 L and R0^-1 R, squared."""
        shift = other.log_prob(self.mean) - other.log_prob(other.mean)
        traces = []
        for (left, right, scale), (left0, right0, scale0) in zip(
            self.bases(), other.bases(), strict=True
        ):
            x, y = _solve(left0, _dense(left)), _solve(right0, _dense(right))
            traces.append(_sandwich(x**2, scale**2, y**2) / scale0**2)
        traces += [(s / s0) ** 2 for s, s0 in zip(self.rest, other.rest, strict=True)]
        k = tree.size(self.mean)
        return 0.5 * (tree.total(traces) - k) - shift + other.log_det - self.log_det


def _dense_factor(layer: Layer, left: Array, right: Array, scale: Array, like: Leaves) -> Array:
    """The factor of a layer's covariance, its rows and columns in the order of the leaves."""
    unravel = tree.unraveler([like[i] for i in layer.leaves])

    def column(noise: Array) -> Array:
        leaves = dict(zip(layer.leaves, unravel(noise), strict=True))
        found = layer.split(_sandwich(left, scale * layer.matrix(leaves), right), leaves)
        return tree.ravel([found[i] for i in layer.leaves])

    return jax.vmap(column, out_axes=1)(jnp.eye(scale.size, dtype=scale.dtype))


def outer_factors(matrix: Array) -> tuple[Array, Array]:
    """u and v with `matrix` = u v^T, or the nearest such product in the logarithm."""
    logs = jnp.log(matrix)
    rows = jnp.mean(logs, axis=1)
    return jnp.exp(rows), jnp.exp(jnp.mean(logs, axis=0) - jnp.mean(rows))


def whitened_basis(factor: Array, prec: Array) -> tuple[Array, Array]:
    """D^-1/2 U, and l, with D = diag(prec) and D^-1/2 factor D^-1/2 = U diag(l) U^T.

    A factor that is a vector is a diagonal matrix, and so is its basis.
    """
    root = jax.lax.rsqrt(prec)
    factor = factor.astype(root.dtype)
    if factor.ndim == 1:
        return root, factor / prec
    values, vectors = jnp.linalg.eigh(root[:, None] * factor * root)
    return root[:, None] * vectors, jnp.maximum(values, 0.0)


def _alone(layers: Iterable[Layer], number: int) -> tuple[int, ...]:
    covered = {i for layer in layers for i in layer.leaves}
    return tuple(i for i in range(number) if i not in covered)


def multiply(rows: Array, factor: Array) -> Array:
    """rows factor; a factor that is a vector is a diagonal matrix."""
    return rows * factor if factor.ndim == 1 else rows @ factor


def _sandwich(left: Array, matrix: Array, right: Array) -> Array:
    """left matrix right^T."""
    return multiply(multiply(matrix.T, left.T).T, right.T)


def _solve(factor: Array, matrix: Array) -> Array:
    return matrix / factor[:, None] if factor.ndim == 1 else jnp.linalg.solve(factor, matrix)


def _dense(factor: Array) -> Array:
    return jnp.diag(factor) if factor.ndim == 1 else factor


def _log_abs_det(factor: Array) -> Array:
    if factor.ndim == 1:
        return jnp.sum(jnp.log(jnp.abs(factor)))
    return jnp.linalg.slogdet(factor).logabsdet
