"""Convolutions with their channels last, which XLA needs on a CPU inside a loop.

XLA's CPU compiler calls its fast convolution only where batch, rows, columns and channels stand in
that order. It moves the axes by itself, but only outside loops: inside one a convolution with the
channels first is about ten times slower. Here the axes are moved in the jaxpr, after
differentiation, so that convolutions of gradients have the order, too. Values are the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import equinox as eqx
import jax
import numpy as np
from jax import lax
from jax.extend import core

from bayeslearn.jaxprs import has_primitive
from bayeslearn.tree import PyTree

NAME = "conv_general_dilated"


def channels_last(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, for `jax.jit`, with every convolution on a CPU in that order."""

    @functools.wraps(function)
    def moved(*args: Any, **options: Any) -> Any:
        if jax.default_backend() != "cpu":
            return function(*args, **options)
        arrays, static = eqx.partition((args, options), eqx.is_array)

        def of_arrays(arrays: PyTree) -> Any:
            args, options = eqx.combine(arrays, static)
            return function(*args, **options)

        closed, shape = jax.make_jaxpr(of_arrays, return_shape=True)(arrays)
        if has_primitive(closed.jaxpr, NAME):
            closed = _rewritten(closed)
        out = core.jaxpr_as_fun(closed)(*jax.tree.leaves(arrays))
        return jax.tree.unflatten(jax.tree.structure(shape), out)

    return moved


def _with_moved(value: Any) -> Any:
    """A parameter of an equation, with all jaxprs in it rewritten."""
    return jax.tree.map(_rewritten, value, is_leaf=_is_jaxpr)


def _is_jaxpr(value: Any) -> bool:
    return isinstance(value, core.ClosedJaxpr | core.Jaxpr)


def _rewritten(value: Any) -> Any:
    if isinstance(value, core.Jaxpr):  # from JAX 0.12 on, closed ones are of this class, too
        return value.replace(eqns=[_moved_equation(eqn) for eqn in value.eqns])
    if isinstance(value, core.ClosedJaxpr):
        return core.ClosedJaxpr(_rewritten(value.jaxpr), value.consts)
    return value


def _moved_equation(eqn: core.JaxprEqn) -> core.JaxprEqn:
    if eqn.primitive.name != NAME:
        return eqn.replace(params={k: _with_moved(value) for k, value in eqn.params.items()})
    call = jax.jit(partial(_convolution, eqn.primitive, eqn.params))
    avals = [cast("jax.core.ShapedArray", v.aval) for v in eqn.invars]
    shaped = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    (made,) = jax.make_jaxpr(call)(*shaped).jaxpr.eqns
    return made.replace(invars=eqn.invars, outvars=eqn.outvars)


def _convolution(
    primitive: core.Primitive, params: dict[str, Any], x: jax.Array, kernel: jax.Array
) -> jax.Array:
    numbers, spatial = params["dimension_numbers"], range(1, x.ndim - 1)
    last = (0, x.ndim - 1, *spatial)
    orders = lax.ConvDimensionNumbers(last, (x.ndim - 1, x.ndim - 2, *range(x.ndim - 2)), last)
    x = lax.transpose(x, _channels_at_end(numbers.lhs_spec))
    outputs, inputs, *own = numbers.rhs_spec
    kernel = lax.transpose(kernel, (*own, inputs, outputs))
    out = primitive.bind(x, kernel, **params | {"dimension_numbers": orders})
    return lax.transpose(out, np.argsort(_channels_at_end(numbers.out_spec)))


def _channels_at_end(spec: tuple[int, ...]) -> tuple[int, ...]:
    batch, channels, *spatial = spec
    return (batch, *spatial, channels)
