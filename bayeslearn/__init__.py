"""Bayesian learning of neural networks: `fit` a model with any algorithm, `predict` honestly.

    model = bl.Model(bl.networks.MLP([50]), bl.likelihoods.Gaussian(), bl.priors.Normal())
    posterior = bl.fit(model, bl.HMC(), (x, y), seed=0)
    predictive = posterior.predict(x_new)

Names are imported when first used, so that `import bayeslearn` costs no more than it must.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bayeslearn import forking as _forking  # watches for forks from the first import on

__version__ = "0.2.0"
_forking.watch()

_ALGORITHMS = (
    "BBVI",
    "BayesByBackprop",
    "Conjugate",
    "EMGVB",
    "Ensemble",
    "HMC",
    "IVON",
    "Laplace",
    "MAMS",
    "MAP",
    "MCLMC",
    "MCDropout",
    "MGVB",
    "MILE",
    "MetropolisHastings",
    "NGBBVI",
    "NGVI",
    "NUTS",
    "NaturalGradient",
    "NoisyKFAC",
    "QBVI",
    "SGHMC",
    "SWAG",
    "VOGN",
    "VON",
    "Vadam",
)
_HOMES = {
    "fit": "bayeslearn.inference.api",
    "resume": "bayeslearn.inference.api",
    "Checkpoint": "bayeslearn.inference.options",
    "Devices": "bayeslearn.inference.options",
    "FitEvent": "bayeslearn.inference.options",
    "FitOptions": "bayeslearn.inference.options",
    "MultiStart": "bayeslearn.inference.multistart",
    "Phase": "bayeslearn.inference.options",
    "Model": "bayeslearn.models.model",
    "Target": "bayeslearn.models.target",
    "Posterior": "bayeslearn.results.posterior",
    "MixingWarning": "bayeslearn.results.posterior",
    "Predictive": "bayeslearn.results.predictive",
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
    "OutOfMemoryError": "bayeslearn.errors",
    "StoppedError": "bayeslearn.errors",
    "StorageError": "bayeslearn.errors",
    "load": "bayeslearn.results.posterior",
    "use_compilation_cache": "bayeslearn.cache",
    "BayesianNNClassifier": "bayeslearn.tabular.classifier",
    "BayesianNNRegressor": "bayeslearn.tabular.regressor",
    "Comparison": "bayeslearn.tabular.compare.result",
    "compare": "bayeslearn.tabular.compare.api",
    **{name: "bayeslearn.algorithms" for name in _ALGORITHMS},
}
_MODULES = {
    "algorithms": "bayeslearn.algorithms",
    "callbacks": "bayeslearn.results.callbacks",
    "diagnostics": "bayeslearn.results.diagnostics",
    "distributed": "bayeslearn.distributed",
    "families": "bayeslearn.families",
    "geometry": "bayeslearn.geometry",
    "likelihoods": "bayeslearn.models.likelihoods",
    "metrics": "bayeslearn.results.metrics",
    "networks": "bayeslearn.models.networks",
    "plots": "bayeslearn.results.plots",
    "priors": "bayeslearn.models.priors",
    "report": "bayeslearn.report",
    "sources": "bayeslearn.data.sources",
    "storage": "bayeslearn.storage",
    "tabular": "bayeslearn.tabular",
}

__all__ = sorted([*_HOMES, *_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(_MODULES[name])
    else:
        raise AttributeError(f"module 'bayeslearn' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


if TYPE_CHECKING:
    from bayeslearn import algorithms as algorithms
    from bayeslearn import distributed as distributed
    from bayeslearn import families as families
    from bayeslearn import geometry as geometry
    from bayeslearn import report as report
    from bayeslearn import storage as storage
    from bayeslearn import tabular as tabular
    from bayeslearn.algorithms import ALGORITHMS as ALGORITHMS
    from bayeslearn.algorithms import BBVI as BBVI
    from bayeslearn.algorithms import EMGVB as EMGVB
    from bayeslearn.algorithms import HMC as HMC
    from bayeslearn.algorithms import IVON as IVON
    from bayeslearn.algorithms import MAMS as MAMS
    from bayeslearn.algorithms import MAP as MAP
    from bayeslearn.algorithms import MCLMC as MCLMC
    from bayeslearn.algorithms import MGVB as MGVB
    from bayeslearn.algorithms import MILE as MILE
    from bayeslearn.algorithms import NGBBVI as NGBBVI
    from bayeslearn.algorithms import NGVI as NGVI
    from bayeslearn.algorithms import NUTS as NUTS
    from bayeslearn.algorithms import QBVI as QBVI
    from bayeslearn.algorithms import SGHMC as SGHMC
    from bayeslearn.algorithms import SWAG as SWAG
    from bayeslearn.algorithms import VOGN as VOGN
    from bayeslearn.algorithms import VON as VON
    from bayeslearn.algorithms import Algorithm as Algorithm
    from bayeslearn.algorithms import BayesByBackprop as BayesByBackprop
    from bayeslearn.algorithms import Conjugate as Conjugate
    from bayeslearn.algorithms import Ensemble as Ensemble
    from bayeslearn.algorithms import Laplace as Laplace
    from bayeslearn.algorithms import MCDropout as MCDropout
    from bayeslearn.algorithms import MetropolisHastings as MetropolisHastings
    from bayeslearn.algorithms import NaturalGradient as NaturalGradient
    from bayeslearn.algorithms import NoisyKFAC as NoisyKFAC
    from bayeslearn.algorithms import Vadam as Vadam
    from bayeslearn.cache import use_compilation_cache as use_compilation_cache
    from bayeslearn.data import sources as sources
    from bayeslearn.errors import ArgumentError as ArgumentError
    from bayeslearn.errors import BayesLearnError as BayesLearnError
    from bayeslearn.errors import CheckpointWarning as CheckpointWarning
    from bayeslearn.errors import DataError as DataError
    from bayeslearn.errors import DataWarning as DataWarning
    from bayeslearn.errors import DistributedError as DistributedError
    from bayeslearn.errors import DivergenceError as DivergenceError
    from bayeslearn.errors import Interrupted as Interrupted
    from bayeslearn.errors import OutOfMemoryError as OutOfMemoryError
    from bayeslearn.errors import StoppedError as StoppedError
    from bayeslearn.errors import StorageError as StorageError
    from bayeslearn.inference.api import fit as fit
    from bayeslearn.inference.api import resume as resume
    from bayeslearn.inference.multistart import MultiStart as MultiStart
    from bayeslearn.inference.options import Checkpoint as Checkpoint
    from bayeslearn.inference.options import Devices as Devices
    from bayeslearn.inference.options import FitEvent as FitEvent
    from bayeslearn.inference.options import FitOptions as FitOptions
    from bayeslearn.inference.options import Phase as Phase
    from bayeslearn.models import likelihoods as likelihoods
    from bayeslearn.models import networks as networks
    from bayeslearn.models import priors as priors
    from bayeslearn.models.model import Model as Model
    from bayeslearn.models.target import Target as Target
    from bayeslearn.results import diagnostics as diagnostics
    from bayeslearn.results import metrics as metrics
    from bayeslearn.results import plots as plots
    from bayeslearn.results.posterior import MixingWarning as MixingWarning
    from bayeslearn.results.posterior import Posterior as Posterior
    from bayeslearn.results.posterior import load as load
    from bayeslearn.results.predictive import Predictive as Predictive
    from bayeslearn.tabular.classifier import BayesianNNClassifier as BayesianNNClassifier
    from bayeslearn.tabular.compare.api import compare as compare
    from bayeslearn.tabular.compare.result import Comparison as Comparison
    from bayeslearn.tabular.regressor import BayesianNNRegressor as BayesianNNRegressor
