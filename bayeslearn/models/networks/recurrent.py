"""Recurrent networks: RNN, LSTM, GRU.

An example is (time, features), or {"values": (time, features), "mask": (time,)} where sequences
of unequal lengths were padded. A step whose mask is 0 does not change the state, so that padding
anywhere in a sequence has no effect.
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

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

Cell = Callable[[Array, PyTree], PyTree]  # the next state, from an input and the state


class _Recurrent(eqx.Module):
    """Base of the recurrent networks: cells run over time, then a dense output (abstract)."""

    hidden: tuple[int, ...] = eqx.field(static=True)
    bidirectional: bool = eqx.field(static=True)
    output: str = eqx.field(static=True)

    def __init__(self, hidden: Sizes = (16,), bidirectional: bool = False, output: str = "last"):
        self.hidden = check_sizes("hidden", hidden, "be positive layer sizes, such as [16]")
        if not self.hidden:
            refuse("hidden", hidden, "have at least one layer")
        self.bidirectional = check_flag("bidirectional", bidirectional)
        self.output = check_choice("output", output, ("last", "mean"))

    def _cell(self, num_inputs: int, size: int, key: Array) -> Cell:
        """A cell: `cell(x, state)` returns the next state."""
        raise NotImplementedError

    def _initial_state(self, size: int, dtype: DTypeLike) -> PyTree:
        """The state before the first step."""
        return jnp.zeros(size, dtype)

    def _output(self, state: PyTree) -> Array:
        """The part of the state that is the input of later layers."""
        return state

    def init(self, key: Array, x_example: PyTree, num_outputs: int) -> PyTree:
        """Initial parameters."""
        width = as_sequence(x_example)[0].shape[1]
        directions = ("forward", "backward") if self.bidirectional else ("forward",)
        key_readout, *keys = jax.random.split(key, 1 + len(self.hidden))
        cells = []
        for size, key_layer in zip(self.hidden, keys, strict=True):
            pairs = zip(directions, jax.random.split(key_layer, len(directions)), strict=True)
            cells.append({name: self._cell(width, size, k) for name, k in pairs})
            width = size * len(directions)
        return {"cells": cells, "readout": eqx.nn.Linear(width, num_outputs, key=key_readout)}

    def apply(self, params: PyTree, x: PyTree, key: Array | None = None) -> Array:
        """Outputs for one example."""
        values, mask = as_sequence(x, dtype_of(params))
        for size, layer in zip(self.hidden, params["cells"], strict=True):
            # In this order: jax sorts the keys of a dict.
            names = [name for name in ("forward", "backward") if name in layer]
            runs = [self._run(layer[n], values, mask, size, n == "backward") for n in names]
            last, values = (jnp.concatenate(parts, axis=-1) for parts in zip(*runs, strict=True))
        if self.output == "mean":
            weight = mask.astype(values.dtype)
            last = weight @ values / jnp.maximum(jnp.sum(weight), 1)
        return params["readout"](last)

    def _run(
        self, cell: Cell, values: Array, mask: Array, size: int, is_reversed: bool
    ) -> tuple[Array, Array]:
        """The last state (size,) and the state after each step (time, size)."""

        def step(state: PyTree, now: tuple[Array, Array]) -> tuple[PyTree, Array]:
            value, is_there = now
            state = jax.tree.map(
                lambda new, old: jnp.where(is_there, new.astype(old.dtype), old),
                cell(value, state),
                state,
            )
            return state, self._output(state)

        start = self._initial_state(size, values.dtype)
        last, states = jax.lax.scan(step, start, (values, mask), reverse=is_reversed)
        return self._output(last), states


class RNN(_Recurrent):
    """Simple recurrent layers of the sizes `hidden`: state = activation(W x + U state + b).

    `bidirectional` runs each layer in both directions of time and concatenates the two. `output`
    is the input of the dense output layer: the "last" state of the top layer, or the "mean" of its
    states.
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

    def _cell(self, num_inputs: int, size: int, key: Array) -> Cell:
        return SimpleCell(num_inputs, size, self.activation, key)


class LSTM(_Recurrent):
    """Long short-term memory layers of the sizes `hidden`; arguments as for `RNN`."""

    def _cell(self, num_inputs: int, size: int, key: Array) -> Cell:
        return eqx.nn.LSTMCell(num_inputs, size, key=key)

    def _initial_state(self, size: int, dtype: DTypeLike) -> PyTree:
        return jnp.zeros(size, dtype), jnp.zeros(size, dtype)

    def _output(self, state: PyTree) -> Array:
        return state[0]


class GRU(_Recurrent):
    """Layers of gated recurrent units of the sizes `hidden`; arguments as for `RNN`."""

    def _cell(self, num_inputs: int, size: int, key: Array) -> Cell:
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
