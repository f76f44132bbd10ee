"""The floor of the PyTorch peers: the plain network and Adam, and the loop that all of them use."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from peers import problems

PACKAGES = ("torch", "numpy")


def network(linear=torch.nn.Linear) -> torch.nn.Sequential:
    layers: list[torch.nn.Module] = []
    for inputs, outputs in itertools.pairwise(problems.MLP):
        layers += [linear(inputs, outputs), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def steps_of(turns, steps: int, one) -> None:
    """Turns of `steps` calls of one(x, y); minibatches are taken from a shuffled order."""
    torch.manual_seed(problems.SEED)
    x, y = map(torch.from_numpy, problems.image_rows())
    order = torch.from_numpy(np.random.default_rng(problems.SEED).permutation(len(x)))
    starts = itertools.cycle(range(0, len(x), problems.BATCH))
    while True:
        for _ in range(steps):
            start = next(starts)
            rows = order[start : start + problems.BATCH]
            last = one(x[rows], y[rows])
        if not turns.wait(steps, last=float(last)):
            return


def minimise(turns, steps: int, model: torch.nn.Module, loss) -> None:
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def one(x, y):
        optimizer.zero_grad()
        value = loss(x, y)
        value.backward()
        optimizer.step()
        return value.detach()

    steps_of(turns, steps, one)


def step(turns, steps: int) -> None:
    model = network()
    minimise(turns, steps, model, lambda x, y: torch.nn.functional.cross_entropy(model(x), y))
