"""Metropolis-Hastings (survey section 2).

    propose theta* ~ g(theta* | theta)
    log r = log f(theta*) + log g(theta | theta*) - log f(theta) - log g(theta* | theta)
    accept if log u < log r, else repeat theta;   f = p(D | theta) p(theta)

The default g is a random walk with covariance (2.38^2 / d) C. C is estimated, and its scale
adapted towards `target_acceptance`, in warm-up only, so that the saved draws come from one fixed,
symmetric kernel. `proposal` is any other: a pair `(sample(key, params), log_prob(new, old))`, or
`sample` alone if it is symmetric.

Differs from the survey: f and the acceptance ratio (errata 18, 21). It scales poorly with the
dimension (errata 22): the number of draws per effective draw grows like d.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.algorithms import warmup as warming
from bayeslearn.algorithms.base import Capabilities, InfoFields, hyper
from bayeslearn.algorithms.sampler import Sampler
from bayeslearn.data.rows import Batch
from bayeslearn.errors import refuse
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

FULL_LIMIT = 256  # weights up to which covariance="auto" is a full matrix

Sample = Callable[[Array, PyTree], PyTree]
LogProb = Callable[[PyTree, PyTree], Array]


class MetropolisHastingsState(NamedTuple):
    """The position of a chain, and the random walk."""

    position: PyTree
    log_density: Array
    count: Array  # type: ignore[assignment]
    log_scale: Array
    factor: Array  # (k,) standard deviations or (k, k) Cholesky factor of C
    moments: PyTree  # running covariance of the current window


class MetropolisHastingsInfo(NamedTuple):
    """Diagnostics of a step."""

    log_density: Array
    acceptance: Array
    scale: Array


def log_ratio(log_f_new: Array, log_f_old: Array, log_g_back: Array, log_g_forth: Array) -> Array:
    """log r; minus infinity if the proposed density is zero or NaN."""
    ratio = (log_f_new - log_f_old) + (log_g_back - log_g_forth)
    return jnp.where(jnp.isnan(ratio), -jnp.inf, ratio)


class MetropolisHastings(Sampler):
    """Metropolis-Hastings: an adapted random walk, or a proposal of your own."""

    name: ClassVar[str] = "metropolis-hastings"
    title: ClassVar[str] = "Metropolis-Hastings random walk"
    capabilities: ClassVar[Capabilities] = Capabilities(
        is_sampler=True, needs_gradient=False, takes_minibatches=False, has_lower_bound=False
    )
    info_fields: ClassVar[InfoFields] = InfoFields(progress=("acceptance",))

    num_warmup: int = hyper(4000, "steps that adapt and are discarded", least=0)
    thin: int = hyper(20, "steps per saved draw", least=1)
    covariance: str = hyper(
        "auto", "shape of the random walk", choices=("auto", "diagonal", "full")
    )
    target_acceptance: float = hyper(
        0.0,
        "target of the scale's adaptation; 0: 0.44 for one weight, decreasing to 0.234",
        least=0,
        below=1,
    )
    proposal: Sample | tuple[Sample] | tuple[Sample, LogProb] | None = hyper(
        None, "(sample, log_prob), or sample(key, params) if symmetric", free=True
    )

    def __check_init__(self) -> None:
        pair = self.proposal if isinstance(self.proposal, tuple) else (self.proposal,)
        if self.proposal is not None and not (len(pair) <= 2 and all(map(callable, pair))):
            refuse("proposal", self.proposal, "be a function or a pair (sample, log_prob)")

    def _is_full(self, dimension: int) -> bool:
        """Whether the random walk has a full covariance."""
        return self.covariance == "full" or (self.covariance == "auto" and dimension <= FULL_LIMIT)

    def check(self, target: Target, params: PyTree) -> None:
        """Refuse a full covariance that would not fit in memory."""
        if self._is_full(tree.size(params)):
            tree.check_dense(tree.size(params), 'covariance="diagonal"')

    def init(self, key: Array, target: Target, params: PyTree) -> MetropolisHastingsState:
        """A dispersed position around `params`."""
        dimension = tree.size(params)
        full = self._is_full(dimension)
        position, first = warming.start(
            key, target, params, mass_matrix="dense" if full else "diagonal", step_size=1.0
        )
        return MetropolisHastingsState(
            position,
            target.log_joint(position),
            jnp.zeros((), jnp.int32),
            jnp.log(2.38 / jnp.sqrt(jnp.asarray(dimension, jnp.float64))),
            jnp.sqrt(first.inverse_mass),  # diagonal at the start, so this is its Cholesky factor
            first.moments,
        )

    def step(
        self, key: Array, target: Target, state: MetropolisHastingsState, batch: Batch | None
    ) -> tuple[MetropolisHastingsState, MetropolisHastingsInfo]:
        """One proposal, accepted or rejected."""
        key_propose, key_accept = jax.random.split(key)
        proposed, log_g_back, log_g_forth = self._propose(key_propose, state)
        log_density = target.log_joint(proposed)
        ratio = log_ratio(log_density, state.log_density, log_g_back, log_g_forth)
        accepted = jnp.log(jax.random.uniform(key_accept, (), jnp.float64)) < ratio
        acceptance = jnp.exp(jnp.minimum(0.0, ratio))
        position, log_density = tree.where(
            accepted, (proposed, log_density), (state.position, state.log_density)
        )
        state = state._replace(position=position, log_density=log_density)
        if self.proposal is None and self.num_warmup > 0:
            state = jax.lax.cond(
                state.count < self.num_warmup,
                lambda s: self._adapt(s, acceptance),
                lambda s: s,
                state,
            )
        info = MetropolisHastingsInfo(log_density, acceptance, jnp.exp(state.log_scale))
        return state._replace(count=state.count + 1), info

    def _propose(self, key: Array, state: MetropolisHastingsState) -> tuple[PyTree, Array, Array]:
        """A proposal, and the log-densities of the reverse and the forward move."""
        if self.proposal is None:
            noise = jax.random.normal(key, state.factor.shape[:1], jnp.float64)
            move = state.factor @ noise if state.factor.ndim == 2 else state.factor * noise
            move = tree.unraveler(state.position)(jnp.exp(state.log_scale) * move)
            return jax.tree.map(jnp.add, state.position, move), jnp.zeros(()), jnp.zeros(())
        sample, *log_prob = self.proposal if isinstance(self.proposal, tuple) else (self.proposal,)
        proposed = tree.double(sample(key, state.position))
        if not log_prob:
            return proposed, jnp.zeros(()), jnp.zeros(())
        return (
            proposed,
            log_prob[0](state.position, proposed),
            log_prob[0](proposed, state.position),
        )

    def _adapt(self, state: MetropolisHastingsState, acceptance: Array) -> MetropolisHastingsState:
        """The random walk adapted after a warm-up step."""
        from blackjax.adaptation.mass_matrix import mass_matrix_adaptation

        dimension = tree.size(state.position)
        full = state.factor.ndim == 2
        _, observe, close = mass_matrix_adaptation(not full)
        feeds, ends = warming.windows(self.num_warmup)
        # 0.44 in one dimension, 0.234 in many (Roberts and Rosenthal)
        theory = 0.234 + 0.206 / dimension
        goal = jnp.where(self.target_acceptance > 0, self.target_acceptance, theory)
        gain = (1.0 + state.count) ** -0.6
        state = state._replace(log_scale=state.log_scale + gain * (acceptance - goal))

        def new_window(old: MetropolisHastingsState) -> MetropolisHastingsState:
            moments = close(old.moments)
            cov = moments.inverse_mass_matrix
            factor = jnp.linalg.cholesky(cov) if full else jnp.sqrt(cov)
            scale = jnp.log(2.38 / jnp.sqrt(jnp.asarray(dimension, jnp.float64)))
            return old._replace(moments=moments, factor=factor, log_scale=scale)

        moments = jax.lax.cond(
            feeds[state.count],
            lambda m: observe(m, state.position),
            lambda m: m,
            state.moments,
        )
        state = state._replace(moments=moments)
        return jax.lax.cond(ends[state.count], new_window, lambda s: s, state)
