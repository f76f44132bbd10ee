"""Predictive: what the posterior says about new inputs.

Every quantity is computed on demand in chunks of rows, over all draws at once, so that memory
does not grow with the number of rows. Regression: total variance = epistemic + aleatoric, where
epistemic is the variance of the draws' means (1/(S-1)) and aleatoric the mean noise variance.
Classification: entropy of the mean probabilities = epistemic (mutual information) + aleatoric
(mean entropy), in nats.
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

CELLS = 2**16  # draws x rows evaluated at once
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
        return self._by_rows(_log_terms, self._observed(y)).T

    def interval(self, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper end of the central interval for a new observation."""
        if not isinstance(level, numbers.Real) or not 0 < level < 1:
            refuse("level", level, "be between 0 and 1, such as 0.9")
        tail = (1.0 - level) / 2.0
        return self.quantile(tail), self.quantile(1.0 - tail)

    def quantile(self, q: float) -> np.ndarray:
        """Quantile of a new observation: the mixture over draws, inverted exactly.

        Of a count it is the least whole number that reaches q. A custom likelihood's is estimated
        from 4096 samples.
        """
        self._need("regression", "quantile and interval")
        if not isinstance(q, numbers.Real) or not 0 < q < 1:
            refuse("q", q, "be between 0 and 1")
        function = _sampled_quantile if self._by_samples else _quantile
        values = self._by_rows(partial(function, np.float64(q)))
        return self._like_y(values)

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
        values = self._by_rows(function, stacked)
        return [self._like_y(values[:, place]) for place in range(len(points))]

    @double_precision
    def sample(self, key: Array | int, num: int = 1) -> np.ndarray:
        """New observations (num, rows, ...): a draw of the weights, then of the noise."""
        key = jax.random.key(key) if isinstance(key, int | np.integer) else key
        key_draw, key_noise = jax.random.split(key)
        chosen = jax.random.randint(key_draw, (num,), 0, self.num_samples)
        draws = jax.tree.map(lambda w: w[chosen], self._draws)
        parts = []
        for index, (rows, x) in enumerate(self._chunks()):
            values = _sample(self._target, draws, x, jax.random.fold_in(key_noise, index))
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

    def _chunks(self, *more: Array):
        """Chunks of rows of one size, the last one padded by repeating its last row."""
        cells = max(self.num_samples, SAMPLES if self._by_samples else 1)
        # Few sizes, so that another number of rows seldom compiles again.
        size = max(1, min(1 << (self.num_rows - 1).bit_length(), CELLS // cells))
        size *= 1 if self._layout is None else self._layout.num_shards
        for start in range(0, self.num_rows, size):
            rows = min(size, self.num_rows - start)
            chosen = np.minimum(np.arange(start, start + size), self.num_rows - 1)
            arrays = jax.tree.map(lambda leaf, c=chosen: leaf[c], (self._x, *more))
            yield rows, *(arrays if self._layout is None else self._layout.put_rows(arrays))

    @double_precision
    def _by_rows(self, function: Callable[..., Any], *more: Array) -> Any:
        jitted = _jitted(function)
        parts = []
        for rows, *arrays in self._chunks(*more):
            values = jitted(self._target, self._draws, *arrays)
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
        _cache[function] = jax.jit(function)
    return _cache[function]


_cache: dict[Callable[..., Any], Callable[..., Any]] = {}


def _over_draws(target: Target, draws: PyTree, x: PyTree, function: Callable) -> Any:
    """function(outputs, likelihood params) for every draw and row: leading axes (draws, rows)."""

    def one(params: PyTree) -> Any:
        outputs = target.outputs(params, x).astype(jnp.float64)
        own = tree.double(params["likelihood"])
        return jax.vmap(lambda o: function(o, own))(outputs)

    return jax.vmap(one)(draws)


def _moments(target: Target, draws: PyTree, x: PyTree) -> dict[str, Array]:
    likelihood = target.likelihood
    means = _over_draws(target, draws, x, likelihood.mean)
    noise = _over_draws(target, draws, x, likelihood.variance)
    return {
        "mean": jnp.mean(means, axis=0),
        "epistemic": jnp.sum((means - jnp.mean(means, 0)) ** 2, 0) / max(len(means) - 1, 1),
        "aleatoric": jnp.mean(noise, axis=0),
    }


def _class_summary(target: Target, draws: PyTree, x: PyTree) -> dict[str, Array]:
    probs = _over_draws(target, draws, x, target.likelihood.probs)
    mean = jnp.mean(probs, axis=0)
    aleatoric = jnp.mean(_entropy(probs), axis=0)
    epistemic = jnp.maximum(_entropy(mean) - aleatoric, 0.0)
    return {"probs": mean, "epistemic": epistemic, "aleatoric": aleatoric}


def _entropy(probs: Array) -> Array:
    return -jnp.sum(jax.scipy.special.xlogy(probs, probs), axis=-1)


def _covariance(target: Target, draws: PyTree, x: PyTree) -> Array:
    means = _over_draws(target, draws, x, target.likelihood.mean)
    noise = jnp.mean(_over_draws(target, draws, x, target.likelihood.covariance), axis=0)
    centred = means - jnp.mean(means, axis=0)
    epistemic = jnp.einsum("sri,srj->rij", centred, centred) / max(len(means) - 1, 1)
    return epistemic + noise


def _class_covariance(target: Target, draws: PyTree, x: PyTree) -> Array:
    mean = jnp.mean(_over_draws(target, draws, x, target.likelihood.probs), axis=0)
    return jax.vmap(jnp.diag)(mean) - jnp.einsum("ri,rj->rij", mean, mean)


def _log_terms(target: Target, draws: PyTree, x: PyTree, y: Array) -> Array:
    def one(params: PyTree) -> Array:
        outputs = target.outputs(params, x).astype(jnp.float64)
        own = tree.double(params["likelihood"])
        return jax.vmap(lambda o, v: target.likelihood.log_prob(o, v, own))(outputs, y)

    return jax.vmap(one, out_axes=1)(draws)


def _log_prob(target: Target, draws: PyTree, x: PyTree, y: Array) -> Array:
    terms = _log_terms(target, draws, x, y)
    return jax.nn.logsumexp(terms, axis=1) - jnp.log(terms.shape[1])


def _outputs(target: Target, draws: PyTree, x: PyTree) -> Array:
    return jax.vmap(lambda params: target.outputs(params, x).astype(jnp.float64))(draws)


def _cdf(target: Target, draws: PyTree, outputs: Array, y: Array) -> Array:
    """Of the mixture over draws, whose networks gave `outputs` (draws, rows, ...)."""

    def one(params: PyTree, outputs: Array) -> Array:
        own = tree.double(params["likelihood"])
        return jax.vmap(lambda o, v: target.likelihood.cdf(o, v, own))(outputs, y)

    return jnp.mean(jax.vmap(one)(draws, outputs), axis=0)


def _cdfs(target: Target, draws: PyTree, x: PyTree, points: Array) -> Array:
    outputs = _outputs(target, draws, x)
    values = jax.lax.map(lambda y: _cdf(target, draws, outputs, y), jnp.moveaxis(points, 1, 0))
    return jnp.moveaxis(values, 0, 1)


def _quantile(q: Array, target: Target, draws: PyTree, x: PyTree) -> Array:
    """Bisection on the mixture's distribution function.

    It begins where Cantelli's inequality puts every draw's quantile, whatever its distribution.
    """
    likelihood = target.likelihood
    means = _over_draws(target, draws, x, likelihood.mean)
    stds = jnp.sqrt(_over_draws(target, draws, x, likelihood.variance))
    odds = jnp.sqrt(q / (1.0 - q))
    outputs = _outputs(target, draws, x)
    ends = jnp.min(means - 1.001 * stds / odds, 0), jnp.max(means + 1.001 * stds * odds, 0)

    def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = 0.5 * (low + high)
        is_below = _cdf(target, draws, outputs, middle) < q
        return jnp.where(is_below, middle, low), jnp.where(is_below, high, middle)

    low, high = jax.lax.fori_loop(0, BISECTIONS, halve, ends)
    middle = 0.5 * (low + high)
    return jnp.round(middle) if likelihood.is_discrete else middle


def _row_samples(target: Target, draws: PyTree, x: PyTree) -> Array:
    """About `SAMPLES` new observations of each row, as many of every draw."""
    each = -(-SAMPLES // len(jax.tree.leaves(draws)[0]))
    repeated = jax.tree.map(lambda w: jnp.repeat(w, each, axis=0), draws)
    return _sample(target, repeated, x, jax.random.key(0)).astype(jnp.float64)


def _sampled_quantile(q: Array, target: Target, draws: PyTree, x: PyTree) -> Array:
    return jnp.quantile(_row_samples(target, draws, x), q, axis=0, method="nearest")


def _sampled_cdfs(target: Target, draws: PyTree, x: PyTree, points: Array) -> Array:
    samples = _row_samples(target, draws, x)
    values = jax.lax.map(lambda y: jnp.mean(samples <= y, axis=0), jnp.moveaxis(points, 1, 0))
    return jnp.moveaxis(values, 0, 1)


@jax.jit
def _sample(target: Target, draws: PyTree, x: PyTree, key: Array) -> Array:
    def one(params: PyTree, key: Array) -> Array:
        outputs = target.outputs(params, x).astype(jnp.float64)
        own = tree.double(params["likelihood"])
        keys = jax.random.split(key, len(outputs))
        return jax.vmap(lambda k, o: target.likelihood.sample(k, o, own))(keys, outputs)

    return jax.vmap(one)(draws, jax.random.split(key, len(jax.tree.leaves(draws)[0])))
