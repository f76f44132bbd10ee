"""Geometry: the manifold of covariances, Gaussian coordinates, and descent on manifolds."""

from bayeslearn.geometry import frame, natural, rsgd, spd

__all__ = ["frame", "natural", "rsgd", "spd"]
