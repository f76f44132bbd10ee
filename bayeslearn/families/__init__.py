"""What an algorithm has learned: a point, a Gaussian, or draws. Each answers the same questions."""

from bayeslearn.families.diagonal import DiagonalGaussian
from bayeslearn.families.draws import Draws
from bayeslearn.families.point import Point

__all__ = ["DiagonalGaussian", "Draws", "Point"]
