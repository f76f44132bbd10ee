"""Manifold Gaussian variational Bayes (survey section 8.3; Tran et al. 2021).

The covariance moves on the manifold of positive definite matrices, by a retraction along the
transported momentum; the mean by its natural gradient:

    g_mean = cov grad_mean,   g_cov = cov grad_cov cov
    m_mean <- omega m_mean + (1 - omega) g_mean,   mean <- mean + beta m_mean
    m_cov  <- omega T(m_cov) + (1 - omega) g_cov,  cov  <- R_cov(beta m_cov)
    R_Z(xi) = Z + xi + xi Z^-1 xi / 2

In the frame T is the identity and R is C <- C (I + B + B^2/2)^(1/2), B = beta M, with M the
momentum of G = C^T grad_cov C. g_cov is half the natural gradient (2 cov grad_cov cov); the
covariance's own rate `cov_rate` of 2 restores it.

Differs from the survey: omega multiplies the transported momentum (errata 101), and the Fisher
matrix of the covariance is half the Kronecker product (errata 97).
"""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from bayeslearn.algorithms.base import hyper
from bayeslearn.algorithms.gaussian import (
    LOG_BOUNDS,
    GaussianInfo,
    GaussianState,
    GaussianVI,
    clip_mean_step,
    clip_spectrum,
)
from bayeslearn.data.rows import Batch
from bayeslearn.geometry.frame import Frame, Function, Symmetric
from bayeslearn.geometry.spd import retraction_eigenvalues as retraction
from bayeslearn.gradients.whitened import Whitened
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree


def manifold_step(
    state: GaussianState,
    mean_gradient: PyTree,
    cov_gradient: Symmetric,
    *,
    beta: Array,
    momentum: float | None,
    stretch: Function,
    guards: bool,
) -> tuple[GaussianState, Array, Array]:
    """Momentum, trust region, and the move C <- C stretch(beta M): one step in the frame.

    Returns the state, whether the step was clipped, and its largest eigenvalue.
    """
    frame = state.frame
    mean_gradient, shortened = clip_mean_step(
        jax.tree.map(lambda g: jnp.asarray(beta, g.dtype) * g, mean_gradient), guards
    )
    if momentum is None:
        memory: PyTree = ()
        spectrum = frame.spectrum(cov_gradient)
        new_mean = frame.draw(mean_gradient)
    else:
        natural = jax.tree.map(jnp.subtract, frame.draw(mean_gradient), frame.mean)
        now = (natural, frame.dense(cov_gradient))
        # The momentum of the first step is its gradient.
        first = state.count == 0
        memory = jax.tree.map(
            lambda m, g: jnp.where(first, g, momentum * m + (1.0 - momentum) * g),
            state.momentum,
            now,
        )
        spectrum = frame.spectrum(memory[1])
        new_mean = jax.tree.map(jnp.add, frame.mean, memory[0])
    step, clipped, largest = clip_spectrum(spectrum.scaled(beta), guards, *LOG_BOUNDS)
    no_step = jax.tree.map(jnp.zeros_like, mean_gradient)
    moved = frame.move(no_step, step, stretch)
    moved = eqx.tree_at(lambda f: f.mean, moved, new_mean)
    return GaussianState(moved, memory, state.count + 1), clipped | shortened, largest


def no_momentum(frame: Frame) -> PyTree:
    """Zero momentum of mean and covariance."""
    noise = jax.tree.map(jnp.zeros_like, frame.noise(jax.random.key(0), 2))
    return jax.tree.map(jnp.zeros_like, frame.mean), frame.dense(frame.outer(noise, noise))


class ManifoldVI(GaussianVI):
    """Base of the two methods that retract along a transported momentum (abstract)."""

    momentum: float | None = hyper(
        None,
        "weight of the transported momentum (the paper: 0.4); None: none, and low-rank steps",
        least=0,
        below=1,
        optional=True,
        real=True,
    )
    form: str = hyper("h", "what the score multiplies", choices=("h", "log-likelihood"))

    @property
    def score_options(self) -> dict[str, str]:
        """The form of the score estimator."""
        return {"form": self.form}

    def first_momentum(self, frame: Frame) -> PyTree:
        """Zero, if there is momentum."""
        return () if self.momentum is None else no_momentum(frame)

    def retract(
        self, state: GaussianState, estimate: Whitened, gradient: Symmetric, stretch: Function
    ) -> tuple[GaussianState, GaussianInfo]:
        """A step along `gradient`, that of covariance or precision: C <- C stretch(beta M)."""
        state, clipped, largest = manifold_step(
            state,
            estimate.mean,
            gradient,
            beta=self.rate(state),
            momentum=self.momentum,
            stretch=stretch,
            guards=self.guards,
        )
        return state, GaussianInfo.of_step(estimate, clipped, largest)


class MGVB(ManifoldVI):
    """Manifold Gaussian VB: retraction on the covariance."""

    name: ClassVar[str] = "mgvb"
    title: ClassVar[str] = "manifold Gaussian VB on the covariance"

    cov_rate: float = hyper(2.0, "the covariance's own rate; 1: the paper's half step", above=0)

    def step(
        self, key: Array, target: Target, state: GaussianState, batch: Batch | None
    ) -> tuple[GaussianState, GaussianInfo]:
        """A retraction of the covariance along its gradient G."""
        estimate = self.estimate(key, target, state, batch)
        gradient = estimate.cov.scaled(self.cov_rate)
        return self.retract(state, estimate, gradient, lambda b: jnp.sqrt(retraction(b)))
