"""Exact answers of the conjugate regression, quadrature and finite differences."""

from __future__ import annotations

import itertools

import numpy as np
from scipy import stats

NOISE, PRIOR_PREC = 0.7, 0.5  # of problems.regression()


def log_evidence(problem):
    cov = NOISE**2 * np.eye(len(problem.y)) + problem.x @ problem.x.T / PRIOR_PREC
    return stats.multivariate_normal(np.zeros(len(problem.y)), cov).logpdf(problem.y)


def kl_to_prior(mean, cov):
    size = len(mean)
    log_dets = size * np.log(PRIOR_PREC) + np.linalg.slogdet(cov)[1]
    return 0.5 * (PRIOR_PREC * (np.trace(cov) + mean @ mean) - size - log_dets)


def lower_bound(problem, mean, cov):
    residual = problem.y - problem.x @ mean
    squares = residual @ residual + np.trace(problem.x.T @ problem.x @ cov)
    log_likelihood = -0.5 * (len(residual) * np.log(2 * np.pi * NOISE**2) + squares / NOISE**2)
    return log_likelihood - kl_to_prior(mean, cov)


def hermite(mean, std, order=40):
    """Nodes (n, k) and weights of E_q for independent Gaussians."""
    x, w = np.polynomial.hermite_e.hermegauss(order)
    nodes = np.array(list(itertools.product(x, repeat=len(mean))))
    weights = np.array([np.prod(ws) for ws in itertools.product(w, repeat=len(mean))])
    return mean + std * nodes, weights / weights.sum()


def difference(function, at, h=1e-5):
    """Gradient by central differences."""
    at = np.asarray(at, float)
    return np.array(
        [(function(at + h * e) - function(at - h * e)) / (2 * h) for e in np.eye(len(at))]
    )


def random_spd(seed, size=3):
    root = np.random.default_rng(seed).normal(size=(size, size + 2))
    return root @ root.T


def apart(a, b):
    """Largest relative distance of a from b."""
    return np.max(np.abs(np.asarray(a) - b)) / np.max(np.abs(b))
