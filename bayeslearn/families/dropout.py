"""Weights under random masks: the result of MC dropout."""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.families.base import Family
from bayeslearn.models.networks.masked import Site, draw_masks, factor, masked_weights
from bayeslearn.precision import double_precision
from bayeslearn.tree import Array, PyTree


class Dropout(Family):
    """W = M diag(z), with one random factor of mean one for each input of each masked layer.

    `mean` is E[W] = M; in the notation without 1 / keep it is keep times the weights. All weights
    of one input have the same factor, and biases and the likelihood's own parameters are constant.
    The distribution is therefore singular: it has moments, but no density, entropy or KL.

    With `has_own_masks` the network itself draws the masks from a key: a draw is then
    {"key": ..., "weights": mean}, for the target of `MCDropout.predictive_target`.
    """

    mean: PyTree
    keeps: tuple[Array, ...]
    sites: tuple[Site, ...] = eqx.field(static=True)
    noise: str = eqx.field(static=True)
    has_own_masks: bool = eqx.field(static=True, default=False)

    @double_precision
    def mean_vector(self) -> Array:
        """The mean as one vector (k,)."""
        return tree.ravel(self.mean)

    @double_precision
    def sample(self, key: Array, num: int) -> PyTree:
        """`num` sets of weights, each under one mask for all rows."""
        draws = jax.tree.map(lambda w: jnp.broadcast_to(w, (num, *w.shape)), self.mean)
        if self.has_own_masks:
            keys = jax.random.key_data(jax.random.split(key, num))
            return {**draws, "network": {"key": keys, "weights": draws["network"]}}
        masks = draw_masks(key, self.sites, self.keeps, self.noise, num)
        network = jax.vmap(lambda z: masked_weights(self.mean["network"], self.sites, z))(masks)
        return {**draws, "network": network if self.sites else draws["network"]}

    @property
    @double_precision
    def std(self) -> PyTree:
        """|M| sqrt((1 - keep) / keep) where there is a mask, else zero."""
        leaves, treedef = jax.tree.flatten(self.mean["network"])
        found = [jnp.zeros_like(leaf) for leaf in leaves]
        for site, keep in zip(self.sites, self.keeps, strict=True):
            mask_std = jnp.sqrt((1 - keep) / keep)
            found[site.leaf] = (mask_std * jnp.abs(leaves[site.leaf])).astype(
                found[site.leaf].dtype
            )
        rest = jax.tree.map(jnp.zeros_like, {**self.mean, "network": None})
        return {**rest, "network": jax.tree.unflatten(treedef, found)}

    @double_precision
    def cov_matrix(self) -> Array:
        """Weights of the same input have covariance +-std times std, all others zero."""
        tree.check_dense(tree.size(self.mean), "`std`, the standard deviation of each weight")
        owner = tree.ravel({**self.mean, "network": self._inputs()})
        signed = jax.tree.map(lambda s, m: s * jnp.sign(m), self.std, self.mean)
        vector = tree.ravel(tree.double(signed))
        return jnp.outer(vector, vector) * (owner[:, None] == owner[None, :])

    def _inputs(self) -> PyTree:
        """The index of the input that each weight of the network multiplies."""
        leaves, treedef = jax.tree.flatten(self.mean["network"])
        found = [jnp.full(leaf.shape, -1.0) for leaf in leaves]
        begin = 0
        for site in self.sites:
            numbers = begin + jnp.arange(math.prod(site.mask_shape)).reshape(site.mask_shape)
            begin += numbers.size
            weight = leaves[site.leaf].astype(jnp.float64)
            found[site.leaf] = jnp.broadcast_to(factor(site, numbers, weight), weight.shape)
        return jax.tree.unflatten(treedef, found)
