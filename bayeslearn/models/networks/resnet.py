"""The residual network for images.

Examples must stay independent, as the likelihood has one factor for each row, so there is no batch
normalisation. Features are normalised within one example, by groups of channels (Wu and He, 2018)
or by each filter's own mean square (Singh and Krishnan, 2020).
"""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp

from bayeslearn.errors import refuse
from bayeslearn.models.networks.parts import (
    Activation,
    Sizes,
    activation_function,
    as_image,
    check_activation,
    check_choice,
    check_count,
    check_sizes,
    dtype_of,
)
from bayeslearn.tree import Array, PyTree

EPSILON = 1e-5  # added to the mean square of a normalisation


class ResNet(eqx.Module):
    """A convolution, stages of residual blocks, the mean over the image, a dense output.

    `widths` are the channels of each stage, `blocks` its number of blocks (one number for all
    stages or one for each); every stage but the first halves the image. A block adds two
    convolutions, each with a normalisation, to its input. `norm` is "group" (`groups` groups of
    channels, or the largest divisor in common) or "filter-response", with `activation` in place of
    its threshold. An example is (height, width), or has channels first or last as set by
    `channels`.
    """

    widths: tuple[int, ...] = eqx.field(static=True)
    blocks: tuple[int, ...] = eqx.field(static=True)
    kernel_size: int = eqx.field(static=True)
    norm: str = eqx.field(static=True)
    groups: int = eqx.field(static=True)
    activation: Activation = eqx.field(static=True)
    channels: str = eqx.field(static=True)

    def __init__(
        self,
        widths: Sizes = (16, 32),
        blocks: Sizes = 1,
        kernel_size: int = 3,
        norm: str = "group",
        groups: int = 2,
        activation: Activation = "relu",
        channels: str = "first",
    ):
        self.widths = check_sizes("widths", widths, "be positive numbers of channels")
        if not self.widths:
            refuse("widths", widths, "have at least one stage")
        must = "be positive numbers of blocks"
        self.blocks = check_sizes("blocks", blocks, must, len(self.widths))
        self.kernel_size = check_count("kernel_size", kernel_size)
        self.norm = check_choice("norm", norm, ("group", "filter-response"))
        self.groups = check_count("groups", groups)
        self.activation = check_activation(activation)
        self.channels = check_choice("channels", channels, ("first", "last"))

    def init(self, key: Array, x_example: PyTree, num_outputs: int) -> PyTree:
        """Initial parameters."""
        x = as_image(x_example, self.channels)
        key_stem, key_readout, key = jax.random.split(key, 3)
        width = self.widths[0]
        stem = eqx.nn.Conv2d(len(x), width, self.kernel_size, padding="SAME", key=key_stem)
        blocks = []
        for stage, (wider, count) in enumerate(zip(self.widths, self.blocks, strict=True)):
            for i in range(count):
                key, key_block = jax.random.split(key)
                stride = 2 if stage > 0 and i == 0 else 1
                blocks.append(self._block(key_block, width, wider, stride))
                width = wider
        return {
            "stem": {"convolution": stem, "norm": self._norm(self.widths[0])},
            "blocks": blocks,
            "readout": eqx.nn.Linear(width, num_outputs, key=key_readout),
        }

    def _block(self, key: Array, n_in: int, n_out: int, stride: int) -> dict[str, eqx.Module]:
        """The layers of a residual block."""
        keys = jax.random.split(key, 3)
        size = self.kernel_size
        block: dict[str, eqx.Module] = {
            "convolution1": eqx.nn.Conv2d(n_in, n_out, size, stride, padding="SAME", key=keys[0]),
            "norm1": self._norm(n_out),
            "convolution2": eqx.nn.Conv2d(n_out, n_out, size, padding="SAME", key=keys[1]),
            "norm2": self._norm(n_out),
        }
        if n_in != n_out or stride != 1:
            block["shortcut"] = eqx.nn.Conv2d(n_in, n_out, 1, stride, padding="SAME", key=keys[2])
        return block

    def _norm(self, width: int) -> eqx.Module:
        """A normalisation of so many channels."""
        if self.norm == "filter-response":
            return FilterResponseNorm(width)
        return eqx.nn.GroupNorm(math.gcd(self.groups, width), width, eps=EPSILON)

    def apply(self, params: PyTree, x: PyTree, key: Array | None = None) -> Array:
        """Outputs for one example."""
        activation = activation_function(self.activation)
        x = as_image(x, self.channels).astype(dtype_of(params))
        stem = params["stem"]
        x = activation(stem["norm"](stem["convolution"](x)))
        for block in params["blocks"]:
            inner = activation(block["norm1"](block["convolution1"](x)))
            inner = block["norm2"](block["convolution2"](inner))
            x = activation(inner + (block["shortcut"](x) if "shortcut" in block else x))
        return params["readout"](jnp.mean(x, axis=(1, 2)))


class FilterResponseNorm(eqx.Module):
    """Each channel divided by its root mean square over the image, then scaled and shifted."""

    weight: Array
    bias: Array

    def __init__(self, channels: int):
        self.weight = jnp.ones(channels)
        self.bias = jnp.zeros(channels)

    def __call__(self, x: Array) -> Array:
        squares = jnp.mean(jnp.square(x), axis=(1, 2), keepdims=True)
        return (
            self.weight[:, None, None] * x / jnp.sqrt(squares + EPSILON)
            + (self.bias[:, None, None])
        )
