"""Quasi black-box variational inference (survey section 7.6; Magris et al. 2022).

For q and prior in the same exponential family, natural parameters lambda and eta:

    lambda <- (1 - beta) lambda + beta (eta + E_q[grad_m log q(theta) log p(D | theta)])

which is exact in one step of beta = 1 for a conjugate model. For the Gaussian, with v = prec
(theta - mean) and l = log p(D | theta):

    prec <- (1 - beta) prec + beta (P0 + E[(prec - v v^T) l])
    mean <- mean + beta cov_new (P0 (mu0 - mean) + E[v l])

(`form="log-likelihood"`), or with h = log p(D, theta) - log q in place of l, prior and entropy
(`form="h"`), which with a baseline has a far lower variance. "reparam" estimates the same
expectations by Stein's identity from gradients of the model; "score" needs none.
"""

from __future__ import annotations

from typing import ClassVar

import jax

from bayeslearn.algorithms.base import hyper
from bayeslearn.algorithms.ngvi import RATE, NaturalParameterVI
from bayeslearn.tree import Array, PyTree


def exponential_family_step(
    natural: PyTree, prior: PyTree, gradient: PyTree, beta: Array | float
) -> PyTree:
    """The update for any exponential family; `gradient` is E_q[grad_m log q * log-likelihood]."""
    return jax.tree.map(
        lambda old, eta, g: (1.0 - beta) * old + beta * (eta + g), natural, prior, gradient
    )


class QBVI(NaturalParameterVI):
    """Quasi black-box VI: natural parameters from black-box expectations."""

    name: ClassVar[str] = "qbvi"
    title: ClassVar[str] = "quasi black-box VI"

    learning_rate: float = hyper(RATE, "fraction of the natural step", above=0)
    form: str = hyper("h", "what the score multiplies", choices=("h", "log-likelihood"))
    baseline: str = hyper(
        "leave-one-out", "control variate of the score", choices=("leave-one-out", "none")
    )

    @property
    def score_options(self) -> dict[str, str]:
        """Form and baseline of the score estimator."""
        return {"form": self.form, "baseline": self.baseline}
