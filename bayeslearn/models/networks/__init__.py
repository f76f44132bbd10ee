"""Networks: `init(key, x_example, num_outputs) -> params` and `apply(params, x, key=None)`.

Each works on one example; batches are made by `vmap`. `as_network` brings a user's own module or
functions into this form.
"""

from bayeslearn.models.networks.adapters import (
    EquinoxNetwork,
    FunctionNetwork,
    KerasNetwork,
    LinenNetwork,
    NNXNetwork,
    as_network,
)
from bayeslearn.models.networks.bag_of_features import BagOfFeatures
from bayeslearn.models.networks.cnn import CNN
from bayeslearn.models.networks.measured import measure_batch_statistics
from bayeslearn.models.networks.mlp import MLP
from bayeslearn.models.networks.rbf import RBF
from bayeslearn.models.networks.recurrent import GRU, LSTM, RNN
from bayeslearn.models.networks.resnet import ResNet
from bayeslearn.models.networks.tabl import BL, TABL

__all__ = [
    "BL",
    "CNN",
    "GRU",
    "LSTM",
    "MLP",
    "RBF",
    "RNN",
    "TABL",
    "BagOfFeatures",
    "EquinoxNetwork",
    "FunctionNetwork",
    "KerasNetwork",
    "LinenNetwork",
    "NNXNetwork",
    "ResNet",
    "as_network",
    "measure_batch_statistics",
]
