"""The convolutional network for images."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp

from bayeslearn.errors import Shown, refuse
from bayeslearn.models.networks.parts import (
    Activation,
    Sizes,
    activation_function,
    apply_dense,
    as_image,
    check_activation,
    check_choice,
    check_count,
    check_sizes,
    dense_layers,
    dtype_of,
)
from bayeslearn.tree import Array, PyTree


class CNN(eqx.Module):
    """Convolutions, each followed by `activation` and pooling, then dense layers.

    `filters` are the output channels of the convolutions. `kernel_sizes` and `strides` are one
    number for all or one for each; images are padded with zeros, so that a stride of 1 preserves
    their size. `pooling` ("max", "mean" or None) takes windows of `pool_size` that do not
    overlap. `hidden` are the sizes of the dense layers before the output. An example is (height,
    width), or has channels first or last as set by `channels`.
    """

    filters: tuple[int, ...] = eqx.field(static=True)
    kernel_sizes: tuple[int, ...] = eqx.field(static=True)
    strides: tuple[int, ...] = eqx.field(static=True)
    pooling: str | None = eqx.field(static=True)
    pool_size: int = eqx.field(static=True)
    hidden: tuple[int, ...] = eqx.field(static=True)
    activation: Activation = eqx.field(static=True)
    channels: str = eqx.field(static=True)

    def __init__(
        self,
        filters: Sizes = (16, 32),
        kernel_sizes: Sizes = 3,
        strides: Sizes = 1,
        pooling: str | None = "max",
        pool_size: int = 2,
        hidden: Sizes = (32,),
        activation: Activation = "relu",
        channels: str = "first",
    ):
        self.filters = check_sizes("filters", filters, "be positive numbers of channels")
        if not self.filters:
            refuse("filters", filters, "have at least one convolution")
        count = len(self.filters)
        self.kernel_sizes = check_sizes("kernel_sizes", kernel_sizes, "be positive", count)
        self.strides = check_sizes("strides", strides, "be positive", count)
        self.pooling = check_choice("pooling", pooling, ("max", "mean", None))
        self.pool_size = check_count("pool_size", pool_size)
        self.hidden = check_sizes("hidden", hidden, "be positive layer sizes")
        self.activation = check_activation(activation)
        self.channels = check_choice("channels", channels, ("first", "last"))

    def init(self, key: Array, x_example: PyTree, num_outputs: int) -> PyTree:
        """Initial parameters."""
        x = as_image(x_example, self.channels)
        key_dense, *keys = jax.random.split(key, 1 + len(self.filters))
        channels = (len(x), *self.filters)
        convolutions = [
            eqx.nn.Conv2d(n_in, n_out, size, stride, padding="SAME", key=k)
            for n_in, n_out, size, stride, k in zip(
                channels[:-1], channels[1:], self.kernel_sizes, self.strides, keys, strict=True
            )
        ]
        x = jnp.asarray(x, dtype_of(convolutions))
        features = jax.eval_shape(self._features, convolutions, x)
        if features.size == 0:
            shape = tuple(x.shape[1:])
            remedy = "Use fewer layers, smaller strides, or pooling=None."
            refuse("x", Shown(f"images of {shape}"), "be larger than all strides and pools", remedy)
        sizes = (features.size, *self.hidden, num_outputs)
        return {"convolutions": convolutions, "layers": dense_layers(key_dense, sizes)}

    def apply(self, params: PyTree, x: PyTree, key: Array | None = None) -> Array:
        """Outputs for one example."""
        image = as_image(x, self.channels).astype(dtype_of(params))
        features = self._features(params["convolutions"], image)
        return apply_dense(params["layers"], self.activation, jnp.ravel(features))

    def _features(self, convolutions: list[eqx.nn.Conv2d], x: Array) -> Array:
        activation = activation_function(self.activation)
        for convolution in convolutions:
            x = self._pool(activation(convolution(x)))
        return x

    def _pool(self, x: Array) -> Array:
        if self.pooling is None:
            return x
        size = self.pool_size
        channels, rows, columns = len(x), x.shape[1] // size, x.shape[2] // size
        x = x[:, : rows * size, : columns * size]
        windows = x.reshape(channels, rows, size, columns, size)
        reduce = jnp.max if self.pooling == "max" else jnp.mean
        return reduce(windows, axis=(2, 4))
