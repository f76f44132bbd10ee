"""Recurrent networks: RNN, LSTM, GRU.

An example is (time, features), or {"values": (time, features), "mask": (time,)} where sequences
of unequal lengths were padded. A step whose mask is 0 leaves the state as it was, so that what
stands in the padding, before, after or between, changes nothing.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from bayeslearn.errors import refuse
from bayeslearn.models.networks.parts import (
    Activation,
    Sizes,
    activation_function,
    as_sequence,
    check_activation,
    check_choice,
    check_flag,
    check_sizes,
    dtype_of,
    fan_in_uniform,
)
from bayeslearn.tree import Array, PyTree


class _Recurrent(eqx.Module):
    """Layers of cells run over time, then a dense read-out."""

    hidden: tuple[int, ...] = eqx.field(static=True)
    bidirectional: bool = eqx.field(static=True)
    output: str = eqx.field(static=True)

    def __init__(self, hidden: Sizes = (16,), bidirectional: bool = False, output: str = "last"):
        self.hidden = check_sizes("hidden", hidden, "be positive layer sizes, such as [16]")
        if not self.hidden:
            refuse("hidden", hidden, "name at least one layer")
        self.bidirectional = check_flag("bidirectional", bidirectional)
        self.output = check_choice("output", output, ("last", "mean"))

    def _cell(self, num_inputs: int, size: int, key: Array) -> Any:
        """A cell: `cell(x, state)` gives the next state."""
        raise NotImplementedError

    def _start(self, size: int, dtype: Any) -> PyTree:
        return jnp.zeros(size, dtype)

    def _shown(self, state: PyTree) -> Array:
        """The part of the state that later layers see."""
        return state

    def init(self, key: Array, x_example: Any, num_outputs: int) -> PyTree:
        width = as_sequence(x_example)[0].shape[1]
        directions = ("forward", "backward") if self.bidirectional else ("forward",)
        key_readout, *keys = jax.random.split(key, 1 + len(self.hidden))
        cells = []
        for size, key_layer in zip(self.hidden, keys, strict=True):
            pairs = zip(directions, jax.random.split(key_layer, len(directions)), strict=True)
            cells.append({name: self._cell(width, size, k) for name, k in pairs})
            width = size * len(directions)
        return {"cells": cells, "readout": eqx.nn.Linear(width, num_outputs, key=key_readout)}

    def apply(self, params: PyTree, x: Any, key: Array | None = None) -> Array:
        values, mask = as_sequence(x, dtype_of(params))
        for size, layer in zip(self.hidden, params["cells"], strict=True):
            # In this order whatever the dict's: leaves come sorted by name.
            names = [name for name in ("forward", "backward") if name in layer]
            runs = [self._run(layer[n], values, mask, size, n == "backward") for n in names]
            last, values = (jnp.concatenate(parts, axis=-1) for parts in zip(*runs, strict=True))
        if self.output == "mean":
            weight = mask.astype(values.dtype)
            last = weight @ values / jnp.maximum(jnp.sum(weight), 1)
        return params["readout"](last)

    def _run(
        self, cell: Any, values: Array, mask: Array, size: int, is_reversed: bool
    ) -> tuple[Array, Array]:
        """The last state (size,) and the state after each step (time, size)."""

        def step(state: PyTree, now: tuple[Array, Array]) -> tuple[PyTree, Array]:
            value, is_there = now
            state = jax.tree.map(
                lambda new, old: jnp.where(is_there, new.astype(old.dtype), old),
                cell(value, state),
                state,
            )
            return state, self._shown(state)

        start = self._start(size, values.dtype)
        last, states = jax.lax.scan(step, start, (values, mask), reverse=is_reversed)
        return self._shown(last), states


class RNN(_Recurrent):
    """Simple recurrent layers of the sizes `hidden`: state = activation(W x + U state + b).

    `bidirectional` runs each layer both ways in time and joins the two. `output` is what the
    dense read-out sees of the top layer: its "last" state, or the "mean" of its states.
    """

    activation: Activation = eqx.field(static=True)

    def __init__(
        self,
        hidden: Sizes = (16,),
        bidirectional: bool = False,
        output: str = "last",
        activation: Activation = "tanh",
    ):
        super().__init__(hidden, bidirectional, output)
        self.activation = check_activation(activation)

    def _cell(self, num_inputs: int, size: int, key: Array) -> Any:
        return SimpleCell(num_inputs, size, self.activation, key)


class LSTM(_Recurrent):
    """Long short-term memory layers of the sizes `hidden`; arguments as for `RNN`."""

    def _cell(self, num_inputs: int, size: int, key: Array) -> Any:
        return eqx.nn.LSTMCell(num_inputs, size, key=key)

    def _start(self, size: int, dtype: Any) -> PyTree:
        return jnp.zeros(size, dtype), jnp.zeros(size, dtype)

    def _shown(self, state: PyTree) -> Array:
        return state[0]


class GRU(_Recurrent):
    """Layers of gated recurrent units of the sizes `hidden`; arguments as for `RNN`."""

    def _cell(self, num_inputs: int, size: int, key: Array) -> Any:
        return eqx.nn.GRUCell(num_inputs, size, key=key)


class SimpleCell(eqx.Module):
    """state = activation(W x + U state + b)."""

    weight_ih: Array
    weight_hh: Array
    bias: Array
    activation: Activation = eqx.field(static=True)

    def __init__(self, num_inputs: int, size: int, activation: Activation, key: Array):
        key_in, key_state, key_bias = jax.random.split(key, 3)
        self.weight_ih = fan_in_uniform(key_in, (size, num_inputs), size)
        self.weight_hh = fan_in_uniform(key_state, (size, size), size)
        self.bias = fan_in_uniform(key_bias, (size,), size)
        self.activation = activation

    def __call__(self, x: Array, state: Array) -> Array:
        total = self.weight_ih @ x + self.weight_hh @ state + self.bias
        return activation_function(self.activation)(total)
