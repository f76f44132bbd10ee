"""One file per algorithm; `ALGORITHMS` maps the command-line name to the class."""

from bayeslearn.algorithms.base import Algorithm, hyper, hyper_parameters
from bayeslearn.algorithms.bayes_by_backprop import BayesByBackprop
from bayeslearn.algorithms.emgvb import EMGVB
from bayeslearn.algorithms.hmc import HMC
from bayeslearn.algorithms.map import MAP
from bayeslearn.algorithms.metropolis_hastings import MetropolisHastings
from bayeslearn.algorithms.mgvb import MGVB
from bayeslearn.algorithms.ngvi import NGVI
from bayeslearn.algorithms.nuts import NUTS
from bayeslearn.algorithms.qbvi import QBVI
from bayeslearn.algorithms.von import VON

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.name: algorithm
    for algorithm in (
        MAP,
        BayesByBackprop,
        MetropolisHastings,
        HMC,
        NUTS,
        NGVI,
        VON,
        QBVI,
        MGVB,
        EMGVB,
    )
}

__all__ = [
    "ALGORITHMS",
    "EMGVB",
    "HMC",
    "MAP",
    "MGVB",
    "NGVI",
    "NUTS",
    "QBVI",
    "VON",
    "Algorithm",
    "BayesByBackprop",
    "MetropolisHastings",
    "hyper",
    "hyper_parameters",
]
