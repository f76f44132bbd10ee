r"""Sums of squared per-example gradients at the cost of a gradient.

For outputs f(w, x_i) and cotangents d_i, `outputs_and_pull` gives in one backward pass

    sum_i J_i^T d_i        and        sum_i scale_i (J_i^T d_i)^2,       J_i = df(w, x_i) / dw

without a gradient of each example. The network is traced for one example, and the equations that
combine a leaf with the example are its sites. Each has a probe, a zero added to its result, so that
the backward pass also returns the site's cotangent d. With the site's inputs a, which the backward
pass stores anyway, the squares of a leaf that has one site are

    dense, one position        (a * a)^T (scale d * d)          nothing per example is stored
    dense, several positions   (a_i^T d_i)^2, summed over i     shared over time or space, also in
    convolution                the same, of patches              a `lax.scan`
    embedding                  d times the sum of the d of the same entry, scattered
    bias, scale, any other     the equation's own vjp, squared and summed over i

Reshapes between leaf and site (see `sites`) are inverted. Where a gradient of each example is
stored, it is for a few rows at a time. Leaves with several sites (tied weights, whose square has
cross terms) or that are transformed before their site (w^2, a normalised w) are differentiated
example by example; `fallbacks` returns their names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.gradients import sites, tape
from bayeslearn.gradients.entries import LeafAtSite, summed_squares, widened
from bayeslearn.tree import Array, PyTree

Pull = Callable[..., tuple[PyTree, PyTree]]


class Taped(NamedTuple):
    """A network's outputs for all rows, with what was recorded at its sites."""

    plan: sites.Plan
    leaves: list[Array]
    outputs: Array
    # From cotangents of the outputs to those of the leaves, and of what each site returns
    pullback: Callable[[Array], tuple[list[Array], list[list[Array]]]]
    recorded: list[dict[int, Array]]  # inputs of each site
    probes: list[list[Array]]  # zeros like what each site returns


def taped(function: Callable[[PyTree, PyTree], Array], params: PyTree, rows: PyTree) -> Taped:
    """`function(params, row)` for all rows, with a probe at every site."""
    leaves = jax.tree.leaves(params)
    num_rows = len(jax.tree.leaves(rows)[0])
    plan = sites.make_plan(function, params, rows)

    def evaluate(
        leaves: list[Array], probes: list[list[Array]]
    ) -> tuple[Array, list[dict[int, Array]]]:
        record = tape.Tape(probes, num_rows, plan.fallbacks)
        (outputs,) = tape.run(plan.block, [*leaves, *jax.tree.leaves(rows)], record)
        if not plan.block.is_out_row[0]:
            outputs = jnp.broadcast_to(outputs, (num_rows, *outputs.shape))
        return outputs, record.recorded

    probes = tape.make_probes(plan, num_rows)
    outputs, pullback, recorded = jax.vjp(evaluate, leaves, probes, has_aux=True)
    return Taped(plan, leaves, outputs, pullback, recorded, probes)


def outputs_and_pull(
    function: Callable[[PyTree, PyTree], Array], params: PyTree, rows: PyTree
) -> tuple[Array, Pull]:
    """`function(params, row)` for all rows, and `pull(d, scale=None) -> gradient, squares`."""
    treedef = jax.tree.structure(params)
    plan, leaves, outputs, pullback, recorded, _ = taped(function, params, rows)

    def pull(cotangent: Array, scale: Array | None = None) -> tuple[PyTree, PyTree]:
        gradient, found = pullback(cotangent)
        squares: list[Array | None] = [None] * len(leaves)
        for site, inputs, ds in zip(plan.sites(), recorded, found, strict=True):
            for path in site.paths.values():
                if path.leaf not in plan.fallbacks:
                    entry = LeafAtSite(site, path, leaves, inputs, ds)
                    squares[path.leaf] = entry.squares(scale)
        if plan.fallbacks:
            slow = squares_one_by_one(function, params, rows, cotangent, scale, plan.fallbacks)
            for leaf, square in zip(plan.fallbacks, slow, strict=True):
                squares[leaf] = square
        filled = [
            jnp.zeros_like(w) if s is None else s.reshape(w.shape).astype(widened(w.dtype))
            for s, w in zip(squares, leaves, strict=True)
        ]
        return jax.tree.unflatten(treedef, gradient), jax.tree.unflatten(treedef, filled)

    return outputs, pull


def fallbacks(function: Callable[..., Array], params: PyTree, rows: PyTree) -> list[str]:
    """Names of the leaves that are differentiated example by example."""
    names = tree.leaf_names(params)
    return [names[i] for i in sites.make_plan(function, params, rows).fallbacks]


def squares_one_by_one(
    function: Callable[[PyTree, PyTree], Array],
    params: PyTree,
    rows: PyTree,
    cotangent: Array,
    scale: Array | None,
    chosen: tuple[int, ...],
) -> list[Array]:
    """Squares of the chosen leaves, from each example's own gradient."""
    leaves, treedef = jax.tree.flatten(params)

    def gradient(row: PyTree, d: Array) -> list[Array]:
        def of(some: list[Array]) -> Array:
            filled = list(leaves)
            for i, leaf in zip(chosen, some, strict=True):
                filled[i] = leaf
            return function(jax.tree.unflatten(treedef, filled), row)

        return jax.vjp(of, [leaves[i] for i in chosen])[1](d)[0]

    return summed_squares(gradient, (rows, cotangent), scale)
