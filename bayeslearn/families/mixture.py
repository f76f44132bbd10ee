"""The equally weighted mixture of several approximations of one posterior."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.errors import Shown, refuse
from bayeslearn.families.base import Density, Family
from bayeslearn.families.point import Point
from bayeslearn.precision import double_precision
from bayeslearn.tree import Array, PyTree


class Mixture(Family):
    """The equal mixture of its members: q(w) = sum_m q_m(w) / M.

    A mixture of points is a deep ensemble. It has moments and draws, and a density if all members
    have one.
    """

    members: tuple[Family, ...]

    def __check_init__(self) -> None:
        if not self.members:
            refuse("members", Shown("none"), "hold at least one approximation")

    @property
    def num_members(self) -> int:
        """Number of members."""
        return len(self.members)

    @property
    def is_of_points(self) -> bool:
        """Whether every member is a single set of weights."""
        return all(isinstance(member, Point) for member in self.members)

    @property
    @double_precision
    def mean(self) -> PyTree:
        """Mean of each weight."""
        return _average([tree.double(member.mean) for member in self.members])

    @property
    @double_precision
    def std(self) -> PyTree:
        """Standard deviation of each weight, within and between members."""
        means = [tree.double(member.mean) for member in self.members]
        if self.is_of_points:
            return _std(means, None)
        return _std(means, [tree.double(member.std) for member in self.members])

    @double_precision
    def mean_vector(self) -> Array:
        """The mean as one vector."""
        return tree.ravel(self.mean)

    @double_precision
    def sample(self, key: Array, num: int) -> PyTree:
        """`num` draws, as evenly as can be from all members, in turn.

        Which members give one more is drawn at random.
        """
        return self.sample_members(key, num)[0]

    @double_precision
    def sample_members(self, key: Array, num: int) -> tuple[PyTree, Array]:
        """The draws of `sample`, and the number of the member that each is from."""
        each = -(-num // self.num_members)
        keys = jax.random.split(jax.random.fold_in(key, 1), self.num_members)
        parts = [member.sample(key, each) for member, key in zip(self.members, keys, strict=True)]
        order = self._order(key)

        return _in_turn(parts, order, each, num)

    def _order(self, key: Array) -> Array:
        return jax.random.permutation(key, self.num_members)

    @double_precision
    def draws_by_member(self, key: Array, each: int) -> Array:
        """Where the draws of each member are in `sample(key, each * num_members)`; a row each."""
        order = self._order(key)
        first = jnp.zeros_like(order).at[order].set(jnp.arange(self.num_members))
        return first[:, None] + self.num_members * jnp.arange(each)

    @double_precision
    def log_prob(self, params: PyTree) -> Array:
        """Log-density of the mixture; for members with a density only."""
        if not all(isinstance(member, Density) for member in self.members):
            refuse("members", Shown("some without a density"), "all have a density")
        terms = [member.log_prob(params) for member in self.members]  # type: ignore[attr-defined]
        return jax.nn.logsumexp(jnp.stack(terms)) - jnp.log(self.num_members)


# One program each: leaf by leaf they are dozens, which compile for longer than they run.


@jax.jit
def _average(trees: list[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *trees)


@jax.jit
def _std(means: list[PyTree], stds: list[PyTree] | None) -> PyTree:
    """Within and between members; without the first for points."""
    mean = _average(means)
    seconds = [jax.tree.map(lambda m, m0: (m - m0) ** 2, own, mean) for own in means]
    if stds is not None:
        seconds = [
            jax.tree.map(lambda s, between: s**2 + between, std, second)
            for std, second in zip(stds, seconds, strict=True)
        ]
    return jax.tree.map(jnp.sqrt, _average(seconds))


@partial(jax.jit, static_argnames=("each", "num"))
def _in_turn(parts: list[PyTree], order: Array, each: int, num: int) -> tuple[PyTree, Array]:
    """The first `num` draws of the members in turn, and the member of each."""

    def in_turn(*leaves: Array) -> Array:
        stacked = jnp.stack(leaves, axis=1)[:, order]  # draw, member
        return stacked.reshape(-1, *stacked.shape[2:])[:num]

    return jax.tree.map(in_turn, *parts), jnp.tile(order, each)[:num]
