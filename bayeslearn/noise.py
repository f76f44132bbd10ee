r"""Standard normal noise for every weight at every step, cheaply.

    counter i, key -> (k0, k1)        i the weight's place in the tree, in 32 bits
    h = mix(mix(i + k0) xor k1)       mix: two rounds of multiply and shift, a bijection
    noise = sqrt(2) erfinv(u),        u in (-1, 1) from the bits of h

A number depends on the key, the draw and the weight's place alone, so that shards of a leaf can be
filled where they are. float32 and narrower have 24 bits a number, whose tails end at 5.4, as those
of `jax.random.normal` do; float64 leaves get 53 bits, from two hashes. On a CPU it costs a third
of `jax.random`, which takes as long as a whole step of Adam. It is no cryptographic generator;
`kind="jax"` is `jax.random`'s.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.tree import Array, PyTree

KINDS = ("hash", "jax")


def normal_like(key: Array, params: PyTree, num: int, kind: str = "hash") -> PyTree:
    """`num` draws of standard normal noise of the shape and dtype of `params`."""
    if kind == "jax":
        return tree.normal_like(key, params, num)
    words = jax.random.bits(key, (num, 2), jnp.uint32)
    return jax.vmap(lambda pair: _one_draw(pair, params))(words)


def _one_draw(words: Array, params: PyTree) -> PyTree:
    leaves, treedef = jax.tree.flatten(params)
    begin, filled = 0, []
    for leaf in leaves:
        filled.append(_normal(words, begin, leaf.shape, leaf.dtype))
        begin += math.prod(leaf.shape)
    return jax.tree.unflatten(treedef, filled)


def _normal(words: Array, begin: int, shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    """Noise of one leaf whose first weight is number `begin` of the tree."""
    place = jnp.full(shape, begin % 2**32, jnp.uint32)
    stride = 1
    for axis in reversed(range(len(shape))):
        place += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(stride % 2**32)
        stride *= shape[axis]
    # Past 2^32 weights the places begin again, under other words.
    words = words + jnp.asarray([0, begin // 2**32], jnp.uint32)
    bits = _mix(_mix(place + words[0]) ^ words[1])
    if dtype == jnp.float64:
        more = _mix(bits ^ words[0])
        whole = (bits.astype(jnp.uint64) << 21) | (more >> 11).astype(jnp.uint64)
        uniform = (whole.astype(jnp.float64) * 2.0**-52 - 1.0) + 2.0**-53
        return math.sqrt(2.0) * jax.lax.erf_inv(uniform)
    uniform = ((bits >> 8).astype(jnp.int32).astype(jnp.float32) * jnp.float32(2.0**-23)) - 1
    return (math.sqrt(2.0) * jax.lax.erf_inv(uniform + jnp.float32(2.0**-24))).astype(dtype)


def _mix(x: Array) -> Array:
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
