"""Summaries of predictions, accumulated in a compiled loop over draws."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.channels_last import channels_last
from bayeslearn.families.streamed import (
    StreamedDraws,
    draws_at,
    likelihood_params,
    num_draws,
)
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

BISECTIONS = 60
SAMPLES = 4096  # of a row, where its distribution function is not known


class RealScale(NamedTuple):
    """A scale on which bounded numbers are any real number."""

    value_at: Callable[[Array], Array]
    lowest: float
    highest: float


REAL_SCALES = {  # by support
    (0.0, float("inf")): RealScale(jnp.exp, -700.0, 700.0),
    (0.0, 1.0): RealScale(jax.nn.sigmoid, -700.0, 40.0),
}


def _fold(
    function: Callable[..., Any],
    add: Callable[[Any, Any, Array, Array], Any],
    start: Any,
    draws: PyTree,
    at_once: int,
    *each: Array,
) -> Any:
    """`start` with `add`ed function(draw, *each) of all draws, `at_once` at a time.

    The last ones are filled up with draws that came before; `add` gets which are new. Where
    `each` is given, its first array says which draw is meant.
    """
    num = len(each[0]) if each else num_draws(draws)
    times = -(-num // at_once)
    at_once = -(-num // times)  # as evenly as can be, so that few are evaluated twice

    def one(i: Array, sums: Any) -> Any:
        first = jnp.minimum(i * at_once, num - at_once)

        def some(values: Array) -> Array:
            return jax.lax.dynamic_slice_in_dim(values, first, at_once)

        chosen = [some(values) for values in each]
        places = first + jnp.arange(at_once)
        if each or isinstance(draws, StreamedDraws):
            params = draws_at(draws, chosen[0] if each else places)
        else:
            params = jax.tree.map(some, draws)
        return add(sums, jax.vmap(function)(params, *chosen[1:]), places, places >= i * at_once)

    return jax.lax.fori_loop(0, times, one, start)


def _zeros(function: Callable[..., Any], draws: PyTree, *each: Any) -> Any:
    """Zeros of the shapes of function(draw, *each)."""
    shapes = jax.eval_shape(
        lambda *each: function(jax.tree.map(lambda w: w[0], draws_at(draws, jnp.arange(1))), *each),
        *each,
    )
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)


def _stack(function: Callable[..., Any], draws: PyTree, at_once: int, *each: Array) -> Array:
    """function(draw, *each) of all draws along a leading axis."""
    num = len(each[0]) if each else num_draws(draws)
    like = _zeros(function, draws, *(values[0] for values in each[1:]))
    start = jnp.zeros((num, *like.shape), like.dtype)

    def put(stacked: Array, values: Array, places: Array, is_new: Array) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(stacked, values, places[0], 0)

    return _fold(function, put, start, draws, at_once, *each)


def _of_rows(target: Target, x: PyTree, *functions: Callable) -> Callable[[PyTree], tuple]:
    """Of a draw: each function(outputs, likelihood params) at every row."""

    def of_draw(params: PyTree) -> tuple:
        outputs = target.outputs(params, x).astype(jnp.float64)
        own = tree.double(params["likelihood"])
        return tuple(jax.vmap(lambda o, f=f: f(o, own))(outputs) for f in functions)

    return of_draw


def _moments_of(
    target: Target, draws: PyTree, x: PyTree, noise: Callable, square: Callable, at_once: int
) -> tuple[Array, Array, Array]:
    """Mean of the draws' means, their variance by `square` (1/(S-1)), and the mean noise."""
    function = _of_rows(target, x, target.likelihood.mean, noise)
    mean, of_noise = _zeros(function, draws)
    start = (jnp.zeros((), jnp.float64), mean, square(mean), of_noise)

    def add(sums: tuple, values: tuple, places: Array, is_new: Array) -> tuple:
        """Two sets of draws make one: the distance of their means adds to the variance."""
        count, mean, squares, noise = sums

        def total(v: Array) -> Array:
            return jnp.sum(v, axis=0, where=is_new.reshape(-1, *[1] * (v.ndim - 1)))

        num = jnp.sum(is_new)
        own = total(values[0]) / num
        both = count + num
        away = own - mean
        squares = squares + total(square(values[0] - own)) + square(away) * (count * num / both)
        return both, mean + away * (num / both), squares, noise + total(values[1])

    count, mean, squares, noises = _fold(function, add, start, draws, at_once)
    return mean, squares / jnp.maximum(count - 1, 1), noises / count


def mixture_moments(target: Target, draws: PyTree, x: PyTree, at_once: int) -> dict[str, Array]:
    """Predictive mean, epistemic and aleatoric variance of each row."""
    mean, epistemic, aleatoric = _moments_of(
        target, draws, x, target.likelihood.variance, jnp.square, at_once
    )
    return {"mean": mean, "epistemic": epistemic, "aleatoric": aleatoric}


def mixture_covariance(target: Target, draws: PyTree, x: PyTree, at_once: int) -> Array:
    """Covariance of the columns of a new observation, row by row."""

    def square(v: Array) -> Array:
        return v[..., :, None] * v[..., None, :]

    _, epistemic, noise = _moments_of(
        target, draws, x, target.likelihood.covariance, square, at_once
    )
    return epistemic + noise


def class_summary(target: Target, draws: PyTree, x: PyTree, at_once: int) -> dict[str, Array]:
    """Mean class probabilities, mutual information and mean entropy of each row."""

    def function(params: PyTree) -> tuple[Array, Array]:
        (probs,) = _of_rows(target, x, target.likelihood.probs)(params)
        return probs, _entropy(probs)

    def add(sums: tuple, values: tuple, places: Array, is_new: Array) -> tuple:
        return jax.tree.map(
            lambda s, v: s + jnp.tensordot(is_new.astype(v.dtype), v, 1), sums, values
        )

    sums = _fold(function, add, _zeros(function, draws), draws, at_once)
    mean, aleatoric = (s / num_draws(draws) for s in sums)
    epistemic = jnp.maximum(_entropy(mean) - aleatoric, 0.0)
    return {"probs": mean, "epistemic": epistemic, "aleatoric": aleatoric}


def _entropy(probs: Array) -> Array:
    return -jnp.sum(jax.scipy.special.xlogy(probs, probs), axis=-1)


def class_covariance(target: Target, draws: PyTree, x: PyTree, at_once: int) -> Array:
    """Covariance of the class indicators of a new observation, row by row."""
    mean = class_summary(target, draws, x, at_once)["probs"]
    return jax.vmap(jnp.diag)(mean) - jnp.einsum("ri,rj->rij", mean, mean)


def _log_term(target: Target, x: PyTree, y: Array) -> Callable[[PyTree], Array]:
    """Of a draw: log p(y) of each row."""

    def of_draw(params: PyTree) -> Array:
        outputs = target.outputs(params, x).astype(jnp.float64)
        own = tree.double(params["likelihood"])
        return jax.vmap(lambda o, v: target.likelihood.log_prob(o, v, own))(outputs, y)

    return of_draw


def log_prob_terms(target: Target, draws: PyTree, x: PyTree, y: Array, at_once: int) -> Array:
    """log p(y) by row and draw: (rows, draws)."""
    return _stack(_log_term(target, x, y), draws, at_once).T


def mixture_log_prob(target: Target, draws: PyTree, x: PyTree, y: Array, at_once: int) -> Array:
    """log p(y) of each row, averaged over draws inside the logarithm."""
    function = _log_term(target, x, y)
    zeros = _zeros(function, draws)

    def add(sums: tuple, terms: Array, places: Array, is_new: Array) -> tuple:
        """The sum of exponentials beside the largest term so far."""
        old, summed = sums
        terms = jnp.where(is_new[:, None], terms, -jnp.inf)
        largest = jnp.maximum(old, jnp.max(terms, axis=0))
        safe = jnp.where(jnp.isinf(largest), 0.0, largest)
        summed = summed * jnp.exp(old - safe) + jnp.sum(jnp.exp(terms - safe), axis=0)
        return largest, summed

    start = (zeros - jnp.inf, zeros)
    largest, summed = _fold(function, add, start, draws, at_once)
    safe = jnp.where(jnp.isinf(largest), 0.0, largest)
    return jnp.log(summed) + safe - jnp.log(num_draws(draws))


def _outputs(target: Target, draws: PyTree, x: PyTree, at_once: int) -> Array:
    return _stack(lambda params: target.outputs(params, x), draws, at_once).astype(jnp.float64)


def _cdf_of(target: Target, draws: PyTree, outputs: Array) -> Callable[[Array], Array]:
    """Of the mixture over draws, whose networks gave `outputs` (draws, rows, ...)."""
    prepare = jax.vmap(target.likelihood.for_cdf, axis_size=len(outputs))
    own = prepare(tree.double(likelihood_params(draws)))
    cdf = jax.vmap(jax.vmap(target.likelihood.cdf, (0, 0, None)), (0, None, 0))
    return lambda y: jnp.mean(cdf(outputs, y, own), axis=0)


def mixture_cdfs(target: Target, draws: PyTree, x: PyTree, points: Array, at_once: int) -> Array:
    """The mixture's distribution function at points (rows, points, ...)."""
    outputs = _outputs(target, draws, x, at_once)
    values = jax.lax.map(_cdf_of(target, draws, outputs), jnp.moveaxis(points, 1, 0))
    return jnp.moveaxis(values, 0, 1)


def mixture_quantiles(qs: Any, target: Target, draws: PyTree, x: PyTree, at_once: int) -> Array:
    """Bisection on the mixture's distribution function.

    It is on the logarithm of positive numbers and the log-odds of proportions, which may be tiny.
    It begins where Cantelli's inequality puts every draw's quantile, whatever its distribution.
    """
    likelihood, own = target.likelihood, tree.double(likelihood_params(draws))
    outputs = _outputs(target, draws, x, at_once)
    means, variances = (
        jax.vmap(jax.vmap(of, (0, None)))(outputs, own)
        for of in (likelihood.mean, likelihood.variance)
    )
    stds = jnp.sqrt(variances)
    cdf = _cdf_of(target, draws, outputs)
    scale = None if likelihood.is_discrete else REAL_SCALES.get(likelihood.support)
    value_at = (lambda values: values) if scale is None else scale.value_at

    def one(q: Array) -> Array:
        odds = jnp.sqrt(q / (1.0 - q))
        low, high = jnp.min(means - 1.001 * stds / odds, 0), jnp.max(means + 1.001 * stds * odds, 0)
        if scale is not None:
            low, high = jnp.full_like(low, scale.lowest), jnp.full_like(high, scale.highest)

        def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = ends
            middle = 0.5 * (low + high)
            is_below = cdf(value_at(middle)) < q
            return jnp.where(is_below, middle, low), jnp.where(is_below, high, middle)

        low, high = jax.lax.fori_loop(0, BISECTIONS, halve, (low, high))
        middle = value_at(0.5 * (low + high))
        return jnp.round(middle) if likelihood.is_discrete else middle

    return jnp.moveaxis(jax.lax.map(one, qs), 0, 1)


def _row_samples(target: Target, draws: PyTree, x: PyTree, at_once: int) -> Array:
    """About `SAMPLES` new observations of each row, as many of every draw."""
    num = num_draws(draws)
    chosen = jnp.repeat(jnp.arange(num), -(-SAMPLES // num))
    samples = sample_observations(target, draws, x, chosen, jax.random.key(0), at_once=at_once)
    return samples.astype(jnp.float64)


def sampled_quantiles(qs: Any, target: Target, draws: PyTree, x: PyTree, at_once: int) -> Array:
    """Quantiles of SAMPLES simulated observations of each row."""
    samples = _row_samples(target, draws, x, at_once)
    return jnp.moveaxis(jnp.quantile(samples, qs, axis=0, method="nearest"), 0, 1)


def sampled_cdfs(target: Target, draws: PyTree, x: PyTree, points: Array, at_once: int) -> Array:
    """Fraction of SAMPLES simulated observations at or below each point."""
    samples = _row_samples(target, draws, x, at_once)
    values = jax.lax.map(lambda y: jnp.mean(samples <= y, axis=0), jnp.moveaxis(points, 1, 0))
    return jnp.moveaxis(values, 0, 1)


@partial(jax.jit, static_argnames="at_once")
@channels_last
def sample_observations(
    target: Target, draws: PyTree, x: PyTree, chosen: Array, key: Array, *, at_once: int
) -> Array:
    """A new observation of each row by each of the `chosen` draws."""

    def one(params: PyTree, key: Array) -> Array:
        outputs = target.outputs(params, x).astype(jnp.float64)
        own = tree.double(params["likelihood"])
        keys = jax.random.split(key, len(outputs))
        return jax.vmap(lambda k, o: target.likelihood.sample(k, o, own))(keys, outputs)

    return _stack(one, draws, at_once, chosen, jax.random.split(key, len(chosen)))
