"""One file per algorithm; `ALGORITHMS` maps the command-line name to the class."""

from bayeslearn.algorithms.base import Algorithm, hyper, hyper_parameters
from bayeslearn.algorithms.bayes_by_backprop import BayesByBackprop
from bayeslearn.algorithms.hmc import HMC
from bayeslearn.algorithms.map import MAP
from bayeslearn.algorithms.metropolis_hastings import MetropolisHastings
from bayeslearn.algorithms.nuts import NUTS

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.name: algorithm for algorithm in (MAP, BayesByBackprop, MetropolisHastings, HMC, NUTS)
}

__all__ = [
    "ALGORITHMS",
    "HMC",
    "MAP",
    "NUTS",
    "Algorithm",
    "BayesByBackprop",
    "MetropolisHastings",
    "hyper",
    "hyper_parameters",
]
