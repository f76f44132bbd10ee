"""The multilayer perceptron."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp

from bayeslearn.models.networks.parts import (
    Activation,
    Sizes,
    activation_function,
    apply_dense,
    check_activation,
    check_sizes,
    dense_layers,
)
from bayeslearn.tree import Array, PyTree


class MLP(eqx.Module):
    """Dense layers of the sizes `hidden`, each followed by `activation`, then a dense output.

    `activation` is a name from `jax.nn` or `jax.numpy` ("tanh", "relu", "gelu", ...) or a
    function. An input of any shape is flattened. `MLP([])` is a linear model.

    >>> network = bl.networks.MLP([50, 50], activation="relu")
    """

    hidden: tuple[int, ...] = eqx.field(static=True)
    activation: Activation = eqx.field(static=True)
    use_bias: bool = eqx.field(static=True)

    def __init__(
        self,
        hidden: Sizes = (50,),
        activation: Activation = "tanh",
        use_bias: bool = True,
    ):
        must = "be positive layer sizes, such as [50] or [64, 64]"
        self.hidden = check_sizes("hidden", hidden, must)
        self.activation = check_activation(activation)
        self.use_bias = use_bias

    def init(self, key: Array, x_example: PyTree, num_outputs: int) -> PyTree:
        """Initial parameters."""
        sizes = (jnp.size(x_example), *self.hidden, num_outputs)
        return {"layers": dense_layers(key, sizes, self.use_bias)}

    def apply(self, params: PyTree, x: Array, key: Array | None = None) -> Array:
        """Outputs for one example."""
        return apply_dense(params["layers"], self.activation, jnp.ravel(x))

    def apply_rows(self, params: PyTree, x: Array) -> Array:
        """Outputs for all rows of x, one layer after the other.

        Activations are kept as (units, rows), which takes half the time of `jax.vmap(apply)` on a
        CPU where layers are narrow. Differs from it by rounding.
        """
        function = activation_function(self.activation)
        *hidden, last = params["layers"]

        def dense(layer: eqx.nn.Linear, columns: Array) -> Array:
            columns = layer.weight @ columns
            return columns if layer.bias is None else columns + layer.bias[:, None]

        columns = x.reshape(len(x), -1).T
        for layer in hidden:
            columns = function(dense(layer, columns))
        return dense(last, columns).T
