"""A network run for all rows at once, with a probe at every site that uses weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bayeslearn.gradients import sites
from bayeslearn.tree import Array


def _probes(plan: sites.Plan, num_rows: int) -> list[list[Array]]:
    return [
        [
            jnp.zeros((*site.times, num_rows, *var.aval.shape), var.aval.dtype)
            for var in sites.float_outs(site.eqn)
        ]
        for site in plan.sites()
    ]


@jax.custom_vjp
def _probed(value: Array, probe: Array) -> Array:
    """`value`; its cotangent is also the probe's."""
    return value


_probed.defvjp(lambda value, probe: (value, None), lambda _, d: (d, d))


class _Tape:
    """Probes to hand out to sites in their order, and the inputs seen there."""

    def __init__(self, probes: list[list[Array]], num_rows: int, left_out: Sequence[int]):
        self.probes = list(probes)
        self.num_rows = num_rows
        self.left_out = left_out
        self.seen: list[dict[int, Array]] = []  # by position among the equation's variables

    def spread(self, value: Array, is_row: bool) -> Array:
        return value if is_row else jnp.broadcast_to(value, (self.num_rows, *jnp.shape(value)))


def _run(block: sites.Block, arguments: Sequence[Any], tape: _Tape) -> list[Any]:
    """The block for all rows; values that depend on the example have rows in front."""
    env = dict(block.jaxpr.consts)
    env.update(zip(block.jaxpr.invars, arguments, strict=True))
    for number, eqn in enumerate(block.jaxpr.eqns):
        special = block.special.get(number)
        if isinstance(special, sites.Loop):
            outs = _run_loop(special, env, block.rows, tape)
        else:
            inputs = sites.variables(eqn)
            values = [env[v] for v in inputs]
            axes = [0 if v in block.rows else None for v in inputs]
            function = sites.as_function(eqn)
            has_rows = any(axis == 0 for axis in axes)
            outs = jax.vmap(function, axes)(*values) if has_rows else function(*values)
            if special is not None and special.has_other_than(tape.left_out):
                probes = iter(tape.probes.pop(0))
                floats = sites.float_outs(eqn)
                outs = [
                    _probed(out, next(probes)) if v in floats else out
                    for v, out in zip(eqn.outvars, outs, strict=True)
                ]
                tape.seen.append(
                    {
                        i: value
                        for i, (v, value) in enumerate(zip(inputs, values, strict=True))
                        if v not in special.paths
                    }
                )
        env.update(zip(eqn.outvars, outs, strict=True))
    return [env[v] if sites.is_variable(v) else v.val for v in block.jaxpr.outvars]


def _run_loop(loop: sites.Loop, env: dict[Any, Any], rows: set[Any], tape: _Tape) -> list[Any]:
    eqn, params = loop.eqn, loop.eqn.params
    num_consts, num_carry = params["num_consts"], params["num_carry"]
    values = [env[v] if sites.is_variable(v) else v.val for v in eqn.invars]
    is_row = [sites.is_variable(v) and v in rows for v in eqn.invars]
    ends = num_consts + num_carry
    consts = values[:num_consts]
    carry = [
        tape.spread(value, row) if wanted else value
        for value, row, wanted in zip(
            values[num_consts:ends], is_row[num_consts:ends], loop.is_carry_row, strict=True
        )
    ]
    xs = [
        jnp.moveaxis(value, 1, 0) if row else value
        for value, row in zip(values[ends:], loop.is_x_row, strict=True)
    ]
    count = len([s for s in _sites_within(loop.body) if s.has_other_than(tape.left_out)])
    probes, tape.probes = tape.probes[:count], tape.probes[count:]
    is_out_row = loop.body.is_out_row

    def step(carry: list[Any], now: tuple[list[Any], list[list[Array]]]) -> tuple[Any, Any]:
        inner = _Tape(now[1], tape.num_rows, tape.left_out)
        outs = _run(loop.body, [*consts, *carry, *now[0]], inner)
        new = [
            tape.spread(out, row) if wanted else out
            for out, row, wanted in zip(outs, is_out_row, loop.is_carry_row, strict=False)
        ]
        return new, (outs[num_carry:], inner.seen)

    last, (ys, seen) = jax.lax.scan(
        step,
        carry,
        (xs, probes),
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    tape.seen += seen
    stacked = [
        jnp.moveaxis(y, 0, 1) if row else y
        for y, row in zip(ys, is_out_row[num_carry:], strict=True)
    ]
    return [*last, *stacked]


def _sites_within(block: sites.Block) -> list[sites.Site]:
    found: list[sites.Site] = []
    for special in block.special.values():
        found += _sites_within(special.body) if isinstance(special, sites.Loop) else [special]
    return found
