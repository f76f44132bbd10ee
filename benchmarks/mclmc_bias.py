"""Bias of MCLMC's variances on a Gaussian, by its target of the energy error.

    python benchmarks/mclmc_bias.py

20 dimensions, variances from 1 to 100, 4 chains. Prints the energy error that was reached, and the
smallest and largest ratio of a variance to the exact one.
"""

from __future__ import annotations

import itertools
import warnings

import jax.numpy as jnp
import numpy as np

import bayeslearn as bl
from bayeslearn.results.convergence import ess_bulk

VARIANCES = np.geomspace(1.0, 100.0, 20)


def log_density(w):
    """Independent Gaussians."""
    return -0.5 * jnp.sum(w**2 / VARIANCES)


def main():
    """A row for each target."""
    target = bl.Target.from_log_density(log_density, jnp.zeros(20))
    print("| `preconditioning` | `energy_error` | reached | variance ratio | standard error |")
    print("|---|---|---|---|---|")
    for kind, error in itertools.product(("none", "diagonal"), (1e-4, 5e-4, 1e-3, 5e-3, 5e-2)):
        algorithm = bl.MCLMC(energy_error=error, preconditioning=kind, num_samples=5000, thin=20)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", bl.MixingWarning)
            posterior = bl.fit(target, algorithm, seed=0)
        draws = np.asarray(posterior.draws)
        ratio = np.mean(draws**2, axis=(0, 1)) / VARIANCES
        ess = ess_bulk(draws**2)
        reached = posterior.trace["energy_error"].mean()
        print(
            f"| {kind} | {error:g} | {reached:.2g} | {ratio.min():.3f} to {ratio.max():.3f} |"
            f" {np.sqrt(2 / ess.min()):.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
