"""Predictive: the predictive distribution at new inputs.

Every quantity is computed on demand in chunks of rows, and for each chunk in a compiled loop over
the draws, as many at once as fill the device (`ROWS`, `at_once`). Moments, probabilities and
log-probabilities are accumulated over draws, so that memory grows neither with the number of rows
nor with that of draws; quantiles hold one chunk's outputs of all draws. Many draws of many weights
are made inside that loop (`families.streamed`).

Regression: total variance = epistemic + aleatoric, where epistemic is the variance of the draws'
means (1/(S-1)) and aleatoric the mean noise variance. Classification: entropy of the mean
probabilities = epistemic (mutual information) + aleatoric (mean entropy), in nats.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from bayeslearn import tree
from bayeslearn.channels_last import channels_last
from bayeslearn.distributed.mesh import Layout, gather_to_host
from bayeslearn.errors import Shown, refuse
from bayeslearn.families.streamed import StreamedDraws, draws_at, num_draws
from bayeslearn.jaxprs import values_per_row
from bayeslearn.models.target import Target
from bayeslearn.precision import double_precision
from bayeslearn.predictive_base import PredictiveBase
from bayeslearn.results.streaming import (
    SAMPLES,
    class_covariance,
    class_summary,
    log_prob_terms,
    mixture_cdfs,
    mixture_covariance,
    mixture_log_prob,
    mixture_moments,
    mixture_quantiles,
    sample_observations,
    sampled_cdfs,
    sampled_quantiles,
)
from bayeslearn.tree import LARGE_NETWORK, Array, PyTree

ROWS = 2048  # evaluated at once: enough that a matrix product is worth its start
ROWS_STREAMED = 2**16  # rows for which a draw is made at once, where draws are streamed
FILL = {"cpu": 2**13}  # draws x rows evaluated at once: on a CPU what stays in its caches,
FILL_DEVICE = 2**16  # elsewhere what fills the device
CELLS = 2**21  # draws x rows in memory at once, where all draws of a row are needed together
VALUES = {"cpu": 2**24}  # of one operation of the network, of all draws and rows at once,
VALUES_DEVICE = 2**26  # and elsewhere: 256 MB


class Predictive(PredictiveBase):
    """The predictive distribution at each row of x. Made by `Posterior.predict`."""

    def __init__(self, target: Target, draws: PyTree, x: PyTree, layout: Layout | None = None):
        # Without the training rows, whose number would have it compiled anew.
        target = dataclasses.replace(target.to_predict().with_data(None), by_layer=True)
        self._is_streamed = isinstance(draws, StreamedDraws)
        self._target, self._draws = target, draws
        # On the host: cutting chunks of an array on the device would compile for each length.
        self._x = jax.tree.map(np.asarray, x)
        self._layout = layout
        values = VALUES.get(jax.default_backend(), VALUES_DEVICE)
        self._most_evaluated = max(1, values // self._values_per_row())  # draws x rows
        # A power of two, as microbatches have to divide the rows.
        self._most_rows = min(ROWS, 1 << (self._most_evaluated.bit_length() - 1))
        if self._is_streamed:  # each draw is made once for all rows, which take turns inside
            self._target = dataclasses.replace(self._target, microbatch=self._most_rows)
        if layout is not None:
            self._target, self._draws = layout.put((self._target, draws))
        self.num_rows = len(jax.tree.leaves(x)[0])
        self.num_samples = num_draws(draws)
        self.kind: str = target.likelihood.kind
        self.is_discrete: bool = target.likelihood.is_discrete
        self.support = target.likelihood.support
        self._by_samples = self.kind == "regression" and not target.likelihood.has_cdf

    # Moments and probabilities

    @cached_property
    def _summary(self) -> dict[str, np.ndarray]:
        return self._by_rows(mixture_moments if self.kind == "regression" else class_summary)

    @property
    def mean(self) -> np.ndarray:
        """Predictive mean, shaped like y; for classification the class probabilities."""
        return self._like_y(self._summary["mean"]) if self.kind == "regression" else self.probs

    @property
    def probs(self) -> np.ndarray:
        """Class probabilities (rows, classes), averaged over the draws."""
        if self.kind != "classification":
            self.not_available("probs", "classification")
        return self._summary["probs"]

    @property
    def epistemic(self) -> np.ndarray:
        """Epistemic uncertainty: variance of the mean, or mutual information."""
        return self._like_y(self._summary["epistemic"])

    @property
    def aleatoric(self) -> np.ndarray:
        """Aleatoric uncertainty: noise variance, or mean entropy."""
        return self._like_y(self._summary["aleatoric"])

    def covariance(self) -> np.ndarray:
        """Covariance of a new observation's columns (classes): (rows, columns, columns)."""
        return self._by_rows(mixture_covariance if self.kind == "regression" else class_covariance)

    # The whole distribution

    def align_y(self, y: ArrayLike) -> np.ndarray:
        """Observations checked and shaped as the predictions are."""
        y = self._check_y(y)
        return self._like_y(y) if self.kind == "regression" else y

    def is_censored(self, y: ArrayLike) -> np.ndarray:
        """Of which rows of y only a bound is known, as of survival times."""
        return self._target.likelihood.is_censored(np.asarray(self._check_y(y)))

    @double_precision
    def log_prob(self, y: ArrayLike) -> np.ndarray:
        """log p(y) of each row, the average taken over draws inside the logarithm."""
        return self._by_rows(mixture_log_prob, self._observed(y))

    @double_precision
    def log_prob_by_draw(self, y: ArrayLike) -> np.ndarray:
        """log p(y) of each row under each draw of the weights: (draws, rows)."""
        return self._by_rows(log_prob_terms, self._observed(y), per_row=self.num_samples).T

    def quantiles(self, qs: Sequence[float]) -> list[np.ndarray]:
        """Several quantiles of a new observation, for which the network is evaluated once."""
        if self.kind != "regression":
            self.not_available("quantile and interval", "regression")
        function = sampled_quantiles if self._by_samples else mixture_quantiles
        values = self._by_rows(
            partial(function, np.asarray(qs, np.float64)), per_row=self._draws_per_row
        )
        return [self._like_y(values[:, place]) for place in range(len(qs))]

    @double_precision
    def cdfs(self, points: Sequence[ArrayLike]) -> list[np.ndarray]:
        """`cdf` at several y of each row, for which the network is evaluated once."""
        if self.kind != "regression":
            self.not_available("cdf", "regression")
        function = sampled_cdfs if self._by_samples else mixture_cdfs
        inside, below, above = zip(*map(self._in_support, points), strict=True)
        stacked = np.stack([np.asarray(self._observed(y)) for y in inside], axis=1)
        values = self._by_rows(function, stacked, per_row=self._draws_per_row)
        found = [self._like_y(values[:, place]) for place in range(len(points))]
        return [
            np.where(low, 0.0, np.where(high, 1.0, value))
            for low, high, value in zip(below, above, found, strict=True)
        ]

    @double_precision
    def sample(self, key: Array | int, num: int = 1) -> np.ndarray:
        """New observations (num, rows, ...): a draw of the weights, then of the noise."""
        key = jax.random.key(key) if isinstance(key, int | np.integer) else key
        key_draw, key_noise = jax.random.split(key)
        chosen = jax.random.randint(key_draw, (num,), 0, self.num_samples)
        parts = []
        for index, (rows, x) in enumerate(self._chunks(per_row=num)):
            key = jax.random.fold_in(key_noise, index)
            values = sample_observations(
                self._target, self._draws, x, chosen, key, at_once=self._at_once(x, num)
            )
            parts.append(np.asarray(gather_to_host(values))[:, :rows])
        values = np.concatenate(parts, axis=1)
        return values[..., 0] if self._target.likelihood.is_vector else values

    # How it is computed

    def _check_y(self, y: ArrayLike) -> np.ndarray:
        """Observations at the rows of x, in the form the likelihood takes."""
        y = self._target.likelihood.check(np.asarray(y))
        if len(y) != self.num_rows:
            refuse("y", Shown(f"{len(y)} rows"), f"have as many rows as x ({self.num_rows})")
        return y

    def _in_support(self, y: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Numbers that an observation can be, in place of any; which were below, and above."""
        values: np.ndarray = np.asarray(y)
        least, greatest = self.support
        if np.all(np.isinf(self.support)) or (
            values.ndim > 1 and self._target.likelihood.is_vector
        ):
            return values, np.zeros(1, bool), np.zeros(1, bool)
        values = np.floor(values) if self.is_discrete else values
        below = np.less(values, least) if self.is_discrete else np.less_equal(values, least)
        above = np.greater_equal(values, greatest)
        some = greatest if self.is_discrete else 0.5 * (least + greatest)
        return np.where(below | above, 1.0 if np.isinf(greatest) else some, values), below, above

    def _observed(self, y: ArrayLike) -> Array:
        return self._target.batch((self._x, self._check_y(y))).y

    def _values_per_row(self) -> int:
        """Values of a row and a draw that the network computes at once."""
        one = jax.eval_shape(lambda draws: draws_at(draws, jnp.arange(1)), self._draws)
        are_vectors = all(leaf.ndim <= 2 for leaf in jax.tree.leaves(self._x))
        if are_vectors and tree.size(one) <= LARGE_NETWORK:
            return 1  # too few to matter, and tracing takes longer than a prediction

        def outputs(draws: PyTree, x: PyTree) -> Array:
            draw = jax.tree.map(lambda w: w[0], draws_at(draws, jnp.arange(1)))
            return self._target.outputs(draw, x)

        return values_per_row(partial(outputs, self._draws), self._x)

    @property
    def _draws_per_row(self) -> int:
        """Draws of a row that its quantiles need together."""
        return max(self.num_samples, SAMPLES if self._by_samples else 1)

    def _chunks(self, *more: Array | np.ndarray, per_row: int = 1):
        """Chunks of rows of one size, the last one padded by repeating its last row."""
        # Few sizes, so that another number of rows seldom compiles again.
        most = self._most_rows
        size = min(1 << (self.num_rows - 1).bit_length(), most, max(1, CELLS // per_row))
        if self._is_streamed and size == most:
            size *= min(-(-self.num_rows // most), ROWS_STREAMED // most)
        size *= 1 if self._layout is None else self._layout.num_shards
        for start in range(0, self.num_rows, size):
            rows = min(size, self.num_rows - start)
            chosen = np.minimum(np.arange(start, start + size), self.num_rows - 1)
            arrays = jax.tree.map(lambda leaf, c=chosen: np.asarray(leaf)[c], (self._x, *more))
            yield rows, *(arrays if self._layout is None else self._layout.put_rows(arrays))

    def _at_once(self, x: PyTree, num: int) -> int:
        """Draws evaluated together on these rows, by a fixed rule."""
        fill = FILL.get(jax.default_backend(), FILL_DEVICE)
        fill = min(fill, self._most_evaluated)
        rows = min(len(jax.tree.leaves(x)[0]), self._most_rows)
        most = self._draws.step if self._is_streamed else num
        return max(1, min(num, most, fill // rows))

    @double_precision
    def _by_rows(
        self, function: Callable[..., Any], *more: Array | np.ndarray, per_row: int = 1
    ) -> Any:
        jitted = _jitted(function)
        parts = []
        for rows, x, *arrays in self._chunks(*more, per_row=per_row):
            at_once = self._at_once(x, self.num_samples)
            values = jitted(self._target, self._draws, x, *arrays, at_once=at_once)
            parts.append(jax.tree.map(lambda a, n=rows: np.asarray(a)[:n], gather_to_host(values)))
        return jax.tree.map(lambda *p: np.concatenate(p), *parts)

    def _like_y(self, values: np.ndarray) -> np.ndarray:
        return values[:, 0] if self._target.likelihood.is_vector else values


def _jitted(function: Callable[..., Any]) -> Callable[..., Any]:
    if isinstance(function, partial):
        return partial(_jitted(function.func), *function.args)
    if function not in _cache:
        _cache[function] = jax.jit(channels_last(function), static_argnames="at_once")
    return _cache[function]


_cache: dict[Callable[..., Any], Callable[..., Any]] = {}
