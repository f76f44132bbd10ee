"""Bayes by Backprop (Blundell et al. 2015; survey section 4).

    w = t(zeta, eps)                          q(w | zeta), reparametrised
    f = log q(w | zeta) - log p(w) - log p(D | w)
    zeta <- zeta - learning_rate * grad_zeta f

The default q is the diagonal Gaussian, zeta = (mean, rho), w = mean + softplus(rho) * eps; `q` may
be any other. With several draws f is averaged. The complexity cost log q - log p can be sampled as
above, or, for Gaussians, computed in closed form (`kl`); "path" samples it with q's parameters
fixed inside log q, so that its noise vanishes as q approaches the posterior. Draws are antithetic
pairs, which make the mean's gradient exact on a quadratic.

With `perturb` the rows of a batch have their own draws ("local": activations are drawn; "flipout":
one draw, signs for each row), which does not change the bound and reduces the noise of its
gradient; the complexity cost is then in closed form. See `gradients.local`.

A minibatch i of M has the weight pi_i of the complexity cost, sum_i pi_i = 1: 1/M ("uniform") or
2^(M-i) / (2^M - 1) ("decaying", Blundell's eq. 9). It is multiplied by `temperature`.

If the start is a q, the optimiser works on the mean in units of standard deviations (`UNIT`): steps
of equal length for all weights would exceed the standard deviation of well-determined ones, and
prune hidden units.

Differs from the survey: rho moves by its own gradient (errata 42), and f is minimised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax

from bayeslearn import tree
from bayeslearn.algorithms.base import Capabilities, InfoFields, hyper
from bayeslearn.algorithms.decaying import DecayingStep
from bayeslearn.algorithms.optimizers import (
    Optimizer,
    Options,
    check_optimizer,
    make_optimizer,
)
from bayeslearn.algorithms.sized import Rate
from bayeslearn.algorithms.tempering import WARMUP_DOC, kl_weight
from bayeslearn.data.rows import Batch
from bayeslearn.errors import refuse
from bayeslearn.families import DiagonalGaussian
from bayeslearn.families.base import Family, Gaussian
from bayeslearn.gradients import local, noise
from bayeslearn.gradients.curvature import starting_prec
from bayeslearn.gradients.draws import mean_over_draws
from bayeslearn.gradients.score import averaged
from bayeslearn.models.priors.checks import check_gaussian
from bayeslearn.models.protocols import SampledDensity
from bayeslearn.models.target import Target
from bayeslearn.tree import LARGE_NETWORK, Array, PyTree

FIRST_H = 0.1  # curvature of a row, above LARGE_NETWORK weights
START_SHRINK = 0.3  # standard deviations at the start, relative to the Laplace approximation
UNIT = 10.0  # the length of a unit step of the mean, in standard deviations of a q at the start

Cost = Callable[[DiagonalGaussian, PyTree], tuple[Array, "BayesByBackpropInfo"]]


class BayesByBackpropState(NamedTuple):
    """zeta, its average, and the optimiser's state."""

    zeta: PyTree  # {"mean", "rho"}, or the user's q itself
    average: PyTree  # of the last zetas: the result, without the noise of single steps
    optimizer_state: PyTree
    count: Array  # type: ignore[assignment]
    unit: PyTree | None = None  # like the mean: the length of a unit step, if the start is a q


class BayesByBackpropInfo(NamedTuple):
    """The lower bound at the step's draws and batch."""

    elbo: Array
    nll: Array
    kl: Array


def softplus_inverse(std: Array) -> Array:
    """rho with softplus(rho) = std; exact also for tiny std."""
    return std + jnp.log(-jnp.expm1(-std))


# Coefficients of log(1 + u) / u on [0, 1] in 2 u - 1, with relative error 4e-8
LOG1P = (
    0.810930216, -0.144263337, 0.0331523735, -0.00846389833, 0.00228910037,
    -0.000632198143, 0.000181868365, -6.69504384e-05, 2.00238364e-05,
)  # fmt: skip


@jax.custom_jvp
def softplus(rho: Array) -> Array:
    """log(1 + exp(rho)), in float32 with a polynomial in place of the logarithm."""
    if rho.dtype != jnp.float32:
        return jax.nn.softplus(rho)
    u = jnp.exp(-jnp.abs(rho))
    return jnp.maximum(rho, 0.0) + u * noise.polynomial(LOG1P, 2 * u - 1)


@softplus.defjvp
def _softplus_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (rho,), (tangent,) = primals, tangents
    u = jnp.exp(-jnp.abs(rho))
    return softplus(rho), tangent * (jnp.where(rho < 0, u, 1.0) / (1.0 + u))


def batch_weight(schedule: str, count: Array, num_batches: Array) -> Array:
    """M * pi_i of batch i = count mod M: the weight of the complexity cost, 1 on average."""
    if schedule == "uniform":
        return jnp.ones((), jnp.float64)
    i = (count % num_batches.astype(count.dtype) + 1).astype(jnp.float64)
    # 2^(M-i) / (2^M - 1) = 2^-i / (1 - 2^-M), which does not overflow
    return num_batches * jnp.exp2(-i) / -jnp.expm1(-num_batches * jnp.log(2.0))


def in_units(values: PyTree, unit: PyTree | None) -> PyTree:
    """A tree like zeta, its mean times the length of a unit step, its rho times a std above one.

    Above one, where softplus is linear, rho would take std / learning rate steps to double it.
    """
    if unit is None:
        return values
    rho = jax.tree.map(lambda u, v: jnp.maximum(u / UNIT, 1.0) * v, unit, values["rho"])
    return {"mean": jax.tree.map(jnp.multiply, unit, values["mean"]), "rho": rho}


class BayesByBackprop(DecayingStep):
    """Variational inference by the reparametrisation trick and any Optax optimiser."""

    name: ClassVar[str] = "bayes-by-backprop"
    title: ClassVar[str] = "mean-field (or any reparametrised) q by backpropagation"
    capabilities: ClassVar[Capabilities] = Capabilities(
        accepts_initial_gaussian=True, supports_multistart=True
    )
    info_fields: ClassVar[InfoFields] = InfoFields(
        progress=("nll", "kl"), evaluation_only=("elbo", "kl")
    )

    sized_defaults: ClassVar[Mapping[str, tuple[Any, Any]]] = {
        "learning_rate": (0.03, 0.005),
        "decay": ("power", "cosine"),
        "num_draws": (8, 1),
    }

    learning_rate: Rate = hyper(  # type: ignore[assignment]
        None,
        "step size of the optimiser; None: 0.03, and 0.005 above 10,000 weights",
        above=0,
        optional=True,
        real=True,
        schedule=True,
    )
    num_draws: int | None = hyper(
        None,
        "draws of the weights per step; None: 8, and 1 above 10,000 weights",
        least=1,
        optional=True,
    )
    antithetic: bool = hyper(True, "draw antithetic pairs, which at least halves the mean's noise")
    kl: str = hyper("path", "complexity cost", choices=("path", "closed-form", "sampled"))
    perturb: str = hyper(
        "weights",
        "what is drawn: one set of weights for all rows, activations, or signs for each row; the"
        " last two have the complexity cost in closed form",
        choices=local.KINDS,
    )
    batch_weighting: str = hyper(
        "uniform", "weight of the complexity cost by minibatch", choices=("uniform", "decaying")
    )
    temperature: float = hyper(1.0, "weight of the complexity cost; 1: Bayes' rule", above=0)
    kl_warmup: int = hyper(0, WARMUP_DOC, least=0, keyword=True)
    optimizer: Optimizer = hyper("adam", "name of an Optax optimiser, or the object", free=True)
    optimizer_options: Options = hyper((), "further arguments of the optimiser", free=True)
    noise: str = hyper("hash", "generator of the weights' noise", choices=noise.KINDS)
    q: Callable[[PyTree], SampledDensity] | None = hyper(
        None,
        "function params -> q, a pytree of trainable arrays with `sample(key, num)`"
        " (reparametrised) and `log_prob(params)`; None: the diagonal Gaussian",
        free=True,
    )

    def __check_init__(self) -> None:
        check_optimizer(self.optimizer, self.optimizer_options)
        if self.perturb != "weights" and self.q is not None:
            refuse("perturb", self.perturb, 'be "weights" with a `q` of your own')
        if self.perturb != "weights" and self.kl == "sampled":
            refuse("kl", self.kl, f'be "closed-form" with perturb="{self.perturb}"')

    def _optimizer(self) -> optax.GradientTransformation:
        return make_optimizer(self.optimizer, self.optimizer_options, self.schedule())

    def check(self, target: Target, params: PyTree) -> None:
        """Refuse a prior without a closed form, and row noise for a bare density."""
        if self.kl == "closed-form" and self.q is None:
            check_gaussian(target.prior, f'{self.name} with kl="closed-form"')
        if self.perturb != "weights":
            check_gaussian(target.prior, f'{self.name} with perturb="{self.perturb}"')
            if target.is_density:
                must = 'be "weights" for a density without a network'
                refuse("perturb", self.perturb, must)

    def init(self, key: Array, target: Target, params: PyTree) -> BayesByBackpropState:
        """The Laplace approximation at `params`, its std shrunk; or the user's q."""
        if self.q is not None:
            return self._begin(self.q(params))
        if tree.size(params) > LARGE_NETWORK and target.prior is not None:
            # The curvature of an untrained network says little, and is a program of its own.
            _, prior_prec = target.prior.broadcast(params)
            per_row = FIRST_H * target.num_data
            prec = jax.tree.map(lambda p: p + per_row.astype(p.dtype), prior_prec)
        else:
            prec = starting_prec(key, target, params, target.data)
        std = jax.tree.map(lambda p: 1.0 / jnp.sqrt(p), prec)
        rho = jax.tree.map(lambda s: softplus_inverse(START_SHRINK * s), std)
        # Weights have a natural scale, parameters of a density have any.
        unit = jax.tree.map(lambda s: UNIT * s, std) if target.is_density else None
        return self._begin({"mean": params, "rho": rho}, unit)

    def init_from(self, key: Array, target: Target, q: Family) -> BayesByBackpropState:
        """At the diagonal Gaussian with the precision of q."""
        if self.q is not None or not isinstance(q, Gaussian):
            return self.init(key, target, q.mean)
        std = jax.tree.map(lambda p: 1.0 / jnp.sqrt(p), q.to_prior().broadcast(q.mean)[1])
        zeta = {"mean": q.mean, "rho": jax.tree.map(softplus_inverse, std)}
        return self._begin(zeta, jax.tree.map(lambda s: UNIT * s, std))

    def _begin(self, zeta: PyTree, unit: PyTree | None = None) -> BayesByBackpropState:
        """The first state."""
        optimizer_state, count = self._optimizer().init(zeta), jnp.zeros((), jnp.int32)
        return BayesByBackpropState(zeta, zeta, optimizer_state, count, unit)

    def gradients_per_step(self, target: Target, state: BayesByBackpropState) -> int:
        """One per draw."""
        return int(self.setting("num_draws"))

    def family(self, zeta: PyTree) -> DiagonalGaussian:
        """q(w | zeta); a `q` of the user's is its own zeta."""
        if self.q is not None:
            return cast("DiagonalGaussian", zeta)
        return DiagonalGaussian(zeta["mean"], jax.tree.map(softplus, zeta["rho"]))

    def step(
        self, key: Array, target: Target, state: BayesByBackpropState, batch: Batch | None
    ) -> tuple[BayesByBackpropState, BayesByBackpropInfo]:
        """One step of the optimiser along the gradient of f."""
        rows = 1.0 if batch is None else float(len(batch.y))
        num_batches = jnp.ceil(target.num_data / (target.mean_weight * rows))
        weight = self.temperature * batch_weight(self.batch_weighting, state.count, num_batches)
        if self.kl_warmup:
            weight = weight * kl_weight(state.count, self.kl_warmup)
        key_draws, key_network = jax.random.split(key)
        rewritten = None
        if self.perturb != "weights":
            mean = state.zeta["mean"]
            rewritten = local.perturbation(target, mean, batch, self.perturb, key_network)

        def cost(q: DiagonalGaussian, draw: PyTree) -> tuple[Array, BayesByBackpropInfo]:
            if rewritten is None:
                log_likelihood = target.scaled_log_likelihood(draw, batch, key_network)
            else:
                log_likelihood = rewritten.scaled_log_likelihood(q, draw)
            kl = self._complexity(target, q, draw)
            info = BayesByBackpropInfo(log_likelihood - kl, -log_likelihood, kl)
            return (weight * kl - log_likelihood) / target.num_data, info

        gradient, info = self._mean_gradient(key_draws, target, state.zeta, batch, cost, rewritten)
        updates, optimizer_state = self._optimizer().update(
            in_units(gradient, state.unit), state.optimizer_state, state.zeta
        )
        updates = in_units(updates, state.unit)
        zeta = jax.tree.map(lambda z, u: z + jnp.asarray(u, z.dtype), state.zeta, updates)
        average = averaged(state.average, zeta, state.count)
        count = state.count + 1
        return BayesByBackpropState(zeta, average, optimizer_state, count, state.unit), info

    def _mean_gradient(
        self,
        key: Array,
        target: Target,
        zeta: PyTree,
        batch: Batch | None,
        cost: Cost,
        rewritten: local.Perturbation | None,
    ) -> tuple[PyTree, BayesByBackpropInfo]:
        """The gradient in zeta of the mean of `cost(q, draw)` over the draws, and the mean info.

        A draw is one of the weights, or of the noise of a rewritten network.
        """

        def of_mean(of_all: Callable[[PyTree], PyTree]) -> tuple[PyTree, BayesByBackpropInfo]:
            return jax.grad(lambda z: jax.tree.map(jnp.mean, of_all(z)), has_aux=True)(zeta)

        num_draws = int(self.setting("num_draws"))
        if self.q is not None:
            return of_mean(lambda z: jax.vmap(partial(cost, z))(z.sample(key, num_draws)))
        is_antithetic = self.antithetic and num_draws > 1
        num = (num_draws + 1) // 2 if is_antithetic else num_draws
        like = zeta["mean"] if rewritten is None else rewritten.noise
        seeds, drawn = noise.draws_like(key, like, num, self.noise)
        signs = jnp.ones(num, jnp.int8)
        if is_antithetic:
            seeds = jax.tree.map(lambda s: jnp.concatenate([s, s])[:num_draws], seeds)
            signs = jnp.concatenate([signs, -signs])[:num_draws]

        def of_draw(zeta: PyTree, seed: PyTree, sign: Array) -> tuple[Array, BayesByBackpropInfo]:
            q = self.family(zeta)
            eps = drawn(seed)
            if is_antithetic:
                eps = jax.tree.map(lambda e: sign.astype(e.dtype) * e, eps)
            return cost(q, q.transform(eps) if rewritten is None else eps)

        if rewritten is not None and rewritten.has_one_network and num_draws > 1:
            # Draws are then more rows of the same products, which are shared in the first layer.
            return of_mean(lambda z: jax.vmap(partial(of_draw, z))(seeds, signs))
        one = partial(jax.grad(of_draw, has_aux=True), zeta)
        return mean_over_draws(one, target, batch, zeta["mean"], seeds, signs)

    def _complexity(self, target: Target, q: DiagonalGaussian, draw: PyTree) -> Array:
        """log q - log p at the draw, or its expectation in closed form."""
        is_closed = self.kl == "closed-form" or self.perturb != "weights"
        if is_closed and self.q is None and target.prior is not None:
            return q.kl(target.prior)
        fixed = jax.lax.stop_gradient(q) if self.kl == "path" else q
        return fixed.log_prob(draw) - target.log_prior(draw)

    def run_notes(self, target: Target, params: PyTree) -> list[str]:
        """Leaves without row noise, if there are any."""
        names = [] if self.perturb == "weights" else local.shared(target, params, self.perturb)
        if not names:
            return []
        return [
            f'All rows had the same draw of {", ".join(names)}: perturb="{self.perturb}" has no'
            " rule for the way these weights are used."
        ]

    def approximation(
        self, target: Target, state: BayesByBackpropState, draws: PyTree | None = None
    ) -> Family:
        """The q of the average of the last zetas."""
        return self.family(state.average)
