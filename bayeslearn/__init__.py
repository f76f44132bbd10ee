"""Bayesian learning of neural networks: `fit` a model with any algorithm, `predict` honestly.

    model = bl.Model(bl.networks.MLP([50]), bl.likelihoods.Gaussian(), bl.priors.Normal())
    posterior = bl.fit(model, bl.HMC(), (x, y), seed=0)
    predictive = posterior.predict(x_new)

Names are imported when first used, so that `import bayeslearn` costs no more than it must.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_ALGORITHMS = (
    "BBVI",
    "BayesByBackprop",
    "Conjugate",
    "EMGVB",
    "HMC",
    "Laplace",
    "MAP",
    "MCDropout",
    "MGVB",
    "MetropolisHastings",
    "NGBBVI",
    "NGVI",
    "NUTS",
    "NaturalGradient",
    "QBVI",
    "VOGN",
    "VON",
    "Vadam",
)
_HOMES = {
    "fit": "bayeslearn.fitting",
    "resume": "bayeslearn.fitting",
    "Model": "bayeslearn.model",
    "Target": "bayeslearn.model",
    "Posterior": "bayeslearn.posterior",
    "MixingWarning": "bayeslearn.posterior",
    "Predictive": "bayeslearn.predictive",
    "ALGORITHMS": "bayeslearn.algorithms",
    "Algorithm": "bayeslearn.algorithms",
    "ArgumentError": "bayeslearn.errors",
    "BayesLearnError": "bayeslearn.errors",
    "CheckpointWarning": "bayeslearn.errors",
    "DataError": "bayeslearn.errors",
    "DataWarning": "bayeslearn.errors",
    "DistributedError": "bayeslearn.errors",
    "DivergenceError": "bayeslearn.errors",
    "Interrupted": "bayeslearn.errors",
    "StorageError": "bayeslearn.errors",
    "load": "bayeslearn.storage",
    "BayesianNNClassifier": "bayeslearn.estimators",
    "BayesianNNRegressor": "bayeslearn.estimators",
    "Comparison": "bayeslearn.comparison",
    "compare": "bayeslearn.comparison",
    **{name: "bayeslearn.algorithms" for name in _ALGORITHMS},
}
_MODULES = (
    "algorithms",
    "diagnostics",
    "distributed",
    "estimators",
    "families",
    "likelihoods",
    "metrics",
    "networks",
    "plots",
    "priors",
    "sources",
)

__all__ = sorted([*_HOMES, *_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(f"bayeslearn.{name}")
    else:
        raise AttributeError(f"module 'bayeslearn' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


if TYPE_CHECKING:
    from bayeslearn import algorithms as algorithms
    from bayeslearn import diagnostics as diagnostics
    from bayeslearn import distributed as distributed
    from bayeslearn import estimators as estimators
    from bayeslearn import families as families
    from bayeslearn import likelihoods as likelihoods
    from bayeslearn import metrics as metrics
    from bayeslearn import networks as networks
    from bayeslearn import plots as plots
    from bayeslearn import priors as priors
    from bayeslearn import sources as sources
    from bayeslearn.algorithms import ALGORITHMS as ALGORITHMS
    from bayeslearn.algorithms import BBVI as BBVI
    from bayeslearn.algorithms import EMGVB as EMGVB
    from bayeslearn.algorithms import HMC as HMC
    from bayeslearn.algorithms import MAP as MAP
    from bayeslearn.algorithms import MGVB as MGVB
    from bayeslearn.algorithms import NGBBVI as NGBBVI
    from bayeslearn.algorithms import NGVI as NGVI
    from bayeslearn.algorithms import NUTS as NUTS
    from bayeslearn.algorithms import QBVI as QBVI
    from bayeslearn.algorithms import VOGN as VOGN
    from bayeslearn.algorithms import VON as VON
    from bayeslearn.algorithms import Algorithm as Algorithm
    from bayeslearn.algorithms import BayesByBackprop as BayesByBackprop
    from bayeslearn.algorithms import Conjugate as Conjugate
    from bayeslearn.algorithms import Laplace as Laplace
    from bayeslearn.algorithms import MCDropout as MCDropout
    from bayeslearn.algorithms import MetropolisHastings as MetropolisHastings
    from bayeslearn.algorithms import NaturalGradient as NaturalGradient
    from bayeslearn.algorithms import Vadam as Vadam
    from bayeslearn.comparison import Comparison as Comparison
    from bayeslearn.comparison import compare as compare
    from bayeslearn.errors import ArgumentError as ArgumentError
    from bayeslearn.errors import BayesLearnError as BayesLearnError
    from bayeslearn.errors import CheckpointWarning as CheckpointWarning
    from bayeslearn.errors import DataError as DataError
    from bayeslearn.errors import DataWarning as DataWarning
    from bayeslearn.errors import DistributedError as DistributedError
    from bayeslearn.errors import DivergenceError as DivergenceError
    from bayeslearn.errors import Interrupted as Interrupted
    from bayeslearn.errors import StorageError as StorageError
    from bayeslearn.estimators import BayesianNNClassifier as BayesianNNClassifier
    from bayeslearn.estimators import BayesianNNRegressor as BayesianNNRegressor
    from bayeslearn.fitting import fit as fit
    from bayeslearn.fitting import resume as resume
    from bayeslearn.model import Model as Model
    from bayeslearn.model import Target as Target
    from bayeslearn.posterior import MixingWarning as MixingWarning
    from bayeslearn.posterior import Posterior as Posterior
    from bayeslearn.predictive import Predictive as Predictive
    from bayeslearn.storage import load as load
