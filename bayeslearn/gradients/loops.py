"""Loops of unknown length in a network, which have no reverse-mode gradient."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax.extend import core

from bayeslearn import precision
from bayeslearn.errors import Shown, refuse
from bayeslearn.jaxprs import has_primitive
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

MESSAGE = "Reverse-mode differentiation does not work for"  # JAX's, of such a loop


def check_loops(target: Target, params: PyTree, needed_by: str) -> None:
    """Refuse a network or density whose gradient would go through a `lax.while_loop`.

    A loop that does not depend on the weights, or that has a derivative of its own, may stay.
    """
    if target.density is not None:
        function: Callable[[PyTree], Array] = target.density
        argument = "log_density"
    else:
        assert target.data is not None
        row = jax.tree.map(lambda leaf: leaf[0], target.data.x)
        argument = "network"

        def function(params: PyTree) -> Array:
            with precision.network_precision(target.dtype):
                return target.row_outputs(target.weights(params), row).sum()

    if not has_while(jax.make_jaxpr(function)(params)):
        return
    try:
        jax.eval_shape(jax.grad(function), params)
    except ValueError as error:
        if MESSAGE not in str(error):
            raise
        refuse(
            argument,
            Shown("a lax.while_loop, or a lax.fori_loop whose bounds are computed,"),
            f"have a reverse-mode gradient for {needed_by}",
            "Use lax.scan, or lax.fori_loop between bounds that are Python numbers.",
        )


def has_while(closed: core.ClosedJaxpr) -> bool:
    """Whether a `while` is among the equations, also inside scans, branches and calls."""
    return has_primitive(closed.jaxpr, "while")
