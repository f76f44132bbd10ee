"""Results of an algorithm: a point mass, a Gaussian, a Gamma, masked weights, or draws."""

from bayeslearn.families.block import BlockGaussian, make_groups
from bayeslearn.families.diagonal import DiagonalGaussian
from bayeslearn.families.draws import Draws
from bayeslearn.families.dropout import Dropout
from bayeslearn.families.full import FullGaussian
from bayeslearn.families.gamma import Gamma
from bayeslearn.families.kronecker import KroneckerGaussian
from bayeslearn.families.low_rank import LowRankGaussian
from bayeslearn.families.mixture import Mixture
from bayeslearn.families.point import Point

__all__ = [
    "BlockGaussian",
    "DiagonalGaussian",
    "Draws",
    "Dropout",
    "FullGaussian",
    "Gamma",
    "KroneckerGaussian",
    "LowRankGaussian",
    "Mixture",
    "Point",
    "make_groups",
]
