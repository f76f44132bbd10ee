r"""Priors over the weights of a network.

A prior is written by a person (`Normal(scale=1.0)`, `Laplace(scale=0.5)`), bound to a network's
parameters (`bind(params)`), and joined with that of the likelihood's own parameters
(`joined(likelihood)`). The result covers all parameters of a model:

    log_prob_terms(params)       the log-density as a sum over leaves
    broadcast(params)            mean and precision of each weight
    conditional(params)          the same for each weight given the others, as mean field sees it
    prec_blocks(params, groups)  precision matrices of groups of leaves
    sample(key, params)          one draw

`conditional`, `prec_blocks` and `sample` are for Gaussians (`is_gaussian`). Of a prior that is not
one, `broadcast` gives the Gaussian with the same moments, which is where a run takes its first
scale from and nothing else.
"""

from bayeslearn.models.priors.correlated import BlockPrior, CorrelatedPrior, LowRankPrior
from bayeslearn.models.priors.gaussian import GaussianPrior
from bayeslearn.models.priors.nongaussian import LaplacePrior, ProductPrior, ScaleMixturePrior
from bayeslearn.models.priors.specs import FanIn, Laplace, Normal, ScaleMixture

__all__ = [
    "BlockPrior",
    "CorrelatedPrior",
    "FanIn",
    "GaussianPrior",
    "Laplace",
    "LaplacePrior",
    "LowRankPrior",
    "Normal",
    "ProductPrior",
    "ScaleMixture",
    "ScaleMixturePrior",
]
