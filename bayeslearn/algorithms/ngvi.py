"""Natural-gradient variational inference (survey section 7; Khan and Lin 2017).

A step in the natural parameters of the Gaussian, along the gradient in its expectation
parameters (grad_mean and grad_cov of the lower bound):

    prec <- prec - 2 beta grad_cov
    mean <- mean + beta cov_new grad_mean

In the frame (`geometry.frame`), with G = C^T grad_cov C and g = C^T grad_mean, that is
prec <- C^-T (I + B) C^-1, B = -2 beta G, and mean <- mean + beta C (I + B)^-1 g. With beta = 1
it solves a conjugate model in one step. `mean_step="old"` uses the old covariance in the mean's
step, which is the update in the coordinates (mean, precision).

Differs from the survey: the precision's update (errata 64), and which covariance is exact in the
mean's step (errata 66).
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp

from bayeslearn.algorithms.base import hyper
from bayeslearn.algorithms.gaussian import (
    GaussianInfo,
    GaussianState,
    GaussianVI,
    clip_mean_step,
    clip_spectrum,
)
from bayeslearn.data.rows import Batch
from bayeslearn.geometry.frame import Frame, Symmetric
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

# A step of the precision reaches the trust region before a step of the covariance of that length.
RATE = 0.08


def natural_step(
    frame: Frame,
    mean_gradient: PyTree,
    cov_gradient: Symmetric,
    beta: Array,
    is_new: bool,
    guards: bool,
) -> tuple[Frame, Array, Array]:
    """One step in natural parameters: new frame, whether it was clipped, largest eigenvalue.

    `is_new`: with the new covariance in the mean's step.
    """
    spectrum = frame.spectrum(cov_gradient).scaled(-2.0 * beta)
    step, clipped, largest = clip_spectrum(spectrum, guards)
    move = jax.tree.map(lambda g: jnp.asarray(beta, g.dtype) * g, mean_gradient)
    if is_new:
        move = frame.apply(step, lambda b: 1.0 / (1.0 + b), move)
    move, shortened = clip_mean_step(move, guards)
    new = frame.move(move, step, lambda b: 1.0 / jnp.sqrt(1.0 + b))
    return new, clipped | shortened, largest


class NaturalParameterVI(GaussianVI):
    """Base of the methods that step in natural parameters (abstract)."""

    @property
    def uses_new_cov(self) -> bool:
        """Whether the mean's step uses the new covariance."""
        return True

    def step(
        self, key: Array, target: Target, state: GaussianState, batch: Batch | None
    ) -> tuple[GaussianState, GaussianInfo]:
        """One step in natural parameters, from the method's estimate of the gradients."""
        estimate = self.estimate(key, target, state, batch)
        frame, clipped, largest = natural_step(
            state.frame,
            estimate.mean,
            estimate.cov,
            self.rate(state),
            is_new=self.uses_new_cov,
            guards=self.guards,
        )
        info = GaussianInfo.of_step(estimate, clipped, largest)
        return GaussianState(frame, (), state.count + 1), info


class NGVI(NaturalParameterVI):
    """Natural-gradient VI in natural parameters, for full, block or diagonal covariance."""

    name: ClassVar[str] = "ngvi"
    title: ClassVar[str] = "natural-gradient VI"

    learning_rate: float = hyper(RATE, "fraction of the natural step", above=0)
    mean_step: str = hyper(
        "new", "covariance in the mean's step: new (exact) or old", choices=("new", "old")
    )

    @property
    def uses_new_cov(self) -> bool:
        """As set by `mean_step`."""
        return self.mean_step == "new"
