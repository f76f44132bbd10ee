"""Neural bag-of-features (Passalis and Tefas, 2017) and its temporal form (Passalis et al., 2018).

Each step's features are assigned softly to learned codewords,

    u_k(x) = softmax over k of -|x - v_k|^2 / (2 w_k^2),

and the series is represented by the histogram of its assignments: their mean over time. The papers
use the distance, whose gradient is not defined at a codeword; here it is the squared distance. The
temporal form concatenates the histograms of several windows, all ending with the series.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn.errors import refuse
from bayeslearn.models.networks.parts import (
    Activation,
    Sizes,
    apply_dense,
    as_sequence,
    check_activation,
    check_count,
    check_scale,
    check_sizes,
    dense_layers,
    dtype_of,
)
from bayeslearn.models.networks.rbf import half_squares
from bayeslearn.tree import Array, PyTree

SHORT_MID_LONG = (0.25, 0.5, 1.0)


class BagOfFeatures(eqx.Module):
    """Histograms over `num_codewords` learned codewords, then dense layers.

    `windows` are fractions of the series, counted from its end: (1.0,) is the bag of the whole
    series, which ignores the order; (0.25, 0.5, 1.0) is a temporal bag of a short, a middle and
    a long window. Initial codewords are normal draws of standard deviation `scale` (features are
    assumed to be standardised). `hidden` are the sizes of the dense layers before the output. An
    example is (time, features), or {"values": (time, features), "mask": (time,)}.
    """

    num_codewords: int = eqx.field(static=True)
    windows: tuple[float, ...] = eqx.field(static=True)
    hidden: tuple[int, ...] = eqx.field(static=True)
    activation: Activation = eqx.field(static=True)
    scale: float = eqx.field(static=True)

    def __init__(
        self,
        num_codewords: int = 16,
        windows: Sequence[float] = (1.0,),
        hidden: Sizes = (16,),
        activation: Activation = "relu",
        scale: float = 1.0,
    ):
        self.num_codewords = check_count("num_codewords", num_codewords)
        must = f"be fractions above 0 and at most 1, such as [1.0] or {list(SHORT_MID_LONG)}"
        is_sequence = isinstance(windows, Sequence | np.ndarray) and not isinstance(windows, str)
        if not is_sequence or not len(windows) or not all(map(_is_fraction, windows)):
            refuse("windows", windows, must)
        self.windows = tuple(float(fraction) for fraction in windows)
        self.hidden = check_sizes("hidden", hidden, "be positive layer sizes")
        self.activation = check_activation(activation)
        self.scale = check_scale("scale", scale)

    def init(self, key: Array, x_example: PyTree, num_outputs: int) -> PyTree:
        """Initial parameters."""
        features = as_sequence(x_example)[0].shape[1]
        key_codebook, key_dense = jax.random.split(key)
        sizes = (self.num_codewords * len(self.windows), *self.hidden, num_outputs)
        return {
            "codebook": Codebook(features, self.num_codewords, self.scale, key_codebook),
            "layers": dense_layers(key_dense, sizes),
        }

    def apply(self, params: PyTree, x: PyTree, key: Array | None = None) -> Array:
        """Outputs for one example."""
        # Relative to a uniform histogram: a dense layer and its prior expect inputs of order one.
        relative = self.num_codewords * self.histograms(params, x)
        return apply_dense(params["layers"], self.activation, jnp.ravel(relative))

    def histograms(self, params: PyTree, x: PyTree) -> Array:
        """One histogram for each window: (windows, codewords), each summing to one."""
        values, mask = as_sequence(x, dtype_of(params))
        assigned = jax.vmap(params["codebook"])(values)
        weight = self._window_weights(mask).astype(assigned.dtype)
        return weight @ assigned / jnp.maximum(jnp.sum(weight, axis=1, keepdims=True), 1)

    def _window_weights(self, mask: Array) -> Array:
        """Whether each step is inside each window: (windows, time)."""
        remaining = jnp.cumsum(mask[::-1])[::-1]  # steps from here to the end
        # A fraction such as 0.3 of 10 steps is 3 steps, despite rounding errors.
        lengths = [jnp.ceil(fraction * remaining[0] - 1e-3) for fraction in self.windows]
        return jnp.stack([mask & (remaining <= length) for length in lengths])


class Codebook(eqx.Module):
    """Soft assignment of one feature vector to the codewords; sums to one."""

    codewords: Array
    log_widths: Array

    def __init__(self, features: int, num_codewords: int, scale: float, key: Array):
        self.codewords = scale * jax.random.normal(key, (num_codewords, features))
        # So that differences of squared distances are of order one in any dimension.
        log_width = math.log(scale) + 0.25 * math.log(features)
        self.log_widths = jnp.full(num_codewords, log_width, self.codewords.dtype)

    def __call__(self, x: Array) -> Array:
        return jax.nn.softmax(-half_squares(x, self.codewords, self.log_widths))


def _is_fraction(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        return False
    return bool(0 < value <= 1)
