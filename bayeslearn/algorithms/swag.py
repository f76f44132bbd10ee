r"""SWAG: a Gaussian from the last iterates of training (Maddox et al. 2019).

The weights are trained as by `MAP`, at a step size that falls by a cosine to a constant one, which
the last part of the run keeps (`averaging`). There they move around the mode, and every so many
steps one iterate theta is kept, n so far:

    delta <- theta - mean,   mean <- mean + delta / n
    D     <- D + (delta (theta - mean) - D) / n           the diagonal of the iterates' covariance
    W     <- the last K deviations theta - mean            columns, of the mean so far

    theta = mean + sqrt(D / 2) z_1 + W z_2 / sqrt(2 (K - 1))

which is a Gaussian with the covariance D / 2 + W W^T / (2 (K - 1)). Its width is that of the
optimiser's path, not of the posterior: it depends on the step size and the batch.

Differs from the paper: D by Welford's recursion, where mean(theta^2) - mean^2 cancels in single
precision; its root is at least `SMALLEST`; any optimiser, Adam by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax

from bayeslearn import tree
from bayeslearn.algorithms.base import Capabilities, InfoFields, hyper
from bayeslearn.algorithms.map import optimizer_step
from bayeslearn.algorithms.optimizers import (
    Optimizer,
    Options,
    Schedule,
    check_optimizer,
    cosine_to_constant,
    make_optimizer,
)
from bayeslearn.algorithms.sized import RunLengthStep
from bayeslearn.algorithms.vadam import tree_unzip
from bayeslearn.data.rows import Batch
from bayeslearn.errors import Shown, refuse
from bayeslearn.families.low_rank import LowRankGaussian
from bayeslearn.models.priors.checks import require_fixed_scale, require_known_scale
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

SMALLEST = 1e-6  # standard deviation of a weight that did not move


class SWAGState(NamedTuple):
    """The weights, the optimiser's state, and the moments of the iterates kept so far."""

    position: PyTree
    optimizer_state: PyTree
    mean: PyTree
    variance: PyTree  # D
    deviations: PyTree  # W, its columns along the leading axis; the oldest is overwritten
    num_kept: Array
    count: Array  # type: ignore[assignment]


class SWAGInfo(NamedTuple):
    """The objective of a step."""

    log_joint: Array  # log p(D, w), estimated from the batch
    nll: Array  # -log p(D | w), estimated from the batch


def swag_update(
    mean: Array, variance: Array, position: Array, number: Array | int
) -> tuple[Array, Array, Array]:
    """One leaf's mean, D and newest deviation, with the `number`-th iterate."""
    delta = position - mean
    mean = mean + delta / number
    variance = variance + (delta * (position - mean) - variance) / number
    return mean, variance, position - mean


class SWAG(RunLengthStep):
    """A Gaussian with a low-rank part from the last iterates of training."""

    name: ClassVar[str] = "swag"
    title: ClassVar[str] = "stochastic weight averaging, Gaussian"
    capabilities: ClassVar[Capabilities] = Capabilities(
        has_lower_bound=False, returns_last_state=True
    )
    info_fields: ClassVar[InfoFields] = InfoFields(progress=("nll",))
    sized_defaults: ClassVar[Mapping[str, tuple[Any, Any]]] = {"learning_rate": (0.01, 1e-3)}

    learning_rate: float | None = hyper(
        None,
        "largest step size of the optimiser; None: 0.01, and 0.001 above 10,000 weights",
        above=0,
        optional=True,
        real=True,
    )
    averaging: float = hyper(
        0.25, "last fraction of the run, at a constant step size", above=0, most=1
    )
    averaging_rate: float = hyper(
        1.0, "that step size, as a fraction of the largest", above=0, most=1
    )
    num_iterates: int = hyper(60, "iterates kept in that part, evenly spaced", least=2)
    rank: int = hyper(20, "K, the last of them that give the low-rank part", least=2)
    learn_noise: bool = hyper(True, "False: the likelihood's own parameters are frozen")
    optimizer: Optimizer = hyper("adam", "name of an Optax optimiser, or the object", free=True)
    optimizer_options: Options = hyper((), "further arguments of the optimiser", free=True)
    length: float = hyper(0.0, "steps of the schedule; 0: those of the run", least=0, keyword=True)

    def __check_init__(self) -> None:
        check_optimizer(self.optimizer, self.optimizer_options)

    @property
    def has_decaying_rate(self) -> bool:
        """True: what is kept depends on the length of the run, too."""
        return True

    def with_run_length(self, num_steps: int) -> Self:
        """This algorithm for a run long enough to keep all iterates."""
        if self.length == 0 and num_steps * self.averaging < self.num_iterates:
            least = -(-self.num_iterates // self.averaging)
            remedy = "Or lower `num_iterates` and `rank`."
            refuse("num_steps", num_steps, f"be at least {least:.0f} for this swag", remedy)
        return super().with_run_length(num_steps)

    def schedule(self) -> Schedule:
        """The step size at each count."""
        rate = self.setting("learning_rate")
        return cosine_to_constant(rate, self.averaging_rate * rate, self._training_steps())

    def _training_steps(self) -> Array | float:
        """Steps before the first iterate can be kept."""
        return self.length * (1.0 - self.averaging)

    def _optimizer(self) -> optax.GradientTransformation:
        return make_optimizer(self.optimizer, self.optimizer_options, self.schedule())

    def check(self, target: Target, params: PyTree) -> None:
        """Refuse a prior whose scales are learned or unknown, and what has no batches."""
        if target.is_density:  # q would have no width
            remedy = "Use bl.Model with data, or bl.Laplace()."
            refuse(
                "algorithm", Shown(self.name), "have batches of rows on a bare log-density", remedy
            )
        require_known_scale(target.prior, self.name)
        require_fixed_scale(
            target.prior,
            "swag: the best scale of a trained point is zero",
            "Use bl.Laplace(), or a variational method.",
        )

    def init(self, key: Array, target: Target, params: PyTree) -> SWAGState:
        """At `params`, with no iterate kept."""
        zeros = jax.tree.map(jnp.zeros_like, params)
        rank = min(self.rank, self.num_iterates)
        columns = jax.tree.map(lambda w: jnp.zeros((rank, *w.shape), w.dtype), params)
        zero = jnp.zeros((), jnp.int32)
        state = self._optimizer().init(params)
        return SWAGState(params, state, params, zeros, columns, zero, zero)

    def step(
        self, key: Array, target: Target, state: SWAGState, batch: Batch | None
    ) -> tuple[SWAGState, SWAGInfo]:
        """One step of the optimiser; where it is due, its result is kept."""
        position, optimizer_state, info = optimizer_step(
            self._optimizer(),
            state.optimizer_state,
            key,
            target,
            state.position,
            batch,
            self.learn_noise,
        )
        state = state._replace(
            position=position, optimizer_state=optimizer_state, count=state.count + 1
        )
        training = self._training_steps()
        done = (state.count - training) / jnp.maximum(self.length - training, 1.0)
        due = jnp.floor(done * self.num_iterates + 1e-6)
        state = jax.lax.cond(due > state.num_kept, _kept, lambda s: s, state)
        return state, SWAGInfo(info.log_joint, info.nll)

    def approximation(
        self, target: Target, state: SWAGState, draws: PyTree | None = None
    ) -> LowRankGaussian:
        """The Gaussian of the iterates; before there are any, a narrow one at the weights."""
        is_kept = state.num_kept > 0
        mean = tree.where(is_kept, state.mean, state.position)
        own = jax.tree.map(
            lambda v: jnp.maximum(jnp.sqrt(0.5 * jnp.maximum(v, 0.0)), SMALLEST), state.variance
        )
        columns = jnp.minimum(state.num_kept, len(jax.tree.leaves(state.deviations)[0]))
        scale = jax.lax.rsqrt(2.0 * jnp.maximum(columns - 1.0, 1.0))
        factor = jax.tree.map(lambda w: w * scale.astype(w.dtype), state.deviations)
        return LowRankGaussian(mean, own, factor)


def _kept(state: SWAGState) -> SWAGState:
    """With the present weights among the iterates."""
    number = state.num_kept + 1
    slot = state.num_kept % len(jax.tree.leaves(state.deviations)[0])

    def leaf(mean: Array, variance: Array, position: Array) -> tuple[Array, Array, Array]:
        return swag_update(mean, variance, position, number.astype(position.dtype))

    mean, variance, newest = tree_unzip(leaf, state.mean, state.variance, state.position)
    deviations = jax.tree.map(lambda w, new: w.at[slot].set(new), state.deviations, newest)
    return state._replace(mean=mean, variance=variance, deviations=deviations, num_kept=number)
