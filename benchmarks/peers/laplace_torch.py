"""laplace-torch: the fit of a Gaussian at a given mode of the small network."""

from __future__ import annotations

import numpy as np
import torch
from laplace import Laplace
from peers import problems

PACKAGES = ("laplace-torch", "curvlinops-for-pytorch", "backpack-for-pytorch", "torch", "numpy")


def fit(turns, covariance: str, weights: str) -> None:
    torch.manual_seed(problems.SEED)
    x, y = problems.regression_rows()
    rows = torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(np.float32))[:, None]
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*rows), len(x))
    model = torch.nn.Sequential(
        torch.nn.Linear(problems.INPUTS, problems.HIDDEN),
        torch.nn.Tanh(),
        torch.nn.Linear(problems.HIDDEN, 1),
    )
    structure = {"full": "full", "diagonal": "diag"}[covariance]
    while True:
        found = Laplace(
            model,
            "regression",
            subset_of_weights=weights,
            hessian_structure=structure,
            prior_precision=1 / problems.WEIGHT_SCALE**2,
            sigma_noise=0.3,
        )
        found.fit(loader)
        # Up to here a full posterior is a precision; a covariance is what it is used for.
        if covariance == "full":
            cov = found.posterior_covariance
        else:
            cov = found.posterior_variance
        if not turns.wait(trace=float(cov.trace() if covariance == "full" else cov.sum())):
            return
