r"""The Gaussian with a block-diagonal covariance: independent groups of leaves.

    q(w) = prod_g N(w_g; mean_g, C_g C_g^T)

It is a product of `FullGaussian`s (`blocks()`). Density, entropy, and the divergence from an
independent Gaussian or from one with the same groups are sums over the blocks; time and memory
scale as sum k_g^3 and sum k_g^2. The rows of C_g are the weights of the group's leaves, in the
order of the group.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import tree
from bayeslearn.errors import Shown, refuse
from bayeslearn.families.base import Gaussian
from bayeslearn.families.full import FullGaussian, broadcast_std
from bayeslearn.geometry.natural import Expectation, Natural
from bayeslearn.models.priors.base import BoundPrior
from bayeslearn.models.priors.correlated import BlockPrior, CorrelatedPrior
from bayeslearn.models.priors.gaussian import GaussianPrior
from bayeslearn.precision import double_precision
from bayeslearn.tree import Array, Groups, PyTree

Value = TypeVar("Value")


def _as_groups(groups: Iterable[Iterable[int]]) -> Groups:
    return tuple(tuple(int(position) for position in group) for group in groups)


class BlockGaussian(Gaussian):
    """Independent blocks; `groups[g]` are positions among the leaves, `factors[g]` is C_g."""

    mean: PyTree
    factors: tuple[Array, ...] = eqx.field(converter=tuple)
    groups: Groups = eqx.field(static=True, converter=_as_groups)

    def __check_init__(self) -> None:
        _check_cover(self.mean, self.groups)
        if len(self.factors) != len(self.groups):
            refuse("factors", Shown(f"{len(self.factors)}"), f"be {len(self.groups)} matrices")
        self.blocks()

    @classmethod
    @double_precision
    def from_std(cls, mean: PyTree, std: PyTree, groups: Groups) -> BlockGaussian:
        """Independent weights; `std` is a number, or a pytree like `mean`."""
        _check_cover(mean, groups)
        numbers = sum(tree.size(part) ** 2 for part in _split(mean, mean, groups))
        hint = "smaller blocks (this is the size of all together) or a diagonal Gaussian"
        tree.check_dense(math.isqrt(numbers), hint)
        parts = _split(broadcast_std(std, mean), mean, groups)
        return cls(tree.double(mean), tuple(jnp.diag(tree.ravel(p)) for p in parts), groups)

    def blocks(self) -> tuple[FullGaussian, ...]:
        """The factors of the product, each over the list of its leaves."""
        return tuple(map(FullGaussian, _split(self.mean, self.mean, self.groups), self.factors))

    @property
    @double_precision
    def std(self) -> PyTree:
        """Standard deviation of each weight."""
        return _join([block.std for block in self.blocks()], self.mean, self.groups)

    @double_precision
    def mean_vector(self) -> Array:
        """The mean as one vector (k,)."""
        return tree.ravel(tree.double(self.mean))

    @double_precision
    def cov_matrix(self) -> Array:
        """The dense covariance matrix (k, k)."""
        return self._dense(FullGaussian.cov_matrix)

    @double_precision
    def prec_matrix(self) -> Array:
        """The dense precision matrix (k, k)."""
        return self._dense(FullGaussian.prec_matrix)

    @double_precision
    def to_full(self) -> FullGaussian:
        """The same q with one dense factor; the same noise gives the same weights."""
        return FullGaussian(tree.double(self.mean), self._dense(lambda block: block.factor))

    @double_precision
    def to_prior(self) -> BlockPrior:
        """The same Gaussian as a prior, for new data."""
        precs = [block.prec_matrix() for block in self.blocks()]
        return BlockPrior.from_precs(tree.double(self.mean), precs, self.groups)

    @double_precision
    def transform(self, noise: PyTree) -> PyTree:
        """w_g = mean_g + C_g noise_g; noise is a vector (k,), or a pytree like the parameters."""
        noise = tree.unraveler(self.mean)(tree.ravel(noise))
        parts = _split(noise, self.mean, self.groups)
        moved = [block.transform(part) for block, part in zip(self.blocks(), parts, strict=True)]
        return _join(moved, self.mean, self.groups)

    @double_precision
    def sample(self, key: Array, num: int) -> PyTree:
        """`num` draws along a leading axis."""
        return jax.vmap(self.transform)(tree.normal_like(key, self.mean, num))

    @double_precision
    def log_prob(self, params: PyTree) -> Array:
        """Log-density at one set of parameters."""
        return tree.total(self.log_prob_terms(params))

    @double_precision
    def log_prob_terms(self, params: PyTree) -> tuple[Array, ...]:
        """The log-density of each block."""
        parts = _split(params, self.mean, self.groups)
        return tuple(b.log_prob(part) for b, part in zip(self.blocks(), parts, strict=True))

    @double_precision
    def entropy(self) -> Array:
        """Differential entropy in nats."""
        return tree.total([block.entropy() for block in self.blocks()])

    @double_precision
    def kl(self, other: Gaussian | BoundPrior) -> Array:
        """KL(self || other) for any Gaussian; with other blocks it is computed densely."""
        if isinstance(other, CorrelatedPrior):
            return self._kl_correlated(other)
        if isinstance(other, Gaussian) and other.is_independent:
            other = other.to_prior()
        others: Iterable[Gaussian | BoundPrior]
        if isinstance(other, GaussianPrior):
            means = _split(other.mean, self.mean, self.groups)
            precs = _split(other.prec, self.mean, self.groups)
            others = map(GaussianPrior, means, precs)
        elif isinstance(other, BlockGaussian) and other.groups == self.groups:
            others = other.blocks()
        else:
            return self.to_full().kl(other)
        return tree.total([b.kl(o) for b, o in zip(self.blocks(), others, strict=True)])

    def _kl_correlated(self, other: CorrelatedPrior) -> Array:
        """The trace only involves the prior's precision within our own groups."""
        pairs = zip(self.factors, other.prec_blocks(self.mean, self.groups), strict=True)
        square = tree.total([c * (p @ c) for c, p in pairs]) + other.quadratic(self.mean)
        k = tree.size(self.mean)
        return 0.5 * (square + k * jnp.log(2 * jnp.pi) - other.log_det) - self.entropy()

    @double_precision
    def natural(self) -> tuple[Natural, ...]:
        """`FullGaussian.natural` of each block."""
        return tuple(block.natural() for block in self.blocks())

    @classmethod
    def from_natural(
        cls, natural: Sequence[Natural], like: PyTree, groups: Groups
    ) -> BlockGaussian:
        """From the natural parameters of each block."""
        return cls._from_blocks(FullGaussian.from_natural, natural, like, groups)

    @double_precision
    def expectation(self) -> tuple[Expectation, ...]:
        """`FullGaussian.expectation` of each block."""
        return tuple(block.expectation() for block in self.blocks())

    @classmethod
    def from_expectation(
        cls, expectation: Sequence[Expectation], like: PyTree, groups: Groups
    ) -> BlockGaussian:
        """From the expectation parameters of each block."""
        return cls._from_blocks(FullGaussian.from_expectation, expectation, like, groups)

    @double_precision
    def unconstrained(self) -> tuple[dict[str, Array], ...]:
        """`FullGaussian.unconstrained` of each block."""
        return tuple(block.unconstrained() for block in self.blocks())

    @classmethod
    def from_unconstrained(
        cls, values: Sequence[dict[str, Array]], like: PyTree, groups: Groups
    ) -> BlockGaussian:
        """From the unconstrained parameters of each block."""
        return cls._from_blocks(FullGaussian.from_unconstrained, values, like, groups)

    @classmethod
    @double_precision
    def _from_blocks(
        cls,
        make: Callable[[Value, PyTree], FullGaussian],
        values: Sequence[Value],
        like: PyTree,
        groups: Groups,
    ) -> BlockGaussian:
        parts = _split(like, like, groups)
        blocks = [make(value, part) for value, part in zip(values, parts, strict=True)]
        mean = _join([block.mean for block in blocks], like, groups)
        return cls(mean, tuple(block.factor for block in blocks), groups)

    def _dense(self, matrix_of: Callable[[FullGaussian], Array]) -> Array:
        """The block-diagonal matrix, its rows and columns in the order of the parameters."""
        k = tree.size(self.mean)
        tree.check_dense(k, "`blocks()`, which have the same numbers")
        ends = np.cumsum([jnp.size(leaf) for leaf in jax.tree.leaves(self.mean)])
        rows = np.split(np.arange(k), ends[:-1])
        order = np.concatenate([rows[leaf] for group in self.groups for leaf in group])
        inverse = np.argsort(order)
        matrix = jax.scipy.linalg.block_diag(*[matrix_of(block) for block in self.blocks()])
        return matrix[np.ix_(inverse, inverse)]


def make_groups(params: PyTree, blocks: str | Mapping[str, str | Sequence[str]]) -> Groups:
    """Groups of leaves of `params`, one for each block, as positions among the leaves.

    `blocks` is "leaf" (each its own), "layer" (those with the same parent, as the weight and the
    bias of `network.layers.0`), or a mapping from a block's name to patterns of leaf names
    (`{"body": ["network.layers.[01].*"], "rest": ["network.layers.2.*", "likelihood*"]}`).
    """
    names = tree.leaf_names(params)
    if isinstance(blocks, Mapping):
        return _matching_groups(names, blocks)
    if blocks == "leaf":
        return tuple((position,) for position in range(len(names)))
    if blocks != "layer":
        refuse("blocks", blocks, 'be "leaf", "layer", or a mapping from names to patterns')
    layers: dict[str, list[int]] = {}
    for position, name in enumerate(names):
        layers.setdefault(name.rpartition(".")[0], []).append(position)
    return _as_groups(layers.values())


def _matching_groups(names: list[str], blocks: Mapping[str, str | Sequence[str]]) -> Groups:
    groups: dict[str, list[int]] = {block: [] for block in blocks}
    for position, name in enumerate(names):
        found = [
            block
            for block, patterns in blocks.items()
            for pattern in ([patterns] if isinstance(patterns, str) else patterns)
            if fnmatch.fnmatchcase(name, pattern)
        ]
        if len(set(found)) != 1:
            shown = Shown(f"{name!r} in {sorted(set(found)) or 'none'}")
            refuse("blocks", shown, "put every leaf in one block", f"The leaves are {names}.")
        groups[found[0]].append(position)
    for block, members in groups.items():
        if not members:
            shown = Shown(f"none for {block!r}")
            refuse("blocks", shown, "match a leaf in each block", f"The leaves are {names}.")
    return _as_groups(groups.values())


def _check_cover(mean: PyTree, groups: Groups) -> None:
    count = len(jax.tree.leaves(mean))
    if sorted(position for group in groups for position in group) != list(range(count)):
        refuse("groups", groups, f"have each of the {count} leaves once", "Use `make_groups`.")


def _split(values: PyTree, like: PyTree, groups: Groups) -> list[list[Array]]:
    """The leaves of each group."""
    leaves = jax.tree.leaves(jax.tree.map(lambda _, value: value, like, values))
    return [[leaves[position] for position in group] for group in groups]


def _join(parts: Sequence[Sequence[Array]], like: PyTree, groups: Groups) -> PyTree:
    """The inverse of `_split`."""
    found = {
        position: leaf
        for group, part in zip(groups, parts, strict=True)
        for position, leaf in zip(group, part, strict=True)
    }
    return jax.tree.unflatten(jax.tree.structure(like), [found[i] for i in sorted(found)])
