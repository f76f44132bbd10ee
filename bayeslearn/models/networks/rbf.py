"""The radial-basis-function network."""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp

from bayeslearn.models.networks.parts import check_count, check_scale
from bayeslearn.tree import Array, PyTree


class RBF(eqx.Module):
    """`num_units` Gaussian basis functions with learned centres and widths, then a dense layer.

    Initial centres are normal draws of standard deviation `scale` (inputs are assumed to be
    standardised). The initial width is `width`; default: the square root of the number of inputs,
    so that units overlap in any dimension. An input of any shape is flattened.
    """

    num_units: int = eqx.field(static=True)
    scale: float = eqx.field(static=True)
    width: float | None = eqx.field(static=True)

    def __init__(self, num_units: int = 20, scale: float = 1.0, width: float | None = None):
        self.num_units = check_count("num_units", num_units)
        self.scale = check_scale("scale", scale)
        self.width = None if width is None else check_scale("width", width)

    def init(self, key: Array, x_example: PyTree, num_outputs: int) -> PyTree:
        """Initial parameters."""
        key_units, key_readout = jax.random.split(key)
        num_inputs = jnp.size(x_example)
        width = self.width or math.sqrt(num_inputs)
        return {
            "units": GaussianUnits(num_inputs, self.num_units, self.scale, width, key_units),
            "readout": eqx.nn.Linear(self.num_units, num_outputs, key=key_readout),
        }

    def apply(self, params: PyTree, x: PyTree, key: Array | None = None) -> Array:
        """Outputs for one example."""
        return params["readout"](params["units"](jnp.ravel(x)))


class GaussianUnits(eqx.Module):
    """exp(-|x - centre|^2 / (2 width^2)) for each unit; log-widths keep widths positive."""

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
