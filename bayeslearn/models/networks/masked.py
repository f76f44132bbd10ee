"""Random masks on the inputs of a network's weight layers: W = M diag(z), z of mean one.

A mask belongs to one array of weights and multiplies it along the axis of the layer's inputs.
Equinox's dense, convolutional and recurrent layers are known. Any other class opts in with a
method `input_axes()` that maps the names of its arrays to -1 (`weight @ x`) or -2 (`x @ weight`).
Arrays outside of Equinox modules (plain functions, Flax, Keras) are read as (..., inputs,
outputs). Other arrays, such as biases, norms and the centres of radial units, have no product with
an input and no mask.

Masked weights are ordinary weights, so a draw with one mask for all rows only needs
`masked_weights`. With a mask for each row, `MaskedNetwork` multiplies the activations instead, so
that weights are not copied for each row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeGuard, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from bayeslearn import tree
from bayeslearn.models.networks.adapters import EquinoxNetwork
from bayeslearn.models.networks.parts import NetworkWrapper
from bayeslearn.models.protocols import Network
from bayeslearn.tree import Array, PyTree


@runtime_checkable
class DeclaresInputs(Protocol):
    """A layer that names the arrays that multiply its inputs."""

    def input_axes(self) -> dict[str, int]:
        """The axis of the inputs, -1 or -2, by the name of the array."""
        ...


@runtime_checkable
class RecurrentCell(Protocol):
    """A recurrent cell, such as those of Equinox."""

    weight_ih: Array
    weight_hh: Array


class Site(NamedTuple):
    """An array of weights with a mask on its inputs."""

    name: str
    leaf: int  # its position among the leaves of the network's parameters
    kind: str  # "product", "convolution", or "array" outside of any layer
    axis: int  # of the inputs, counted from the end
    groups: int  # of a convolution's channels
    mask_shape: tuple[int, ...]

    @property
    def has_mask_per_row(self) -> bool:
        """Whether the activations can be masked; those of a bare array are not known."""
        return self.kind != "array"


def input_axes(layer: object) -> dict[str, int]:
    """The arrays of the layer that multiply its inputs, with the axis of the inputs."""
    if isinstance(layer, DeclaresInputs):
        return dict(layer.input_axes())
    if isinstance(layer, eqx.nn.Linear):
        return {"weight": -1}
    if _is_convolution(layer):
        return {"weight": -1 - layer.num_spatial_dims}
    if isinstance(layer, RecurrentCell):
        return {"weight_ih": -1, "weight_hh": -1}
    return {}


def find_sites(params: PyTree) -> tuple[Site, ...]:
    """Every array of weights that multiplies an input, in the order of the leaves."""
    found = []
    paths, _ = jax.tree_util.tree_flatten_with_path(params)
    names = tree.leaf_names(params)
    for index, (path, leaf) in enumerate(paths):
        if getattr(leaf, "ndim", 0) < 2 or not jnp.issubdtype(leaf.dtype, jnp.inexact):
            continue
        owners = _owners(params, path)
        shape = jnp.shape(leaf)
        if not any(isinstance(owner, eqx.Module) for owner in owners):
            found.append(Site(names[index], index, "array", -2, 1, shape[-2:-1]))
            continue
        layer = owners[-1]
        axis = input_axes(layer).get(names[index].rsplit(".", 1)[-1])
        if axis is None:
            continue
        is_convolution = _is_convolution(layer)
        groups = layer.groups if _is_convolution(layer) else 1
        # Leading axes, of layers that are stacked for a scan, have their own masks.
        lead = shape[: axis - 1] if is_convolution else shape[:-2]
        kind = "convolution" if is_convolution else "product"
        found.append(Site(names[index], index, kind, axis, groups, (*lead, shape[axis] * groups)))
    return tuple(found)


def _owners(params: PyTree, path: tuple[object, ...]) -> list[PyTree]:
    """The nodes on the path to a leaf, from the root to its parent."""
    owners = [params]
    for step in path[:-1]:
        node = owners[-1]
        if isinstance(step, jax.tree_util.GetAttrKey):
            owners.append(getattr(node, step.name))
        elif isinstance(step, jax.tree_util.SequenceKey):
            owners.append(node[step.idx])
        else:
            assert isinstance(step, jax.tree_util.DictKey | jax.tree_util.FlattenedIndexKey)
            owners.append(node[step.key])
    return owners


def _is_convolution(layer: object) -> TypeGuard[eqx.nn.Conv | eqx.nn.ConvTranspose]:
    return isinstance(layer, eqx.nn.Conv | eqx.nn.ConvTranspose)


def draw_masks(
    key: Array,
    sites: Sequence[Site],
    keeps: Sequence[ArrayLike],
    noise: str,
    num: int | None = None,
) -> tuple[Array, ...]:
    """Masks of mean one and variance (1 - keep) / keep for each site, with a leading axis if `num`.

    Bernoulli masks are z / keep; Gaussian ones N(1, (1 - keep) / keep).
    """
    lead = () if num is None else (num,)
    sizes = [math.prod(site.mask_shape) for site in sites]
    keep = jnp.concatenate(
        [jnp.full(n, k, jnp.float32) for n, k in zip(sizes, keeps, strict=True)] or [jnp.zeros(0)]
    )
    # One call for all sites: one generator per site would take longer to compile.
    shape = (*lead, sum(sizes))
    if noise == "gaussian":
        values = 1 + jnp.sqrt((1 - keep) / keep) * jax.random.normal(key, shape, jnp.float32)
    else:
        values = jnp.where(jax.random.uniform(key, shape, jnp.float32) < keep, 1 / keep, 0)
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))][:-1]
    pieces = jnp.split(values, ends, axis=-1) if sizes else []
    return tuple(
        piece.reshape(*lead, *site.mask_shape) for piece, site in zip(pieces, sites, strict=True)
    )


def factor(site: Site, mask: Array, weight: Array) -> Array:
    """The mask as a factor of the weights."""
    mask = jnp.asarray(mask, weight.dtype)
    if site.kind != "convolution":
        return mask[..., None, :] if site.axis == -1 else mask[..., :, None]
    # Outputs of group g depend on the inputs of group g only.
    grouped = mask.reshape(*mask.shape[:-1], site.groups, -1)
    repeats = weight.shape[site.axis - 1] // site.groups
    spatial = (None,) * (-1 - site.axis)
    return jnp.repeat(grouped, repeats, axis=-2)[(..., *(slice(None),) * 2, *spatial)]


def masked_weights(params: PyTree, sites: Sequence[Site], masks: Sequence[Array]) -> PyTree:
    """M diag(z): the weights of a network under one mask for each site."""
    leaves, treedef = jax.tree.flatten(params)
    for site, mask in zip(sites, masks, strict=True):
        leaves[site.leaf] = leaves[site.leaf] * factor(site, mask, leaves[site.leaf])
    return jax.tree.unflatten(treedef, leaves)


class MaskedMatrix(eqx.Module):
    """weight diag(mask); in a product with a vector the mask multiplies the vector."""

    weight: Array
    mask: Array
    site: Site = eqx.field(static=True)

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the weight."""
        return self.weight.shape

    @property
    def ndim(self) -> int:
        """That of the weight."""
        return self.weight.ndim

    @property
    def dtype(self) -> np.dtype:
        """That of the weight."""
        return self.weight.dtype

    def __matmul__(self, x: Array) -> Array:
        if self.site.axis != -1:
            return self.__jax_array__() @ x
        mask = jnp.asarray(self.mask, self.dtype)
        return self.weight @ (x * (mask if jnp.ndim(x) == 1 else mask[..., :, None]))

    def __jax_array__(self) -> Array:
        return self.weight * factor(self.site, self.mask, self.weight)


class MaskedConvolution(eqx.Module):
    """A convolution whose input channels are masked."""

    layer: eqx.nn.Conv | eqx.nn.ConvTranspose
    mask: Array

    def __call__(self, x: Array, **options: PyTree) -> Array:
        mask = jnp.asarray(self.mask, x.dtype)
        return self.layer(x * mask.reshape(-1, *(1,) * (x.ndim - 1)), **options)


class MaskedNetwork(NetworkWrapper):
    """The network on (x, masks): an example and its own masks, by the names of their weights."""

    def apply(self, params: PyTree, x: PyTree, key: Array | None = None) -> Array:
        """Outputs for one example under its masks."""
        x, masks = x
        if not isinstance(self.network, EquinoxNetwork):
            return self.network.apply(masked_layers(params, masks), x, key)
        module = eqx.combine(params, self.network.rest.value)
        masked = EquinoxNetwork(masked_layers(module, masks))
        return masked.apply(masked.weights, x, key)


def masked_layers(params: PyTree, masks: dict[str, Array]) -> PyTree:
    """The layers with masks on their inputs; weights are not multiplied."""
    sites = [site for site in find_sites(params) if site.has_mask_per_row]
    leaves, treedef = jax.tree.flatten(params)
    for site in sites:
        if site.kind == "product" and site.name in masks:
            leaves[site.leaf] = MaskedMatrix(leaves[site.leaf], masks[site.name], site)
    # In the order of the leaves, in which the nodes are visited.
    channels = iter([masks.get(site.name) for site in sites if site.kind == "convolution"])

    def mask_channels(node: PyTree) -> PyTree:
        mask = next(channels) if _is_convolution(node) else None
        return node if mask is None else MaskedConvolution(node, mask)

    masked = jax.tree.unflatten(treedef, leaves)
    return jax.tree.map(mask_channels, masked, is_leaf=_is_convolution)


# Networks that draw their own masks from a key


def has_dropout(network: Network) -> bool:
    """Whether it is an Equinox module with Dropout layers that drop something.

    Attention has one whose probability is 0 unless it is given.
    """
    if not isinstance(network, EquinoxNetwork):
        return False
    nodes = jax.tree.leaves(network.rest.value, is_leaf=_is_dropout)
    return any(_is_dropout(node) and node.p != 0 for node in nodes)


def _is_dropout(node: object) -> bool:
    return isinstance(node, eqx.nn.Dropout)


class KeyedRows(NetworkWrapper):
    """The network on (x, key data): an example and the key of its own masks."""

    def apply(self, params: PyTree, x: PyTree, key: Array | None = None) -> Array:
        """Outputs for one example with its key."""
        x, data = x
        return self.network.apply(params, x, jax.random.wrap_key_data(data))


class KeyedDraws(NetworkWrapper):
    """The network at {"key": key data, "weights": params}: one key for all rows."""

    def apply(self, params: PyTree, x: PyTree, key: Array | None = None) -> Array:
        """Outputs for one example with the key of the draw."""
        own = jax.random.wrap_key_data(params["key"])
        return self.network.apply(params["weights"], x, own)
