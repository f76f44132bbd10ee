"""The radial-basis-function network."""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from bayeslearn.models.networks.parts import check_count, check_positive
from bayeslearn.tree import Array, PyTree


class RBF(eqx.Module):
    """`num_units` Gaussian bumps with learned centres and widths, then a dense read-out.

    Centres start as normal draws of standard deviation `scale` (inputs are taken to be
    standardised), widths at `width`, or at the square root of the number of inputs, so that
    bumps reach each other in any dimension. An input of any shape is flattened.
    """

    num_units: int = eqx.field(static=True)
    scale: float = eqx.field(static=True)
    width: float | None = eqx.field(static=True)

    def __init__(self, num_units: int = 20, scale: float = 1.0, width: float | None = None):
        self.num_units = check_count("num_units", num_units)
        self.scale = check_positive("scale", scale)
        self.width = None if width is None else check_positive("width", width)

    def init(self, key: Array, x_example: Any, num_outputs: int) -> PyTree:
        key_units, key_readout = jax.random.split(key)
        num_inputs = jnp.size(x_example)
        width = self.width or math.sqrt(num_inputs)
        return {
            "units": GaussianUnits(num_inputs, self.num_units, self.scale, width, key_units),
            "readout": eqx.nn.Linear(self.num_units, num_outputs, key=key_readout),
        }

    def apply(self, params: PyTree, x: Any, key: Array | None = None) -> Array:
        return params["readout"](params["units"](jnp.ravel(x)))


class GaussianUnits(eqx.Module):
    """exp(-|x - centre|^2 / (2 width^2)) for each unit; the logarithm keeps widths positive."""

    centres: Array
    log_widths: Array

    def __init__(self, num_inputs: int, num_units: int, scale: float, width: float, key: Array):
        self.centres = scale * jax.random.normal(key, (num_units, num_inputs))
        self.log_widths = jnp.full(num_units, math.log(width), self.centres.dtype)

    def __call__(self, x: Array) -> Array:
        return jnp.exp(-half_squares(x, self.centres, self.log_widths))


def half_squares(x: Array, centres: Array, log_widths: Array) -> Array:
    """|x - centre|^2 / (2 width^2) for each centre."""
    squares = jnp.sum(jnp.square(x - centres), axis=-1)
    return 0.5 * squares * jnp.exp(-2 * log_widths)
