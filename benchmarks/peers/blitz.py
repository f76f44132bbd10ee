"""BLiTZ: Bayesian layers and `sample_elbo` with one sample, Adam."""

from __future__ import annotations

import torch
from blitz.modules import BayesianLinear
from blitz.utils import variational_estimator
from peers import problems
from peers.torch_adam import minimise, network

PACKAGES = ("blitz-bayesian-pytorch", "torch", "numpy")


@variational_estimator
class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = network(BayesianLinear)

    def forward(self, x):
        return self.layers(x)


def step(turns, steps: int) -> None:
    model, criterion = Network(), torch.nn.CrossEntropyLoss()

    def loss(x, y):
        return model.sample_elbo(
            inputs=x,
            labels=y,
            criterion=criterion,
            sample_nbr=1,
            complexity_cost_weight=1 / problems.MLP_ROWS,
        )

    minimise(turns, steps, model, loss)
