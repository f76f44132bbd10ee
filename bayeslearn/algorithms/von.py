"""Variational online Newton (survey section 7; Khan et al. 2018).

    S    <- (1 - beta) S + beta H            H: mean Hessian of -log p(D_i | theta), theta ~ q
    mean <- mean - beta (S + lambda/N I)^-1 (g + lambda/N mean)
    cov   = [N (S + lambda/N I)]^-1

which is NGVI with the covariance's gradient by Price's theorem, grad_cov = (prec - N H - lambda I)
/ 2: in the frame B = beta (C^T (N H + lambda I) C - I). The gradient is taken at theta as a whole,
prior included; its expectation is the same. It costs little beside a Hessian, and is averaged over
more draws (as many as in NGVI). `gradient` may also name a Gauss-Newton matrix, which is never
indefinite.

Differs from the survey: the standard deviation is 1 / sqrt(N (s + lambda/N)) (errata 70).
"""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp

from bayeslearn.algorithms.base import hyper
from bayeslearn.algorithms.gaussian import GaussianInfo, GaussianState, GaussianVI
from bayeslearn.algorithms.ngvi import natural_step
from bayeslearn.data.rows import Batch
from bayeslearn.models.target import Target
from bayeslearn.tree import Array


class VON(GaussianVI):
    """Variational online Newton: natural-gradient VI with exact Hessians."""

    name: ClassVar[str] = "von"
    title: ClassVar[str] = "variational online Newton, exact Hessians"
    auto_steps: ClassVar[int] = 2500

    num_draws: int | None = hyper(
        2, "draws of the weights per step whose Hessian is taken", least=1
    )
    gradient: str = hyper("hessian", "curvature: hessian, gauss-newton; diagonal also others")

    def step(
        self, key: Array, target: Target, state: GaussianState, batch: Batch | None
    ) -> tuple[GaussianState, GaussianInfo]:
        estimate = self.estimate(key, target, state, batch)
        frame, clipped, largest = natural_step(
            state.frame,
            estimate.mean,
            estimate.cov,
            self.rate(state),
            is_new=True,
            guards=self.guards,
        )
        info = GaussianInfo(estimate.elbo, estimate.nll, clipped.astype(jnp.float64), largest)
        return GaussianState(frame, (), state.count + 1), info
