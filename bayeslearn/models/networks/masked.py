"""Random masks on the inputs of a network's weight layers: W = M diag(z), z of mean one.

A mask belongs to one array of weights and multiplies it along the axis that meets the layer's
input. Which axis that is, a layer says: Equinox's dense, convolutional and recurrent layers are
known, any other class opts in with a method `input_axes()` that maps the names of its arrays to
-1 (`weight @ x`) or -2 (`x @ weight`). Arrays outside of Equinox modules (plain functions, Flax,
Keras) are read as (..., inputs, outputs). What is left, such as biases, norms and the centres of
radial units, has no product with an input and carries no mask.

Masked weights are ordinary weights, so a draw with one mask for all rows needs nothing more
(`masked_weights`). With a mask for each row, `MaskedNetwork` multiplies the activations instead,
so that no row has weights of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.models.networks.adapters import EquinoxNetwork
from bayeslearn.tree import Array, PyTree


class Site(NamedTuple):
    """An array of weights with a mask on its inputs."""

    name: str
    leaf: int  # its place among the leaves of the network's parameters
    kind: str  # "product", "convolution", or "array" outside of any layer
    axis: int  # of the inputs, counted from the end
    groups: int  # of a convolution's channels
    mask_shape: tuple[int, ...]

    @property
    def has_mask_per_row(self) -> bool:
        """Whether its activations can be masked; an array's own are out of reach."""
        return self.kind != "array"


def input_axes(layer: Any) -> dict[str, int]:
    """The layer's arrays that multiply its inputs, and the axis of each that does."""
    if hasattr(layer, "input_axes"):
        return dict(layer.input_axes())
    if isinstance(layer, eqx.nn.Linear):
        return {"weight": -1}
    if _is_convolution(layer):
        return {"weight": -1 - layer.num_spatial_dims}
    if hasattr(layer, "weight_ih") and hasattr(layer, "weight_hh"):
        return {"weight_ih": -1, "weight_hh": -1}
    return {}


def find_sites(params: PyTree) -> tuple[Site, ...]:
    """Every array of weights that meets an input, in the order of the leaves."""
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
        axis = input_axes(owners[-1]).get(names[index].rsplit(".", 1)[-1])
        if axis is None:
            continue
        is_convolution = _is_convolution(owners[-1])
        groups = owners[-1].groups if is_convolution else 1
        # Leading axes, of layers that are stacked to be scanned over, have masks of their own.
        lead = shape[: axis - 1] if is_convolution else shape[:-2]
        kind = "convolution" if is_convolution else "product"
        found.append(Site(names[index], index, kind, axis, groups, (*lead, shape[axis] * groups)))
    return tuple(found)


def _owners(params: PyTree, path: tuple[Any, ...]) -> list[Any]:
    """The nodes on the way to a leaf, from the root to the one that holds it."""
    owners = [params]
    for step in path[:-1]:
        node = owners[-1]
        if isinstance(step, jax.tree_util.GetAttrKey):
            owners.append(getattr(node, step.name))
        else:
            owners.append(node[getattr(step, "key", getattr(step, "idx", None))])
    return owners


def _is_convolution(layer: Any) -> bool:
    return isinstance(layer, eqx.nn.Conv | eqx.nn.ConvTranspose)


def draw_masks(
    key: Array,
    sites: Sequence[Site],
    keeps: Sequence[Any],
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
    # One call for all sites: a generator for each would lengthen the time to compile.
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
    # Outputs of group g see the inputs of group g alone.
    grouped = mask.reshape(*mask.shape[:-1], site.groups, -1)
    each = weight.shape[site.axis - 1] // site.groups
    spatial = (None,) * (-1 - site.axis)
    return jnp.repeat(grouped, each, axis=-2)[(..., *(slice(None),) * 2, *spatial)]


def masked_weights(params: PyTree, sites: Sequence[Site], masks: Sequence[Array]) -> PyTree:
    """M diag(z): the weights of a network under one mask for each site."""
    leaves, treedef = jax.tree.flatten(params)
    for site, mask in zip(sites, masks, strict=True):
        leaves[site.leaf] = leaves[site.leaf] * factor(site, mask, leaves[site.leaf])
    return jax.tree.unflatten(treedef, leaves)


class MaskedMatrix(eqx.Module):
    """weight diag(mask): as a product the mask meets the input, elsewhere it is multiplied out."""

    weight: Array
    mask: Array
    site: Site = eqx.field(static=True)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.weight.shape

    @property
    def ndim(self) -> int:
        return self.weight.ndim

    @property
    def dtype(self) -> Any:
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

    layer: Any
    mask: Array

    def __call__(self, x: Array, **options: Any) -> Array:
        mask = jnp.asarray(self.mask, x.dtype)
        return self.layer(x * mask.reshape(-1, *(1,) * (x.ndim - 1)), **options)


class MaskedNetwork(eqx.Module):
    """The network on (x, masks): an example and its own masks, by the names of their weights."""

    network: Any

    def apply(self, params: PyTree, x: Any, key: Array | None = None) -> Array:
        x, masks = x
        if not isinstance(self.network, EquinoxNetwork):
            return self.network.apply(masked_layers(params, masks), x, key)
        module = eqx.combine(params, self.network.rest.value)
        masked = EquinoxNetwork(masked_layers(module, masks))
        return masked.apply(masked.weights, x, key)


def masked_layers(params: PyTree, masks: dict[str, Array]) -> PyTree:
    """The layers with masks on their inputs; no weights are multiplied."""
    sites = [site for site in find_sites(params) if site.has_mask_per_row]
    leaves, treedef = jax.tree.flatten(params)
    for site in sites:
        if site.kind == "product" and site.name in masks:
            leaves[site.leaf] = MaskedMatrix(leaves[site.leaf], masks[site.name], site)
    # In the order of the leaves, as the nodes are met.
    channels = iter([masks.get(site.name) for site in sites if site.kind == "convolution"])

    def mask_channels(node: Any) -> Any:
        mask = next(channels) if _is_convolution(node) else None
        return node if mask is None else MaskedConvolution(node, mask)

    masked = jax.tree.unflatten(treedef, leaves)
    return jax.tree.map(mask_channels, masked, is_leaf=_is_convolution)


# Networks that draw their own masks from a key


def has_dropout(network: Any) -> bool:
    """Whether it is an Equinox module with Dropout layers."""
    if not isinstance(network, EquinoxNetwork):
        return False
    nodes = jax.tree.leaves(network.rest.value, is_leaf=_is_dropout)
    return any(map(_is_dropout, nodes))


def _is_dropout(node: Any) -> bool:
    return isinstance(node, eqx.nn.Dropout)


class KeyedRows(eqx.Module):
    """The network on (x, key data): an example and the key of its own masks."""

    network: Any

    def apply(self, params: PyTree, x: Any, key: Array | None = None) -> Array:
        x, data = x
        return self.network.apply(params, x, jax.random.wrap_key_data(data))


class KeyedDraws(eqx.Module):
    """The network at {"key": key data, "weights": params}: one key for all rows."""

    network: Any

    def apply(self, params: PyTree, x: Any, key: Array | None = None) -> Array:
        own = jax.random.wrap_key_data(params["key"])
        return self.network.apply(params["weights"], x, own)
