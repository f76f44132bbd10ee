"""A network run for all rows at once, with a probe at every site."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from bayeslearn.gradients import sites
from bayeslearn.gradients.sites import Value, Var
from bayeslearn.tree import Array

Carry = list[Value]


def make_probes(plan: sites.Plan, num_rows: int) -> list[list[Array]]:
    """A zero for each floating-point result of each site."""
    return [
        [
            jnp.zeros((*site.times, num_rows, *sites.aval(var).shape), sites.aval(var).dtype)
            for var in sites.float_outs(site.eqn)
        ]
        for site in plan.sites()
    ]


@jax.custom_vjp
def _probed(value: Array, probe: Array) -> Array:
    """`value`; the probe has the same cotangent."""
    return value


_probed.defvjp(lambda value, probe: (value, None), lambda _, d: (d, d))


class Tape:
    """The probes of the sites in their order, and the inputs recorded there."""

    def __init__(self, probes: list[list[Array]], num_rows: int, excluded: Sequence[int]):
        self.probes = list(probes)
        self.num_rows = num_rows
        self.excluded = excluded  # leaves that need no probe
        self.recorded: list[dict[int, Array]] = []  # by position among the equation's variables

    def with_rows(self, value: Array, is_row: bool) -> Array:
        """The value with a batch axis."""
        return value if is_row else jnp.broadcast_to(value, (self.num_rows, *jnp.shape(value)))


def run(block: sites.Block, arguments: Sequence[Value], tape: Tape) -> list[Value]:
    """The block for all rows; values that depend on the example have a leading batch axis."""
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
            if special is not None and special.has_other_than(tape.excluded):
                probes = iter(tape.probes.pop(0))
                floats = sites.float_outs(eqn)
                outs = [
                    _probed(out, next(probes)) if v in floats else out
                    for v, out in zip(eqn.outvars, outs, strict=True)
                ]
                tape.recorded.append(
                    {
                        i: value
                        for i, (v, value) in enumerate(zip(inputs, values, strict=True))
                        if v not in special.paths
                    }
                )
        env.update(zip(eqn.outvars, outs, strict=True))
    return [sites.value_of(env, v) for v in block.jaxpr.outvars]


def _run_loop(loop: sites.Loop, env: dict[Var, Value], rows: set[Var], tape: Tape) -> list[Value]:
    """A scan for all rows, whose body has probes for each step."""
    eqn, params = loop.eqn, loop.eqn.params
    num_consts, num_carry = sites.loop_sizes(eqn)
    values = [sites.value_of(env, v) for v in eqn.invars]
    is_row = [sites.is_variable(v) and v in rows for v in eqn.invars]
    ends = num_consts + num_carry
    consts = values[:num_consts]
    carry = [
        tape.with_rows(value, row) if needs_rows else value
        for value, row, needs_rows in zip(
            values[num_consts:ends], is_row[num_consts:ends], loop.is_carry_row, strict=True
        )
    ]
    xs = [
        jnp.moveaxis(value, 1, 0) if row else value
        for value, row in zip(values[ends:], loop.is_x_row, strict=True)
    ]
    count = len([s for s in _sites_within(loop.body) if s.has_other_than(tape.excluded)])
    probes, tape.probes = tape.probes[:count], tape.probes[count:]
    is_out_row = loop.body.is_out_row

    def step(
        carry: Carry, now: tuple[list[Value], list[list[Array]]]
    ) -> tuple[Carry, tuple[list[Value], list[dict[int, Array]]]]:
        inner = Tape(now[1], tape.num_rows, tape.excluded)
        outs = run(loop.body, [*consts, *carry, *now[0]], inner)
        new = [
            tape.with_rows(out, row) if needs_rows else out
            for out, row, needs_rows in zip(outs, is_out_row, loop.is_carry_row, strict=False)
        ]
        return new, (outs[num_carry:], inner.recorded)

    last, (ys, recorded) = jax.lax.scan(
        step,
        carry,
        (xs, probes),
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    tape.recorded += recorded
    stacked = [
        jnp.moveaxis(y, 0, 1) if row else y
        for y, row in zip(ys, is_out_row[num_carry:], strict=True)
    ]
    return [*last, *stacked]


def _sites_within(block: sites.Block) -> list[sites.Site]:
    """The sites of a block and of the loops inside it."""
    found: list[sites.Site] = []
    for special in block.special.values():
        found += _sites_within(special.body) if isinstance(special, sites.Loop) else [special]
    return found
