"""The networks of `images.py`, as functions of a key and of weights and an image."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

import bayeslearn as bl

CLASSES = 10
IMAGE = (1, 28, 28)
Make = Callable[[jax.Array], eqx.Module]


class Functions(NamedTuple):
    """What makes the weights of a network, and applies them to one image."""

    init: Callable
    apply: Callable


class CNN(eqx.Module):
    """Two convolutions with pooling, one hidden layer."""

    first: eqx.nn.Conv2d
    second: eqx.nn.Conv2d
    hidden: eqx.nn.Linear
    last: eqx.nn.Linear

    def __init__(self, filters: tuple[int, int], units: int, key: jax.Array):
        keys = jax.random.split(key, 4)
        self.first = eqx.nn.Conv2d(1, filters[0], 3, padding=1, key=keys[0])
        self.second = eqx.nn.Conv2d(filters[0], filters[1], 3, padding=1, key=keys[1])
        self.hidden = eqx.nn.Linear(filters[1] * 49, units, key=keys[2])
        self.last = eqx.nn.Linear(units, CLASSES, key=keys[3])

    def __call__(self, x: jax.Array) -> jax.Array:
        pool = eqx.nn.MaxPool2d(2, 2)
        x = pool(jax.nn.relu(self.first(x)))
        x = pool(jax.nn.relu(self.second(x)))
        return self.last(jax.nn.relu(self.hidden(x.reshape(-1))))


class Block(eqx.Module):
    """Attention and a small dense network, each added to what it is given, normalised."""

    norms: tuple[eqx.nn.LayerNorm, eqx.nn.LayerNorm]
    query: eqx.nn.Linear
    key: eqx.nn.Linear
    value: eqx.nn.Linear
    output: eqx.nn.Linear
    wide: eqx.nn.Linear
    narrow: eqx.nn.Linear
    heads: int = eqx.field(static=True)

    def __init__(self, width: int, heads: int, key: jax.Array):
        keys = jax.random.split(key, 6)
        self.norms = (eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width))
        self.query, self.key, self.value, self.output = (
            eqx.nn.Linear(width, width, key=k) for k in keys[:4]
        )
        self.wide = eqx.nn.Linear(width, 4 * width, key=keys[4])
        self.narrow = eqx.nn.Linear(4 * width, width, key=keys[5])
        self.heads = heads

    def __call__(self, x: jax.Array) -> jax.Array:
        normed = jax.vmap(self.norms[0])(x)
        parts = (jax.vmap(layer)(normed) for layer in (self.query, self.key, self.value))
        query, key, value = (part.reshape(len(x), self.heads, -1) for part in parts)
        scores = jnp.einsum("qhd,khd->hqk", query, key) / query.shape[-1] ** 0.5
        mixed = jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores), value)
        x = x + jax.vmap(self.output)(mixed.reshape(x.shape))
        normed = jax.vmap(self.norms[1])(x)
        return x + jax.vmap(self.narrow)(jax.nn.gelu(jax.vmap(self.wide)(normed)))


class ViT(eqx.Module):
    """A transformer of patches (Dosovitskiy et al. 2021), with the mean over patches at its end."""

    patches: eqx.nn.Conv2d
    positions: jax.Array
    blocks: tuple[Block, ...]
    norm: eqx.nn.LayerNorm
    last: eqx.nn.Linear

    def __init__(self, width: int, heads: int, depth: int, patch: int, key: jax.Array):
        keys = jax.random.split(key, depth + 3)
        self.patches = eqx.nn.Conv2d(IMAGE[0], width, patch, stride=patch, key=keys[0])
        count = (IMAGE[1] // patch) * (IMAGE[2] // patch)
        self.positions = 0.02 * jax.random.normal(keys[1], (count, width))
        self.blocks = tuple(Block(width, heads, k) for k in keys[3:])
        self.norm = eqx.nn.LayerNorm(width)
        self.last = eqx.nn.Linear(width, CLASSES, key=keys[2])

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.patches(x).reshape(len(self.positions[0]), -1).T + self.positions
        for block in self.blocks:
            x = block(x)
        return self.last(jnp.mean(jax.vmap(self.norm)(x), axis=0))


def of_module(make: Make) -> Functions:
    """A module of Equinox as functions: every start has weights of its own."""
    static = eqx.partition(make(jax.random.key(0)), eqx.is_inexact_array)[1]

    def init(key: jax.Array) -> eqx.Module:
        return eqx.filter(make(key), eqx.is_inexact_array)

    return Functions(init, lambda params, x: eqx.combine(params, static)(x))


def cnn(key: jax.Array, filters: tuple[int, int], units: int) -> CNN:
    """The convolutional network as a module."""
    return CNN(tuple(filters), units, key)


def network(name: str, filters: tuple[int, int], units: int, width: int, depth: int) -> Functions:
    """One of `NETWORKS`; "resnet" has four stages of `depth` blocks, from `width` channels on."""
    if name == "cnn":
        return of_module(lambda key: cnn(key, filters, units))
    if name == "vit":
        return of_module(lambda key: ViT(width, 4, depth, 4, key))
    found = bl.networks.ResNet([width, 2 * width, 4 * width, 8 * width], depth, groups=2)
    example = jnp.zeros(IMAGE)
    return Functions(lambda key: found.init(key, example, CLASSES), found.apply)


# (width, depth): ResNet-18 has 64 channels and two blocks a stage
NETWORKS = {"cnn": (0, 0), "resnet": (64, 2), "vit": (192, 6)}
SMALL_NETWORKS = {"cnn": (0, 0), "resnet": (4, 1), "vit": (16, 1)}
