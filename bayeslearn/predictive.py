"""Predictive: what the posterior says about new inputs.

Every quantity is computed on demand in chunks of rows, and for each chunk in a compiled loop over
the draws, as many at once as fill the device (`ROWS`, `at_once`). Moments, probabilities and
log-probabilities are summed up as the draws go by, so that memory grows neither with the number of
rows nor with that of draws; quantiles hold one chunk's outputs of all draws.

Regression: total variance = epistemic + aleatoric, where epistemic is the variance of the draws'
means (1/(S-1)) and aleatoric the mean noise variance. Classification: entropy of the mean
probabilities = epistemic (mutual information) + aleatoric (mean entropy), in nats.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import tree
from bayeslearn.distributed import Layout, home
from bayeslearn.errors import ArgumentError, Shown, refuse
from bayeslearn.model import Target
from bayeslearn.precision import double_precision
from bayeslearn.tree import Array, PyTree

ROWS = 2048  # evaluated at once: enough that a matrix product is worth its start
FILL = {"cpu": 2**13}  # draws x rows evaluated at once: on a CPU what stays in its caches,
FILL_DEVICE = 2**16  # elsewhere what fills the device
CELLS = 2**21  # draws x rows held at once, where all draws of a row are needed together
BISECTIONS = 60
SAMPLES = 4096  # of a row, where its distribution function is not known


class Predictive:
    """The predictive distribution at each row of x. Made by `Posterior.predict`."""

    def __init__(self, target: Target, draws: PyTree, x: PyTree, layout: Layout | None = None):
        # Without the training rows, whose number would have it compiled anew.
        self._target, self._draws, self._x = target.to_predict().on(None), draws, x
        self._layout = layout
        if layout is not None:
            self._target, self._draws = layout.put((self._target, draws))
        self.num_rows = len(jax.tree.leaves(x)[0])
        self.num_samples = len(jax.tree.leaves(draws)[0])
        self.kind: str = target.likelihood.kind
        self.is_discrete: bool = target.likelihood.is_discrete
        self._by_samples = self.kind == "regression" and not hasattr(target.likelihood, "cdf")

    def __repr__(self) -> str:
        return f"Predictive({self.kind}, rows={self.num_rows}, draws={self.num_samples})"

    # Moments and probabilities

    @cached_property
    def _summary(self) -> dict[str, np.ndarray]:
        return self._by_rows(_moments if self.kind == "regression" else _class_summary)

    @property
    def mean(self) -> np.ndarray:
        """Predictive mean, shaped like y; for classification the class probabilities."""
        return self._like_y(self._summary["mean"]) if self.kind == "regression" else self.probs

    @property
    def probs(self) -> np.ndarray:
        """Class probabilities (rows, classes), averaged over the draws."""
        self._need("classification", "probs")
        return self._summary["probs"]

    @property
    def epistemic(self) -> np.ndarray:
        """What more data could tell: variance of the mean, or mutual information."""
        return self._like_y(self._summary["epistemic"])

    @property
    def aleatoric(self) -> np.ndarray:
        """What no data could tell: noise variance, or mean entropy."""
        return self._like_y(self._summary["aleatoric"])

    @property
    def total(self) -> np.ndarray:
        """epistemic + aleatoric: the predictive variance, or the predictive entropy."""
        return self.epistemic + self.aleatoric

    @property
    def variance(self) -> np.ndarray:
        """Variance of a new observation (of each class's indicator, for classification)."""
        if self.kind == "classification":
            return self.probs * (1.0 - self.probs)
        return self.total

    @property
    def std(self) -> np.ndarray:
        return np.sqrt(self.variance)

    def covariance(self) -> np.ndarray:
        """Covariance of a new observation's columns (classes): (rows, columns, columns)."""
        return self._by_rows(_covariance if self.kind == "regression" else _class_covariance)

    # The whole distribution

    def like_mean(self, y: Any) -> np.ndarray:
        """Observations checked and shaped as the predictions are."""
        y = self._check_y(y)
        return self._like_y(y) if self.kind == "regression" else y

    @double_precision
    def log_prob(self, y: Any) -> np.ndarray:
        """log p(y) of each row, the average taken over draws inside the logarithm."""
        return self._by_rows(_log_prob, self._observed(y))

    @double_precision
    def log_prob_by_draw(self, y: Any) -> np.ndarray:
        """log p(y) of each row under each draw of the weights: (draws, rows)."""
        return self._by_rows(_log_terms, self._observed(y), held=self.num_samples).T

    def interval(self, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper end of the central interval for a new observation."""
        if not isinstance(level, numbers.Real) or not 0 < level < 1:
            refuse("level", level, "be between 0 and 1, such as 0.9")
        tail = (1.0 - level) / 2.0
        lower, upper = self._quantiles([tail, 1.0 - tail])
        return lower, upper

    def quantile(self, q: float) -> np.ndarray:
        """Quantile of a new observation: the mixture over draws, inverted exactly.

        Of a count it is the least whole number that reaches q. A custom likelihood's is estimated
        from 4096 samples.
        """
        if not isinstance(q, numbers.Real) or not 0 < q < 1:
            refuse("q", q, "be between 0 and 1")
        return self._quantiles([q])[0]

    def _quantiles(self, qs: list[float]) -> list[np.ndarray]:
        """Several quantiles of each row, for which the network is evaluated once."""
        self._need("regression", "quantile and interval")
        function = _sampled_quantiles if self._by_samples else _quantiles
        values = self._by_rows(partial(function, np.asarray(qs, np.float64)), held=self._num_held)
        return [self._like_y(values[:, place]) for place in range(len(qs))]

    @double_precision
    def cdf(self, y: Any) -> np.ndarray:
        """Probability of a new observation at or below y (its PIT value)."""
        return self.cdfs([y])[0]

    @double_precision
    def cdfs(self, points: Sequence[Any]) -> list[np.ndarray]:
        """`cdf` at several y of each row, for which the network is evaluated once."""
        self._need("regression", "cdf")
        function = _sampled_cdfs if self._by_samples else _cdfs
        stacked = jnp.stack([self._observed(y) for y in points], axis=1)
        values = self._by_rows(function, stacked, held=self._num_held)
        return [self._like_y(values[:, place]) for place in range(len(points))]

    @double_precision
    def sample(self, key: Array | int, num: int = 1) -> np.ndarray:
        """New observations (num, rows, ...): a draw of the weights, then of the noise."""
        key = jax.random.key(key) if isinstance(key, int | np.integer) else key
        key_draw, key_noise = jax.random.split(key)
        chosen = jax.random.randint(key_draw, (num,), 0, self.num_samples)
        parts = []
        for index, (rows, x) in enumerate(self._chunks(held=num)):
            key = jax.random.fold_in(key_noise, index)
            values = _sample(
                self._target, self._draws, x, chosen, key, at_once=self._at_once(x, num)
            )
            parts.append(np.asarray(home(values))[:, :rows])
        values = np.concatenate(parts, axis=1)
        return values[..., 0] if getattr(self._target.likelihood, "is_vector", False) else values

    # How it is computed

    def _check_y(self, y: Any) -> np.ndarray:
        """Observations at the rows of x, in the form the likelihood takes."""
        y = self._target.likelihood.check(np.asarray(y))
        if len(y) != self.num_rows:
            refuse("y", Shown(f"{len(y)} rows"), f"have as many rows as x ({self.num_rows})")
        return y

    def _observed(self, y: Any) -> Array:
        return self._target.batch((self._x, self._check_y(y))).y

    @property
    def _num_held(self) -> int:
        """Values of a row that its quantiles need together."""
        return max(self.num_samples, SAMPLES if self._by_samples else 1)

    def _chunks(self, *more: Array, held: int = 1):
        """Chunks of rows of one size, the last one padded by repeating its last row."""
        # Few sizes, so that another number of rows seldom compiles again.
        size = min(1 << (self.num_rows - 1).bit_length(), ROWS, max(1, CELLS // held))
        size *= 1 if self._layout is None else self._layout.num_shards
        for start in range(0, self.num_rows, size):
            rows = min(size, self.num_rows - start)
            chosen = np.minimum(np.arange(start, start + size), self.num_rows - 1)
            arrays = jax.tree.map(lambda leaf, c=chosen: leaf[c], (self._x, *more))
            yield rows, *(arrays if self._layout is None else self._layout.put_rows(arrays))

    def _at_once(self, x: PyTree, num: int) -> int:
        """Draws evaluated together on these rows, by a fixed rule."""
        fill = FILL.get(jax.default_backend(), FILL_DEVICE)
        return max(1, min(num, fill // len(jax.tree.leaves(x)[0])))

    @double_precision
    def _by_rows(self, function: Callable[..., Any], *more: Array, held: int = 1) -> Any:
        jitted = _jitted(function)
        parts = []
        for rows, x, *arrays in self._chunks(*more, held=held):
            at_once = self._at_once(x, self.num_samples)
            values = jitted(self._target, self._draws, x, *arrays, at_once=at_once)
            parts.append(jax.tree.map(lambda a, n=rows: np.asarray(a)[:n], home(values)))
        return jax.tree.map(lambda *p: np.concatenate(p), *parts)

    def _like_y(self, values: np.ndarray) -> np.ndarray:
        return values[:, 0] if getattr(self._target.likelihood, "is_vector", False) else values

    def _need(self, kind: str, what: str) -> None:
        if self.kind != kind:
            raise ArgumentError(
                f"{what} needs a {kind} model; this predictive is for {self.kind}."
                + (" Use `probs`." if kind == "regression" else " Use `mean` and `std`.")
            )


def _jitted(function: Callable[..., Any]) -> Callable[..., Any]:
    if isinstance(function, partial):
        return partial(_jitted(function.func), *function.args)
    if function not in _cache:
        _cache[function] = jax.jit(function, static_argnames="at_once")
    return _cache[function]


_cache: dict[Callable[..., Any], Callable[..., Any]] = {}


def _fold(
    function: Callable[..., Any],
    add: Callable[[Any, Any, Array, Array], Any],
    start: Any,
    draws: PyTree,
    at_once: int,
    *each: Array,
) -> Any:
    """`start` with `add`ed function(draw, *each) of all draws, `at_once` at a time.

    The last ones are filled up with draws that came before; `add` is told which are new. Where
    `each` is given, its first array says which draw is meant.
    """
    num = len(each[0]) if each else len(jax.tree.leaves(draws)[0])
    times = -(-num // at_once)
    at_once = -(-num // times)  # as evenly as can be, so that few are evaluated twice

    def one(i: Array, sums: Any) -> Any:
        first = jnp.minimum(i * at_once, num - at_once)

        def some(values: Array) -> Array:
            return jax.lax.dynamic_slice_in_dim(values, first, at_once)

        chosen = [some(values) for values in each]
        params = jax.tree.map(lambda w: w[chosen[0]] if each else some(w), draws)
        places = first + jnp.arange(at_once)
        return add(sums, jax.vmap(function)(params, *chosen[1:]), places, places >= i * at_once)

    return jax.lax.fori_loop(0, times, one, start)


def _zeros(function: Callable[..., Any], draws: PyTree, *each: Any) -> Any:
    """Zeros of the shapes of function(draw, *each)."""
    shapes = jax.eval_shape(function, jax.tree.map(lambda w: w[0], draws), *each)
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)


def _stack(function: Callable[..., Any], draws: PyTree, at_once: int, *each: Array) -> Array:
    """function(draw, *each) of all draws along a leading axis."""
    num = len(each[0]) if each else len(jax.tree.leaves(draws)[0])
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


def _spread(
    target: Target, draws: PyTree, x: PyTree, noise: Callable, square: Callable, at_once: int
) -> tuple[Array, Array, Array]:
    """Mean of the draws' means, their variance by `square` (1/(S-1)), and the mean noise."""
    function = _of_rows(target, x, target.likelihood.mean, noise)
    mean, of_noise = _zeros(function, draws)
    start = (jnp.zeros((), jnp.float64), mean, square(mean), of_noise)

    def add(sums: tuple, values: tuple, places: Array, is_new: Array) -> tuple:
        """Two sets of draws make one: their means' distance adds to the spread."""
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


def _moments(target: Target, draws: PyTree, x: PyTree, at_once: int) -> dict[str, Array]:
    mean, epistemic, aleatoric = _spread(
        target, draws, x, target.likelihood.variance, jnp.square, at_once
    )
    return {"mean": mean, "epistemic": epistemic, "aleatoric": aleatoric}


def _covariance(target: Target, draws: PyTree, x: PyTree, at_once: int) -> Array:
    def square(v: Array) -> Array:
        return v[..., :, None] * v[..., None, :]

    _, epistemic, noise = _spread(target, draws, x, target.likelihood.covariance, square, at_once)
    return epistemic + noise


def _class_summary(target: Target, draws: PyTree, x: PyTree, at_once: int) -> dict[str, Array]:
    def function(params: PyTree) -> tuple[Array, Array]:
        (probs,) = _of_rows(target, x, target.likelihood.probs)(params)
        return probs, _entropy(probs)

    def add(sums: tuple, values: tuple, places: Array, is_new: Array) -> tuple:
        return jax.tree.map(
            lambda s, v: s + jnp.tensordot(is_new.astype(v.dtype), v, 1), sums, values
        )

    sums = _fold(function, add, _zeros(function, draws), draws, at_once)
    mean, aleatoric = (s / len(jax.tree.leaves(draws)[0]) for s in sums)
    epistemic = jnp.maximum(_entropy(mean) - aleatoric, 0.0)
    return {"probs": mean, "epistemic": epistemic, "aleatoric": aleatoric}


def _entropy(probs: Array) -> Array:
    return -jnp.sum(jax.scipy.special.xlogy(probs, probs), axis=-1)


def _class_covariance(target: Target, draws: PyTree, x: PyTree, at_once: int) -> Array:
    mean = _class_summary(target, draws, x, at_once)["probs"]
    return jax.vmap(jnp.diag)(mean) - jnp.einsum("ri,rj->rij", mean, mean)


def _log_term(target: Target, x: PyTree, y: Array) -> Callable[[PyTree], Array]:
    """Of a draw: log p(y) of each row."""

    def of_draw(params: PyTree) -> Array:
        outputs = target.outputs(params, x).astype(jnp.float64)
        own = tree.double(params["likelihood"])
        return jax.vmap(lambda o, v: target.likelihood.log_prob(o, v, own))(outputs, y)

    return of_draw


def _log_terms(target: Target, draws: PyTree, x: PyTree, y: Array, at_once: int) -> Array:
    return _stack(_log_term(target, x, y), draws, at_once).T


def _log_prob(target: Target, draws: PyTree, x: PyTree, y: Array, at_once: int) -> Array:
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
    return jnp.log(summed) + safe - jnp.log(len(jax.tree.leaves(draws)[0]))


def _outputs(target: Target, draws: PyTree, x: PyTree, at_once: int) -> Array:
    return _stack(lambda params: target.outputs(params, x), draws, at_once).astype(jnp.float64)


def _cdf(target: Target, draws: PyTree, outputs: Array, y: Array) -> Array:
    """Of the mixture over draws, whose networks gave `outputs` (draws, rows, ...)."""
    own = tree.double(draws["likelihood"])
    cdf = jax.vmap(jax.vmap(target.likelihood.cdf, (0, 0, None)), (0, None, 0))
    return jnp.mean(cdf(outputs, y, own), axis=0)


def _cdfs(target: Target, draws: PyTree, x: PyTree, points: Array, at_once: int) -> Array:
    outputs = _outputs(target, draws, x, at_once)
    values = jax.lax.map(lambda y: _cdf(target, draws, outputs, y), jnp.moveaxis(points, 1, 0))
    return jnp.moveaxis(values, 0, 1)


def _quantiles(qs: Any, target: Target, draws: PyTree, x: PyTree, at_once: int) -> Array:
    """Bisection on the mixture's distribution function.

    It begins where Cantelli's inequality puts every draw's quantile, whatever its distribution.
    """
    likelihood, own = target.likelihood, tree.double(draws["likelihood"])
    outputs = _outputs(target, draws, x, at_once)
    means, variances = (
        jax.vmap(jax.vmap(of, (0, None)))(outputs, own)
        for of in (likelihood.mean, likelihood.variance)
    )
    stds = jnp.sqrt(variances)

    def one(q: Array) -> Array:
        odds = jnp.sqrt(q / (1.0 - q))
        ends = jnp.min(means - 1.001 * stds / odds, 0), jnp.max(means + 1.001 * stds * odds, 0)

        def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = ends
            middle = 0.5 * (low + high)
            is_below = _cdf(target, draws, outputs, middle) < q
            return jnp.where(is_below, middle, low), jnp.where(is_below, high, middle)

        low, high = jax.lax.fori_loop(0, BISECTIONS, halve, ends)
        middle = 0.5 * (low + high)
        return jnp.round(middle) if likelihood.is_discrete else middle

    return jnp.moveaxis(jax.lax.map(one, qs), 0, 1)


def _row_samples(target: Target, draws: PyTree, x: PyTree, at_once: int) -> Array:
    """About `SAMPLES` new observations of each row, as many of every draw."""
    num = len(jax.tree.leaves(draws)[0])
    chosen = jnp.repeat(jnp.arange(num), -(-SAMPLES // num))
    samples = _sample(target, draws, x, chosen, jax.random.key(0), at_once=at_once)
    return samples.astype(jnp.float64)


def _sampled_quantiles(qs: Any, target: Target, draws: PyTree, x: PyTree, at_once: int) -> Array:
    samples = _row_samples(target, draws, x, at_once)
    return jnp.moveaxis(jnp.quantile(samples, qs, axis=0, method="nearest"), 0, 1)


def _sampled_cdfs(target: Target, draws: PyTree, x: PyTree, points: Array, at_once: int) -> Array:
    samples = _row_samples(target, draws, x, at_once)
    values = jax.lax.map(lambda y: jnp.mean(samples <= y, axis=0), jnp.moveaxis(points, 1, 0))
    return jnp.moveaxis(values, 0, 1)


@partial(jax.jit, static_argnames="at_once")
def _sample(
    target: Target, draws: PyTree, x: PyTree, chosen: Array, key: Array, *, at_once: int
) -> Array:
    """A new observation of each row by each of the `chosen` draws."""

    def one(params: PyTree, key: Array) -> Array:
        outputs = target.outputs(params, x).astype(jnp.float64)
        own = tree.double(params["likelihood"])
        keys = jax.random.split(key, len(outputs))
        return jax.vmap(lambda k, o: target.likelihood.sample(k, o, own))(keys, outputs)

    return _stack(one, draws, at_once, chosen, jax.random.split(key, len(chosen)))
