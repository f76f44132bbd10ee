r"""Black-box variational inference (Ranganath et al. 2014; survey section 6).

    g    = mean_s[grad_zeta log q(theta_s | zeta) (h_s - a)],   theta_s ~ q      `gradients.score`
    zeta <- zeta + learning_rate * optimiser(g)

with h = log p(D, theta) - log q(theta): only log-densities of the model are needed, no gradient.
q is Gaussian in unconstrained parameters: the mean, and log std or a Cholesky factor with the
logarithm of its diagonal. a is a baseline (`baseline`), without which the variance is too large to
be useful. `rao_blackwell` uses the h of each factor. It is off by default: in a network it removes
little, and near the optimum it adds noise, as the whole h is nearly constant there.

The optimiser works on each weight in units of its standard deviation at the start, in which the
curvature of the bound is about 1: the learning rate is a fraction of a standard deviation, whatever
the size and scale of the data.

`start`: the score gradient of k weights from S draws is about sqrt(k / S) times as noisy as that of
one weight, and the mean-field optimum of a network is far from its mode. From "mode" (with the std
of the Laplace approximation, shrunk) this method finds the optimum of linear models; on a network
of 242 weights it ended 449 nats below Bayes by Backprop after 5000 steps, and with ten times the
learning rate 239. The default "mean-field" therefore starts from Bayes by Backprop, which does use
gradients of the model, and continues from there; on that network it does not improve on it. Its
steps are then multiplied by S / (S + k), so that noise does not degrade the start.

Differs from the survey: q(theta | zeta) and hats (errata 53); baselines and factors, which it
names only (errata 55), are in `gradients.score`.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bayeslearn import tree
from bayeslearn.algorithms.base import Algorithm, Capabilities, InfoFields, hyper
from bayeslearn.algorithms.bayes_by_backprop import BayesByBackprop
from bayeslearn.algorithms.decaying import DecayingStep
from bayeslearn.algorithms.gaussian import (
    COVARIANCES,
    START_SHRINK,
    Blocks,
    block_groups,
    draw_shrinkage,
    frame_from,
    to_family,
)
from bayeslearn.algorithms.optimizers import (
    Optimizer,
    Options,
    Schedule,
    check_optimizer,
    make_optimizer,
)
from bayeslearn.algorithms.tempering import Tempered
from bayeslearn.data.rows import Batch
from bayeslearn.errors import refuse
from bayeslearn.families import DiagonalGaussian
from bayeslearn.families.base import Family, Gaussian
from bayeslearn.geometry.frame import BlockFrame, Frame
from bayeslearn.gradients import score
from bayeslearn.gradients.curvature import starting_prec
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

STARTS = ("mean-field", "mode")


class BlackBoxState(NamedTuple):
    """zeta, its average, and the optimiser's state."""

    zeta: PyTree  # {"mean", "scale"}: see `gradients.score`
    average: PyTree  # of the last zetas: the result, without the noise of single steps
    unit: PyTree  # like zeta: the length of a unit step
    optimizer_state: PyTree
    count: Array  # type: ignore[assignment]


class BBVIInfo(NamedTuple):
    """The lower bound at the step's draws."""

    elbo: Array
    nll: Array


def starting_units(std: PyTree, zeta: PyTree) -> PyTree:
    """The length of a unit step: a standard deviation for the mean, 1 for logarithms.

    In row i of the Cholesky factor of k weights it is std_i / k: k entries with independent noise
    add up in the variance of that weight.
    """
    if not isinstance(zeta["scale"], tuple):
        return {"mean": std, "scale": jax.tree.map(jnp.ones_like, std)}

    def rows(log_cholesky: Array) -> Array:
        row = jnp.exp(jnp.diagonal(log_cholesky))[:, None] / len(log_cholesky)
        ones = jnp.ones_like(log_cholesky)
        return jnp.tril(row * ones, -1) + jnp.triu(ones)

    return {"mean": tree.double(std), "scale": tuple(map(rows, zeta["scale"]))}


class BlackBoxVI(DecayingStep, Tempered):
    """Base of BBVI and NGBBVI: a Gaussian in unconstrained parameters (abstract)."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        needs_gradient=False, accepts_initial_gaussian=True
    )

    learning_rate: float = hyper(0.01, "step size, in standard deviations at the start", above=0)
    num_draws: int = hyper(64, "draws of the weights per step", least=4)
    covariance: str = hyper("diagonal", "structure of q", choices=COVARIANCES)
    block: Blocks = hyper(
        "layer",
        'what a block is: "leaf", "layer", or a mapping from names to lists of name patterns',
        free=True,
    )
    rao_blackwell: bool = hyper(False, "weight the score of each factor by its own terms of h")
    start: str = hyper("mean-field", "warm start: mean-field posterior or mode", choices=STARTS)

    def warm_start(self) -> Algorithm | None:
        """As set by `start`."""
        if self.start == "mode":
            return super().warm_start()
        return BayesByBackprop()

    def check(self, target: Target, params: PyTree) -> None:
        """Refuse Rao-Blackwellisation with a correlated prior."""
        super().check(target, params)
        if self.rao_blackwell and target.prior is not None and not target.prior.is_independent:
            must = "be left out if the prior is correlated: its terms depend on all weights"
            refuse("rao_blackwell", True, must)

    def init(self, key: Array, target: Target, params: PyTree) -> BlackBoxState:
        """The Laplace approximation at `params`, its std shrunk."""
        prec = starting_prec(key, target, params, target.data)
        std = jax.tree.map(lambda p: START_SHRINK / jnp.sqrt(p), prec)
        return self._begin(DiagonalGaussian(params, std))

    def init_from(self, key: Array, target: Target, q: Family) -> BlackBoxState:
        """At q."""
        return self._begin(q) if isinstance(q, Gaussian) else self.init(key, target, q.mean)

    def _begin(self, q: Gaussian) -> BlackBoxState:
        """The first state at q."""
        frame = frame_from(q, self.covariance, self.block)
        if isinstance(frame, BlockFrame) and not isinstance(q, DiagonalGaussian):
            frame = score.cholesky_frame(frame)
        zeta = score.from_frame(frame)
        unit, count = starting_units(q.std, zeta), jnp.zeros((), jnp.int32)
        return BlackBoxState(zeta, zeta, unit, self.first_optimizer_state(zeta), count)

    def first_optimizer_state(self, zeta: PyTree) -> PyTree:
        """The optimiser's state before the first step."""
        raise NotImplementedError

    def frame(self, zeta: PyTree) -> Frame:
        """The frame of q(theta | zeta)."""
        if self.covariance == "diagonal":
            return score.to_frame(zeta, None)
        return score.to_frame(zeta, block_groups(zeta["mean"], self.covariance, self.block))

    def rate(self, zeta: PyTree) -> Schedule:
        """The step size at each count; from a mean-field start times the shrinkage."""
        is_near = self.start == "mean-field"
        return self.schedule(
            draw_shrinkage(tree.size(zeta["mean"]), self.num_draws, "score", is_near)
        )

    def move(self, state: BlackBoxState, step: PyTree, optimizer_state: PyTree) -> BlackBoxState:
        """zeta + step, and the average of the last zetas."""
        zeta = jax.tree.map(jnp.add, state.zeta, step)
        average = score.averaged(state.average, zeta, state.count)
        return BlackBoxState(zeta, average, state.unit, optimizer_state, state.count + 1)

    def approximation(
        self, target: Target, state: BlackBoxState, draws: PyTree | None = None
    ) -> Gaussian:
        """The Gaussian of the average of the last zetas."""
        return to_family(self.frame(state.average), self.covariance)


class BBVI(BlackBoxVI):
    """Black-box VI: score-function gradients with baselines, and any Optax optimiser."""

    name: ClassVar[str] = "bbvi"
    title: ClassVar[str] = "black-box VI by score-function gradients"
    info_fields: ClassVar[InfoFields] = InfoFields(progress=("nll",))

    baseline: str = hyper("leave-one-out", "control variate of h", choices=score.BASELINES)
    optimizer: Optimizer = hyper("adam", "name of an Optax optimiser, or the object", free=True)
    optimizer_options: Options = hyper((), "further arguments of the optimiser", free=True)

    def __check_init__(self) -> None:
        check_optimizer(self.optimizer, self.optimizer_options)

    def _optimizer(self, zeta: PyTree) -> optax.GradientTransformation:
        return make_optimizer(self.optimizer, self.optimizer_options, self.rate(zeta))

    def first_optimizer_state(self, zeta: PyTree) -> PyTree:
        """That of Optax."""
        return self._optimizer(zeta).init(zeta)

    def step(
        self, key: Array, target: Target, state: BlackBoxState, batch: Batch | None
    ) -> tuple[BlackBoxState, BBVIInfo]:
        """One step of the optimiser along the score-function gradient."""
        frame = self.frame(state.zeta)
        noise = frame.noise(key, self.num_draws)
        estimate = score.evaluate(target, frame, batch, noise, self.rao_blackwell)
        weight = score.centred(estimate.h, score.squared_scores(frame, noise), self.baseline)
        gradient = score.to_zeta(frame, score.average(frame, noise, weight))
        loss_gradient = jax.tree.map(lambda u, g: -u * g, state.unit, gradient)
        updates, optimizer_state = self._optimizer(state.zeta).update(
            loss_gradient, state.optimizer_state, state.zeta
        )
        step = jax.tree.map(lambda u, d: u * jnp.asarray(d, u.dtype), state.unit, updates)
        return self.move(state, step, optimizer_state), BBVIInfo(estimate.elbo, estimate.nll)
