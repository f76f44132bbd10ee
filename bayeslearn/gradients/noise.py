r"""Standard normal noise for every weight at every step, cheaply.

    key -> (k0, k1), counter i          i the weight's index in the tree, in 32 bits
    h = mix(mix(i + k0) xor k1)         mix: multiply and shift twice, a bijection
    noise = +- Phi^-1(1 - t / 2)        sign and t in (0, 1) from the bits of h

A number depends only on the key, the draw and the weight's index, so that each device can generate
its shard of a leaf. For float32 and narrower types the normal quantile is a polynomial in the
square root of a logarithm, itself a polynomial of the mantissa (the built-in functions would cost
more than everything else): the relative error is 1e-5, and the tails end at 6.2. float64 leaves use
53 bits from two hashes, and the exact function. The generator is not cryptographic; `kind="jax"` is
`jax.random`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.tree import Array, PyTree

KINDS = ("hash", "jax")


def normal_like(key: Array, params: PyTree, num: int, kind: str = "hash") -> PyTree:
    """`num` draws of standard normal noise of the shape and dtype of `params`."""
    seeds, made = draws_like(key, params, num, kind)
    return jax.vmap(made)(seeds)


def draws_like(
    key: Array, params: PyTree, num: int, kind: str = "hash"
) -> tuple[PyTree, Callable[[PyTree], PyTree]]:
    """`normal_like` by seeds, one for each draw, and the function that draws from a seed."""
    if kind == "jax":
        return tree.normal_like(key, params, num), lambda drawn: drawn
    words = jax.random.bits(key, (num, 2), jnp.uint32)
    return words, lambda pair: _one_draw(pair, params)


def _one_draw(words: Array, params: PyTree) -> PyTree:
    """Noise for all leaves."""
    leaves, treedef = jax.tree.flatten(params)
    begin, filled = 0, []
    for leaf in leaves:
        filled.append(_normal(words, begin, leaf.shape, leaf.dtype))
        begin += math.prod(leaf.shape)
    return jax.tree.unflatten(treedef, filled)


def _normal(words: Array, begin: int, shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    """Noise of one leaf whose first weight has the index `begin` in the tree."""
    index = jnp.full(shape, begin % 2**32, jnp.uint32)
    stride = 1
    for axis in reversed(range(len(shape))):
        index += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(stride % 2**32)
        stride *= shape[axis]
    # Past 2^32 weights the index wraps around, with other words.
    words = words + jnp.asarray([0, begin // 2**32], jnp.uint32)
    # mix(mix(i + k0) xor k1): the fold between the two mixes cancels, since it is an involution
    once = _products(_fold(index + words[0]))
    bits = _fold(_products(once ^ _fold(words[1])))
    if dtype == jnp.float64:
        more = _fold(_products(_fold(bits ^ words[0])))
        whole = (bits.astype(jnp.uint64) << 21) | (more >> 11).astype(jnp.uint64)
        uniform = (whole.astype(jnp.float64) * 2.0**-52 - 1.0) + 2.0**-53
        return math.sqrt(2.0) * jax.lax.erf_inv(uniform)
    return _quantile(bits).astype(dtype)


def _fold(x: Array) -> Array:
    """x xor its upper half."""
    return x ^ (x >> 16)


def _products(x: Array) -> Array:
    """The inner part of mix: mix(x) = fold(products(fold(x)))."""
    x = x * jnp.uint32(0x7FEB352D)
    return (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)


# Coefficients of log2(m) on [1, 2) in 2 m - 3, with error 1.4e-5; and of
# Phi^-1(1 - t / 2) / (1 - t) in (sqrt(w + 2.5) - CENTRE) / RADIUS, w = -log2(t (2 - t)) in [0, 31],
# with relative error 6.2e-6.
LOG2 = (0.584950498, 0.480910614, -0.0799372738, 0.0177147699, -0.00500067981, 0.00137276962)
CENTRE, RADIUS = 3.68452864, 2.10338981
QUANTILE = (
    3.68255901, 2.7300869, -0.0858354352, -0.0374694468, 0.170163005, -0.275854288,
    0.15150638, 0.155365669, -0.177854938, -0.0298085665, 0.0551040812,
)  # fmt: skip


def _quantile(bits: Array) -> Array:
    """A standard normal number from 32 bits; the first bit is the sign."""
    whole = (bits & jnp.uint32(0x7FFFFFFF)).astype(jnp.int32)
    t = (whole.astype(jnp.float32) + jnp.float32(0.5)) * jnp.float32(2.0**-31)
    parts = jax.lax.bitcast_convert_type(t * (2 - t), jnp.int32)
    mantissa = jax.lax.bitcast_convert_type((parts & 0x7FFFFF) | 0x3F800000, jnp.float32)
    exponent = (parts >> 23).astype(jnp.float32) - 127
    w = -(exponent + polynomial(LOG2, 2 * mantissa - 3))
    at = (jnp.sqrt(w + jnp.float32(2.5)) - jnp.float32(CENTRE)) * jnp.float32(1 / RADIUS)
    size = (1 - t) * polynomial(QUANTILE, at)
    sign = bits & jnp.uint32(0x80000000)
    return jax.lax.bitcast_convert_type(
        jax.lax.bitcast_convert_type(size, jnp.uint32) ^ sign, jnp.float32
    )


def polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    """A polynomial of a float32 x, lowest power first; even and odd powers in parallel."""
    square, parts = x * x, []
    for first in (0, 1):
        *rest, value = coefficients[first::2]
        for c in reversed(rest):
            value = value * square + jnp.float32(c)
        parts.append(value)
    return parts[0] + x * parts[1]
