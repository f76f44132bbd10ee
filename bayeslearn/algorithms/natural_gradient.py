r"""Natural-gradient ascent of the lower bound, in any coordinates (survey section 5).

    zeta <- zeta + beta F(zeta)^-1 grad_zeta ELBO,   F = E_q[score score^T]   `natural_gradient`

score = grad_zeta log q(theta | zeta). Gaussians use their exact Fisher matrix, with
g = C^T grad_mean and G = C^T grad_cov C from `gradients.whitened`, cov = C C^T:

    diagonal     zeta = (mean, rho), std = softplus(rho), F = (1 / std^2, 2 sigmoid(rho)^2 / std^2)
                 mean <- mean + beta std g,   rho <- rho + beta G std / sigmoid(rho)
    block, full  zeta = (mean, Cholesky factor C with the logarithm of its diagonal)
                 mean <- mean + beta C g,     dC = beta C A,   d log C_ii = beta A_ii
                 A = 2 G below the diagonal, G on it, 0 above

In dC = C A the Fisher matrix is diagonal, 1 below A's diagonal and 2 on it, so that no linear
system is solved. `q` is any other family: its arrays are zeta, F is the mean of FISHER_DRAWS outer
products of scores (which need no evaluation of the model), damped by damping * tr(F) / dim,
and grad_zeta ELBO is reparametrised, or by scores with a leave-one-out baseline.

Guards as in `gaussian`; for `q` the length of the step in the metric F is at most r sqrt(dim).

Differs from the survey: F is the expected outer product (errata 56), at the current zeta (49);
the step adds the gradient of the bound, not the score (51), in zeta (52). The natural gradient
equals the plain one in expectation parameters only through F(lambda) grad_m (48).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple, cast

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.algorithms.base import Algorithm, hyper
from bayeslearn.algorithms.bayes_by_backprop import softplus_inverse
from bayeslearn.algorithms.gaussian import (
    COVARIANCES,
    GRADIENTS,
    MIN_DRAWS,
    RADIUS,
    GaussianInfo,
    GaussianState,
    GaussianVI,
    clip_mean_step,
    clip_spectrum,
    draw_shrinkage,
    to_family,
)
from bayeslearn.algorithms.map import MAP
from bayeslearn.data.rows import Batch
from bayeslearn.errors import Shown, refuse
from bayeslearn.families import DiagonalGaussian
from bayeslearn.families.base import Family
from bayeslearn.geometry.frame import BlockFrame, DiagonalFrame, Frame
from bayeslearn.geometry.natural import damped_solve
from bayeslearn.gradients import score
from bayeslearn.gradients.whitened import leave_one_out
from bayeslearn.models.protocols import SampledDensity
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

FISHER_DRAWS = 1024
MAX_PARAMETERS = 256  # of `q`: its Fisher matrix is dense and sampled


class FamilyState(NamedTuple):
    """A `q` of the user's."""

    q: PyTree
    average: PyTree  # of the last q: the result
    count: Array  # type: ignore[assignment]


State = GaussianState | FamilyState


class Gradients(NamedTuple):
    """The gradient of a `q` in its arrays, as one vector, and the lower bound."""

    gradient: Array
    elbo: Array
    nll: Array


def natural_gradient(fisher: Array, gradient: Array, damping: Array | float = 0.0) -> Array:
    """(F + damping tr(F)/dim I)^-1 gradient; `fisher` is a matrix, or the diagonal of one."""
    if jnp.ndim(fisher) == jnp.ndim(gradient):
        return gradient / (fisher + damping * jnp.mean(fisher))
    return damped_solve(fisher, gradient, damping)


def rho_step(std: Array, log_step: Array) -> Array:
    """softplus(rho + drho) for d log std = log_step: drho = log_step std / sigmoid(rho)."""
    rho = softplus_inverse(std)
    return jax.nn.softplus(rho + log_step * std / jax.nn.sigmoid(rho))


def move_gaussian(frame: Frame, mean: PyTree, scale: PyTree) -> Frame:
    """The frame after a natural step: `mean` is beta g, `scale` is 2 beta G."""
    step = score.natural(score.Score(mean, scale))
    if isinstance(frame, DiagonalFrame):
        std = jax.tree.map(rho_step, frame.std, step.scale)
        log_det = tree.total(jax.tree.map(jnp.log, std))
        return DiagonalFrame(frame.draw(step.mean), std, log_det)
    assert isinstance(frame, BlockFrame)
    zeta = jax.tree.map(jnp.add, score.from_frame(frame), score.step_to_zeta(frame, step))
    return score.to_frame(zeta, frame.groups)


def sampled_fisher(key: Array, q: SampledDensity) -> Array:
    """mean[score score^T] in the arrays of q, as one vector."""
    unravel = tree.unraveler(q)
    draws = jax.lax.stop_gradient(q.sample(key, FISHER_DRAWS))
    scores = jax.vmap(jax.grad(lambda z, w: unravel(z).log_prob(w)), (None, 0))
    found = scores(tree.ravel(q), draws)
    return found.T @ found / len(found)


def bound_gradient(
    key: Array,
    target: Target,
    q: SampledDensity,
    batch: Batch | None,
    num_draws: int,
    is_score: bool,
) -> Gradients:
    """The gradient of the lower bound in the arrays of q."""
    unravel = tree.unraveler(q)

    def terms(draws: PyTree) -> tuple[Array, Array]:
        """h of each draw, with q's parameters fixed, and the mean log-likelihood."""
        log_likelihood = jax.vmap(lambda w: target.scaled_log_likelihood(w, batch))(draws)
        log_q = jax.vmap(jax.lax.stop_gradient(q).log_prob)(draws)
        h = log_likelihood + jax.vmap(target.log_prior)(draws) - log_q
        return h, jnp.mean(log_likelihood)

    def surrogate(z: Array) -> tuple[Array, tuple[Array, Array]]:
        draws = unravel(z).sample(key, num_draws)
        if is_score:
            draws = jax.lax.stop_gradient(draws)
        h, log_likelihood = terms(draws)
        estimate = jnp.mean(h), -log_likelihood
        if not is_score:
            return jnp.mean(h), estimate
        weight = jax.lax.stop_gradient(leave_one_out(h))
        return jnp.mean(jax.vmap(unravel(z).log_prob)(draws) * weight), estimate

    gradient, (elbo, nll) = jax.grad(surrogate, has_aux=True)(tree.ravel(q))
    return Gradients(gradient, elbo, nll)


class NaturalGradient(GaussianVI):
    """Natural-gradient ascent: inverse Fisher matrix times gradient, for any family."""

    name: ClassVar[str] = "natural-gradient"
    title: ClassVar[str] = "natural-gradient ascent in any coordinates"

    covariance: str = hyper("diagonal", "structure of q", choices=COVARIANCES)
    q: Callable[[PyTree], SampledDensity] | None = hyper(
        None,
        "function params -> q, a pytree of unconstrained trainable arrays with `mean`,"
        " `sample(key, num)` and `log_prob(params)`; None: the Gaussian",
        free=True,
    )
    damping: float = hyper(0.001, "added to the sampled Fisher matrix of `q`, relative", least=0)

    def __check_init__(self) -> None:
        if self.q is not None and self.gradient not in GRADIENTS:
            refuse("gradient", self.gradient, 'be "reparam" or "score" with a `q` of your own')

    def warm_start(self) -> Algorithm | None:
        """MAP for a `q` of the user's, otherwise as for all Gaussians."""
        return MAP(learn_noise=False) if self.q is not None else super().warm_start()

    def init(self, key: Array, target: Target, params: PyTree) -> State:  # type: ignore[override]
        """The Laplace approximation at `params`, with Cholesky factors; or the user's q."""
        if self.q is None:
            frame = super().init(key, target, params).frame
            if isinstance(frame, BlockFrame):
                frame = score.cholesky_frame(frame)
            return GaussianState(frame, self.first_momentum(frame), jnp.zeros((), jnp.int32))
        q = self.q(params)
        if tree.size(q) > MAX_PARAMETERS:
            refuse(
                "q",
                Shown(f"{tree.size(q)} numbers"),
                f"have at most {MAX_PARAMETERS}: its Fisher matrix is sampled and solved",
                "Leave it out for a Gaussian, whose Fisher matrix is known.",
            )
        return FamilyState(q, q, jnp.zeros((), jnp.int32))

    def first_momentum(self, frame: Frame) -> PyTree:
        """In place of momentum: the average of the last zetas, which is the result."""
        return score.from_frame(frame)

    def shrinkage(self, frame: Frame) -> float:
        """As for all Gaussians, but scores have the noise of all weights, not of one block."""
        if self.gradient != "score":
            return super().shrinkage(frame)
        return draw_shrinkage(tree.size(frame.mean), self.draws(frame), self.gradient, self.guards)

    def init_from(self, key: Array, target: Target, q: Family) -> State:  # type: ignore[override]
        """At q with Cholesky factors; or the user's q at its mean."""
        if self.q is not None:
            return self.init(key, target, q.mean)
        state = super().init_from(key, target, q)
        if not isinstance(state.frame, BlockFrame) or isinstance(q, DiagonalGaussian):
            return state
        frame = score.cholesky_frame(state.frame)
        return GaussianState(frame, self.first_momentum(frame), state.count)

    def step(
        self, key: Array, target: Target, state: State, batch: Batch | None
    ) -> tuple[State, GaussianInfo]:
        """A natural step with the exact Fisher matrix, or with that of the user's q."""
        if isinstance(state, FamilyState):
            return self._family_step(key, target, state, batch)
        estimate = self.estimate(key, target, state, batch)
        beta, frame = self.rate(state), state.frame
        spectrum = frame.spectrum(estimate.cov).scaled(2.0 * beta)
        limited, clipped, largest = clip_spectrum(spectrum, self.guards)
        move = jax.tree.map(lambda g: jnp.asarray(beta, g.dtype) * g, estimate.mean)
        move, shortened = clip_mean_step(move, self.guards)
        scale = tree.cast_like(frame.dense(limited), _factors(frame))
        new = move_gaussian(frame, move, scale)
        average = score.averaged(state.momentum, score.from_frame(new), state.count)
        info = GaussianInfo.of_step(estimate, clipped | shortened, largest)
        return GaussianState(new, average, state.count + 1), info

    def gradients_per_step(self, target: Target, state: State) -> int:
        """One per draw; none with scores."""
        if isinstance(state, FamilyState):
            return 0 if self.gradient == "score" else self._family_draws()
        return super().gradients_per_step(target, state)

    def _family_draws(self) -> int:
        """Draws of the user's q in a step."""
        return self.num_draws or MIN_DRAWS

    def _family_step(
        self, key: Array, target: Target, state: FamilyState, batch: Batch | None
    ) -> tuple[FamilyState, GaussianInfo]:
        """A natural step in the arrays of the user's q."""
        key_fisher, key_draws = jax.random.split(key)
        q = state.q
        num = self._family_draws()
        estimate = bound_gradient(key_draws, target, q, batch, num, self.gradient == "score")
        fisher = sampled_fisher(key_fisher, q)
        step = self.schedule()(state.count) * natural_gradient(
            fisher, estimate.gradient, self.damping
        )
        size = jnp.sqrt(step @ fisher @ step / len(step))
        too_long = size > RADIUS
        if self.guards:
            step = step * jnp.where(too_long, RADIUS / jnp.maximum(size, RADIUS), 1.0)
        moved = tree.unraveler(q)((tree.ravel(q) + step).astype(tree.ravel(q).dtype))
        new = tree.cast_like(moved, q)
        average = score.averaged(state.average, new, state.count)
        clipped = (too_long & self.guards).astype(jnp.float64)
        info = GaussianInfo(estimate.elbo, estimate.nll, clipped, size.astype(jnp.float64))
        return FamilyState(new, average, state.count + 1), info

    def approximation(  # type: ignore[override]
        self, target: Target, state: State, draws: PyTree | None = None
    ) -> Family:
        """The average of the last zetas, or of the user's q."""
        if isinstance(state, FamilyState):
            return cast("Family", state.average)
        groups = state.frame.groups if isinstance(state.frame, BlockFrame) else None
        return to_family(score.to_frame(state.momentum, groups), self.covariance)


def _factors(frame: Frame) -> PyTree:
    """The factor of each block, or the std of each weight."""
    if isinstance(frame, DiagonalFrame):
        return frame.std
    assert isinstance(frame, BlockFrame)
    return frame.factors
