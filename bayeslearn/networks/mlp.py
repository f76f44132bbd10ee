"""The multilayer perceptron."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn.errors import refuse
from bayeslearn.tree import Array, PyTree


class MLP(eqx.Module):
    """Dense layers of the sizes `hidden`, each followed by `activation`, then a dense output.

    `activation` is a name from `jax.nn` or `jax.numpy` ("tanh", "relu", "gelu", ...) or a
    function. An input of any shape is flattened. `MLP([])` is a linear model.
    """

    hidden: tuple[int, ...] = eqx.field(static=True)
    activation: str | Callable[[Array], Array] = eqx.field(static=True)
    use_bias: bool = eqx.field(static=True)

    def __init__(
        self,
        hidden: Sequence[int] | int = (50,),
        activation: str | Callable[[Array], Array] = "tanh",
        use_bias: bool = True,
    ):
        is_sequence = isinstance(hidden, Sequence | np.ndarray) and not isinstance(hidden, str)
        sizes: tuple[Any, ...] = tuple(hidden) if is_sequence else (hidden,)  # type: ignore
        if not all(isinstance(n, int | np.integer) and n > 0 for n in sizes):
            refuse("hidden", hidden, "be positive layer sizes, such as [50] or [64, 64]")
        if not callable(activation) and not callable(_named(activation)):
            refuse("activation", activation, 'be a function or a name such as "tanh" or "relu"')
        self.hidden = tuple(int(n) for n in sizes)
        self.activation = activation
        self.use_bias = use_bias

    def init(self, key: Array, x_example: PyTree, num_outputs: int) -> PyTree:
        sizes = (jnp.size(x_example), *self.hidden, num_outputs)
        keys = jax.random.split(key, len(sizes) - 1)
        layers = [
            eqx.nn.Linear(n_in, n_out, use_bias=self.use_bias, key=k)
            for n_in, n_out, k in zip(sizes[:-1], sizes[1:], keys, strict=True)
        ]
        return {"layers": layers}

    def apply(self, params: PyTree, x: Array, key: Array | None = None) -> Array:
        activation = self.activation if callable(self.activation) else _named(self.activation)
        *hidden, last = params["layers"]
        x = jnp.ravel(x)
        for layer in hidden:
            x = activation(layer(x))
        return last(x)


def _named(name: str) -> Callable[[Array], Array]:
    return getattr(jax.nn, str(name), None) or getattr(jnp, str(name), None)  # type: ignore
