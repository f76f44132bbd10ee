"""Exact manifold Gaussian variational Bayes (survey section 8.4; Magris et al. 2022).

MGVB with the roles of covariance and precision exchanged, so that the natural gradient is exact:

    g_mean = cov grad_mean,   g_prec = -2 grad_cov
    m_mean <- omega m_mean + (1 - omega) g_mean,    mean <- mean + beta m_mean
    m_prec <- omega T(m_prec) + (1 - omega) g_prec, prec <- R_prec(beta m_prec)
    R_P(xi) = P + xi + xi P^-1 xi / 2

In the frame T is the identity and R is C <- C (I + B + B^2/2)^(-1/2), B = beta M, with M the
momentum of -2 C^T grad_cov C: no solve, no Cholesky, positive definite by construction. Without
momentum it is the improved Bayesian learning rule. With `gradient="score"`, `form="h"` supports
any prior, and "log-likelihood" is the paper's form for a Gaussian prior.

Differs from the survey: omega multiplies the transported momentum (errata 109), h has no
expectation in it (errata 105), and with a baseline the h form has the lower variance (errata 108).
"""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp

from bayeslearn.algorithms.gaussian import GaussianInfo, GaussianState
from bayeslearn.algorithms.mgvb import ManifoldVI
from bayeslearn.data.rows import Batch
from bayeslearn.geometry.spd import retraction_eigenvalues as retraction
from bayeslearn.models.target import Target
from bayeslearn.tree import Array


class EMGVB(ManifoldVI):
    """Exact manifold Gaussian VB: retraction on the precision."""

    name: ClassVar[str] = "emgvb"
    title: ClassVar[str] = "exact manifold Gaussian VB on the precision"

    def step(
        self, key: Array, target: Target, state: GaussianState, batch: Batch | None
    ) -> tuple[GaussianState, GaussianInfo]:
        """A retraction of the precision along its gradient -2 G."""
        estimate = self.estimate(key, target, state, batch)
        gradient = estimate.cov.scaled(-2.0)
        return self.retract(state, estimate, gradient, lambda b: 1.0 / jnp.sqrt(retraction(b)))
