r"""VOGN: variational online Gauss-Newton (Khan et al. 2018, Osawa et al. 2019; survey section 7).

With lambda the prior's precision, mean0 its mean, T the weight of the complexity cost, N the number
of data (times `augmentation`), and S draws theta ~ q over which g and h are averaged:

    std   = 1 / sqrt(N (s + lambda/N)),   theta = mean + std * eps
    g_i   = -grad log p(y_i | x_i, theta),   g = mean_i g_i,   h = mean_i g_i^2
    m    <- beta1 m + (1 - beta1) (g + T lambda/N (mean - mean0))
    s    <- (1 - T beta2) s + beta2 h
    mean <- mean - beta m / (s + lambda/N + damping)

h is the mean of per-EXAMPLE squares and so unbiased at every batch size, unlike Vadam's. m is an
average; the heavy ball m <- beta1 m + g is the same with the learning rate times 1 / (1 - beta1).

**Tempering.** The objective is E_q[log p(D | theta)] - T KL(q | prior), T = `temperature` times a
warm-up from 0.01 to 1 over `kl_warmup` steps. Its best precision is N h / T + lambda, the fixed
point above: s = h / T, and std has lambda/N also for T != 1. `augmentation` counts each row that
many times, for data augmentation that creates new ones. The lower bound that `fit` reports is that
of T = 1 and the true N. `damping` and `clip` stabilise the mean's step and do not change std:
where a network fits well, s is near 0 and m / (s + lambda/N) is long. So does `first_s`, the least
s at the start (see Vadam).

**Squares.** "examples" is the empirical Fisher, which is the curvature only if the model is well
specified: a noise scale fixed at a third of the true one makes the variance about 0.11 of mean
field's, at three times the true one about 8 times it. Learn the noise, or use "fisher" (labels
sampled from the model, unbiased for the Gauss-Newton diagonal) or "gauss-newton" (its exact
diagonal).

**Rows of a draw.** With `draw_rows="share"` the batch is split among the draws, each with its own
noise on its own rows, as Osawa et al. do on several devices: unbiased as well, and S draws cost as
much as one. With "all", every draw is evaluated on every row.

Differs from the survey: std (errata 70), the sign of g (errata 79), s is averaged with s and not
with m (errata 80), m is divided by s + lambda/N (errata 81), the name of h (errata 78).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.algorithms.base import Capabilities, InfoFields, hyper
from bayeslearn.algorithms.sized import CLIP_DOC, Rate, large_clip
from bayeslearn.algorithms.tempering import WARMUP_DOC, kl_weight
from bayeslearn.algorithms.vadam import (
    AveragedSquares,
    prior_prec_per_datum,
    std_from_scale,
    tree_unzip,
)
from bayeslearn.data.rows import Batch
from bayeslearn.errors import refuse
from bayeslearn.families import DiagonalGaussian
from bayeslearn.gradients import curvature, noise
from bayeslearn.gradients.draws import mean_over_draws
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree


class VOGNState(NamedTuple):
    """The mean, and the averages of squares and gradients."""

    mean: PyTree
    s: PyTree
    m: PyTree
    count: Array  # type: ignore[assignment]


class VOGNInfo(NamedTuple):
    """The lower bound of a step, and the weight of the complexity cost."""

    elbo: Array  # at T = 1, from the step's draws and batch
    nll: Array
    kl: Array
    weight: Array  # T, the weight of the complexity cost in this step


def vogn_update(
    mean: Array,
    m: Array,
    s: Array,
    gradient: Array,
    square: Array,
    prior_mean: Array,
    prior_prec: Array,
    *,
    rate: Array | float,
    beta1: Array | float,
    beta2: Array | float,
    weight: Array | float,
    damping: Array | float,
    clip: Array | float | None = None,
) -> tuple[Array, Array, Array]:
    """One leaf's new mean, m and s; `prior_prec` is lambda / N, `weight` is T."""
    m = beta1 * m + (1.0 - beta1) * (gradient + weight * prior_prec * (mean - prior_mean))
    s = (1.0 - weight * beta2) * s + beta2 * square
    if clip is None:
        return mean - rate * m / (s + prior_prec + damping), m, s
    return mean - rate * jnp.clip(m / (s + prior_prec + damping), -clip, clip), m, s


def gradient_moments(target: Target, params: PyTree, batch: Batch) -> tuple[Array, PyTree, PyTree]:
    """Means over the rows of -log p, of its gradient and of the gradient's square."""
    log_likelihood, gradient, squares = curvature.moments(target, params, batch)
    row_weight = target.scale(batch) / target.num_data

    def mean(leaf: Array) -> Array:
        return leaf * row_weight.astype(leaf.dtype)

    return (
        mean(-log_likelihood),
        jax.tree.map(lambda g: mean(-g), gradient),
        jax.tree.map(mean, squares),
    )


def split_batch(target: Target, rows: Batch, num: int) -> tuple[Batch, Array]:
    """A batch in `num` parts, and the fraction of its rows, without padding, in each."""
    if len(rows.y) % num:
        must = f'divide the rows of a batch ({len(rows.y)}) with draw_rows="share"'
        refuse("num_draws", num, must)
    parts = jax.tree.map(lambda a: a.reshape(num, -1, *a.shape[1:]), rows)
    return parts, jax.vmap(lambda part: target.scale(rows) / target.scale(part))(parts)


class VOGN(AveragedSquares):
    """Mean-field variational inference by natural gradients and per-example squares."""

    name: ClassVar[str] = "vogn"
    title: ClassVar[str] = "variational online Gauss-Newton, per-example squared gradients"
    capabilities: ClassVar[Capabilities] = Capabilities(
        needs_per_example=True, needs_gaussian_prior=True, accepts_initial_gaussian=True
    )
    info_fields: ClassVar[InfoFields] = InfoFields(
        progress=("nll", "kl"), evaluation_only=("elbo", "kl")
    )

    sized_defaults: ClassVar[Mapping[str, tuple[Any, Any]]] = {
        "learning_rate": (0.3, 5.0),
        "decay": ("power", "cosine"),
        "renewals": (0.0, 2.0),
        "num_draws": (4, 1),
        "start": ("laplace", "constant"),
        "first_s": (0.1, 1.0),
        "clip": (None, large_clip),
    }

    learning_rate: Rate = hyper(
        None,
        "fraction of the natural step of the mean; None: 0.3, and 5 above 10,000 weights",
        above=0,
        optional=True,
        real=True,
        schedule=True,
    )
    beta1: float = hyper(0.9, "decay of the average of gradients, m", least=0, below=1)
    beta2: float | None = hyper(
        None,
        "weight of the new squares in their average s; None: 0.01, and by `renewals` above 10,000"
        " weights",
        above=0,
        most=1,
        optional=True,
        real=True,
    )
    num_draws: int | None = hyper(
        None,
        "draws of the weights per step; None: 4, and 1 above 10,000 weights",
        least=1,
        optional=True,
    )
    draw_rows: str = hyper(
        "all", "rows of the batch for each draw: all, or its share", choices=("all", "share")
    )
    squares: str = hyper(
        "examples",
        "curvature: per-example squares, sampled labels, or the exact Gauss-Newton diagonal",
        choices=("examples", "fisher", "gauss-newton"),
    )
    temperature: float = hyper(1.0, "weight of the complexity cost; 1: Bayes' rule", above=0)
    kl_warmup: int = hyper(0, WARMUP_DOC, least=0)
    augmentation: float = hyper(1.0, "number of rows that each row counts for", above=0)
    damping: float = hyper(1e-7, "added to s + lambda/N in the mean's step", least=0)
    clip: float | None = hyper(None, CLIP_DOC.format("no limit"), above=0, optional=True, real=True)
    noise: str = hyper("hash", "generator of the weights' noise", choices=noise.KINDS)

    def init(self, key: Array, target: Target, params: PyTree) -> VOGNState:
        """At `params`, with s as set by `start`."""
        zeros = jax.tree.map(jnp.zeros_like, params)
        s = self.starting_squares(key, target, params)
        return VOGNState(params, s, zeros, jnp.zeros((), jnp.int32))

    def complexity_weight(self, count: Array) -> Array:
        """T of this step."""
        if self.kl_warmup == 0:
            return jnp.asarray(self.temperature, jnp.float64)
        return self.temperature * kl_weight(count, self.kl_warmup)

    def moments(
        self, key: Array, target: Target, params: PyTree, batch: Batch
    ) -> tuple[Array, PyTree, PyTree]:
        """Mean negative log-likelihood of a row, its gradient g, and h."""
        if self.squares == "examples":
            return gradient_moments(target, params, batch)
        nll, gradient, _ = gradient_moments(target, params, batch)
        if self.squares == "fisher":
            summed = curvature.fisher_diagonal(key, target, params, batch)
        else:
            summed = curvature.gauss_newton_diagonal(target, params, batch)
        square = jax.tree.map(lambda c: c / target.num_data.astype(c.dtype), summed)
        return nll, gradient, square

    def step(
        self, key: Array, target: Target, state: VOGNState, batch: Batch | None
    ) -> tuple[VOGNState, VOGNInfo]:
        """One natural step, from gradients and squares at draws of q."""
        rows = target.data if batch is None else batch
        assert rows is not None
        assert target.prior is not None
        q = self.approximation(target, state)
        key_draws, key_labels = jax.random.split(key)

        def one(seed: PyTree, key: Array, rows: Batch) -> tuple[Array, PyTree, PyTree]:
            return self.moments(key, target, q.transform(drawn(seed)), rows)

        num_draws = int(self.setting("num_draws"))
        seeds, drawn = noise.draws_like(key_draws, state.mean, num_draws, self.noise)
        keys = jax.random.split(key_labels, num_draws)
        if self.draw_rows == "all":
            nll, gradient, square = mean_over_draws(
                lambda seed, key: one(seed, key, rows), target, batch, state.mean, seeds, keys
            )
        else:
            parts, fractions = split_batch(target, rows, num_draws)
            moments = jax.vmap(one)(seeds, keys, parts)
            nll, gradient, square = jax.tree.map(
                lambda v: jnp.tensordot(fractions.astype(v.dtype), v, axes=1), moments
            )

        prior_mean, prior_prec = prior_prec_per_datum(
            target, state.mean, self.augmentation * target.num_data
        )
        weight = self.complexity_weight(state.count)
        rate = self.schedule()(state.count)

        numbers = {
            "rate": rate,
            "beta1": self.beta1,
            "beta2": self.renewal_weight() if self.beta2 is None else self.beta2,
            "weight": weight,
            "damping": self.damping,
        }
        if self.clip is not None:
            numbers["clip"] = self.clip

        def leaf(*arrays: Array) -> tuple[Array, ...]:
            return vogn_update(*arrays, **tree.cast(numbers, arrays[0].dtype))

        mean, m, s = tree_unzip(
            leaf, state.mean, state.m, state.s, gradient, square, prior_mean, prior_prec
        )
        nll, kl = nll * target.num_data, q.kl(target.prior)
        return VOGNState(mean, s, m, state.count + 1), VOGNInfo(-nll - kl, nll, kl, weight)

    def gradients_per_step(self, target: Target, state: VOGNState) -> int:
        """One per draw; one in all if the draws share the batch."""
        return int(self.setting("num_draws")) if self.draw_rows == "all" else 1

    def run_notes(self, target: Target, params: PyTree) -> list[str]:
        """Leaves that need per-example gradients, if there are any."""
        slow = curvature.fallbacks(target, params)
        if not slow:
            return []
        return [
            f"The squares of {', '.join(slow)} took one gradient per example: these weights are"
            " used in several places, or transformed before they are combined with the input."
        ]

    def approximation(
        self, target: Target, state: VOGNState, draws: PyTree | None = None
    ) -> DiagonalGaussian:
        """The diagonal Gaussian of mean and s."""
        num_data = self.augmentation * target.num_data
        _, prior_prec = prior_prec_per_datum(target, state.mean, num_data)
        return DiagonalGaussian(state.mean, std_from_scale(state.s, prior_prec, num_data))
