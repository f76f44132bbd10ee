"""Variational online Newton (survey section 7; Khan et al. 2018).

    S    <- (1 - beta) S + beta H            H: mean Hessian of -log p(D_i | theta), theta ~ q
    mean <- mean - beta (S + lambda/N I)^-1 (g + lambda/N mean)
    cov   = [N (S + lambda/N I)]^-1

which is NGVI with the covariance's gradient by Price's theorem, grad_cov = (prec - N H - lambda I)
/ 2: in the frame B = beta (C^T (N H + lambda I) C - I). The gradient at theta includes the prior's,
which has the same expectation. It costs little compared to a Hessian, and is averaged over more
draws (as many as in NGVI). `gradient` may also be a Gauss-Newton matrix, which is never indefinite.

Differs from the survey: the standard deviation is 1 / sqrt(N (s + lambda/N)) (errata 70).
"""

from __future__ import annotations

from typing import ClassVar

from bayeslearn.algorithms.base import hyper
from bayeslearn.algorithms.ngvi import NaturalParameterVI


class VON(NaturalParameterVI):
    """Variational online Newton: natural-gradient VI with exact Hessians."""

    name: ClassVar[str] = "von"
    title: ClassVar[str] = "variational online Newton, exact Hessians"
    auto_steps: ClassVar[int] = 2500

    num_draws: int | None = hyper(
        2, "draws of the weights per step whose Hessian is computed", least=1
    )
    gradient: str = hyper("hessian", "curvature: hessian, gauss-newton; diagonal also others")
