r"""SGHMC: Hamiltonian Monte Carlo with minibatches and friction (Chen et al. 2014), in cycles.

With U = -log p(D, w), its gradient U' estimated from B of N rows, P a diagonal preconditioner, a
the friction, T the temperature and z standard normal noise, a step is

    v <- (1 - a) v - eta P U' + sqrt(2 (a T - b) eta P) z,    w <- w + v
    b = eta P V / 2,    V = N^2 / B * (N - B) / (N - 1) * (mean g_i^2 - (mean g_i)^2) B / (B - 1)

V is the variance of U' over batches, weight by weight: its own noise is a part of what the friction
needs, and the rest is drawn. g_i^2 are exact squares of the gradients of single rows, centred at
the batch's mean, and averaged over steps with weight 1 - `beta`.

    P = 1 / (sqrt(s) + 1e-8),   s <- beta s + (1 - beta) (U' / N)^2          as RMSProp
    eta = a * (step size) / N                   so that step sizes are those of RMSProp and Adam

**Cycles** (Zhang et al. 2020). The run is divided into `num_cycles`. In each the step size falls
by a cosine from `learning_rate` to `sampling_rate`; in the last `sampling` of the cycle it stays
there, P is frozen, and weights are kept: `num_samples` sets of them, evenly spaced over all cycles.
The next cycle leaves for another mode. Noise is drawn from the first step on, also where Zhang et
al. draw none: without it a learned noise scale falls to that of the joint mode, and recovers
slowly.

Batches of rows in memory are drawn independently, so that their noise is as V says: batches without
replacement cancel over an epoch, and subtracting V would make draws too narrow.

The draws have a bias that grows with the step size, and there is no accept step; the documentation
has a table. Where b > a T the noise of the gradients alone is too much: `noise_excess` in the trace
is the fraction of such weights, whose draws are too wide.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.algorithms.base import Capabilities, InfoFields, hyper
from bayeslearn.algorithms.optimizers import Schedule, cosine_to_constant
from bayeslearn.algorithms.sized import RunLengthStep
from bayeslearn.algorithms.vadam import tree_unzip
from bayeslearn.algorithms.vogn import gradient_moments
from bayeslearn.data.rows import Batch
from bayeslearn.errors import Shown, refuse
from bayeslearn.families import Draws
from bayeslearn.gradients import noise
from bayeslearn.models.priors.checks import require_fixed_scale
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

SMALLEST = 1e-8  # added to the root of s


class SGHMCState(NamedTuple):
    """The weights and their momentum, averages of squares, and the draws kept so far."""

    position: PyTree
    momentum: PyTree
    square: PyTree  # s, of the gradient of U / N
    variance: PyTree  # of g_i over the rows
    draws: PyTree
    num_kept: Array
    count: Array  # type: ignore[assignment]


class SGHMCInfo(NamedTuple):
    """Diagnostics of a step."""

    nll: Array  # -log p(D | w), estimated from the batch
    noise_excess: Array  # fraction of the weights whose gradient noise exceeds the friction


class Place(NamedTuple):
    """Where a step is in its cycle."""

    step: Array
    is_sampling: Array
    slot: Array  # of the draws, for this step's weights


class Numbers(NamedTuple):
    """What is the same for all weights in a step."""

    rate: Array | float  # the step size
    friction: Array | float
    temperature: Array | float
    num_data: Array | float
    batch_factor: Array | float  # of the variance of g_i, that of the mean of a batch


def sghmc_update(
    position: Array,
    momentum: Array,
    gradient: Array,
    square: Array,
    variance: Array,
    noise: Array,
    *,
    numbers: Numbers,
) -> tuple[Array, Array, Array]:
    """One leaf's new weights and momentum, and a T - b; `gradient` is that of U / N."""
    rate, friction, temperature, num_data, batch_factor = numbers
    scale = rate * friction / num_data / (jnp.sqrt(square) + SMALLEST)  # eta P
    own = 0.5 * scale * (num_data**2 * batch_factor) * variance  # b
    missing = friction * temperature - own
    drawn = jnp.sqrt(2.0 * jnp.maximum(missing, 0.0) * scale) * noise
    momentum = (1.0 - friction) * momentum - scale * num_data * gradient + drawn
    return position + momentum, momentum, missing


class SGHMC(RunLengthStep):
    """Samples of a network from minibatches, from several modes of one run."""

    name: ClassVar[str] = "sghmc"
    title: ClassVar[str] = "stochastic gradient Hamiltonian Monte Carlo, in cycles"
    capabilities: ClassVar[Capabilities] = Capabilities(
        needs_per_example=True,
        has_lower_bound=False,
        independent_batches=True,
        returns_last_state=True,
    )
    info_fields: ClassVar[InfoFields] = InfoFields(progress=("nll", "noise_excess"))
    auto_steps: ClassVar[int] = 20_000
    sized_defaults: ClassVar[Mapping[str, tuple[Any, Any]]] = {
        "learning_rate": (0.01, 0.03),
        "num_samples": (200, 40),
    }

    learning_rate: float | None = hyper(
        None,
        "largest step size of a cycle; None: 0.01, and 0.03 above 10,000 weights",
        above=0,
        optional=True,
        real=True,
    )
    sampling_rate: float = hyper(0.003, "step size while weights are kept", above=0)
    num_cycles: int = hyper(4, "cycles of the step size in a run", least=1)
    sampling: float = hyper(
        0.5, "last fraction of a cycle, in which weights are kept", above=0, most=1
    )
    num_samples: int | None = hyper(
        None,
        "sets of weights that are kept, the same number in each cycle; None: 200, and 40 above"
        " 10,000 weights",
        least=1,
        optional=True,
    )
    friction: float = hyper(0.1, "a: one minus the momentum that a step leaves", above=0, most=1)
    beta: float = hyper(0.99, "decay of the averages of squares", least=0, below=1)
    temperature: float = hyper(1.0, "of the posterior: p(D, w)^(1/T); 1: Bayes' rule", above=0)
    noise: str = hyper("hash", "generator of the noise", choices=noise.KINDS)
    length: float = hyper(0.0, "steps of all cycles; 0: those of the run", least=0, keyword=True)

    @property
    def has_decaying_rate(self) -> bool:
        """True: cycles depend on the length of the run."""
        return True

    def with_run_length(self, num_steps: int) -> Self:
        """This algorithm for a run long enough to keep all draws."""
        each, in_cycle = self._samples_per_cycle(), num_steps // self.num_cycles
        if self.length == 0 and in_cycle * self.sampling < each:
            least = self.num_cycles * -(-each // self.sampling)
            remedy = "Or lower `num_samples`."
            refuse("num_steps", num_steps, f"be at least {least:.0f} for this sghmc", remedy)
        return super().with_run_length(num_steps)

    def _samples_per_cycle(self) -> int:
        return -(-int(self.setting("num_samples")) // self.num_cycles)

    def schedule(self) -> Schedule:
        """The step size at each count of a cycle."""
        rate = self.setting("learning_rate")
        cycle = jnp.floor(self.length / self.num_cycles)
        return cosine_to_constant(rate, self.sampling_rate, cycle * (1.0 - self.sampling))

    def check(self, target: Target, params: PyTree) -> None:
        """Refuse a prior with a learned scale, and noise with a posterior of its own."""
        remedy = "Learn it with a variational method first, and give what it found."
        require_fixed_scale(target.prior, "sghmc", remedy)
        if not target.is_density and target.likelihood.refreshes:
            refuse("likelihood", Shown("one with a learned covariance"), "have it given", remedy)

    def init(self, key: Array, target: Target, params: PyTree) -> SGHMCState:
        """At `params`, at rest."""
        zeros = jax.tree.map(jnp.zeros_like, params)
        number = self._samples_per_cycle() * self.num_cycles
        draws = jax.tree.map(lambda w: jnp.zeros((number, *w.shape), w.dtype), params)
        zero = jnp.zeros((), jnp.int32)
        return SGHMCState(params, zeros, zeros, zeros, draws, zero, zero)

    def step(
        self, key: Array, target: Target, state: SGHMCState, batch: Batch | None
    ) -> tuple[SGHMCState, SGHMCInfo]:
        """One step of the dynamics; its weights are kept until the slot's next ones."""
        rows = target.data if batch is None else batch
        assert rows is not None
        num_data, num_rows = target.num_data, target.num_data / target.scale(rows)
        nll, gradient, squares = gradient_moments(target, state.position, rows)
        variance = squares
        if len(rows.y) > 1:  # the batch's mean is known: B / (B - 1) makes it unbiased
            factor = num_rows / jnp.maximum(num_rows - 1.0, 1.0)
            variance = jax.tree.map(
                lambda g, h: jnp.maximum(h - g**2, 0.0) * factor.astype(h.dtype), gradient, squares
            )
        prior = tree.cast_like(jax.grad(target.log_prior)(state.position), gradient)
        gradient = jax.tree.map(lambda g, p: g - p / num_data.astype(g.dtype), gradient, prior)
        place = self._place(state)
        # Of independent batches; all rows at once have no noise.
        factor = jnp.where(num_rows < num_data, 1.0 / num_rows, 0.0)
        # Complete averages from the first step on.
        weight = jnp.maximum(1.0 - self.beta, 1.0 / (state.count + 1.0))
        square = jax.tree.map(lambda g, v: g**2 + v / num_rows.astype(v.dtype), gradient, variance)
        square = _averaged(state.square, square, weight)
        square = tree.where(place.is_sampling, state.square, square)
        variance = _averaged(state.variance, variance, weight)
        numbers = Numbers(
            self.schedule()(place.step),
            self.friction,
            self.temperature,
            num_data,
            factor,
        )
        seeds, drawn = noise.draws_like(key, state.position, 1, self.noise)
        eps = drawn(jax.tree.map(lambda seed: seed[0], seeds))

        def leaf(*arrays: Array) -> tuple[Array, Array, Array]:
            return sghmc_update(*arrays, numbers=tree.cast(numbers, arrays[0].dtype))

        position, momentum, missing = tree_unzip(
            leaf, state.position, state.momentum, gradient, square, variance, eps
        )
        excess = tree.total(jax.tree.map(lambda m: m < 0, missing)) / tree.size(position)
        info = SGHMCInfo(nll * num_data, excess)
        state = SGHMCState(
            position, momentum, square, variance, state.draws, state.num_kept, state.count + 1
        )
        return jax.lax.cond(place.is_sampling, _kept, lambda s, slot: s, state, place.slot), info

    def _place(self, state: SGHMCState) -> Place:
        """Where a step is in its cycle."""
        each = len(jax.tree.leaves(state.draws)[0]) // self.num_cycles
        length = jnp.maximum(jnp.floor(self.length / self.num_cycles), 1.0)
        begin = jnp.ceil(length * (1.0 - self.sampling))
        cycle = jnp.minimum(jnp.floor(state.count / length), self.num_cycles - 1.0)
        step = state.count - cycle * length
        part = jnp.floor((step - begin) * each / jnp.maximum(length - begin, 1.0))
        slot = cycle * each + jnp.clip(part, 0, each - 1)
        return Place(step, (self.length > 0) & (step >= begin), slot.astype(jnp.int32))

    def objective(self, key: Array, target: Target, state: SGHMCState) -> dict[str, Array]:
        """The log-likelihood at the present weights: the log-joint of draws is far below it."""
        log_likelihood = target.scaled_log_likelihood(state.position)
        zero = jnp.zeros((), jnp.float64)
        return {"nll": -log_likelihood, "objective": log_likelihood, "error": zero}

    def approximation(
        self, target: Target, state: SGHMCState, draws: PyTree | None = None
    ) -> Draws:
        """The weights kept so far, over and over where some are missing; or the present ones."""
        number = len(jax.tree.leaves(state.draws)[0])
        chosen = jnp.arange(number) % jnp.maximum(state.num_kept, 1)
        is_kept = state.num_kept > 0
        return Draws(
            jax.tree.map(
                lambda d, w: jnp.where(is_kept, d[chosen], w)[None], state.draws, state.position
            )
        )


def _averaged(average: PyTree, new: PyTree, weight: Array) -> PyTree:
    """The average with a new term of so much weight."""
    return jax.tree.map(lambda s, n: s + weight.astype(s.dtype) * (n - s), average, new)


def _kept(state: SGHMCState, slot: Array) -> SGHMCState:
    """With the weights in a slot, where those of later steps replace them."""
    draws = jax.tree.map(lambda d, w: d.at[slot].set(w), state.draws, state.position)
    return state._replace(draws=draws, num_kept=jnp.maximum(state.num_kept, slot + 1))
