"""ivon-opt: IVON with one sample a step."""

from __future__ import annotations

import ivon
import torch
from peers import problems
from peers.torch_adam import network, steps_of

PACKAGES = ("ivon-opt", "torch", "numpy")


def step(turns, steps: int) -> None:
    model = network()
    optimizer = ivon.IVON(model.parameters(), lr=0.1, ess=problems.MLP_ROWS, weight_decay=1e-4)

    def one(x, y):
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            value = torch.nn.functional.cross_entropy(model(x), y)
            value.backward()
        optimizer.step()
        return value.detach()

    steps_of(turns, steps, one)
