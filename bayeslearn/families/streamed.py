"""Draws for predictions: made together where they are small, else one by one where they are used.

A streamed draw is sampled from its own key inside the compiled loop over draws, so that memory is
that of a few sets of weights, whatever the number of draws. Draws that fit into `MAX_BYTES` are
made together from one key; so the numbers of a prediction depend on that rule on sizes alone.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp

from bayeslearn.families.base import Family
from bayeslearn.families.mixture import Mixture
from bayeslearn.tree import Array, PyTree

MAX_BYTES = 2**28  # of all draws together
STEP_BYTES = 2**26  # of draws that are evaluated together, if streamed


class StreamedDraws(eqx.Module):
    """Draws of a family by their numbers.

    Those of a mixture are from its members in turn. `is_numbered`: the network's part of a draw is
    {"member": the number of the member, "weights": its weights}.
    """

    family: Family
    key: Array
    order: Array  # of a mixture's members
    num: int = eqx.field(static=True)
    is_numbered: bool = eqx.field(static=True, default=False)

    @property
    def step(self) -> int:
        """Draws to evaluate together at most."""
        return max(1, STEP_BYTES // num_bytes(self.family))

    def at(self, places: Array) -> PyTree:
        """The draws of these numbers along a leading axis."""
        return jax.lax.map(self._one, places)

    def likelihood_params(self) -> PyTree:
        """Of all draws, the likelihood's own parameters; the network's are not kept."""
        return jax.lax.map(lambda i: self._one(i)["likelihood"], jnp.arange(self.num))

    def _one(self, i: Array) -> PyTree:
        key = jax.random.fold_in(self.key, i)
        if not isinstance(self.family, Mixture):
            return _first(self.family, key)
        members = self.family.members
        number = self.order[i % len(members)]
        branches = [lambda key, member=member: _first(member, key) for member in members]
        draw = jax.lax.switch(number, branches, key)
        if not self.is_numbered:
            return draw
        return {**draw, "network": {"member": number, "weights": draw["network"]}}


def _first(family: Family, key: Array) -> PyTree:
    return jax.tree.map(lambda w: w[0], family.sample(key, 1))


def num_bytes(family: Family) -> int:
    """Of one draw."""
    one = family.members[0] if isinstance(family, Mixture) else family
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(one.mean))


def are_many(family: Family, num: int) -> bool:
    """Whether so many draws are streamed."""
    return num * num_bytes(family) > MAX_BYTES


def draws_of(family: Family, key: Array, num: int) -> PyTree | StreamedDraws:
    """`num` draws for predictions, together or streamed by a fixed rule on sizes."""
    if not are_many(family, num):
        return family.sample(key, num)
    return streamed(family, key, num)


def streamed(family: Family, key: Array, num: int, is_numbered: bool = False) -> StreamedDraws:
    """`num` draws that are made where they are used."""
    members = len(family.members) if isinstance(family, Mixture) else 1
    return StreamedDraws(family, key, jax.random.permutation(key, members), num, is_numbered)


# Of draws along a leading axis, or streamed


def num_draws(draws: PyTree | StreamedDraws) -> int:
    """How many there are."""
    return draws.num if isinstance(draws, StreamedDraws) else len(jax.tree.leaves(draws)[0])


def draws_at(draws: PyTree | StreamedDraws, places: Array) -> PyTree:
    """Those of these numbers."""
    if isinstance(draws, StreamedDraws):
        return draws.at(places)
    return jax.tree.map(lambda w: w[places], draws)


def likelihood_params(draws: PyTree | StreamedDraws) -> PyTree:
    """The likelihood's own parameters of all draws."""
    if isinstance(draws, StreamedDraws):
        return draws.likelihood_params()
    return draws["likelihood"]
