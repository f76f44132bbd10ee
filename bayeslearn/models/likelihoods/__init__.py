"""Likelihoods: how one observation follows from the network's output.

A user writes a likelihood (`Gaussian()`). `bind(y)` checks the observations and sets what depends
on them. A bound likelihood describes ONE example and ONE set of weights. `params` are the
likelihood's own parameters (the log noise scale), inferred like weights. A predictive is summarized
by moments (`kind` "regression") or by class probabilities ("classification").

An unknown noise covariance (`MultivariateGaussian()`) is not a parameter: its posterior given the
weights is known, so that samplers integrate it out and the other methods update it in closed form
(`marginal`, `refresh`).
"""

from bayeslearn.models.likelihoods.base import Likelihood
from bayeslearn.models.likelihoods.classes import Bernoulli, Categorical, MultiLabelBernoulli
from bayeslearn.models.likelihoods.counts import NegativeBinomial, Poisson, ZeroInflatedPoisson
from bayeslearn.models.likelihoods.custom import Custom
from bayeslearn.models.likelihoods.gaussian import Gaussian, HeteroscedasticGaussian, LogNormal
from bayeslearn.models.likelihoods.log_normal import HeteroscedasticLogNormal
from bayeslearn.models.likelihoods.multivariate import MultivariateGaussian
from bayeslearn.models.likelihoods.ordinal import Ordinal
from bayeslearn.models.likelihoods.shape import Beta, Gamma
from bayeslearn.models.likelihoods.student import StudentT
from bayeslearn.models.likelihoods.survival import CensoredGaussian, Weibull

__all__ = [
    "Bernoulli",
    "Beta",
    "Categorical",
    "CensoredGaussian",
    "Custom",
    "Gamma",
    "Gaussian",
    "HeteroscedasticGaussian",
    "HeteroscedasticLogNormal",
    "Likelihood",
    "LogNormal",
    "MultiLabelBernoulli",
    "MultivariateGaussian",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
    "StudentT",
    "Weibull",
    "ZeroInflatedPoisson",
]
