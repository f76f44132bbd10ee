"""What NGVI, VON, QBVI, MGVB and EMGVB share: a frame, a start, guards, a step size.

Each of them is an update of (mean, covariance) in a frame (`geometry.frame`), fed by an estimator
(`gradients.whitened`). Guards, on by default and counted in Info:

    warm start     the mean-field posterior of Bayes by Backprop: the Laplace approximation of a
                   network is hundreds of nats below it
    share of draws the covariance's step is shortened by r / (r + k), k the largest block and r the
                   rank of an estimate from S draws (2 S of outer products, S of scores): of k
                   dimensions they have that much to say. With scores the mean's step is, too.
                   By S / (S + 7) where S curvatures are its gradient: they have full rank, but
                   those of two draws of a network have little in common
    trust region   eigenvalues 1 + b of the covariance step in [1/(1 + r), 1 + r], a block's step
                   being scaled as a whole; the mean step at most r standard deviations (root
                   mean square over weights); r = 0.5

`guards=False` gives the bare update of the paper.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.algorithms.base import Algorithm, Capabilities, InfoFields, hyper
from bayeslearn.algorithms.bayes_by_backprop import BayesByBackprop
from bayeslearn.algorithms.decaying import DecayingStep
from bayeslearn.data.rows import Batch
from bayeslearn.errors import refuse
from bayeslearn.families import BlockGaussian, DiagonalGaussian, FullGaussian, make_groups
from bayeslearn.families.base import Gaussian
from bayeslearn.geometry.frame import BlockFrame, DiagonalFrame, Spectrum
from bayeslearn.gradients import curvature
from bayeslearn.gradients.whitened import Whitened, estimate
from bayeslearn.models.priors.checks import check_gaussian
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

COVARIANCES = ("full", "block", "diagonal")
GRADIENTS = ("reparam", "score")
RADIUS = 0.5
LOG_BOUNDS = (-math.log1p(RADIUS), math.log1p(RADIUS))
FEWEST, MOST = 16, 64  # draws of a step, where none are asked for
CURVATURE_SHRINKAGE = 7  # of a step by S curvatures S / (S + 7) is taken
START_SHRINK = 0.3  # the start's spread in Laplace standard deviations


class GaussianState(NamedTuple):
    frame: Any
    momentum: Any  # (mean, covariance) in the frame; empty without momentum
    count: Array  # type: ignore[assignment]


class GaussianInfo(NamedTuple):
    elbo: Array
    nll: Array
    clipped: Array  # 1 if the trust region acted
    largest: Array  # largest eigenvalue of the covariance step before it


def start_frame(
    key: Array, target: Target, params: PyTree, covariance: str, block: Any, shrink: float
) -> Any:
    """The frame of the Laplace approximation at `params`, its spread times `shrink`."""
    if covariance == "diagonal":
        prec = curvature.starting_prec(key, target, params, target.data)
        return DiagonalFrame.start(params, jax.tree.map(lambda p: p / shrink**2, prec))
    params = tree.double(params)
    groups = checked_groups(params, covariance, block)
    precisions = curvature.starting_blocks(key, target, params, target.data, groups)
    return BlockFrame.start(params, tuple(p / shrink**2 for p in precisions), groups)


def frame_from(q: Any, covariance: str, block: Any) -> Any:
    """A frame that is the Gaussian q, or the nearest of its structure: blocks of q's precision."""
    if covariance == "diagonal":
        return DiagonalFrame.start(q.mean, q.to_prior().broadcast(q.mean)[1])
    mean = tree.double(q.mean)
    groups = checked_groups(mean, covariance, block)
    if not isinstance(q, DiagonalGaussian):
        return BlockFrame.start(mean, q.to_prior().prec_blocks(mean, groups), groups)
    std = tree.double(q.std)
    leaves = jax.tree.leaves(std)
    factors = tuple(jnp.diag(tree.ravel([leaves[i] for i in group])) for group in groups)
    return BlockFrame(mean, factors, tree.total(jax.tree.map(jnp.log, std)), groups)


def checked_groups(params: PyTree, covariance: str, block: Any) -> tuple[tuple[int, ...], ...]:
    """Which leaves share a block; refused if a block's matrix would not fit."""
    leaves = jax.tree.leaves(params)
    if covariance == "full":
        tree.check_dense(tree.size(params), 'covariance="block" or "diagonal"')
        return (tuple(range(len(leaves))),)
    groups = make_groups(params, block if isinstance(block, str) else dict(block))
    largest = max(sum(leaves[i].size for i in group) for group in groups)
    tree.check_dense(largest, 'covariance="diagonal", or smaller blocks')
    return groups


def to_family(frame: Any, covariance: str) -> Any:
    if covariance == "diagonal":
        return DiagonalGaussian(frame.mean, frame.std)
    if covariance == "full":
        return FullGaussian(frame.mean, frame.factors[0])
    return BlockGaussian(frame.mean, frame.factors, frame.groups)


def draws_for(size: int) -> int:
    """Draws of a step for blocks of that size, where none are asked for."""
    return min(max(FEWEST, size // 6), MOST)


def draw_shrinkage(size: int, num_draws: int, gradient: str, guards: bool) -> float:
    """How much of a covariance step S draws can tell: r / (r + k), or S / (S + 7) of curvature."""
    if not guards:
        return 1.0
    if gradient not in GRADIENTS:
        return num_draws / (num_draws + CURVATURE_SHRINKAGE)
    if size == 1:
        return 1.0
    rank = num_draws if gradient == "score" else 2 * num_draws
    return rank / (rank + size)


def clip_spectrum(
    spectrum: Spectrum, guards: bool, low: float = -RADIUS / (1.0 + RADIUS), high: float = RADIUS
) -> tuple[Spectrum, Array, Array]:
    """The covariance step inside the trust region: step, acted, largest eigenvalue.

    The same room for growth as for shrinkage: 1 + b lies in [1 / (1 + r), 1 + r]. A retraction,
    which is exp(b) to second order, takes [-log(1 + r), log(1 + r)] (`LOG_BOUNDS`).
    """
    clipped, smallest, largest = spectrum.clipped(low, high)
    size = jnp.maximum(largest, -smallest)
    if not guards:
        return spectrum, jnp.zeros((), bool), size
    return clipped, (smallest < low) | (largest > high), size


def clip_mean_step(step: PyTree, guards: bool) -> tuple[PyTree, Array]:
    """The mean step inside the trust region, in standard deviations of q."""
    if not guards:
        return step, jnp.zeros((), bool)
    squares = tree.total(jax.tree.map(lambda s: s**2, step))
    size = jnp.sqrt(squares / tree.size(step))
    factor = jnp.where(size > RADIUS, RADIUS / jnp.maximum(size, RADIUS), 1.0)
    return jax.tree.map(lambda s: s * factor.astype(s.dtype), step), size > RADIUS


def check_gradient(gradient: str, covariance: str) -> None:
    kinds = curvature.DIAGONAL_KINDS if covariance == "diagonal" else curvature.BLOCK_KINDS
    if gradient not in (*GRADIENTS, *kinds):
        refuse(
            "gradient",
            gradient,
            f"be one of {', '.join(map(repr, (*GRADIENTS, *kinds)))} for a {covariance} covariance",
        )


class GaussianVI(DecayingStep):
    """Base of the methods that move a Gaussian in its own frame (abstract)."""

    capabilities: ClassVar[Capabilities] = Capabilities(accepts_initial_gaussian=True)
    info_fields: ClassVar[InfoFields] = InfoFields(progress=("nll", "clipped"))

    learning_rate: float = hyper(0.1, "share of the natural step that is taken", above=0)
    num_draws: int | None = hyper(
        None,
        "draws of the weights per step; None: 16, and for a large block a sixth of its weights up"
        " to 64",
        least=2,
        optional=True,
    )
    covariance: str = hyper("full", "structure of q", choices=COVARIANCES)
    block: Any = hyper(
        "layer",
        'what a block is: "leaf", "layer", or a mapping from names to lists of name patterns',
        free=True,
    )
    gradient: str = hyper(
        "reparam", "estimator: reparam, score, or a kind of curvature (hessian, gauss-newton, ...)"
    )
    guards: bool = hyper(True, "hold steps inside a trust region; False: the bare update")

    def __check_init__(self) -> None:
        check_gradient(self.gradient, self.covariance)

    def check(self, target: Target, params: PyTree) -> None:
        if self.covariance != "diagonal":
            checked_groups(params, self.covariance, self.block)
        if self.gradient not in GRADIENTS:
            check_gaussian(target.prior, f'{self.name} with gradient="{self.gradient}"')
        elif self.gradient == "score" and getattr(self, "form", "h") != "h":
            check_gaussian(target.prior, f'{self.name} with form="log-likelihood"')

    def init(self, key: Array, target: Target, params: PyTree) -> GaussianState:
        frame = start_frame(key, target, params, self.covariance, self.block, START_SHRINK)
        return GaussianState(frame, self.first_momentum(frame), jnp.zeros((), jnp.int32))

    def warm_start(self) -> Algorithm | None:
        """The mean-field posterior: it has found the noise scale and which units are needed.

        `fit` tries it from several initialisations of the network, whose optima differ by tens of
        nats.
        """
        return BayesByBackprop()

    def init_from(self, key: Array, target: Target, q: Any) -> GaussianState:
        if not isinstance(q, Gaussian):
            return self.init(key, target, q.mean)
        frame = frame_from(q, self.covariance, self.block)
        return GaussianState(frame, self.first_momentum(frame), jnp.zeros((), jnp.int32))

    def first_momentum(self, frame: Any) -> Any:
        """Memory of past gradients, for the methods that have one."""
        return ()

    def draws(self, frame: Any) -> int:
        """Draws of a step: as found, or by the size of the largest block."""
        return self.num_draws or draws_for(frame.size)

    def share(self, frame: Any) -> float:
        return draw_shrinkage(frame.size, self.draws(frame), self.gradient, self.guards)

    def rate(self, state: GaussianState) -> Array:
        """Step size at this count. Scores are as noisy for the mean as for the covariance."""
        share = self.share(state.frame) if self.gradient == "score" else 1.0
        return self.schedule(share)(state.count)

    def estimate(
        self, key: Array, target: Target, state: GaussianState, batch: Batch | None, **options: Any
    ) -> Whitened:
        draws = self.draws(state.frame)
        if self.gradient not in GRADIENTS:
            options["num_curvatures"] = draws
            draws = max(draws, draws_for(state.frame.size))
        found = estimate(
            key,
            target,
            state.frame,
            batch,
            gradient=self.gradient,
            num_draws=draws,
            **options,
        )
        if self.gradient == "score":
            return found
        return found._replace(cov=found.cov.scaled(self.share(state.frame)))

    def approximation(
        self, target: Target, state: GaussianState, draws: PyTree | None = None
    ) -> Any:
        return to_family(state.frame, self.covariance)
