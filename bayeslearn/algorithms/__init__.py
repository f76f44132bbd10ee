"""One file per algorithm; `ALGORITHMS` maps the command-line name to the class."""

from bayeslearn.algorithms.base import Algorithm, hyper, hyper_parameters
from bayeslearn.algorithms.bayes_by_backprop import BayesByBackprop
from bayeslearn.algorithms.bbvi import BBVI
from bayeslearn.algorithms.conjugate import Conjugate
from bayeslearn.algorithms.emgvb import EMGVB
from bayeslearn.algorithms.ensemble import Ensemble
from bayeslearn.algorithms.hmc import HMC
from bayeslearn.algorithms.ivon import IVON
from bayeslearn.algorithms.laplace import Laplace
from bayeslearn.algorithms.mams import MAMS
from bayeslearn.algorithms.map import MAP
from bayeslearn.algorithms.mc_dropout import MCDropout
from bayeslearn.algorithms.mclmc import MCLMC
from bayeslearn.algorithms.metropolis_hastings import MetropolisHastings
from bayeslearn.algorithms.mgvb import MGVB
from bayeslearn.algorithms.mile import MILE
from bayeslearn.algorithms.natural_gradient import NaturalGradient
from bayeslearn.algorithms.ng_bbvi import NGBBVI
from bayeslearn.algorithms.ngvi import NGVI
from bayeslearn.algorithms.noisy_kfac import NoisyKFAC
from bayeslearn.algorithms.nuts import NUTS
from bayeslearn.algorithms.qbvi import QBVI
from bayeslearn.algorithms.sghmc import SGHMC
from bayeslearn.algorithms.swag import SWAG
from bayeslearn.algorithms.vadam import Vadam
from bayeslearn.algorithms.vogn import VOGN
from bayeslearn.algorithms.von import VON

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.name: algorithm
    for algorithm in (
        MAP,
        Ensemble,
        MILE,
        SWAG,
        MCDropout,
        BayesByBackprop,
        MetropolisHastings,
        HMC,
        NUTS,
        MCLMC,
        MAMS,
        SGHMC,
        NaturalGradient,
        BBVI,
        NGBBVI,
        NGVI,
        VON,
        Vadam,
        VOGN,
        IVON,
        NoisyKFAC,
        QBVI,
        MGVB,
        EMGVB,
        Laplace,
        Conjugate,
    )
}

__all__ = [
    "ALGORITHMS",
    "BBVI",
    "EMGVB",
    "HMC",
    "IVON",
    "MAMS",
    "MAP",
    "MCLMC",
    "MGVB",
    "MILE",
    "NGBBVI",
    "NGVI",
    "NUTS",
    "QBVI",
    "SGHMC",
    "SWAG",
    "VOGN",
    "VON",
    "Algorithm",
    "BayesByBackprop",
    "Conjugate",
    "Ensemble",
    "Laplace",
    "MCDropout",
    "MetropolisHastings",
    "NaturalGradient",
    "NoisyKFAC",
    "Vadam",
    "hyper",
    "hyper_parameters",
]
