"""What NGVI, VON, QBVI, MGVB and EMGVB share: a frame, a start, guards, a step size.

Each of them is an update of (mean, covariance) in a frame (`geometry.frame`), from gradients by an
estimator (`gradients.whitened`). Guards, on by default and counted in Info:

    warm start     the mean-field posterior of Bayes by Backprop: the Laplace approximation of a
                   network is hundreds of nats below it
    shrinkage      the covariance's step is multiplied by r / (r + k), k the size of the largest
                   block and r the rank of an estimate from S draws (2 S of outer products, S of
                   scores). With scores, so is the mean's step. With S curvatures the factor is
                   S / (S + 7): they have full rank, but differ much between draws of a network
    trust region   eigenvalues 1 + b of the covariance step in [1/(1 + r), 1 + r], where the step of
                   a block is scaled as a whole; the mean step at most r standard deviations (root
                   mean square over weights); r = 0.5

`guards=False` is the bare update of the paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.algorithms.base import Algorithm, Capabilities, InfoFields, hyper
from bayeslearn.algorithms.bayes_by_backprop import BayesByBackprop
from bayeslearn.algorithms.decaying import DecayingStep
from bayeslearn.algorithms.tempering import Tempered
from bayeslearn.data.rows import Batch
from bayeslearn.errors import refuse
from bayeslearn.families import BlockGaussian, DiagonalGaussian, FullGaussian, make_groups
from bayeslearn.families.base import Family, Gaussian
from bayeslearn.geometry.frame import BlockFrame, DiagonalFrame, Frame, Spectrum
from bayeslearn.gradients import curvature
from bayeslearn.gradients.whitened import Whitened, estimate
from bayeslearn.models.priors.checks import check_gaussian
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, Groups, PyTree

COVARIANCES = ("full", "block", "diagonal")
GRADIENTS = ("reparam", "score")
RADIUS = 0.5
LOG_BOUNDS = (-math.log1p(RADIUS), math.log1p(RADIUS))
MIN_DRAWS, MAX_DRAWS = 16, 64  # of the default number of draws per step
CURVATURE_SHRINKAGE = 7  # a step by S curvatures is multiplied by S / (S + 7)
START_SHRINK = 0.3  # standard deviations at the start, relative to the Laplace approximation

# "leaf", "layer", or a mapping from names to patterns, also as pairs
Blocks = str | Mapping[str, str | Sequence[str]] | tuple[tuple[str, str | tuple[str, ...]], ...]


class GaussianState(NamedTuple):
    """The frame of q, and momentum."""

    frame: Frame
    momentum: PyTree  # (mean, covariance) in the frame; empty without momentum
    count: Array  # type: ignore[assignment]


class GaussianInfo(NamedTuple):
    """The lower bound at the step's draws, and what the trust region did."""

    elbo: Array
    nll: Array
    clipped: Array  # 1 if the trust region clipped
    largest: Array  # largest eigenvalue of the covariance step before it was clipped

    @staticmethod
    def of_step(estimate: Whitened, clipped: Array, largest: Array) -> GaussianInfo:
        """From the estimate of a step, and what clipping returned."""
        return GaussianInfo(estimate.elbo, estimate.nll, clipped.astype(jnp.float64), largest)


def laplace_frame(
    key: Array, target: Target, params: PyTree, covariance: str, block: Blocks, shrink: float
) -> Frame:
    """The frame of the Laplace approximation at `params`, its std times `shrink`."""
    if covariance == "diagonal":
        prec = curvature.starting_prec(key, target, params, target.data)
        return DiagonalFrame.from_prec(params, jax.tree.map(lambda p: p / shrink**2, prec))
    params = tree.double(params)
    groups = block_groups(params, covariance, block)
    precisions = curvature.starting_blocks(key, target, params, target.data, groups)
    return BlockFrame.from_prec(params, tuple(p / shrink**2 for p in precisions), groups)


def frame_from(q: Gaussian, covariance: str, block: Blocks) -> Frame:
    """The frame of q, or of the Gaussian with the blocks (or diagonal) of q's precision."""
    if covariance == "diagonal":
        return DiagonalFrame.from_prec(q.mean, q.to_prior().broadcast(q.mean)[1])
    mean = tree.double(q.mean)
    groups = block_groups(mean, covariance, block)
    if not isinstance(q, DiagonalGaussian):
        return BlockFrame.from_prec(mean, q.to_prior().prec_blocks(mean, groups), groups)
    std = tree.double(q.std)
    leaves = jax.tree.leaves(std)
    factors = tuple(jnp.diag(tree.ravel([leaves[i] for i in group])) for group in groups)
    return BlockFrame(mean, factors, tree.total(jax.tree.map(jnp.log, std)), groups)


def block_groups(params: PyTree, covariance: str, block: Blocks) -> Groups:
    """The leaves of each block; refused if the matrix of a block would not fit in memory."""
    leaves = jax.tree.leaves(params)
    if covariance == "full":
        tree.check_dense(tree.size(params), 'covariance="block" or "diagonal"')
        return (tuple(range(len(leaves))),)
    groups = make_groups(params, block if isinstance(block, str) else dict(block))
    largest = max(sum(leaves[i].size for i in group) for group in groups)
    tree.check_dense(largest, 'covariance="diagonal", or smaller blocks')
    return groups


def to_family(frame: Frame, covariance: str) -> Gaussian:
    """The Gaussian of a frame."""
    if isinstance(frame, DiagonalFrame):
        return DiagonalGaussian(frame.mean, frame.std)
    assert isinstance(frame, BlockFrame)
    if covariance == "full":
        return FullGaussian(frame.mean, frame.factors[0])
    return BlockGaussian(frame.mean, frame.factors, frame.groups)


def default_draws(size: int) -> int:
    """The default number of draws per step, for blocks of that size."""
    return min(max(MIN_DRAWS, size // 6), MAX_DRAWS)


def draw_shrinkage(size: int, num_draws: int, gradient: str, guards: bool) -> float:
    """The factor of a covariance step from S draws: r / (r + k), or S / (S + 7) of curvatures."""
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
    """The covariance step inside the trust region, whether it was clipped, largest eigenvalue.

    Growth and shrinkage have the same bound: 1 + b is in [1 / (1 + r), 1 + r]. A retraction,
    which is exp(b) to second order, takes [-log(1 + r), log(1 + r)] (`LOG_BOUNDS`).
    """
    clipped, smallest, largest = spectrum.clipped(low, high)
    size = jnp.maximum(largest, -smallest)
    if not guards:
        return spectrum, jnp.zeros((), bool), size
    return clipped, (smallest < low) | (largest > high), size


def clip_mean_step(step: PyTree, guards: bool) -> tuple[PyTree, Array]:
    """The mean step, in standard deviations, in the trust region; and whether it was clipped."""
    if not guards:
        return step, jnp.zeros((), bool)
    squares = tree.total(jax.tree.map(lambda s: s**2, step))
    size = jnp.sqrt(squares / tree.size(step))
    factor = jnp.where(size > RADIUS, RADIUS / jnp.maximum(size, RADIUS), 1.0)
    return jax.tree.map(lambda s: s * factor.astype(s.dtype), step), size > RADIUS


def check_gradient(gradient: str, covariance: str) -> None:
    """Refuse an estimator that this structure of q does not have."""
    kinds = curvature.DIAGONAL_KINDS if covariance == "diagonal" else curvature.BLOCK_KINDS
    if gradient not in (*GRADIENTS, *kinds):
        refuse(
            "gradient",
            gradient,
            f"be one of {', '.join(map(repr, (*GRADIENTS, *kinds)))} for a {covariance} covariance",
        )


class GaussianVI(DecayingStep, Tempered):
    """Base of the methods that move a Gaussian in its frame (abstract)."""

    capabilities: ClassVar[Capabilities] = Capabilities(accepts_initial_gaussian=True)
    info_fields: ClassVar[InfoFields] = InfoFields(progress=("nll", "clipped"))

    learning_rate: float = hyper(0.1, "fraction of the natural step", above=0)
    num_draws: int | None = hyper(
        None,
        "draws of the weights per step; None: 16, and for a large block a sixth of its weights up"
        " to 64",
        least=2,
        optional=True,
    )
    covariance: str = hyper("full", "structure of q", choices=COVARIANCES)
    block: Blocks = hyper(
        "layer",
        'what a block is: "leaf", "layer", or a mapping from names to lists of name patterns',
        free=True,
    )
    gradient: str = hyper(
        "reparam", "estimator: reparam, score, or a kind of curvature (hessian, gauss-newton, ...)"
    )
    guards: bool = hyper(True, "clip steps to a trust region; False: the bare update")

    def __check_init__(self) -> None:
        check_gradient(self.gradient, self.covariance)

    @property
    def score_options(self) -> dict[str, str]:
        """Settings of the score-function estimator: `form` and `baseline`."""
        return {}

    def check(self, target: Target, params: PyTree) -> None:
        """Refuse blocks that are too large, and a prior that the estimator does not support."""
        super().check(target, params)
        if self.covariance != "diagonal":
            block_groups(params, self.covariance, self.block)
        if self.gradient not in GRADIENTS:
            check_gaussian(target.prior, f'{self.name} with gradient="{self.gradient}"')
        elif self.gradient == "score" and self.score_options.get("form", "h") != "h":
            check_gaussian(target.prior, f'{self.name} with form="log-likelihood"')

    def init(self, key: Array, target: Target, params: PyTree) -> GaussianState:
        """The Laplace approximation at `params`, its std shrunk."""
        frame = laplace_frame(key, target, params, self.covariance, self.block, START_SHRINK)
        return GaussianState(frame, self.first_momentum(frame), jnp.zeros((), jnp.int32))

    def warm_start(self) -> Algorithm | None:
        """The mean-field posterior, which has the noise scale and the hidden units that are used.

        `fit` runs it from several initialisations of the network, whose optima differ by tens of
        nats.
        """
        return BayesByBackprop()

    def init_from(self, key: Array, target: Target, q: Family) -> GaussianState:
        """At q, or at the Gaussian of this structure with q's precision."""
        if not isinstance(q, Gaussian):
            return self.init(key, target, q.mean)
        frame = frame_from(q, self.covariance, self.block)
        return GaussianState(frame, self.first_momentum(frame), jnp.zeros((), jnp.int32))

    def first_momentum(self, frame: Frame) -> PyTree:
        """Momentum of the first state, for the methods that have one."""
        return ()

    def draws(self, frame: Frame) -> int:
        """Draws of a step; default: by the size of the largest block."""
        return self.num_draws or default_draws(frame.size)

    def gradient_draws(self, frame: Frame) -> int:
        """Draws at which the density is evaluated: more than have a curvature computed."""
        draws = self.draws(frame)
        return draws if self.gradient in GRADIENTS else max(draws, default_draws(frame.size))

    def gradients_per_step(self, target: Target, state: GaussianState) -> int:
        """One per draw; none with scores."""
        return 0 if self.gradient == "score" else self.gradient_draws(state.frame)

    def shrinkage(self, frame: Frame) -> float:
        """The factor of the covariance's step (with scores, of the mean's as well)."""
        return draw_shrinkage(frame.size, self.draws(frame), self.gradient, self.guards)

    def rate(self, state: GaussianState) -> Array:
        """beta: the learning rate at this count, which decays to zero over the run.

        With scores it is shrunk, as they are as noisy for the mean as for the covariance.
        """
        shrinkage = self.shrinkage(state.frame) if self.gradient == "score" else 1.0
        return self.schedule(shrinkage)(state.count)

    def estimate(
        self, key: Array, target: Target, state: GaussianState, batch: Batch | None
    ) -> Whitened:
        """Gradients of the lower bound in the frame, the covariance's shrunk."""
        num_curvatures = None if self.gradient in GRADIENTS else self.draws(state.frame)
        found = estimate(
            key,
            target,
            state.frame,
            batch,
            gradient=self.gradient,
            num_draws=self.gradient_draws(state.frame),
            num_curvatures=num_curvatures,
            **self.score_options,
        )
        if self.gradient == "score":
            return found
        return found._replace(cov=found.cov.scaled(self.shrinkage(state.frame)))

    def approximation(
        self, target: Target, state: GaussianState, draws: PyTree | None = None
    ) -> Gaussian:
        """The Gaussian of the frame."""
        return to_family(state.frame, self.covariance)
