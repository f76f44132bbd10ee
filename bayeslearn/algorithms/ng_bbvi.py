r"""Natural-gradient black-box variational inference (Trusheim et al. 2018; survey section 6).

Draws X give the control variate, draws Y the gradient. For each factor of q, with scores
s = grad_zeta log q and h = log p(D, theta) - log q(theta) (`gradients.score`):

    a* = sum Cov_X(s h, s) / sum Var_X(s)
    F  = mean_Y[s s^T],                 or the exact Fisher matrix      `fisher`
    g  = (F + damping tr(F)/dim I)^-1 mean_Y[s (h - a*)]

and then Adam, upwards, element by element, t from 1:

    m <- beta1 m + (1 - beta1) g,       v <- beta2 v + (1 - beta2) g^2
    zeta <- zeta + learning_rate (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)

zeta is the mean and log std, or a Cholesky factor with the logarithm of its diagonal. A factor of a
diagonal q is one weight, with a 2 x 2 matrix F. In the frame of q, with the step C^-1 dmean and A
in dC = C A, A lower triangular, the exact Fisher matrix is diagonal: 1 for the mean and below the
diagonal of A, 2 on it, so that the natural step of a block needs no solve. F and its damping are
those of the frame, where all entries have the same scale.

Steps are in units of the standard deviation at the start, and the start is mean field, for the
reasons in `bbvi`. Adam normalises the gradient, also when it is mostly noise, hence a trust region
(`guards`, counted in Info as `clipped`): the mean moves at most r = 0.5 standard deviations (root
mean square over weights), and no logarithm and no row of A by more than log(1 + r).

Differs from the survey: log p, not its gradient, beside log q (errata 58); beta1 and beta2 are not
exchanged (60); squares element by element (61); damping, and t from 1 (62); the expected outer
product, of each factor (56, 57).
"""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.algorithms.base import InfoFields, hyper
from bayeslearn.algorithms.bbvi import BlackBoxState, BlackBoxVI
from bayeslearn.algorithms.gaussian import RADIUS
from bayeslearn.algorithms.optimizers import Schedule
from bayeslearn.data.rows import Batch
from bayeslearn.errors import refuse
from bayeslearn.geometry.frame import BlockFrame, DiagonalFrame, Frame
from bayeslearn.gradients import score
from bayeslearn.gradients.score import Score
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

LOG_RADIUS = math.log1p(RADIUS)
Number = Array | float


class NGBBVIInfo(NamedTuple):
    """The lower bound at the step's draws, and whether the step was clipped."""

    elbo: Array
    nll: Array
    clipped: Array  # 1 if the trust region clipped


def sampled_natural(gradient: Score, noise: PyTree, damping: Number) -> Score:
    """(F + damping tr(F)/2 I)^-1 gradient, F each weight's mean of outer products of scores."""

    def solve(g: Array, m: Array, e: Array) -> tuple[Array, Array]:
        other = e**2 - 1.0
        a, b, d = (jnp.mean(x, axis=0) for x in (e**2, e * other, other**2))
        level = jnp.asarray(damping, a.dtype) * 0.5 * (a + d)
        a, d = a + level, d + level
        det = a * d - b**2
        return (d * g - b * m) / det, (a * m - b * g) / det

    leaves = [jax.tree.leaves(values) for values in (gradient.mean, gradient.scale, noise)]
    pairs = [solve(*three) for three in zip(*leaves, strict=True)]
    treedef = jax.tree.structure(gradient.mean)
    mean, scale = (jax.tree.unflatten(treedef, [pair[i] for pair in pairs]) for i in (0, 1))
    return Score(mean, scale)


def adam(
    gradient: PyTree,
    first: PyTree,
    second: PyTree,
    t: Array,
    beta1: Number,
    beta2: Number,
    epsilon: Number,
) -> tuple[PyTree, PyTree, PyTree]:
    """Adam's direction for step t = 1, 2, ..., and its two moments."""

    def mixed(old: Array, new: Array, beta: Number) -> Array:
        return (beta * old + (1.0 - beta) * new).astype(old.dtype)

    def direction(m: Array, v: Array) -> Array:
        rooted = jnp.sqrt(v / (1.0 - beta2**t)) + epsilon
        return (m / (1.0 - beta1**t) / rooted).astype(m.dtype)

    first = jax.tree.map(lambda m, g: mixed(m, g, beta1), first, gradient)
    second = jax.tree.map(lambda v, g: mixed(v, g**2, beta2), second, gradient)
    return jax.tree.map(direction, first, second), first, second


def clip_step(frame: Frame, step: dict[str, PyTree]) -> tuple[dict[str, PyTree], Array]:
    """The step in zeta inside the trust region, and whether it was clipped."""
    whitened: PyTree
    if isinstance(frame, DiagonalFrame):
        whitened = jax.tree.map(jnp.divide, step["mean"], frame.std)
        largest = [jnp.max(jnp.abs(s)) for s in jax.tree.leaves(step["scale"])]
        scale = jax.tree.map(lambda s: jnp.clip(s, -LOG_RADIUS, LOG_RADIUS), step["scale"])
        is_clipped = jnp.max(jnp.stack([x.astype(jnp.float64) for x in largest])) > LOG_RADIUS
    else:
        assert isinstance(frame, BlockFrame)
        parts = list(zip(frame.factors, frame.split(step["mean"]), step["scale"], strict=True))
        whitened = tuple(_solve(c, m) for c, m, _ in parts)
        rows = [jnp.linalg.norm(_relative(c, s), axis=1) for c, _, s in parts]
        longest = jnp.max(jnp.concatenate(rows))
        shrinkage = jnp.where(longest > LOG_RADIUS, LOG_RADIUS / longest, 1.0)
        scale, is_clipped = jax.tree.map(lambda s: shrinkage * s, step["scale"]), shrinkage < 1.0
    size = jnp.sqrt(tree.total(jax.tree.map(jnp.square, whitened)) / tree.size(whitened))
    factor = jnp.where(size > RADIUS, RADIUS / jnp.maximum(size, RADIUS), 1.0)
    mean = jax.tree.map(lambda s: s * factor.astype(s.dtype), step["mean"])
    return {"mean": mean, "scale": scale}, is_clipped | (size > RADIUS)


def _solve(factor: Array, values: Array) -> Array:
    return jax.scipy.linalg.solve_triangular(factor, values, lower=True)


def _relative(factor: Array, step: Array) -> Array:
    """A of a step in a Cholesky factor with the logarithm of its diagonal."""
    change = jnp.tril(step, -1) + jnp.diag(jnp.diagonal(step) * jnp.diagonal(factor))
    return _solve(factor, change)


class NGBBVI(BlackBoxVI):
    """Natural-gradient black-box VI: score gradients, Fisher matrix per factor, Adam."""

    name: ClassVar[str] = "ng-bbvi"
    title: ClassVar[str] = "natural-gradient black-box VI"
    info_fields: ClassVar[InfoFields] = InfoFields(progress=("nll", "clipped"))

    num_draws: int = hyper(48, "draws Y per step, for the gradient and the Fisher matrix", least=2)
    num_control: int = hyper(16, "draws X per step, for the control variate", least=1)
    fisher: str = hyper(
        "exact", "Fisher matrix (monte-carlo: diagonal only)", choices=("exact", "monte-carlo")
    )
    damping: float = hyper(0.01, "added to a sampled Fisher matrix, relative to it", least=0)
    beta1: float = hyper(0.9, "decay of Adam's average of gradients", least=0, below=1)
    beta2: float = hyper(0.999, "decay of Adam's average of squared gradients", least=0, below=1)
    epsilon: float = hyper(1e-8, "Adam's epsilon, in standard deviations at the start", above=0)
    guards: bool = hyper(True, "clip steps to a trust region; False: the bare update")

    def __check_init__(self) -> None:
        if self.fisher == "monte-carlo" and self.covariance != "diagonal":
            refuse("fisher", self.fisher, f'be "exact" for a {self.covariance} covariance')

    def first_optimizer_state(self, zeta: PyTree) -> PyTree:
        """Adam's two moments, zero."""
        zeros = jax.tree.map(jnp.zeros_like, zeta)
        return zeros, zeros

    def rate(self, zeta: PyTree) -> Schedule:
        """The step size at each count; without guards it is not shrunk."""
        return super().rate(zeta) if self.guards else self.schedule()

    def natural(self, frame: Frame, noise: PyTree, weight: Array) -> Score:
        """The natural gradient in the frame, from draws Y."""
        gradient = score.average(frame, noise, weight)
        if self.fisher == "monte-carlo":
            return sampled_natural(gradient, noise, self.damping)
        return score.natural(gradient)

    def step(
        self, key: Array, target: Target, state: BlackBoxState, batch: Batch | None
    ) -> tuple[BlackBoxState, NGBBVIInfo]:
        """One step of Adam along the natural gradient."""
        frame = self.frame(state.zeta)
        noise = frame.noise(key, self.num_control + self.num_draws)
        estimate = score.evaluate(target, frame, batch, noise, self.rao_blackwell)
        in_x, in_y = (jax.tree.map(lambda e, i=i: e[i], noise) for i in self._split())
        h_x, h_y = (estimate.h[i] for i in self._split())
        weight = h_y - score.control_variate(h_x, score.squared_scores(frame, in_x))
        natural = score.step_to_zeta(frame, self.natural(frame, in_y, weight))
        scaled = jax.tree.map(jnp.divide, natural, state.unit)
        first, second = state.optimizer_state
        direction, *moments = adam(
            scaled, first, second, state.count + 1, self.beta1, self.beta2, self.epsilon
        )
        rate = self.rate(state.zeta)(state.count)
        step = jax.tree.map(lambda u, d: u * (rate * d).astype(u.dtype), state.unit, direction)
        clipped = jnp.zeros((), bool)
        if self.guards:
            step, clipped = clip_step(frame, step)
        info = NGBBVIInfo(estimate.elbo, estimate.nll, clipped.astype(jnp.float64))
        return self.move(state, step, tuple(moments)), info

    def _split(self) -> tuple[slice, slice]:
        """Draws X, draws Y."""
        return slice(None, self.num_control), slice(self.num_control, None)
