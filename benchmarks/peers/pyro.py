"""Pyro: SVI with AutoDiagonalNormal, one particle, Adam."""

from __future__ import annotations

import itertools

import pyro
import pyro.distributions as dist
import torch
from peers import problems
from peers.torch_adam import steps_of
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal

PACKAGES = ("pyro-ppl", "torch", "numpy")


def classifier(x, y):
    for i, (inputs, outputs) in enumerate(itertools.pairwise(problems.MLP)):
        weight = pyro.sample(
            f"weight{i}", dist.Normal(0.0, 1.0).expand([inputs, outputs]).to_event(2)
        )
        bias = pyro.sample(f"bias{i}", dist.Normal(0.0, 1.0).expand([outputs]).to_event(1))
        x = torch.relu(x) if i else x
        x = x @ weight + bias
    with pyro.plate("rows", problems.MLP_ROWS, subsample_size=len(y)):
        pyro.sample("y", dist.Categorical(logits=x), obs=y)


def step(turns, steps: int) -> None:
    pyro.clear_param_store()
    guide = AutoDiagonalNormal(classifier, init_scale=0.05)
    svi = SVI(classifier, guide, pyro.optim.Adam({"lr": 1e-3}), Trace_ELBO())
    steps_of(turns, steps, svi.step)
