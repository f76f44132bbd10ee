"""Facts for choosing a method; what the code needs to know is in `Algorithm.capabilities`.

k is the number of weights. A gradient is one of the log-joint over the batch or, for samplers,
over all rows.
"""

from __future__ import annotations

from typing import NamedTuple

from bayeslearn.algorithms.base import Algorithm


class Facts(NamedTuple):
    """Posterior, cost and use of a method, in words."""

    posterior: str
    cost: str  # per step
    memory: str
    when: str  # to use it


_ANY = "full, block or diagonal Gaussian"
_DRAWS = "16 gradients; up to k^3 if full"
_MATRIX = "k^2; k if diagonal"

FACTS: dict[str, Facts] = {
    "map": Facts("point", "1 gradient", "k", "the baseline to beat: the plain network"),
    "ensemble": Facts(
        "mixture of the members",
        "1 gradient per member",
        "k x members",
        "large networks; better predictions than a single network",
    ),
    "mile": Facts(
        "pooled chains, one per member",
        "2 gradients per chain",
        "k x members x draws",
        "the best predictions, if all rows fit in one step",
    ),
    "mc-dropout": Facts("masked weights", "1 gradient", "k", "a network trained with dropout"),
    "bayes-by-backprop": Facts("diagonal Gaussian", "8 gradients", "k", "a first answer"),
    "metropolis-hastings": Facts(
        "draws", "1 density; k^2 if full", "k x draws", "densities without a gradient, few weights"
    ),
    "hmc": Facts("draws", "1 to 128 gradients", "k x draws", "the reference, on small data"),
    "nuts": Facts(
        "draws", "1 to 127 gradients", "k x draws", "the self-tuning reference, on small data"
    ),
    "mclmc": Facts(
        "draws",
        "2 gradients",
        "k x draws",
        "many weights, at a low cost, with a small bias",
    ),
    "mams": Facts(
        "draws", "2 to 256 gradients", "k x draws", "the reference on many weights, without bias"
    ),
    "natural-gradient": Facts(
        "diagonal, block or full Gaussian", "16 gradients", _MATRIX, "families of your own"
    ),
    "bbvi": Facts(
        "diagonal, block or full Gaussian", "64 densities", _MATRIX, "models without a gradient"
    ),
    "ng-bbvi": Facts(
        "diagonal or block Gaussian", "64 densities", "k; blocks^2", "the same, in fewer steps"
    ),
    "ngvi": Facts(_ANY, _DRAWS, _MATRIX, "correlated weights, up to a thousand"),
    "von": Facts(_ANY, "2 Hessians; up to k^3 if full", "k^2", "exact curvature, few weights"),
    "vadam": Facts("diagonal Gaussian", "8 gradients", "k", "large networks, at Adam's cost"),
    "vogn": Facts(
        "diagonal Gaussian", "4 passes of per-example gradients", "k", "large data in minibatches"
    ),
    "ivon": Facts("diagonal Gaussian", "4 gradients", "k", "deep networks, at Adam's cost"),
    "noisy-kfac": Facts(
        "Kronecker-factored Gaussian",
        "4 gradients and factors",
        "k; inputs^2 + outputs^2 of layers",
        "correlated weights, in minibatches",
    ),
    "qbvi": Facts(_ANY, _DRAWS, _MATRIX, "correlated weights; models without a gradient"),
    "mgvb": Facts(_ANY, _DRAWS, _MATRIX, "correlated weights, on the covariance"),
    "emgvb": Facts(_ANY, _DRAWS, _MATRIX, "correlated weights, the first to try"),
    "laplace": Facts(
        f"{_ANY} at the mode, or Kronecker-factored",
        "1 curvature matrix, once",
        _MATRIX,
        "quick error bars after MAP",
    ),
    "conjugate": Facts("exact", "1 k x k solve, once", "k^2", "a linear model, exactly"),
}


def needs(algorithm: type[Algorithm]) -> str:
    """What its capabilities require of a model, in words."""
    requirements = {
        "per-example gradients": algorithm.capabilities.needs_per_example,
        "gradient": algorithm.capabilities.needs_gradient
        and not algorithm.capabilities.needs_per_example,
        "linear model": algorithm.capabilities.needs_linear_model,
        "density": not algorithm.capabilities.needs_gradient
        and not algorithm.capabilities.needs_linear_model,
        "Gaussian prior": algorithm.capabilities.needs_gaussian_prior,
        "all rows": not algorithm.capabilities.takes_minibatches,
    }
    return ", ".join(word for word, is_required in requirements.items() if is_required)
