r"""Layers of a network: leaves whose gradient for a row is a sum of a_t s_t^T over positions t.

a is what the layer takes and s the cotangent of what it returns, one of each for a position in
time or space. They are found among the sites of the network (`sites`): dense products,
convolutions (a is a patch of the image) and tables of vectors (a is 1 at one entry). A bias that is
added to what the weight gives, alone, is one more input, which is 1. An array that is added
elsewhere is a layer by itself, with one input and one position: its s is the whole gradient.

Leaves with several sites, transformed ones, factors of other operations (a normalisation's gain,
a kernel of grouped convolutions) have no layer, and so have those of more than MAX_ALONE entries
that are added.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn.families.kronecker import Layer
from bayeslearn.gradients import sites
from bayeslearn.tree import Array

MAX_ALONE = 1024  # entries of an added array, whose factor has as many rows
ADDITIONS = {"add", "add_any"}


class Found(NamedTuple):
    """A layer, and the numbers of its sites: of the weight, or of the bias alone."""

    layer: Layer
    site: int


def find_layers(plan: sites.Plan, leaves: list[Array]) -> list[Found]:
    """The layers of a network, in the order of their sites."""
    found, biases = [], set()
    numbers = {id(site): number for number, site in enumerate(plan.sites())}
    for block in _blocks(plan.block):
        for site in block.special.values():
            if not isinstance(site, sites.Site) or id(site) not in numbers:
                continue
            weight = _as_matrix(site, leaves)
            if weight is None or weight[0] in plan.fallbacks:
                continue
            bias = _bias_after(block, site, leaves)
            bias = None if bias in plan.fallbacks else bias
            biases |= set() if bias is None else {bias}
            found.append(Found(Layer(*weight, bias), numbers[id(site)]))
    for site in plan.sites():
        (path, *others) = site.paths.values()
        is_free = path.leaf not in biases and path.leaf not in plan.fallbacks and not others
        if is_free and site.eqn.primitive.name in ADDITIONS and leaves[path.leaf].size <= MAX_ALONE:
            found.append(Found(Layer(None, (), 0, path.leaf), numbers[id(site)]))
    return sorted(found, key=lambda f: f.site)


def _blocks(block: sites.Block) -> list[sites.Block]:
    inner = [s.body for s in block.special.values() if isinstance(s, sites.Loop)]
    return [block, *itertools.chain.from_iterable(map(_blocks, inner))]


def matrix_order(site: sites.Site) -> tuple[tuple[int, ...], int] | None:
    """Axes of the weight at the site as (inputs, outputs), and how many of them are inputs."""
    if len(site.paths) != 1 or sum(site.is_row) != 1:
        return None
    ((var, path),) = site.paths.items()
    eqn, ndim = site.eqn, len(sites.aval(var).shape)
    if path.broadcasts:
        return None
    if eqn.primitive.name == "dot_general":
        contracted, batched = eqn.params["dimension_numbers"]
        side = int(eqn.invars[1] is var)
        free = [i for i in range(ndim) if i not in contracted[side]]
        return None if batched[0] else ((*contracted[side], *free), len(contracted[side]))
    if eqn.primitive.name == "conv_general_dilated":
        params = eqn.params
        if eqn.invars[1] is not var:
            return None
        if params["feature_group_count"] != 1 or params["batch_group_count"] != 1:
            return None
        outputs, inputs, *space = params["dimension_numbers"].rhs_spec
        return (*space, inputs, outputs), ndim - 1
    if eqn.primitive.name == "gather" and sites.is_lookup(site, var):
        return tuple(range(ndim)), 1
    return None


def _as_matrix(site: sites.Site, leaves: list[Array]) -> tuple[int, tuple[int, ...], int] | None:
    """The leaf of the site, its axes as (inputs, outputs), and the number of inputs."""
    order = matrix_order(site)
    if order is None:
        return None
    ((var, path),) = site.paths.items()
    shape = sites.aval(var).shape
    num_inputs = math.prod(shape[i] for i in order[0][: order[1]])
    at_site = _entries(path, leaves[path.leaf])
    if at_site.size != leaves[path.leaf].size:
        return None
    wanted = at_site.transpose(order[0]).ravel()
    own = np.arange(wanted.size, dtype=np.int32).reshape(leaves[path.leaf].shape)
    for axes in itertools.permutations(range(own.ndim)):
        # A few entries refute most orders.
        flat, few = own.transpose(axes).ravel(), slice(None, None, max(1, wanted.size // 997))
        if np.array_equal(flat[few], wanted[few]) and np.array_equal(flat, wanted):
            return path.leaf, axes, num_inputs
    return None


def _entries(path: sites.Path, leaf: Array) -> np.ndarray:
    """Where each entry of the leaf at its site comes from."""
    with jax.ensure_compile_time_eval():
        numbers = jnp.arange(leaf.size, dtype=jnp.int32).reshape(leaf.shape)
        return np.asarray(sites.apply_reshapes(path, numbers, is_cast=False))


def _bias_after(block: sites.Block, site: sites.Site, leaves: list[Array]) -> int | None:
    """The leaf that is added to what the site gives, entry by entry of its outputs, alone."""
    if site.eqn.primitive.name == "gather":  # its A would no longer be diagonal
        return None
    eqns = block.jaxpr.eqns
    (var,), channels = site.eqn.outvars, _channels(site)
    while True:
        users = [n for n, eqn in enumerate(eqns) if any(v is var for v in eqn.invars)]
        if len(users) != 1 or any(v is var for v in block.jaxpr.outvars):
            return None
        eqn, special = eqns[users[0]], block.special.get(users[0])
        if isinstance(special, sites.Site):
            break
        if eqn.primitive.name not in sites.RESHAPES or len(eqn.invars) != 1:
            return None
        if eqn.primitive.name != "convert_element_type":
            with jax.ensure_compile_time_eval():
                channels = np.asarray(sites.as_function(eqn)(jnp.asarray(channels))[0])
        (var,) = eqn.outvars
    paths = list(special.paths.values())
    if special.eqn.primitive.name not in ADDITIONS or len(paths) != 1:
        return None
    (path,) = paths
    with jax.ensure_compile_time_eval():
        numbers = jnp.asarray(_entries(path, leaves[path.leaf]))
        added = np.asarray(sites.apply_broadcasts(path, numbers))
    is_same = leaves[path.leaf].size == channels.max() + 1 and added.ndim == channels.ndim
    if not is_same or not np.array_equal(np.broadcast_to(added, channels.shape), channels):
        return None
    return path.leaf


def _channels(site: sites.Site) -> np.ndarray:
    """Which output each entry of what the site gives belongs to."""
    ((var, _),) = site.paths.items()
    eqn, shape = site.eqn, sites.aval(site.eqn.outvars[0]).shape
    if eqn.primitive.name == "conv_general_dilated":
        axes = [eqn.params["dimension_numbers"].out_spec[1]]
    else:
        order = matrix_order(site)
        assert order is not None
        number = len(order[0]) - order[1]
        is_first = eqn.primitive.name == "dot_general" and eqn.invars[0] is var
        axes = list(range(number) if is_first else range(len(shape) - number, len(shape)))
    sizes = [shape[i] for i in axes]
    kept = [shape[i] if i in axes else 1 for i in range(len(shape))]
    numbers = np.arange(math.prod(sizes), dtype=np.int32).reshape(kept)
    return np.broadcast_to(numbers, shape)
