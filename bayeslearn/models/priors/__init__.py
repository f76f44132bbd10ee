r"""Priors over the weights of a network.

A user writes a `Prior` (`Normal(scale=1.0)`, `Laplace(scale=0.5)`). `bind(params)` makes a
`BoundPrior` over a network's parameters, and `join(likelihood)` adds the prior of the likelihood's
own parameters. The result covers all parameters of a model:

    log_prob_terms(params)       the log-density as a sum over leaves
    broadcast(params)            mean and precision of each weight
    conditional(params)          the same given the other weights, as a mean-field q sees them
    prec_blocks(params, groups)  precision matrices of groups of leaves
    sample(key, params)          one draw
"""

from bayeslearn.models.priors.correlated import BlockPrior, CorrelatedPrior, LowRankPrior
from bayeslearn.models.priors.gaussian import GaussianPrior
from bayeslearn.models.priors.hierarchical import Hierarchical, HierarchicalPrior
from bayeslearn.models.priors.nongaussian import LaplacePrior, ProductPrior, ScaleMixturePrior
from bayeslearn.models.priors.specs import BySize, FanIn, Laplace, Normal, ScaleMixture

__all__ = [
    "BlockPrior",
    "BySize",
    "CorrelatedPrior",
    "FanIn",
    "GaussianPrior",
    "Hierarchical",
    "HierarchicalPrior",
    "Laplace",
    "LaplacePrior",
    "LowRankPrior",
    "Normal",
    "ProductPrior",
    "ScaleMixture",
    "ScaleMixturePrior",
]
