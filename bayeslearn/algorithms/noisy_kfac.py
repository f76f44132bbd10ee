r"""Noisy K-FAC: natural-gradient VI with Kronecker factors (Zhang, Sun, Duvenaud and Grosse 2018).

With P the prior's precision (diagonal), mean0 its mean, N the number of data divided by the
temperature, beta the learning rate, A and S the factors of a layer's curvature per datum
(`gradients.kronecker`), and g, A and S averaged over draws theta ~ q:

    q     = N(mean, Sigma),   Sigma^-1 = N A (x) S + P      for each layer
    g     = -grad log p(batch | theta) / M                  the batch's mean gradient
    A    <- (1 - beta2) A + beta2 mean a a^T,   S <- (1 - beta2) S + beta2 mean s s^T
    m    <- beta1 m + (1 - beta1) (g + P (mean - mean0) / N)
    mean <- mean - beta N Sigma m

It is VOGN with the diagonal of squares replaced by A (x) S: where a layer's weights are correlated
in the posterior, q has the correlations within its inputs and within its outputs. The eigenvectors
of A and S are renewed every `refresh` steps; N Sigma m and draws of q then take two matrix products
per layer each.

Differs from the paper: N A (x) S + P is inverted exactly, in the basis of `families.kronecker`,
where the paper splits P as damping between the two factors; the learned noise scale and leaves
without factors have the diagonal of VOGN.

Above 10,000 weights the factors start as the identity (start "constant") and are renewed twice in
a run, as in Vadam.

State, update and q have nothing in common with VOGN's but the momentum; hence a method by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.algorithms.base import Capabilities, InfoFields, hyper
from bayeslearn.algorithms.sized import Rate, RenewedAverage
from bayeslearn.algorithms.starting import ModeStart
from bayeslearn.algorithms.tempering import KLWarmup
from bayeslearn.data.rows import Batch
from bayeslearn.families import KroneckerGaussian
from bayeslearn.gradients import kronecker
from bayeslearn.gradients.curvature import MAX_ROWS
from bayeslearn.gradients.draws import mean_over_draws
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree


class NoisyKFACState(NamedTuple):
    """q, and the averages of factors and gradients."""

    q: KroneckerGaussian
    factors: kronecker.Factors
    m: PyTree
    count: Array  # type: ignore[assignment]


class NoisyKFACInfo(NamedTuple):
    """The negative log-likelihood of a step, and the length of its natural step."""

    nll: Array  # -log p(D | theta) at the draws, estimated from the batch
    length: Array  # root mean square over the weights, before the learning rate


def natural_step(q: KroneckerGaussian, gradient: PyTree, num_data: Array) -> PyTree:
    """N Sigma gradient."""
    step = q.factor_times(q.pull(gradient))
    return jax.tree.map(lambda s: num_data * s, step)


def identity(shapes: kronecker.Factors) -> kronecker.Factors:
    """Factors of a curvature of 1 for every weight."""

    def factor(shape: Array) -> Array:
        one = jnp.ones(shape.shape[0], shape.dtype)
        return one if shape.ndim == 1 else jnp.diag(one)

    squares = (jnp.ones(shape.shape, shape.dtype) for shape in shapes.squares)
    pairs = tuple((factor(left), factor(right)) for left, right in shapes.pairs)
    return kronecker.Factors(pairs, tuple(squares))


class NoisyKFAC(RenewedAverage, ModeStart, KLWarmup):
    """Variational inference by natural gradients with Kronecker factors of each layer."""

    name: ClassVar[str] = "noisy-kfac"
    title: ClassVar[str] = "noisy K-FAC, Kronecker-factored covariances"
    capabilities: ClassVar[Capabilities] = Capabilities(needs_gaussian_prior=True)
    info_fields: ClassVar[InfoFields] = InfoFields(progress=("nll",))
    sized_defaults: ClassVar[Mapping[str, tuple[Any, Any]]] = {
        "learning_rate": (0.1, 1.0),
        "decay": ("power", "cosine"),
        "renewals": (0.0, 2.0),
        "num_draws": (4, 1),
        "start": ("laplace", "constant"),
        "clip": (0.1, 0.01),
    }
    usual_weight: ClassVar[float] = 0.05

    learning_rate: Rate = hyper(
        None,
        "fraction of the natural step of the mean; None: 0.1, and 1 above 10,000 weights",
        above=0,
        optional=True,
        real=True,
        schedule=True,
    )
    beta1: float = hyper(0.9, "decay of the average of gradients, m", least=0, below=1)
    beta2: float | None = hyper(
        None,
        "weight of the new factors in their averages; None: 0.05, and by `renewals` above 10,000"
        " weights",
        above=0,
        most=1,
        optional=True,
        real=True,
    )
    refresh: int = hyper(10, "steps between two eigendecompositions of the factors", least=1)
    num_draws: int | None = hyper(
        None,
        "draws of the weights per step; None: 4, and 1 above 10,000 weights",
        least=1,
        optional=True,
    )
    curvature: str = hyper(
        "fisher",
        "factors by labels drawn from the model, the exact Gauss-Newton matrix (a backward pass"
        " for each output), or the labels as they are (examples)",
        choices=kronecker.KINDS,
    )
    temperature: float = hyper(1.0, "weight of the complexity cost; 1: Bayes' rule", above=0)
    clip: float | None = hyper(
        None,
        "largest root mean square of a natural step over the weights, before the learning rate;"
        " None: 0.1, and 0.01 above 10,000 weights",
        above=0,
        optional=True,
        real=True,
    )
    start: str = hyper(
        "auto",
        "first factors: the identity (constant), or those at the start (laplace); auto: laplace,"
        " and constant above 10,000 weights",
        choices=("auto", "laplace", "constant"),
        keyword=True,
    )
    renewals: float | None = hyper(
        None,
        "how often the factors are renewed in a run, where beta2 is None; None: 2 above 10,000"
        " weights, below it 0 (the usual beta2)",
        least=0,
        optional=True,
        real=True,
        keyword=True,
    )

    def check(self, target: Target, params: PyTree) -> None:
        """Refuse a prior with correlations."""
        kronecker.check_factors(target, self.name)

    def effective_data(self, target: Target) -> Array:
        """N: the number of data divided by the temperature."""
        return target.num_data / self.temperature

    def init(self, key: Array, target: Target, params: PyTree) -> NoisyKFACState:
        """At `params`, with factors as set by `start`."""
        assert target.data is not None
        rows = jax.tree.map(lambda leaf: leaf[:MAX_ROWS], target.data)

        def factors() -> kronecker.Factors:
            return kronecker.factors(key, target, params, rows, self.curvature)

        if self.setting("start") == "constant":
            found = identity(jax.eval_shape(factors))
        else:
            found = factors()
        layers = kronecker.layers_of(target, params)
        q = self._gaussian(target, params, layers, found)
        zeros = jax.tree.map(jnp.zeros_like, params)
        return NoisyKFACState(q, found, zeros, jnp.zeros((), jnp.int32))

    def _gaussian(
        self, target: Target, mean: PyTree, layers: tuple, found: kronecker.Factors
    ) -> KroneckerGaussian:
        assert target.prior is not None
        _, prec = target.prior.broadcast(tree.double(mean))
        num_data = self.effective_data(target)
        return KroneckerGaussian.from_factors(mean, layers, *found, prec, num_data)

    def step(
        self, key: Array, target: Target, state: NoisyKFACState, batch: Batch | None
    ) -> tuple[NoisyKFACState, NoisyKFACInfo]:
        """One natural step, from gradients and factors at draws of q."""
        rows = target.data if batch is None else batch
        assert rows is not None
        assert target.prior is not None
        q, num_data = state.q, self.effective_data(target)
        key_draws, key_labels = jax.random.split(key)

        def one(noise: PyTree, key: Array) -> tuple[Array, PyTree, kronecker.Factors]:
            params = q.transform(noise)
            return kronecker.value_and_factors(key, target, params, rows, self.curvature)

        num_draws = int(self.setting("num_draws"))
        noise = tree.normal_like(key_draws, q.mean, num_draws)
        keys = jax.random.split(key_labels, num_draws)
        value, gradient, new = mean_over_draws(one, target, batch, q.mean, noise, keys)

        weight = self.renewal_weight() if self.beta2 is None else self.beta2

        def averaged(old: Array, new: Array) -> Array:
            part = jnp.asarray(weight, old.dtype)
            return (1.0 - part) * old + part * new

        factors = jax.tree.map(averaged, state.factors, new)
        prior_mean, prior_prec = target.prior.broadcast(tree.double(q.mean))

        def momentum(m: Array, g: Array, w: Array, m0: Array, p: Array) -> Array:
            total = p * (w - m0) / num_data - g
            return (self.beta1 * m + (1.0 - self.beta1) * total).astype(m.dtype)

        m = jax.tree.map(momentum, state.m, gradient, q.mean, prior_mean, prior_prec)
        step = natural_step(q, m, num_data)
        squares = tree.total(jax.tree.map(jnp.square, step))
        length = jnp.sqrt(squares / tree.size(step))
        rate = self.schedule()(state.count)
        clip = self.setting("clip")
        rate = rate * jnp.minimum(1.0, clip / jnp.maximum(length, 1e-30))
        mean = jax.tree.map(lambda w, s: w - (rate * s).astype(w.dtype), q.mean, step)
        count = state.count + 1
        q = jax.lax.cond(
            count % self.refresh == 0,
            lambda: self._gaussian(target, mean, q.layers, factors),
            lambda: dataclasses.replace(q, mean=mean),
        )
        info = NoisyKFACInfo(-value * target.num_data, length)
        return NoisyKFACState(q, factors, m, count), info

    def gradients_per_step(self, target: Target, state: NoisyKFACState) -> int:
        """One per draw; those of the factors are not counted."""
        return int(self.setting("num_draws"))

    def run_notes(self, target: Target, params: PyTree) -> list[str]:
        """Leaves that have no Kronecker factors, if there are any."""
        return kronecker.notes(target, params)

    def approximation(
        self, target: Target, state: NoisyKFACState, draws: PyTree | None = None
    ) -> KroneckerGaussian:
        """The Gaussian of the state."""
        return state.q
