"""Features of a frozen body: what a network computes before its first Bayesian weight.

The network is traced for one row. Equations that depend on a Bayesian leaf are the head, the others
the body; the body's results that the head uses are the features. They are computed once for all
rows, and a run then evaluates the head alone. A network whose body has no frozen weights, or that
uses a random key, is left as it is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import precision
from bayeslearn.channels_last import channels_last
from bayeslearn.data.rows import Batch
from bayeslearn.gradients import sites
from bayeslearn.models.protocols import Network
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

ROWS = 1024  # through the body at a time
MAX_BYTES = 2**31  # of features of all rows in memory; `feature_maps` has more

Row = tuple[tuple[tuple[int, ...], str], ...]  # shapes and dtypes of a row's leaves


class Split(NamedTuple):
    """A network's equations, divided."""

    jaxpr: sites.Inlined
    head: frozenset[int]  # numbers of the equations that depend on a Bayesian leaf
    by_row: frozenset[sites.Var]  # variables that depend on the row and on no Bayesian leaf
    features: tuple[sites.Var, ...]
    uses_frozen: bool  # the body combines frozen weights with the row
    uses_key: bool


class HeadNetwork(eqx.Module):
    """What is left of a network after its features: `apply(params, features)`."""

    network: Network
    is_bayesian: tuple[bool, ...] = eqx.field(static=True)  # of the network's leaves
    row: Row = eqx.field(static=True)
    structure: jax.tree_util.PyTreeDef = eqx.field(static=True)  # of a row

    def init(self, key: Array, x_example: PyTree, num_outputs: int) -> PyTree:
        """Not asked for: a run starts from weights that there are."""
        raise NotImplementedError

    def apply(self, params: PyTree, x: PyTree, key: Array | None = None) -> Array:
        """Outputs for the features of one row."""
        split = self.split(params)
        leaves = jax.tree.leaves(params)
        env = dict(split.jaxpr.consts)
        env.update(zip(split.jaxpr.invars, leaves, strict=False))
        env.update(zip(split.features, x, strict=True))
        for number, eqn in enumerate(split.jaxpr.eqns):
            if number in split.head or not any(v in split.by_row for v in eqn.outvars):
                _run(eqn, env)
        return sites.value_of(env, split.jaxpr.outvars[0])

    def features(self, params: PyTree, x: PyTree) -> tuple[Array, ...]:
        """The features of one row."""
        split = self.split(params)
        env = dict(split.jaxpr.consts)
        env.update(
            zip(split.jaxpr.invars, [*jax.tree.leaves(params), *jax.tree.leaves(x)], strict=False)
        )
        for number, eqn in enumerate(split.jaxpr.eqns):
            if number not in split.head:
                _run(eqn, env)
        return tuple(env[v] for v in split.features)

    def split(self, params: PyTree) -> Split:
        """The equations of the network, traced for one row."""
        like = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in self.row]
        row = jax.tree.unflatten(self.structure, like)
        params = jax.tree.map(lambda w: jax.ShapeDtypeStruct(w.shape, w.dtype), params)
        key = jax.eval_shape(lambda: jax.random.key(0))
        closed = jax.make_jaxpr(lambda p, x, k: jnp.atleast_1d(self.network.apply(p, x, k)))(
            params, row, key
        )
        return _split(closed, self.is_bayesian, len(like))


def _run(eqn: sites.Eqn, env: dict[sites.Var, sites.Value]) -> None:
    inputs = [env[v] for v in sites.variables(eqn)]
    env.update(zip(eqn.outvars, sites.as_function(eqn)(*inputs), strict=True))


def _split(closed: jax.extend.core.ClosedJaxpr, is_bayesian: Sequence[bool], num_x: int) -> Split:
    num = len(is_bayesian)
    is_row = [False] * num + [True] * num_x + [False]
    jaxpr = sites.inline(closed, is_row, [*is_bayesian, *[False] * (num_x + 1)])
    leaves, rows = jaxpr.invars[:num], jaxpr.invars[num : num + num_x]
    bayesian = {v for v, chosen in zip(leaves, is_bayesian, strict=True) if chosen}
    frozen, by_row, by_key = set(leaves) - bayesian, set(rows), {jaxpr.invars[-1]}
    head, uses_frozen, uses_key = set(), False, False
    for number, eqn in enumerate(jaxpr.eqns):
        inputs = set(sites.variables(eqn))
        uses_key |= bool(inputs & by_key)
        if inputs & bayesian:
            bayesian.update(eqn.outvars)
            head.add(number)
            continue
        if inputs & by_row:
            by_row.update(eqn.outvars)
            uses_frozen |= bool(inputs & frozen)
        elif inputs & frozen:
            frozen.update(eqn.outvars)
    used = [v for number in sorted(head) for v in sites.variables(jaxpr.eqns[number])]
    used += [v for v in jaxpr.outvars if sites.is_variable(v)]
    features = tuple(dict.fromkeys(v for v in used if v in by_row))
    return Split(jaxpr, frozenset(head), frozenset(by_row), features, uses_frozen, uses_key)


class Division(NamedTuple):
    """A network divided: its head, all weights, and the features of a row."""

    head: HeadNetwork
    weights: PyTree
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    dtype: np.dtype  # of the target

    def num_bytes(self, rows: int) -> int:
        """Of the features of so many rows."""
        return rows * sum(math.prod(s.shape) * s.dtype.itemsize for s in self.shapes)

    def computed(self, batch: Batch) -> Batch:
        """The batch with features in place of its inputs."""
        with precision.network_precision(self.dtype):
            return batch._replace(x=_features(self.head, self.weights, batch.x))


def divide(target: Target, params: PyTree) -> Division | None:
    """The network in two parts; None where nothing is gained."""
    data = target.data
    if target.frozen is None or data is None or len(data.y) == 0:
        return None
    frozen = jax.tree.leaves(target.frozen, is_leaf=lambda leaf: leaf is None)
    rows, structure = jax.tree.flatten(data.x)
    head = HeadNetwork(
        target.network,
        tuple(leaf is None for leaf in frozen),
        tuple((row.shape[1:], str(row.dtype)) for row in rows),
        structure,
    )
    with precision.network_precision(target.dtype):
        weights = target.weights(params)
        split = head.split(weights)
        avals = [sites.aval(v) for v in split.features]
    if not split.features or not split.uses_frozen or split.uses_key:
        return None
    shapes = tuple(jax.ShapeDtypeStruct(one.shape, one.dtype) for one in avals)
    return Division(head, weights, shapes, target.dtype)


def with_features(
    target: Target, params: PyTree, validation: Batch | None
) -> tuple[Target, Batch | None] | None:
    """The target whose rows are features of its frozen body, and so the validation rows.

    None where nothing is gained, or where the features are too many for memory.
    """
    divided = divide(target, params)
    if divided is None or target.data is None:
        return None
    if divided.num_bytes(len(target.data.y)) > MAX_BYTES:
        return None
    features = dataclasses.replace(target, network=divided.head, data=divided.computed(target.data))
    return features, None if validation is None else divided.computed(validation)


@jax.jit
@channels_last
def _features(head: HeadNetwork, weights: PyTree, x: PyTree) -> tuple[Array, ...]:
    rows = len(jax.tree.leaves(x)[0])
    return jax.lax.map(lambda row: head.features(weights, row), x, batch_size=min(rows, ROWS))
