"""Equations of a jaxpr, and the memory of a row's values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend import core

from bayeslearn.tree import PyTree


def equations(jaxpr: core.Jaxpr) -> Iterator[core.JaxprEqn]:
    """All equations, also inside scans, branches and calls."""
    for eqn in jaxpr.eqns:
        yield eqn
        for value in eqn.params.values():
            for inner in _jaxprs(value):
                yield from equations(inner)


def has_primitive(jaxpr: core.Jaxpr, name: str) -> bool:
    """Whether an equation of that name is among them."""
    return any(eqn.primitive.name == name for eqn in equations(jaxpr))


def values_per_row(function: Callable[[PyTree], Any], rows: PyTree) -> int:
    """The most values of a row that `function(rows)` computes in one operation."""

    def sizes(number: int) -> list[int]:
        shaped = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((number, *leaf.shape[1:]), leaf.dtype), rows
        )
        found = equations(jax.make_jaxpr(function)(shaped).jaxpr)
        return [getattr(v.aval, "size", 0) for eqn in found for v in eqn.outvars]

    # Values that do not grow with the rows, such as weights, cancel.
    return max((b - a for a, b in zip(sizes(2), sizes(3), strict=False)), default=1)


def _jaxprs(value: Any) -> Iterator[core.Jaxpr]:
    if isinstance(value, core.ClosedJaxpr):
        yield value.jaxpr
    elif isinstance(value, core.Jaxpr):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _jaxprs(part)
