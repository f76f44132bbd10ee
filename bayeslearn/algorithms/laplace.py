r"""The Laplace approximation (MacKay 1992): a Gaussian at the mode.

    mode  = argmax log p(D, w)                             the warm start, `MAP`
    prec  = -d^2 log p(D, w) / dw^2 at the mode            or its Gauss-Newton part (`curvature`)
    q(w)  = N(mode, prec^-1)
    log p(D) ~ log p(D, mode) + k/2 log(2 pi) - 1/2 log|prec|

It is done in one step. The optimiser leaves the mode by a little, so up to `newton_steps` steps
w <- w + prec^-1 grad log p(D, w) finish its work; each is halved until it climbs, and left out if
it does not. On a model that is linear in its weights, with known noise, q is the posterior. A
block or diagonal covariance has the blocks or the diagonal of prec, not of its inverse.

A Hessian can be indefinite where the mode is not reached, or a density is not concave: eigenvalues
are then taken by their absolute value, those near zero as one, and `flipped` counts them. The
Gauss-Newton matrix plus the prior's precision is always positive.

**Prediction.** The Gauss-Newton matrix is the exact curvature of the network linearised at the
mode, f(x, mode) + J(x) (w - mode), so that is the network for which q is a posterior, and
`predictive="linearised"` predicts with it (Immer et al. 2021). "sampled" puts draws of q through
the network itself, where a q as wide as the Gauss-Newton one of a network is mostly wrong. The
`elbo` that `fit` reports is always that of the network itself.

**Learned prior scales** (`Normal(learn=True)`) maximise the evidence above: mode and curvature
alternate with MacKay's step for each leaf's precision alpha, alpha |w|^2 = gamma, the number of its
weights that the data determine, for EVIDENCE_ROUNDS rounds.

The mode is the joint one of weights and noise. A network with more weights than rows interpolates
there with hardly any noise (see `map`); give a known noise scale, or use a variational method.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.algorithms.base import Capabilities, InfoFields, hyper
from bayeslearn.algorithms.gaussian import COVARIANCES, checked_groups, to_family
from bayeslearn.algorithms.map import MAP
from bayeslearn.algorithms.starting import ModeStart
from bayeslearn.data.rows import Batch
from bayeslearn.errors import refuse
from bayeslearn.geometry.frame import BlockFrame, DiagonalFrame
from bayeslearn.gradients import curvature as matrices
from bayeslearn.models.priors.checks import check_gaussian
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

ROWS = 1024  # looked at at once
FLAT = 1e-6  # curvature below it says nothing
EVIDENCE_ROUNDS = 30
SHARES = (1.0, 0.5, 0.25, 0.125, 0.0)  # of a Newton step, the best of which is taken


class LaplaceInfo(NamedTuple):
    log_joint: Array  # log p(D, mode)
    log_evidence: Array  # Laplace's estimate of log p(D)
    distance: Array  # of the mean from the mode, in standard deviations (root mean square)
    flipped: Array  # eigenvalues of the curvature that were not positive


class LaplaceState(NamedTuple):
    frame: Any
    info: LaplaceInfo


def made_positive(matrix: Array) -> tuple[Array, Array]:
    """Eigenvalues by their absolute value, those near zero as one; and how many that changed."""
    values, vectors = jnp.linalg.eigh(matrix)
    positive, flipped = positive_values(values)
    return jnp.where(flipped > 0, (vectors * positive) @ vectors.T, matrix), flipped


def positive_values(values: Array) -> tuple[Array, Array]:
    positive = jnp.where(jnp.abs(values) > FLAT, jnp.abs(values), 1.0)
    return positive.astype(values.dtype), jnp.sum(values <= FLAT, dtype=jnp.float64)


def over_rows(target: Target, function: Any) -> PyTree:
    """`function(batch)`, an estimate for all data, averaged over chunks of all rows."""
    data = target.data
    if data is None or len(data.y) <= ROWS:
        return function(data)
    num = -(-len(data.y) // ROWS)
    padding = num * ROWS - len(data.y)

    def in_chunks(leaf: Array) -> Array:
        filled = jnp.pad(leaf, [(0, padding), *[(0, 0)] * (leaf.ndim - 1)], mode="edge")
        return filled.reshape(num, ROWS, *leaf.shape[1:])

    weight = jnp.ones(len(data.y)) if data.weight is None else data.weight
    weight = jnp.pad(weight.astype(jnp.float64), (0, padding)).reshape(num, ROWS)
    x, y = jax.tree.map(in_chunks, (data.x, data.y))
    chunks = Batch(x, y, weight)
    shares = jnp.sum(weight > 0, axis=1) / jnp.sum(weight > 0)

    def add(total: PyTree, part: tuple[Array, Batch]) -> tuple[PyTree, None]:
        share, batch = part
        return jax.tree.map(
            lambda a, b: a + (share * b).astype(a.dtype), total, function(batch)
        ), None

    shapes = jax.eval_shape(function, jax.tree.map(lambda leaf: leaf[0], chunks))
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return jax.lax.scan(add, zeros, (shares, chunks))[0]


class LinearisedNetwork(eqx.Module):
    """f(x, mode) + J(x) (w - mode): the network whose Gauss-Newton matrix is its Hessian."""

    network: Any
    mode: PyTree

    def apply(self, params: PyTree, x: PyTree, key: Array | None = None) -> Array:
        mode = jax.tree.map(lambda m, w: jnp.asarray(m, w.dtype), self.mode, params)
        away = jax.tree.map(jnp.subtract, params, mode)
        value, change = jax.jvp(lambda p: self.network.apply(p, x, key), (mode,), (away,))
        return value + change


class Laplace(ModeStart):
    """A Gaussian at the mode, as wide as the curvature there says."""

    name: ClassVar[str] = "laplace"
    title: ClassVar[str] = "Laplace approximation at the mode"
    capabilities: ClassVar[Capabilities] = Capabilities(takes_minibatches=False)
    info_fields: ClassVar[InfoFields] = InfoFields(progress=("log_evidence", "flipped"))
    auto_steps: ClassVar[int] = 1

    covariance: str = hyper("full", "structure of q", choices=COVARIANCES)
    block: Any = hyper(
        "layer",
        'what a block is: "leaf", "layer", or a mapping from names to lists of name patterns',
        free=True,
    )
    curvature: str = hyper(
        "gauss-newton",
        "gauss-newton or hessian; for a diagonal also hutchinson, fisher or squares. A bare"
        " density has a Hessian only",
        choices=matrices.DIAGONAL_KINDS,
    )
    predictive: str = hyper(
        "linearised",
        "network that predicts: its linearisation at the mode, or itself (sampled)",
        choices=("linearised", "sampled"),
    )
    newton_steps: int = hyper(3, "Newton steps that finish the search for the mode", least=0)

    def __check_init__(self) -> None:
        if self.covariance != "diagonal" and self.curvature not in matrices.BLOCK_KINDS:
            kinds = ", ".join(map(repr, matrices.BLOCK_KINDS))
            refuse("curvature", self.curvature, f"be one of {kinds} unless covariance is diagonal")

    def check(self, target: Target, params: PyTree) -> None:
        check_gaussian(target.prior, self.name)

    def warm_start(self) -> MAP:
        """The mode itself, noise scale included."""
        return MAP()

    def frame(self, key: Array, target: Target, params: PyTree) -> tuple[Any, Array]:
        """The Gaussian that the curvature at `params` makes, and eigenvalues made positive."""
        kind = "hessian" if target.is_density else self.curvature
        if self.covariance == "diagonal":
            prec = over_rows(target, lambda b: matrices.diagonal(key, target, params, b, kind))
            leaves, structure = jax.tree.flatten(prec)
            values, counts = zip(*map(positive_values, leaves), strict=True)
            return DiagonalFrame.start(params, jax.tree.unflatten(structure, values)), sum(counts)
        groups = checked_groups(params, self.covariance, self.block)
        precs = over_rows(target, lambda b: matrices.blocks(key, target, params, b, groups, kind))
        counts = (jnp.zeros((), jnp.float64),)
        if kind == "hessian":
            precs, counts = zip(*map(made_positive, precs), strict=True)
        return BlockFrame.start(params, tuple(precs), groups), sum(counts)

    def init(self, key: Array, target: Target, params: PyTree) -> LaplaceState:
        params = params if self.covariance == "diagonal" else tree.double(params)
        if not getattr(target.prior, "refreshes", False):
            return self._at_mode(key, target, params)

        def alternate(_: Array, carry: tuple[Any, PyTree]) -> tuple[Any, PyTree]:
            prior, params = carry
            now = eqx.tree_at(lambda t: t.prior, target, prior)
            frame = self._at_mode(key, now, params).frame
            return prior.by_evidence(to_family(frame, self.covariance)), frame.mean

        start = (target.prior, params)
        prior, params = jax.lax.fori_loop(0, EVIDENCE_ROUNDS, alternate, start)
        return self._at_mode(key, eqx.tree_at(lambda t: t.prior, target, prior), params)

    def _at_mode(self, key: Array, target: Target, params: PyTree) -> LaplaceState:
        """The Gaussian at the mode near `params`, the prior being given."""
        gradient = jax.grad(target.log_joint)
        shares = jnp.asarray(SHARES, jnp.float64)

        def improve(i: Array, carry: tuple) -> tuple:
            params, *_ = carry
            frame, flipped = self.frame(key, target, params)
            pulled = frame.pull(gradient(params))  # C^T g, so that the Newton step is C C^T g

            def moved(share: Array) -> PyTree:
                return frame.draw(jax.tree.map(lambda p: share.astype(p.dtype) * p, pulled))

            climbed = jax.lax.map(lambda share: target.log_joint(moved(share)), shares)
            best = jnp.argmax(jnp.where(jnp.isfinite(climbed), climbed, -jnp.inf))
            params = moved(jnp.where(i < self.newton_steps, shares[best], 0.0))
            square = tree.total(jax.tree.map(jnp.square, pulled))
            return params, frame, flipped, square

        shapes = jax.eval_shape(improve, jnp.zeros((), jnp.int32), (params,))
        empty = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        carry = (params, *empty[1:])
        params, frame, flipped, square = jax.lax.fori_loop(0, self.newton_steps + 1, improve, carry)
        k, log_joint = tree.size(params), target.log_joint(params)
        log_evidence = log_joint + 0.5 * k * jnp.log(2 * jnp.pi) + frame.log_det
        return LaplaceState(
            frame, LaplaceInfo(log_joint, log_evidence, jnp.sqrt(square / k), flipped)
        )

    def step(
        self, key: Array, target: Target, state: LaplaceState, batch: Batch | None
    ) -> tuple[LaplaceState, LaplaceInfo]:
        """All was done at the start."""
        return state, state.info

    def approximation(
        self, target: Target, state: LaplaceState, draws: PyTree | None = None
    ) -> Any:
        return to_family(state.frame, self.covariance)

    def predictive_target(self, target: Target, q: Any) -> Target:
        if self.predictive == "sampled":
            return target
        mode = q.mean["network"]
        if target.frozen is not None:
            mode = eqx.combine(mode, target.frozen)
        network = LinearisedNetwork(target.network, mode)
        return eqx.tree_at(
            lambda t: t.network, target, network, is_leaf=lambda leaf: leaf is target.network
        )
