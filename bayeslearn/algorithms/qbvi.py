"""Quasi black-box variational inference (survey section 7.6; Magris et al. 2022).

For q and prior in the same exponential family, natural parameters lambda and eta:

    lambda <- (1 - beta) lambda + beta (eta + E_q[grad_m log q(theta) log p(D | theta)])

which is exact in one step of beta = 1 for a conjugate model. For the Gaussian, with v = prec
(theta - mean) and l = log p(D | theta):

    prec <- (1 - beta) prec + beta (P0 + E[(prec - v v^T) l])
    mean <- mean + beta cov_new (P0 (mu0 - mean) + E[v l])

(`form="log-likelihood"`), or with h = log p(D, theta) - log q in the place of l, prior and
entropy (`form="h"`), which with a baseline is far quieter. "reparam" takes the same expectations
by Stein's identity from gradients of the model; "score" needs none.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from bayeslearn.algorithms.base import hyper
from bayeslearn.algorithms.gaussian import GaussianInfo, GaussianState, GaussianVI
from bayeslearn.algorithms.ngvi import RATE, natural_step
from bayeslearn.data.rows import Batch
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree


def exponential_family_step(natural: PyTree, prior: PyTree, gradient: PyTree, beta: Any) -> PyTree:
    """The update for any exponential family; `gradient` is E_q[grad_m log q * log-likelihood]."""
    return jax.tree.map(
        lambda old, eta, g: (1.0 - beta) * old + beta * (eta + g), natural, prior, gradient
    )


class QBVI(GaussianVI):
    """Quasi black-box VI: natural parameters from black-box expectations."""

    name: ClassVar[str] = "qbvi"
    title: ClassVar[str] = "quasi black-box VI"

    learning_rate: float = hyper(RATE, "share of the natural step that is taken", above=0)
    form: str = hyper("h", "what the score multiplies", choices=("h", "log-likelihood"))
    baseline: str = hyper(
        "leave-one-out", "control variate of the score", choices=("leave-one-out", "none")
    )

    def step(
        self, key: Array, target: Target, state: GaussianState, batch: Batch | None
    ) -> tuple[GaussianState, GaussianInfo]:
        estimate = self.estimate(key, target, state, batch, form=self.form, baseline=self.baseline)
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
