"""Bayesian-Torch: reparameterised layers, its KL, Adam."""

from __future__ import annotations

import torch
from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss
from peers import problems
from peers.torch_adam import minimise, network

PACKAGES = ("bayesian-torch", "torch", "numpy")
PRIOR = {
    "prior_mu": 0.0,
    "prior_sigma": 1.0,
    "posterior_mu_init": 0.0,
    "posterior_rho_init": -3.0,
    "type": "Reparameterization",
    "moped_enable": False,
}


def step(turns, steps: int) -> None:
    model = network()
    dnn_to_bnn(model, PRIOR)

    def loss(x, y):
        fit = torch.nn.functional.cross_entropy(model(x), y)
        return fit + get_kl_loss(model) / problems.MLP_ROWS

    minimise(turns, steps, model, loss)
