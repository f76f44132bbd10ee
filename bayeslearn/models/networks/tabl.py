"""Bilinear networks with temporal attention (Tran, Iosifidis, Kanniainen and Gabbouj, 2019).

A series is (time, features), as for the recurrent networks; layers work on its transpose, the
paper's X (features, times). A bilinear layer mixes features from the left and times from the right,

    Y = phi(W1 X W2 + B),

and the attention layer weighs the times of each new feature in between:

    X' = W1 X,   E = X' W  (diagonal of W fixed at 1 / T),   A = softmax of E over time,
    Y = phi((lambda X' * A + (1 - lambda) X') W2 + B).

The paper clips lambda to [0, 1]; here it is the sigmoid of a weight, so that any value is valid.
"""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from bayeslearn.errors import Shown, refuse
from bayeslearn.models.networks.parts import (
    Activation,
    activation_function,
    as_sequence,
    check_activation,
    check_sizes,
    dtype_of,
    fan_in_uniform,
)
from bayeslearn.tree import Array, PyTree


class BL(eqx.Module):
    """Bilinear layers to the sizes `hidden`, pairs (features, times), then one to the outputs.

    Each but the last is followed by `activation`. `BL([])` is bilinear in its weights.
    """

    hidden: tuple[tuple[int, int], ...] = eqx.field(static=True)
    activation: Activation = eqx.field(static=True)

    def __init__(
        self, hidden: Sequence[tuple[int, int]] = ((16, 4),), activation: Activation = "relu"
    ):
        must = "be pairs (features, times), such as [(16, 4)]"
        if isinstance(hidden, str) or not isinstance(hidden, Sequence | np.ndarray):
            refuse("hidden", hidden, must)
        sizes = [check_sizes("hidden", pair, must) for pair in hidden]
        if not all(len(pair) == 2 for pair in sizes):
            refuse("hidden", hidden, must)
        self.hidden = tuple((features, times) for features, times in sizes)
        self.activation = check_activation(activation)

    def init(self, key: Array, x_example: PyTree, num_outputs: int) -> PyTree:
        """Initial parameters."""
        times, features = self._series(x_example).shape
        sizes = ((features, times), *self.hidden, (num_outputs, 1))
        *keys, key_last = jax.random.split(key, len(sizes) - 1)
        layers = [
            Bilinear(before, after, self.activation, k)
            for before, after, k in zip(sizes[:-2], sizes[1:-1], keys, strict=True)
        ]
        return {"layers": [*layers, self._last(sizes[-2], sizes[-1], key_last)]}

    def _series(self, x: PyTree, dtype: DTypeLike | None = None) -> Array:
        """One example as (time, features); masks are refused."""
        if isinstance(x, dict):
            refuse("x", Shown("a dict"), "be (time, features): bilinear layers have one length")
        return as_sequence(x, dtype)[0]

    def _last(self, before: tuple[int, int], after: tuple[int, int], key: Array) -> Bilinear:
        return Bilinear(before, after, None, key)

    def apply(self, params: PyTree, x: PyTree, key: Array | None = None) -> Array:
        """Outputs for one example."""
        x = self._series(x, dtype_of(params)).T
        for layer in params["layers"]:
            x = layer(x)
        return x[:, 0]


class TABL(BL):
    """Bilinear layers to the sizes `hidden`, pairs (features, times), then temporal attention.

    Each layer but the last is followed by `activation`. `TABL([])` is one attention layer.
    """

    def _last(self, before: tuple[int, int], after: tuple[int, int], key: Array) -> Bilinear:
        if before[1] < 2:
            remedy = "Use BL, or more times in the last pair of `hidden`."
            refuse("x", Shown("one time step"), "leave two times or more to attend to", remedy)
        return AttentiveBilinear(before, after, None, key)


class Bilinear(eqx.Module):
    """phi(W1 X W2 + B) for X (features, times); `activation` None stands for the identity."""

    feature_weight: Array
    time_weight: Array
    bias: Array
    activation: Activation | None = eqx.field(static=True)

    def __init__(
        self,
        before: tuple[int, int],
        after: tuple[int, int],
        activation: Activation | None,
        key: Array,
    ):
        key_features, key_times = jax.random.split(key)
        self.feature_weight = fan_in_uniform(key_features, (after[0], before[0]), before[0])
        self.time_weight = fan_in_uniform(key_times, (before[1], after[1]), before[1])
        self.bias = jnp.zeros(after)
        self.activation = activation

    def __call__(self, x: Array) -> Array:
        return self._join_times(self.feature_weight @ x)

    def input_axes(self) -> dict[str, int]:
        """The axes that MC dropout masks: input features and input times."""
        return {"feature_weight": -1, "time_weight": -2}

    def _join_times(self, mixed: Array) -> Array:
        total = mixed @ self.time_weight + self.bias
        return total if self.activation is None else activation_function(self.activation)(total)


class AttentiveBilinear(Bilinear):
    """The bilinear layer with attention over time between its two products.

    `attention_weight` (T, T - 1) holds each row of W without its fixed diagonal.
    """

    attention_weight: Array
    mix_logit: Array

    def __init__(
        self,
        before: tuple[int, int],
        after: tuple[int, int],
        activation: Activation | None,
        key: Array,
    ):
        key, key_attention = jax.random.split(key)
        super().__init__(before, after, activation, key)
        times = before[1]
        self.attention_weight = fan_in_uniform(key_attention, (times, times - 1), times)
        self.mix_logit = jnp.zeros(())

    def __call__(self, x: Array) -> Array:
        mixed = self.feature_weight @ x
        weight = jax.nn.sigmoid(self.mix_logit)
        attended = weight * mixed * self.attention(mixed) + (1 - weight) * mixed
        return self._join_times(attended)

    def attention(self, mixed: Array) -> Array:
        """Attention of each feature over time: rows that sum to one."""
        return jax.nn.softmax(mixed @ self.square_weight(), axis=-1)

    def square_weight(self) -> Array:
        """W (T, T) with its diagonal."""
        times = len(self.attention_weight)
        # Row by row, an entry of the diagonal precedes every `times` others, and is the last.
        others = self.attention_weight.reshape(times - 1, times)
        diagonal = jnp.full((times - 1, 1), 1 / times, others.dtype)
        body = jnp.concatenate([diagonal, others], axis=1).ravel()
        return jnp.concatenate([body, diagonal[0]]).reshape(times, times)
