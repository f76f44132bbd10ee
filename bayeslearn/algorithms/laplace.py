r"""The Laplace approximation (MacKay 1992): a Gaussian at the mode.

    mode  = argmax log p(D, w)                             the warm start, `MAP`
    prec  = -d^2 log p(D, w) / dw^2 at the mode            or its Gauss-Newton part (`curvature`)
    q(w)  = N(mode, prec^-1)
    log p(D) ~ log p(D, mode) + k/2 log(2 pi) - 1/2 log|prec|

It takes one step. The optimiser ends near the mode, so up to `newton_steps` steps
w <- w + prec^-1 grad log p(D, w) complete the search; each is halved until the log-joint increases,
and skipped if it does not. For a model that is linear in its weights, with known noise, q is the
posterior. A block or diagonal covariance has the blocks or the diagonal of prec, not of its
inverse.

A Hessian can be indefinite if the mode is not reached, or a density is not concave: eigenvalues, in
units of each weight's own curvature, are then replaced by their absolute value, those near zero by
one, and `flipped` counts them. The
Gauss-Newton matrix plus the prior's precision is always positive definite.

**Prediction.** The Gauss-Newton matrix is the exact curvature of the network linearised at the
mode, f(x, mode) + J(x) (w - mode), so that q is a posterior of that network, and
`predictive="linearised"` predicts with it (Immer et al. 2021). "sampled" evaluates the network
itself at draws of q, most of which are too far from the mode for the approximation to hold. The
`elbo` that `fit` reports is always that of the network itself.

**Kronecker factors** (`covariance="kronecker"`, Ritter et al. 2018) stand for the Gauss-Newton
block of each layer (`gradients.kronecker`), in memory that of the factors and a chunk of rows. The
linearised outputs are then Gaussian in closed form, N(f(x, mode), J Sigma J^T) for each row, and
draws of them, not of the weights, predict: of several rows they have the right marginals only. For
more than MAX_OUTPUTS outputs, whose covariance would cost more, weights are drawn.

**Learned prior scales** (`Normal(learn=True)`) maximise the evidence above: mode and curvature
alternate with MacKay's step for each leaf's precision alpha, alpha |w|^2 = gamma, the number of its
weights that the data determine, for EVIDENCE_ROUNDS rounds.

**Large networks.** Each Newton step is several passes over all rows, and exact factors take a
backward pass for each output. Above 10,000 weights there are no Newton steps, and Kronecker factors
are those of one label drawn for each row: one pass over the rows with two backward passes.

The mode is the joint one of weights and noise. There, a network with more weights than rows
interpolates with almost no noise (see `map`); set a known noise scale, or use a variational method.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.algorithms.base import Capabilities, InfoFields, hyper, is_unset
from bayeslearn.algorithms.gaussian import COVARIANCES, Blocks, block_groups, to_family
from bayeslearn.algorithms.linearised import MAX_OUTPUTS, LinearisedNetwork, gaussian_outputs
from bayeslearn.algorithms.map import MAP
from bayeslearn.algorithms.starting import ModeStart
from bayeslearn.data.batches import in_chunks
from bayeslearn.data.rows import Batch
from bayeslearn.errors import refuse
from bayeslearn.families.base import Family, Gaussian
from bayeslearn.families.kronecker import KroneckerGaussian
from bayeslearn.geometry.frame import BlockFrame, DiagonalFrame, Frame
from bayeslearn.gradients import curvature as matrices
from bayeslearn.gradients import kronecker
from bayeslearn.models.priors.base import BoundPrior
from bayeslearn.models.priors.checks import check_gaussian
from bayeslearn.models.target import Target
from bayeslearn.numerics import FLAT, SINGULAR, make_positive, make_positive_definite
from bayeslearn.tree import Array, PyTree

CHUNK_ROWS = 1024  # rows whose curvature is computed at a time
EVIDENCE_ROUNDS = 30
KRONECKER_KINDS = ("gauss-newton", "fisher")
STEP_SIZES = (1.0, 0.5, 0.25, 0.125, 0.0)  # of a Newton step; the best is taken


class LaplaceInfo(NamedTuple):
    """The evidence, and how well the mode was found."""

    log_joint: Array  # log p(D, mode)
    log_evidence: Array  # Laplace's estimate of log p(D)
    distance: Array  # of the mean from the mode, in standard deviations (root mean square)
    flipped: Array  # eigenvalues of the curvature that were not positive


class LaplaceState(NamedTuple):
    """The frame of q, and the Info of the only step."""

    frame: Frame | KroneckerGaussian
    info: LaplaceInfo


def positive_blocks(matrix: Array) -> tuple[Array, Array]:
    """The matrix with positive eigenvalues, and how many were not; unchanged if there are none."""
    positive, values = make_positive_definite(matrix)
    flipped = num_flipped(values, SINGULAR)
    return jnp.where(flipped > 0, positive, matrix), flipped


def positive_diagonal(values: Array) -> tuple[Array, Array]:
    """Positive curvatures, and how many were not."""
    return make_positive(values).astype(values.dtype), num_flipped(values, FLAT)


def num_flipped(values: Array, flat: float) -> Array:
    """How many curvatures are not positive."""
    return jnp.sum(values <= flat, dtype=jnp.float64)


def over_rows(target: Target, function: Callable[[Batch | None], PyTree]) -> PyTree:
    """`function(batch)`, an estimate for all data, averaged over chunks of all rows."""
    data, size = target.data, min(CHUNK_ROWS, target.microbatch or CHUNK_ROWS)
    if data is None or len(data.y) <= size:
        return function(data)
    chunks = in_chunks(data, size)
    assert chunks.weight is not None
    counts = jnp.sum(chunks.weight > 0, axis=1)
    fractions = counts / jnp.sum(counts)

    def add(total: PyTree, part: tuple[Array, Batch]) -> tuple[PyTree, None]:
        fraction, batch = part
        found = function(batch)
        return jax.tree.map(lambda a, b: a + (fraction * b).astype(a.dtype), total, found), None

    shapes = jax.eval_shape(function, jax.tree.map(lambda leaf: leaf[0], chunks))
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return jax.lax.scan(add, zeros, (fractions, chunks))[0]


class Laplace(ModeStart):
    """A Gaussian at the mode, with the curvature there as its precision.

    >>> posterior = bl.fit(model, bl.Laplace(), (x, y), seed=0)
    >>> exact = bl.fit(model, bl.Conjugate(), (x, y), seed=0)
    >>> np.allclose(posterior.family.cov_matrix(), exact.family.cov_matrix(), rtol=1e-4)
    True
    """

    name: ClassVar[str] = "laplace"
    title: ClassVar[str] = "Laplace approximation at the mode"
    capabilities: ClassVar[Capabilities] = Capabilities(
        takes_minibatches=False, init_is_result=True
    )
    info_fields: ClassVar[InfoFields] = InfoFields(progress=("log_evidence", "flipped"))
    auto_steps: ClassVar[int] = 1
    sized_defaults: ClassVar[Mapping[str, tuple[Any, Any]]] = {
        "curvature": ("gauss-newton", "fisher"),
        "newton_steps": (3, 0),
    }

    covariance: str = hyper("full", "structure of q", choices=(*COVARIANCES, "kronecker"))
    block: Blocks = hyper(
        "layer",
        'what a block is: "leaf", "layer", or a mapping from names to lists of name patterns',
        free=True,
    )
    curvature: str = hyper(
        "auto",
        "gauss-newton or hessian; for a diagonal also hutchinson, fisher or squares; for kronecker"
        " gauss-newton or fisher. A bare density has a Hessian only. auto: gauss-newton, and fisher"
        " for kronecker above 10,000 weights",
        choices=("auto", *matrices.DIAGONAL_KINDS),
    )
    predictive: str = hyper(
        "linearised",
        "network that predicts: its linearisation at the mode, or itself (sampled)",
        choices=("linearised", "sampled"),
    )
    newton_steps: int | None = hyper(
        None,
        "Newton steps that complete the search for the mode; None: 3, and 0 above 10,000 weights",
        least=0,
        optional=True,
    )

    def __check_init__(self) -> None:
        if is_unset(self.curvature):
            return
        if self.covariance == "kronecker":
            if self.curvature not in KRONECKER_KINDS:
                kinds = " or ".join(map(repr, KRONECKER_KINDS))
                refuse("curvature", self.curvature, f"be {kinds} with Kronecker factors")
        elif self.covariance != "diagonal" and self.curvature not in matrices.BLOCK_KINDS:
            kinds = ", ".join(map(repr, matrices.BLOCK_KINDS))
            refuse("curvature", self.curvature, f"be one of {kinds} unless covariance is diagonal")

    def for_network(self, num_weights: int) -> Self:
        """With its defaults by size; a label drawn for each row is for Kronecker factors alone."""
        if self.covariance == "kronecker" or not is_unset(self.curvature):
            return super().for_network(num_weights)
        exact = self.sized_defaults["curvature"][0]
        return super(Laplace, dataclasses.replace(self, curvature=exact)).for_network(num_weights)

    def check(self, target: Target, params: PyTree) -> None:
        """Refuse a prior that is not Gaussian, or that the structure does not have."""
        check_gaussian(target.prior, self.name)
        if self.covariance == "kronecker":
            kronecker.check_factors(target, self.name)

    def warm_start(self) -> MAP:
        """The joint mode of weights and noise scale."""
        return MAP()

    def curve(
        self, key: Array, target: Target, params: PyTree
    ) -> tuple[Frame | KroneckerGaussian, Array, PyTree]:
        """The Gaussian with the curvature at `params`, eigenvalues flipped, the slope there."""
        if self.covariance == "kronecker":
            return self._kronecker(key, target, params)
        slope = over_rows(target, lambda batch: jax.grad(target.log_joint)(params, batch))
        kind = "hessian" if target.is_density else self.setting("curvature")
        if self.covariance == "diagonal":
            prec = over_rows(target, lambda b: matrices.diagonal(key, target, params, b, kind))
            leaves, structure = jax.tree.flatten(prec)
            values, counts = zip(*map(positive_diagonal, leaves), strict=True)
            prec = jax.tree.unflatten(structure, values)
            return DiagonalFrame.from_prec(params, prec), sum(counts), slope
        groups = block_groups(params, self.covariance, self.block)
        precs = over_rows(target, lambda b: matrices.blocks(key, target, params, b, groups, kind))
        counts = (jnp.zeros((), jnp.float64),)
        if kind == "hessian":
            precs, counts = zip(*map(positive_blocks, precs), strict=True)
        return BlockFrame.from_prec(params, tuple(precs), groups), sum(counts), slope

    def _kronecker(
        self, key: Array, target: Target, params: PyTree
    ) -> tuple[KroneckerGaussian, Array, PyTree]:
        """Factors and slope in one pass over the rows."""

        def of_rows(batch: Batch | None) -> tuple[Array, PyTree, kronecker.Factors]:
            assert batch is not None
            kind = self.setting("curvature")
            return kronecker.value_and_factors(key, target, params, batch, kind)

        _, gradient, (pairs, squares) = over_rows(target, of_rows)
        layers = kronecker.layers_of(target, params)
        assert target.prior is not None
        _, prec = target.prior.broadcast(tree.double(params))
        q = KroneckerGaussian.from_factors(params, layers, pairs, squares, prec, target.num_data)
        if target.likelihood.is_marginal:  # rows have no log-likelihood of their own
            slope = jax.grad(target.log_joint)(params)
        else:
            of_prior = jax.grad(target.log_prior)(params)
            slope = jax.tree.map(lambda g, p: target.num_data * g + p, gradient, of_prior)
        return q, jnp.zeros((), jnp.float64), slope

    def init(self, key: Array, target: Target, params: PyTree) -> LaplaceState:
        """The whole approximation, after learned prior scales were fitted."""
        params = params if self.covariance == "diagonal" else tree.double(params)
        if target.prior is None or not target.prior.refreshes:
            return self._at_mode(key, target, params)

        def alternate(_: Array, carry: tuple[BoundPrior, PyTree]) -> tuple[BoundPrior, PyTree]:
            prior, params = carry
            now = eqx.tree_at(lambda t: t.prior, target, prior)
            frame = self._at_mode(key, now, params).frame
            return prior.by_evidence(self._family(frame)), frame.mean

        start = (target.prior, params)
        prior, params = jax.lax.fori_loop(0, EVIDENCE_ROUNDS, alternate, start)
        return self._at_mode(key, eqx.tree_at(lambda t: t.prior, target, prior), params)

    def _at_mode(self, key: Array, target: Target, params: PyTree) -> LaplaceState:
        """The Gaussian at the mode near `params`, for a fixed prior."""

        def log_joint(params: PyTree) -> Array:
            return over_rows(target, lambda batch: target.log_joint(params, batch))

        sizes = jnp.asarray(STEP_SIZES, jnp.float64)

        def improve(_: Array, params: PyTree) -> PyTree:
            frame, _, slope = self.curve(key, target, params)
            pulled = frame.pull(slope)  # C^T g, so that the Newton step is C C^T g
            draw = frame.transform if isinstance(frame, KroneckerGaussian) else frame.draw

            def move(size: Array) -> PyTree:
                return draw(jax.tree.map(lambda p: size.astype(p.dtype) * p, pulled))

            log_joints = jax.lax.map(lambda size: log_joint(move(size)), sizes)
            best = jnp.argmax(jnp.where(jnp.isfinite(log_joints), log_joints, -jnp.inf))
            return move(sizes[best])

        params = jax.lax.fori_loop(0, int(self.setting("newton_steps")), improve, params)
        frame, flipped, slope = self.curve(key, target, params)
        square = tree.total(jax.tree.map(jnp.square, frame.pull(slope)))
        k, value = tree.size(params), log_joint(params)
        log_evidence = value + 0.5 * k * jnp.log(2 * jnp.pi) + frame.log_det
        return LaplaceState(frame, LaplaceInfo(value, log_evidence, jnp.sqrt(square / k), flipped))

    def step(
        self, key: Array, target: Target, state: LaplaceState, batch: Batch | None
    ) -> tuple[LaplaceState, LaplaceInfo]:
        """Nothing: `init` has done everything."""
        return state, state.info

    def gradients_per_step(self, target: Target, state: LaplaceState) -> int:
        """Those of `init`: one per Newton step and one at the mode, in each round."""
        is_learned = target.prior is not None and target.prior.refreshes
        return (int(self.setting("newton_steps")) + 1) * (EVIDENCE_ROUNDS + 1 if is_learned else 1)

    def approximation(
        self, target: Target, state: LaplaceState, draws: PyTree | None = None
    ) -> Gaussian:
        """The Gaussian of the frame."""
        return self._family(state.frame)

    def _family(self, frame: Frame | KroneckerGaussian) -> Gaussian:
        if isinstance(frame, KroneckerGaussian):
            return frame
        return to_family(frame, self.covariance)

    @property
    def predicts_by_itself(self) -> bool:
        """Not where its linearisation does."""
        return self.predictive == "sampled"

    def predictive_target(self, target: Target, q: Family) -> Target:
        """The target with the network linearised at the mode, or as it is."""
        if self.predictive == "sampled":
            return target
        mode = q.mean["network"]
        if target.frozen is not None:
            mode = eqx.combine(mode, target.frozen)
        network = LinearisedNetwork(target.network, mode)
        return eqx.tree_at(
            lambda t: t.network, target, network, is_leaf=lambda leaf: leaf is target.network
        )

    def predictive_draws(
        self, target: Target, q: Family, key: Array, num: int, x: PyTree
    ) -> tuple[Target, PyTree, PyTree]:
        """Of the linearised outputs, where their covariance has a closed form and they are few."""
        if self.predictive == "linearised" and isinstance(q, KroneckerGaussian):
            shape = jax.eval_shape(target.outputs, q.mean, x).shape
            if shape[1] <= MAX_OUTPUTS:
                return gaussian_outputs(target, q, key, num, x)
        return super().predictive_draws(target, q, key, num, x)

    def run_notes(self, target: Target, params: PyTree) -> list[str]:
        """Leaves that have no Kronecker factors, if there are any."""
        return kronecker.notes(target, params) if self.covariance == "kronecker" else []
