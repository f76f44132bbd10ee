r"""Vadam: variational inference inside Adam (Khan et al. 2018; survey section 7).

With lambda the prior's precision, mean0 its mean, N the number of data divided by the temperature,
beta the learning rate and t the number of steps so far plus one:

    std   = 1 / sqrt(N (s + lambda/N)),   theta = mean + std * eps
    g     = -grad log p(batch | theta) / M                    the batch's MEAN gradient
    m    <- beta1 m + (1 - beta1) (g + lambda/N (mean - mean0))
    s    <- beta2 s + (1 - beta2) g^2
    mean <- mean - beta m_hat / (sqrt(s_hat) + lambda/N)
    m_hat = m / (1 - beta1^t),   s_hat = s / (1 - beta2^t)    `bias_correction`

The standard deviation has the uncorrected s. With several draws (`num_draws`) g and g^2 are
averaged. Without noise and prior it is Adam with eps = 0. `start="laplace"` starts from the
curvature at the warm start, s = (prec - lambda) / N, so that s has no transient and needs no bias
correction; `start="zero"` is the paper's, where q starts as the prior.

**First s.** The curvature at the start says little of a network that has learned nothing, or that
predicts its rows well already: it is nearly 0, q as wide as the prior, and the network at draws of
q is noise, to which long steps lead and from which no gradient leads back. So s starts at `first_s`
or above, and q widens as the network learns. Above 10,000 weights it is `first_s` (start
"constant"), without a curvature to compile, and s is renewed twice in a run: an average over a few
hundred steps forgets `first_s` while the network still learns, and q becomes as wide as the prior.
With `first_s` = 1 the noise of a weight starts at 1 / sqrt(N): at sqrt(10) times that deep networks
of a few thousand rows learned little, a transformer nothing.

**Batch size.** g^2 is the square of a mean, not the mean of squares h that estimates the precision:
for M of N rows without replacement

    E[g^2] = w h + (1 - w) gbar^2,   w = (N - M) / (M (N - 1)),

about h/M near a mode. So with `squares="mean"`, the paper's, the variance of q is up to M times
too large for M > 1 (8.6 to 10.6 times at M = 32), and a full batch (w = 0) has no information on h:
use batch_size=1 with it if the standard deviation matters. With `squares="signs"` q does not
depend on M: with random signs r_i, (sum_i r_i g_i)^2 / M is h in expectation, for one more
backward pass and no per-example gradient. At M = 1 both are the same.

Differs from the survey: std (errata 70), m and s are stored uncorrected (errata 76).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.algorithms.base import Capabilities, InfoFields, hyper
from bayeslearn.algorithms.sized import CLIP_DOC, Rate, RenewedAverage, large_clip
from bayeslearn.algorithms.starting import ModeStart
from bayeslearn.algorithms.tempering import KLWarmup
from bayeslearn.data.rows import Batch
from bayeslearn.families import DiagonalGaussian
from bayeslearn.gradients import noise
from bayeslearn.gradients.curvature import starting_prec
from bayeslearn.gradients.draws import mean_over_draws
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

STARTS = ("auto", "laplace", "constant")
START_DOC = (
    "first s: `first_s` (constant), or the curvature at the start where it is larger (laplace);"
    " auto: laplace, and constant above 10,000 weights"
)


class VadamState(NamedTuple):
    """The mean, and Adam's averages."""

    mean: PyTree
    s: PyTree  # uncorrected average of squared gradients
    m: PyTree  # uncorrected average of gradients
    count: Array  # type: ignore[assignment]


class VadamInfo(NamedTuple):
    """The negative log-likelihood of a step."""

    nll: Array  # -log p(D | theta) at the draws, estimated from the batch


class Correction(NamedTuple):
    """Divisors of m and s in the mean's step."""

    m: Array | float
    s: Array | float


def prior_prec_per_datum(target: Target, params: PyTree, num_data: Array) -> tuple[PyTree, PyTree]:
    """The prior's mean, and lambda / N, for every weight.

    If the prior is correlated, those of each weight given the others: -lambda (w - mean) is then
    the whole gradient of its log-density.
    """
    assert target.prior is not None
    mean, prec = target.prior.conditional(params)
    return mean, jax.tree.map(lambda p: p / num_data.astype(p.dtype), prec)


def std_from_scale(s: PyTree, prior_prec: PyTree, num_data: Array) -> PyTree:
    """std = 1 / sqrt(N (s + lambda/N)), with s uncorrected; `prior_prec` is lambda / N."""
    return jax.tree.map(
        lambda v, p: jax.lax.rsqrt(num_data.astype(v.dtype) * (v + p)), s, prior_prec
    )


def starting_s(
    key: Array, target: Target, params: PyTree, num_data: Array, least: Array | float = 0.0
) -> PyTree:
    """(prec - lambda) / N of the curvature at `params`, never below `least`."""
    _, prior_prec = prior_prec_per_datum(target, params, num_data)
    prec = starting_prec(key, target, params, target.data)

    def leaf(p: Array, p0: Array) -> Array:
        return jnp.maximum(p / num_data.astype(p.dtype) - p0, jnp.asarray(least, p.dtype))

    return jax.tree.map(leaf, prec, prior_prec)


def batch_gradient(
    key: Array,
    target: Target,
    params: PyTree,
    batch: Batch | None,
    squares: str,
    sign_parts: int = 1,
) -> tuple[Array, PyTree, PyTree]:
    """Negative log-likelihood of all data, its batch-mean gradient g, and the square for s.

    The square of a sum with random signs varies as much for few rows as for many: one part in
    `sign_parts` of the batch is enough.
    """
    terms, pull = jax.vjp(lambda p: target.log_likelihood(p, batch), params)
    rows = target.num_data / target.scale(batch)
    (gradient,) = pull(jnp.full_like(terms, -1.0 / rows))
    nll = -jnp.sum(terms) * target.scale(batch)
    signed = gradient
    if squares == "signs":
        if batch is not None and sign_parts > 1:
            batch = jax.tree.map(lambda leaf: leaf[: -(-len(leaf) // sign_parts)], batch)
            terms, pull = jax.vjp(lambda p: target.log_likelihood(p, batch), params)
            rows = target.num_data / target.scale(batch)
        signs = jax.random.rademacher(key, terms.shape, terms.dtype)
        if batch is not None and batch.weight is not None:  # of the weight, a square has one factor
            signs = signs / jnp.sqrt(jnp.where(batch.weight > 0, batch.weight, 1.0))
        (signed,) = pull(signs / jnp.sqrt(rows))
    return nll, gradient, jax.tree.map(jnp.square, signed)


def vadam_update(
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
    correction: Correction,
    clip: Array | float | None = None,
) -> tuple[Array, Array, Array]:
    """One leaf's new mean, m and s; `prior_prec` is lambda / N."""
    m = beta1 * m + (1.0 - beta1) * (gradient + prior_prec * (mean - prior_mean))
    s = beta2 * s + (1.0 - beta2) * square
    if clip is None:
        step = rate * (m / correction.m) / (jnp.sqrt(s / correction.s) + prior_prec)
        return mean - step, m, s
    step = (m / correction.m) / (jnp.sqrt(s / correction.s) + prior_prec)
    return mean - rate * jnp.clip(step, -clip, clip), m, s


class AveragedSquares(RenewedAverage, ModeStart):
    """Base of Vadam and VOGN: where the average s starts, and how fast it is renewed (abstract)."""

    usual_weight: ClassVar[float] = 0.01

    start: str = hyper("auto", START_DOC, choices=STARTS, keyword=True)
    first_s: float | None = hyper(
        None,
        "s at the start, or the least of it; None: 0.1, and 1 above 10,000 weights",
        least=0,
        optional=True,
        real=True,
        keyword=True,
    )
    renewals: float | None = hyper(
        None,
        "how often s is renewed in a run, where beta2 is None; None: 2 above 10,000 weights, below"
        " it 0 (the usual beta2)",
        least=0,
        optional=True,
        real=True,
        keyword=True,
    )

    def starting_squares(self, key: Array, target: Target, params: PyTree) -> PyTree:
        """The first s."""
        first_s = self.setting("first_s")
        if self.setting("start") == "constant":
            return jax.tree.map(lambda leaf: jnp.full_like(leaf, first_s), params)
        return starting_s(key, target, params, target.num_data, first_s)


class Vadam(AveragedSquares, KLWarmup):
    """Mean-field variational inference at the cost of Adam, from squared batch gradients."""

    name: ClassVar[str] = "vadam"
    title: ClassVar[str] = "variational Adam: weight noise inside Adam"
    capabilities: ClassVar[Capabilities] = Capabilities(
        needs_gaussian_prior=True, accepts_initial_gaussian=True
    )
    info_fields: ClassVar[InfoFields] = InfoFields(progress=("nll",))

    sized_defaults: ClassVar[Mapping[str, tuple[Any, Any]]] = {
        "learning_rate": (0.1, 5.0),
        "decay": ("power", "cosine"),
        "renewals": (0.0, 2.0),
        "num_draws": (4, 1),
        "start": ("laplace", "constant"),
        "first_s": (0.1, 1.0),
        "sign_parts": (1, 4),
        "clip": (0.5, large_clip),
    }

    learning_rate: Rate = hyper(
        None,
        "step size of the mean; None: 0.1, and 5 above 10,000 weights",
        above=0,
        optional=True,
        real=True,
        schedule=True,
    )
    beta1: float = hyper(0.9, "decay of the average of gradients, m", least=0, below=1)
    beta2: float | None = hyper(
        None,
        "decay of the average of squares, s; None: 0.99, and by `renewals` above 10,000 weights",
        least=0,
        below=1,
        optional=True,
        real=True,
    )
    num_draws: int | None = hyper(
        None,
        "draws of the weights per step; None: 4, and 1 above 10,000 weights",
        least=1,
        optional=True,
    )
    bias_correction: bool = hyper(True, "correct averages that start at zero, as Adam does")
    start: str = hyper("auto", START_DOC, choices=(*STARTS, "zero"))
    squares: str = hyper(
        "signs",
        "squares in s: of the batch mean (mean, the paper's), or an unbiased estimate of the mean"
        " square by random signs (signs); they differ for batches of more than one row",
        choices=("signs", "mean"),
    )
    temperature: float = hyper(1.0, "weight of the complexity cost; 1: Bayes' rule", above=0)
    clip: float | None = hyper(None, CLIP_DOC.format("0.5"), above=0, optional=True, real=True)
    noise: str = hyper("hash", "generator of the weights' noise", choices=noise.KINDS)
    sign_parts: int | None = hyper(
        None,
        "random signs are of one part in so many of a batch; None: 1, and 4 above 10,000 weights",
        least=1,
        optional=True,
        keyword=True,
    )

    def effective_data(self, target: Target) -> Array:
        """N: the number of data divided by the temperature."""
        return target.num_data / self.temperature

    def init(self, key: Array, target: Target, params: PyTree) -> VadamState:
        """At `params`, with s as set by `start`."""
        zeros = jax.tree.map(jnp.zeros_like, params)
        s = zeros
        if self.setting("start") != "zero":
            s = self.starting_squares(key, target, params)
        return VadamState(params, s, zeros, jnp.zeros((), jnp.int32))

    def step(
        self, key: Array, target: Target, state: VadamState, batch: Batch | None
    ) -> tuple[VadamState, VadamInfo]:
        """One step of Adam at draws of q."""
        num_data = self.effective_data(target)
        prior_mean, prior_prec = prior_prec_per_datum(target, state.mean, num_data)
        q = DiagonalGaussian(state.mean, std_from_scale(state.s, prior_prec, num_data))
        key_draws, key_signs = jax.random.split(key)

        def one(seed: PyTree, key: Array) -> tuple[Array, PyTree, PyTree]:
            draw = q.transform(drawn(seed))
            return batch_gradient(key, target, draw, batch, self.squares, sign_parts)

        num_draws, sign_parts = int(self.setting("num_draws")), int(self.setting("sign_parts"))
        seeds, drawn = noise.draws_like(key_draws, state.mean, num_draws, self.noise)
        keys = jax.random.split(key_signs, num_draws)
        nll, gradient, square = mean_over_draws(one, target, batch, state.mean, seeds, keys)
        mean, m, s = self.update(state, gradient, square, prior_mean, prior_prec)
        return VadamState(mean, s, m, state.count + 1), VadamInfo(nll)

    def gradients_per_step(self, target: Target, state: VadamState) -> int:
        """One per draw, and one more for squares by random signs."""
        return int(self.setting("num_draws")) * (2 if self.squares == "signs" else 1)

    def update(
        self,
        state: VadamState,
        gradient: PyTree,
        square: PyTree,
        prior_mean: PyTree,
        prior_prec: PyTree,
    ) -> tuple[PyTree, PyTree, PyTree]:
        """`vadam_update` leaf by leaf, at this count's rate and corrections."""
        t = state.count.astype(jnp.float64) + 1.0
        one = jnp.ones((), jnp.float64)
        corrects_s = self.bias_correction and self.setting("start") == "zero"
        beta2 = 1.0 - self.renewal_weight() if self.beta2 is None else self.beta2
        correction = Correction(
            1.0 - self.beta1**t if self.bias_correction else one,
            1.0 - beta2**t if corrects_s else one,
        )
        rate = self.schedule()(state.count)

        numbers = {"rate": rate, "beta1": self.beta1, "beta2": beta2, "correction": correction}
        if self.clip is not None:
            numbers["clip"] = self.clip

        def leaf(*arrays: Array) -> tuple[Array, ...]:
            # In the leaf's type: one float64 number would promote all operations.
            return vadam_update(*arrays, **tree.cast(numbers, arrays[0].dtype))

        parts = (state.mean, state.m, state.s, gradient, square, prior_mean, prior_prec)
        return tree_unzip(leaf, *parts)

    def approximation(
        self, target: Target, state: VadamState, draws: PyTree | None = None
    ) -> DiagonalGaussian:
        """The diagonal Gaussian of mean and s."""
        num_data = self.effective_data(target)
        _, prior_prec = prior_prec_per_datum(target, state.mean, num_data)
        return DiagonalGaussian(state.mean, std_from_scale(state.s, prior_prec, num_data))


def tree_unzip(
    function: Callable[..., tuple[Array, ...]], *trees: PyTree
) -> tuple[PyTree, PyTree, PyTree]:
    """A leaf function that returns three arrays, as three trees."""
    leaves = [function(*arrays) for arrays in zip(*map(jax.tree.leaves, trees), strict=True)]
    structure = jax.tree.structure(trees[0])
    mean, m, s = (jax.tree.unflatten(structure, part) for part in zip(*leaves, strict=True))
    return mean, m, s
