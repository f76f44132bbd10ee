r"""Black-box variational inference (Ranganath et al. 2014; survey section 6).

    g    = mean_s[grad_zeta log q(theta_s | zeta) (h_s - a)],   theta_s ~ q      `gradients.score`
    zeta <- zeta + learning_rate * optimiser(g)

with h = log p(D, theta) - log q(theta): the model is asked for log-densities and never for a
gradient. q is Gaussian in coordinates free to move: the mean, and log std or a Cholesky factor
with the logarithms of its diagonal. a is a baseline (`baseline`): without one the method is of
no use. `rao_blackwell` takes each factor's own h. It is off because for one
network it removes little, and near the optimum adds noise: there the whole h is nearly constant.

The optimiser works on each weight in units of its starting standard deviation, in which the
bound's curvature is about 1: a learning rate means a share of a standard deviation, whatever
the data's size and scale.

`start`: the score gradient of k weights from S draws is about sqrt(k / S) times as noisy as one
weight's, and the mean-field optimum of a network is far from its mode. From "mode" (with a share
of the Laplace spread) this method finds the optimum of linear models by itself; on a network of
242 weights it ended 449 nats below Bayes by Backprop after all 5000 steps, and with ten times the
learning rate 239. The default "mean-field" therefore starts from Bayes by Backprop, which does
take gradients of the model, and what this method adds is the way from there: on that network
nothing. Its steps are then shortened by S / (S + k), so that noise does not undo the start.

Differs from the survey: q(theta | zeta) and hats (errata 53); baselines and factors, which it
names only (errata 55), are in `gradients.score`.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

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
    checked_groups,
    draw_shrinkage,
    frame_from,
    to_family,
)
from bayeslearn.algorithms.optimizers import Schedule, check_optimizer, make_optimizer
from bayeslearn.data.rows import Batch
from bayeslearn.errors import refuse
from bayeslearn.families import DiagonalGaussian
from bayeslearn.families.base import Gaussian
from bayeslearn.geometry.frame import BlockFrame
from bayeslearn.gradients import score
from bayeslearn.gradients.curvature import starting_prec
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

STARTS = ("mean-field", "mode")


class BlackBoxState(NamedTuple):
    zeta: PyTree  # {"mean", "spread"}: see `gradients.score`
    average: PyTree  # of the last zetas: what is returned, without the noise of single steps
    unit: PyTree  # like zeta: what a step of 1 means
    optimizer_state: Any
    count: Array  # type: ignore[assignment]


class BBVIInfo(NamedTuple):
    elbo: Array
    nll: Array


def starting_units(std: PyTree, zeta: PyTree) -> PyTree:
    """What a step of 1 is: for the mean a standard deviation, for logarithms 1.

    In row i of the Cholesky factor of k weights it is std_i / k: k entries, each with noise of
    its own, add up in that weight's variance.
    """
    if not isinstance(zeta["spread"], tuple):
        return {"mean": std, "spread": jax.tree.map(jnp.ones_like, std)}

    def rows(log_cholesky: Array) -> Array:
        row = jnp.exp(jnp.diagonal(log_cholesky))[:, None] / len(log_cholesky)
        ones = jnp.ones_like(log_cholesky)
        return jnp.tril(row * ones, -1) + jnp.triu(ones)

    return {"mean": tree.double(std), "spread": tuple(map(rows, zeta["spread"]))}


class BlackBoxVI(DecayingStep):
    """Base of BBVI and NGBBVI: a Gaussian in coordinates free to move (abstract)."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        needs_gradient=False, accepts_initial_gaussian=True
    )

    learning_rate: float = hyper(0.01, "step size, in starting standard deviations", above=0)
    num_draws: int = hyper(64, "draws of the weights per step", least=4)
    covariance: str = hyper("diagonal", "structure of q", choices=COVARIANCES)
    block: Any = hyper(
        "layer",
        'what a block is: "leaf", "layer", or a mapping from names to lists of name patterns',
        free=True,
    )
    rao_blackwell: bool = hyper(False, "weigh each factor's score by its own terms of h alone")
    start: str = hyper("mean-field", "where to start from", choices=STARTS)

    def warm_start(self) -> Algorithm | None:
        if self.start == "mode":
            return super().warm_start()
        return BayesByBackprop()

    def check(self, target: Target, params: PyTree) -> None:
        if self.rao_blackwell and target.prior is not None and not target.prior.is_independent:
            refuse(
                "rao_blackwell",
                True,
                "be left out where the prior is correlated: its terms hold all weights",
            )

    def init(self, key: Array, target: Target, params: PyTree) -> BlackBoxState:
        prec = starting_prec(key, target, params, target.data)
        std = jax.tree.map(lambda p: START_SHRINK / jnp.sqrt(p), prec)
        return self._begin(DiagonalGaussian(params, std))

    def init_from(self, key: Array, target: Target, q: Any) -> BlackBoxState:
        return self._begin(q) if isinstance(q, Gaussian) else self.init(key, target, q.mean)

    def _begin(self, q: Any) -> BlackBoxState:
        frame = frame_from(q, self.covariance, self.block)
        if isinstance(frame, BlockFrame) and not isinstance(q, DiagonalGaussian):
            frame = score.cholesky_frame(frame)
        zeta = score.from_frame(frame)
        unit, count = starting_units(q.std, zeta), jnp.zeros((), jnp.int32)
        return BlackBoxState(zeta, zeta, unit, self.first_optimizer_state(zeta), count)

    def first_optimizer_state(self, zeta: PyTree) -> Any:
        raise NotImplementedError

    def frame(self, zeta: PyTree) -> Any:
        if self.covariance == "diagonal":
            return score.to_frame(zeta, None)
        return score.to_frame(zeta, checked_groups(zeta["mean"], self.covariance, self.block))

    def rate(self, zeta: PyTree) -> Schedule:
        """The step size at each count; near the optimum shortened to what the draws can tell."""
        is_near = self.start == "mean-field"
        return self.schedule(
            draw_shrinkage(tree.size(zeta["mean"]), self.num_draws, "score", is_near)
        )

    def moved(self, state: BlackBoxState, step: PyTree, optimizer_state: Any) -> BlackBoxState:
        """zeta + step, and the average of the last zetas."""
        zeta = jax.tree.map(jnp.add, state.zeta, step)
        average = score.averaged(state.average, zeta, state.count)
        return BlackBoxState(zeta, average, state.unit, optimizer_state, state.count + 1)

    def approximation(
        self, target: Target, state: BlackBoxState, draws: PyTree | None = None
    ) -> Any:
        return to_family(self.frame(state.average), self.covariance)


class BBVI(BlackBoxVI):
    """Black-box VI: score-function gradients with baselines, and any Optax optimiser."""

    name: ClassVar[str] = "bbvi"
    title: ClassVar[str] = "black-box VI by score-function gradients"
    info_fields: ClassVar[InfoFields] = InfoFields(progress=("nll",))

    baseline: str = hyper("leave-one-out", "what h is compared with", choices=score.BASELINES)
    optimizer: Any = hyper("adam", "name of an Optax optimiser, or the object", free=True)
    optimizer_options: Any = hyper((), "further arguments of the optimiser", free=True)

    def __check_init__(self) -> None:
        check_optimizer(self.optimizer, self.optimizer_options)

    def _optimizer(self, zeta: PyTree) -> optax.GradientTransformation:
        return make_optimizer(self.optimizer, self.optimizer_options, self.rate(zeta))

    def first_optimizer_state(self, zeta: PyTree) -> Any:
        return self._optimizer(zeta).init(zeta)

    def step(
        self, key: Array, target: Target, state: BlackBoxState, batch: Batch | None
    ) -> tuple[BlackBoxState, BBVIInfo]:
        frame = self.frame(state.zeta)
        noise = frame.noise(key, self.num_draws)
        estimate = score.evaluate(target, frame, batch, noise, self.rao_blackwell)
        weight = score.centred(estimate.h, score.squared_scores(frame, noise), self.baseline)
        gradient = score.to_zeta(frame, score.average(frame, noise, weight))
        downhill = jax.tree.map(lambda u, g: -u * g, state.unit, gradient)
        updates, optimizer_state = self._optimizer(state.zeta).update(
            downhill, state.optimizer_state, state.zeta
        )
        step = jax.tree.map(lambda u, d: u * jnp.asarray(d, u.dtype), state.unit, updates)
        return self.moved(state, step, optimizer_state), BBVIInfo(estimate.elbo, estimate.nll)
