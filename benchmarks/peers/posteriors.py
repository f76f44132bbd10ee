"""posteriors: variational inference with a diagonal Normal, one sample, TorchOpt's Adam."""

from __future__ import annotations

import posteriors
import torch
import torchopt
from peers import problems
from peers.torch_adam import network, steps_of

PACKAGES = ("posteriors", "torchopt", "torch", "numpy")


def step(turns, steps: int) -> None:
    model = network()
    params = {name: value.detach() for name, value in model.named_parameters()}

    def log_posterior(params, batch):
        x, y = batch
        outputs = torch.func.functional_call(model, params, (x,))
        fit = -torch.nn.functional.cross_entropy(outputs, y)
        log_prior = posteriors.diag_normal_log_prob(params)
        return fit + log_prior / problems.MLP_ROWS, torch.tensor([])

    method = posteriors.vi.diag.build(
        log_posterior, torchopt.adam(lr=1e-3), temperature=1 / problems.MLP_ROWS, init_log_sds=-3.0
    )
    state = method.init(params)

    def one(x, y):
        nonlocal state
        state, _ = method.update(state, (x, y), inplace=False)
        return state.nelbo

    steps_of(turns, steps, one)
