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
from bayeslearn.models.likelihoods.classes import Bernoulli, Categorical
from bayeslearn.models.likelihoods.counts import Poisson
from bayeslearn.models.likelihoods.custom import Custom
from bayeslearn.models.likelihoods.gaussian import Gaussian, HeteroscedasticGaussian
from bayeslearn.models.likelihoods.multivariate import MultivariateGaussian
from bayeslearn.models.likelihoods.student import StudentT

__all__ = [
    "Bernoulli",
    "Categorical",
    "Custom",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Likelihood",
    "MultivariateGaussian",
    "Poisson",
    "StudentT",
]
