"""What an algorithm has learned: a point, a Gaussian, a Gamma, masked weights, or draws. Each
answers the same questions."""

from bayeslearn.families.block import BlockGaussian, make_groups
from bayeslearn.families.diagonal import DiagonalGaussian
from bayeslearn.families.draws import Draws
from bayeslearn.families.dropout import Dropout
from bayeslearn.families.full import FullGaussian
from bayeslearn.families.gamma import Gamma
from bayeslearn.families.point import Point

__all__ = [
    "BlockGaussian",
    "DiagonalGaussian",
    "Draws",
    "Dropout",
    "FullGaussian",
    "Gamma",
    "Point",
    "make_groups",
]
