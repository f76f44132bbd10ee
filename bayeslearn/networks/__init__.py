"""Networks: `init(key, x_example, num_outputs) -> params` and `apply(params, x, key=None)`.

Each works on one example; batches are made by `vmap`. `as_network` brings a user's own module or
functions into this form.
"""

from bayeslearn.networks.adapters import (
    EquinoxNetwork,
    FunctionNetwork,
    KerasNetwork,
    LinenNetwork,
    NNXNetwork,
    as_network,
)
from bayeslearn.networks.mlp import MLP

__all__ = [
    "MLP",
    "EquinoxNetwork",
    "FunctionNetwork",
    "KerasNetwork",
    "LinenNetwork",
    "NNXNetwork",
    "as_network",
]
