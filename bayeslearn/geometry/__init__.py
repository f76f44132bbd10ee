"""Geometry: the manifold of covariances, Gaussian coordinates, and descent on manifolds."""

from bayeslearn.geometry import natural, rsgd, spd

__all__ = ["natural", "rsgd", "spd"]
