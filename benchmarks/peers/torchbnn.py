"""torchbnn: Bayesian layers and its KL loss, Adam."""

from __future__ import annotations

import torch
import torchbnn
from peers import problems
from peers.torch_adam import minimise, network

PACKAGES = ("torchbnn", "torch", "numpy")


def step(turns, steps: int) -> None:
    model = network(lambda inputs, outputs: torchbnn.BayesLinear(0, 0.1, inputs, outputs))
    kl = torchbnn.BKLLoss(reduction="sum", last_layer_only=False)

    def loss(x, y):
        fit = torch.nn.functional.cross_entropy(model(x), y)
        return (fit + kl(model) / problems.MLP_ROWS).sum()

    minimise(turns, steps, model, loss)
