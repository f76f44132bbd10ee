r"""IVON: improved variational online Newton (Shen et al. 2024).

With lambda the prior's precision, mean0 its mean, T the temperature, N the number of data divided
by T, d = lambda / N, h the diagonal of the Hessian of the mean negative log-likelihood of a row,
beta the learning rate, t the number of steps so far plus one, and g and hhat averaged over S draws:

    std   = 1 / sqrt(N (h + d)),   theta = mean + std * eps
    g     = -grad log p(batch | theta) / M                     the batch's MEAN gradient
    hhat  = g eps / std                                        unbiased for E_q[Hessian] (Stein)
    m    <- beta1 m + (1 - beta1) g
    h    <- beta2 h + (1 - beta2) hhat + (1 - beta2)^2 (h - hhat)^2 / (2 (h + d))
    mean <- mean - beta (m / (1 - beta1^t) + d (mean - mean0)) / (h + d)

The last term of h is the second order of the step on the manifold of precisions: it keeps h + d
positive for every hhat, as the right side is ((h + d)^2 + (r + h + d)^2) / (2 (h + d)) - d with
r = (1 - beta2) (hhat - h). There are no per-example terms: a step is one of Adam with noise.

**Averaging of h.** hhat is noisy, with a standard deviation of about |g| / std. beta2 near 1
averages it, but a run much shorter than 1 / (1 - beta2) steps ends where h began. By default
1 - beta2 is `renewals` divided by the length of the run.

**Start.** `start="constant"` is the paper's: h is `first_h` for all weights, and 1 by default (see
Vadam). Where its scale is far from the curvature, the first steps are far too long or too short;
`start="laplace"` takes the curvature at the start, and is the default for small networks, after
MAP. Where rows are predicted well it is nearly 0, and a step of m / (h + d) leaves the mode at
once: h starts at `first_h` or above.

**Clip.** Where the estimates take h + d near 0, a step of m / (h + d) is so long that the run does
not come back: no weight moves by more than `clip` times the learning rate in a step.

**Tempering.** The objective is E_q[log p(D | theta)] - T KL(q | prior), as in VOGN.

Differs from the paper: the prior may have a mean and a precision for each weight; the Hessian's
average starts with weight 1 (no bias correction), as in its Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.algorithms.base import Capabilities, InfoFields, hyper
from bayeslearn.algorithms.sized import CLIP_DOC, Rate, RenewedAverage, large_clip
from bayeslearn.algorithms.starting import ModeStart
from bayeslearn.algorithms.tempering import KLWarmup
from bayeslearn.algorithms.vadam import prior_prec_per_datum, starting_s, std_from_scale, tree_unzip
from bayeslearn.data.rows import Batch
from bayeslearn.families import DiagonalGaussian
from bayeslearn.gradients import noise
from bayeslearn.gradients.draws import mean_over_draws
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree


class IVONState(NamedTuple):
    """The mean, and the averages of the Hessian and of gradients."""

    mean: PyTree
    h: PyTree
    m: PyTree
    count: Array  # type: ignore[assignment]


class IVONInfo(NamedTuple):
    """The negative log-likelihood of a step."""

    nll: Array  # -log p(D | theta) at the draws, estimated from the batch


def ivon_update(
    mean: Array,
    m: Array,
    h: Array,
    gradient: Array,
    hessian: Array,
    prior_mean: Array,
    prior_prec: Array,
    *,
    rate: Array | float,
    beta1: Array | float,
    beta2: Array | float,
    correction: Array | float,
    clip: Array | float | None = None,
) -> tuple[Array, Array, Array]:
    """One leaf's new mean, m and h; `prior_prec` is d, `correction` is 1 - beta1^t."""
    m = beta1 * m + (1.0 - beta1) * gradient
    change = (1.0 - beta2) * (hessian - h)
    h = h + change + change**2 / (2.0 * (h + prior_prec))
    step = (m / correction + prior_prec * (mean - prior_mean)) / (h + prior_prec)
    if clip is not None:
        step = jnp.clip(step, -clip, clip)
    return mean - rate * step, m, h


class IVON(RenewedAverage, ModeStart, KLWarmup):
    """Mean-field variational inference by natural gradients at the cost of Adam.

    >>> posterior = bl.fit(model, bl.IVON(), (x, y), seed=0, num_steps=300, batch_size=20)
    >>> posterior.family.std["network"]["layers"][0].weight.shape
    (1, 3)
    """

    name: ClassVar[str] = "ivon"
    title: ClassVar[str] = "improved variational online Newton, the Hessian from weight noise"
    capabilities: ClassVar[Capabilities] = Capabilities(
        needs_gaussian_prior=True, accepts_initial_gaussian=True
    )
    info_fields: ClassVar[InfoFields] = InfoFields(progress=("nll",))
    usual_weight: ClassVar[float] = 1e-5  # the paper's 1 - beta2
    sized_defaults: ClassVar[Mapping[str, tuple[Any, Any]]] = {
        "learning_rate": (0.3, 5.0),
        "decay": ("cosine", "cosine"),
        "num_draws": (4, 1),
        "start": ("laplace", "constant"),
        "first_h": (0.1, 1.0),
        "renewals": (10.0, 2.0),
        "clip": (0.1, large_clip),
    }

    learning_rate: Rate = hyper(
        None,
        "fraction of the natural step of the mean; None: 0.3, and 5 above 10,000 weights",
        above=0,
        optional=True,
        real=True,
        schedule=True,
    )
    decay: str = hyper(
        "auto",
        "the step size over the run: a power of the step's number, or a cosine to zero after a"
        " warm-up in its first twentieth; auto: a cosine",
        choices=("auto", "power", "cosine"),
    )
    beta1: float = hyper(0.9, "decay of the average of gradients, m", least=0, below=1)
    beta2: float | None = hyper(
        None,
        "decay of the average of the Hessian, h; None: 1 - renewals / steps of the run",
        least=0,
        below=1,
        optional=True,
        real=True,
    )
    renewals: float | None = hyper(
        None,
        "how often the average h is renewed in a run, if beta2 is None; None: 10, and 2 above"
        " 10,000 weights",
        above=0,
        optional=True,
        real=True,
    )
    num_draws: int | None = hyper(
        None,
        "draws of the weights per step; None: 4, and 1 above 10,000 weights",
        least=1,
        optional=True,
    )
    start: str = hyper(
        "auto",
        "first h: `first_h` (constant), or the curvature at the start where it is larger (laplace);"
        " auto: laplace, and constant above 10,000 weights",
        choices=("auto", "laplace", "constant"),
    )
    first_h: float | None = hyper(
        None,
        "h at the start, or the least of it; None: 0.1, and 1 above 10,000 weights",
        above=0,
        optional=True,
        real=True,
    )
    temperature: float = hyper(1.0, "weight of the complexity cost; 1: Bayes' rule", above=0)
    clip: float | None = hyper(None, CLIP_DOC.format("0.1"), above=0, optional=True, real=True)
    noise: str = hyper("hash", "generator of the weights' noise", choices=noise.KINDS)

    def effective_data(self, target: Target) -> Array:
        """N: the number of data divided by the temperature."""
        return target.num_data / self.temperature

    def hessian_decay(self) -> Array | float:
        """beta2 of this run."""
        return 1.0 - self.renewal_weight() if self.beta2 is None else self.beta2

    def init(self, key: Array, target: Target, params: PyTree) -> IVONState:
        """At `params`, with h as set by `start`."""
        zeros = jax.tree.map(jnp.zeros_like, params)
        first_h = self.setting("first_h")
        if self.setting("start") == "laplace":
            # At the temperature T the precision N h + lambda has N = num_data / T.
            curvature = starting_s(key, target, params, target.num_data)
            h = jax.tree.map(lambda leaf: jnp.maximum(leaf, first_h), curvature)
        else:
            h = jax.tree.map(lambda leaf: jnp.full_like(leaf, first_h), params)
        return IVONState(params, h, zeros, jnp.zeros((), jnp.int32))

    def step(
        self, key: Array, target: Target, state: IVONState, batch: Batch | None
    ) -> tuple[IVONState, IVONInfo]:
        """One natural step, from gradients at draws of q."""
        num_data = self.effective_data(target)
        prior_mean, prior_prec = prior_prec_per_datum(target, state.mean, num_data)
        std = std_from_scale(state.h, prior_prec, num_data)
        q = DiagonalGaussian(state.mean, std)
        key_draws, key_network = jax.random.split(key)

        def loss(params: PyTree) -> Array:
            log_likelihood = target.scaled_log_likelihood(params, batch, key_network)
            return -log_likelihood / target.num_data

        def one(seed: PyTree) -> tuple[Array, PyTree, PyTree]:
            eps = drawn(seed)
            nll, gradient = jax.value_and_grad(loss)(q.transform(eps))
            hessian = jax.tree.map(lambda g, e, s: g * e / s, gradient, eps, std)
            return nll, gradient, hessian

        num_draws = int(self.setting("num_draws"))
        seeds, drawn = noise.draws_like(key_draws, state.mean, num_draws, self.noise)
        nll, gradient, hessian = mean_over_draws(one, target, batch, state.mean, seeds)
        numbers = {
            "rate": self.schedule()(state.count),
            "beta1": self.beta1,
            "beta2": self.hessian_decay(),
            "correction": 1.0 - self.beta1 ** (state.count.astype(jnp.float64) + 1.0),
        }
        if self.clip is not None:
            numbers["clip"] = self.clip

        def leaf(*arrays: Array) -> tuple[Array, ...]:
            # In the leaf's type: one float64 number would promote all operations.
            return ivon_update(*arrays, **tree.cast(numbers, arrays[0].dtype))

        parts = (state.mean, state.m, state.h, gradient, hessian, prior_mean, prior_prec)
        mean, m, h = tree_unzip(leaf, *parts)
        return IVONState(mean, h, m, state.count + 1), IVONInfo(nll * target.num_data)

    def gradients_per_step(self, target: Target, state: IVONState) -> int:
        """One per draw."""
        return int(self.setting("num_draws"))

    def approximation(
        self, target: Target, state: IVONState, draws: PyTree | None = None
    ) -> DiagonalGaussian:
        """The diagonal Gaussian of mean and h."""
        num_data = self.effective_data(target)
        _, prior_prec = prior_prec_per_datum(target, state.mean, num_data)
        return DiagonalGaussian(state.mean, std_from_scale(state.h, prior_prec, num_data))
