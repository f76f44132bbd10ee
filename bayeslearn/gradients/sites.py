r"""Where a network's weights meet the example: the equations that rewrites of it start from.

A network is traced for one example. An equation in which a leaf meets the example is a site of that
leaf; casts, transposes, reshapes and broadcasts on the way there are its path. Calls that leaves
enter are written out, also inside a `lax.scan`. Leaves with several sites (tied weights), or that
are changed before they meet the example (w^2, a normalised w), are the plan's `fallbacks`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend import core

from bayeslearn.tree import Array, PyTree

CALLS = {"pjit", "jit", "closed_call", "core_call", "checkpoint", "remat", "remat2"}
RESHAPES = {"convert_element_type", "reshape", "transpose", "squeeze", "slice", "rev", "copy"}


class Path(NamedTuple):
    """A value that is a leaf reshaped (`steps`), then perhaps broadcast (`spread`)."""

    leaf: int
    steps: tuple[Any, ...] = ()
    spread: tuple[Any, ...] = ()


class _Flat(NamedTuple):
    invars: list[Any]
    outvars: list[Any]
    eqns: list[Any]
    consts: dict[Any, Any]


@dataclasses.dataclass
class Site:
    """An equation in which leaves meet the example; `times` are lengths of the scans around it."""

    eqn: Any
    paths: dict[Any, Path]  # of its inputs
    is_row: tuple[bool, ...]  # of its variables
    times: tuple[int, ...]

    def has_other_than(self, left_out: Sequence[int]) -> bool:
        return any(path.leaf not in left_out for path in self.paths.values())


@dataclasses.dataclass
class Loop:
    """A `lax.scan` over whose constants leaves enter."""

    eqn: Any
    body: Block
    is_carry_row: tuple[bool, ...]
    is_x_row: tuple[bool, ...]


@dataclasses.dataclass
class Block:
    """A jaxpr in which no leaf enters a call, and what is special about some of its equations."""

    jaxpr: _Flat
    rows: set[Any]  # variables that depend on the example, and carry its axis
    special: dict[int, Any]
    is_out_row: tuple[bool, ...]


@dataclasses.dataclass
class Plan:
    block: Block
    all_sites: list[Site]
    fallbacks: tuple[int, ...]

    def sites(self) -> list[Site]:
        """Those of leaves that are no fallbacks."""
        return [s for s in self.all_sites if s.has_other_than(self.fallbacks)]


def float_outs(eqn: Any) -> list[Any]:
    return [v for v in eqn.outvars if jnp.issubdtype(v.aval.dtype, jnp.inexact)]


def planned(function: Callable[..., Array], params: PyTree, rows: PyTree) -> Plan:
    leaves = jax.tree.leaves(params)
    row = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), rows)
    like = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), params)
    closed = jax.make_jaxpr(function)(like, row)
    num_leaves = len(leaves)
    is_row = [False] * num_leaves + [True] * (len(closed.jaxpr.invars) - num_leaves)
    is_leaf = [True] * num_leaves + [False] * (len(is_row) - num_leaves)
    flat = _flattened(closed, is_row, is_leaf)
    analysis = _Analysis()
    paths = {var: Path(i) for i, var in enumerate(flat.invars[:num_leaves])}
    block = analysis.block(flat, set(flat.invars[num_leaves:]), paths, ())
    counts: dict[int, int] = {}
    for site in analysis.sites:
        for path in site.paths.values():
            counts[path.leaf] = counts.get(path.leaf, 0) + 1
    several = {leaf for leaf, count in counts.items() if count > 1}
    left_out = tuple(sorted(analysis.spoiled | several))
    return Plan(block, analysis.sites, left_out)


class _Analysis:
    """Finds the sites, and the leaves of which none tells all."""

    def __init__(self) -> None:
        self.sites: list[Site] = []
        self.spoiled: set[int] = set()

    def block(
        self, jaxpr: Any, rows: set[Any], paths: dict[Any, Path], times: tuple[int, ...]
    ) -> Block:
        mixed: dict[Any, set[int]] = {}  # values made of leaves in any other way
        special: dict[int, Any] = {}
        for number, eqn in enumerate(jaxpr.eqns):
            inputs = variables(eqn)
            entering = {v: paths[v] for v in inputs if v in paths and v not in rows}
            blurred = set().union(*(mixed.get(v, set()) for v in inputs))
            if not any(v in rows for v in inputs):
                step = _extended(eqn, entering)
                if step is not None:
                    paths[eqn.outvars[0]] = step
                elif entering or blurred:
                    leaves = blurred | {path.leaf for path in entering.values()}
                    mixed.update({v: leaves for v in eqn.outvars})
                continue
            rows.update(eqn.outvars)
            self.spoiled |= blurred
            if eqn.primitive.name == "scan" and entering:
                loop = self.loop(eqn, rows, paths, times)
                special[number] = loop
                # What a step does not depend on the example keeps no axis of it.
                for var, is_row in zip(eqn.outvars, _loop_outs(loop), strict=True):
                    if not is_row:
                        rows.discard(var)
            elif entering:
                twice = {p.leaf for v, p in entering.items() if list(eqn.invars).count(v) > 1}
                self.spoiled |= twice
                site = Site(eqn, entering, tuple(v in rows for v in inputs), times)
                special[number] = site
                self.sites.append(site)
        is_out_row = tuple(is_variable(v) and v in rows for v in jaxpr.outvars)
        for var in filter(is_variable, jaxpr.outvars):
            if var not in rows:  # it leaves the block without having met the example
                self.spoiled |= mixed.get(var, set())
                self.spoiled |= {paths[var].leaf} if var in paths else set()
        return Block(jaxpr, rows, special, is_out_row)

    def loop(
        self, eqn: Any, rows: set[Any], paths: dict[Any, Path], times: tuple[int, ...]
    ) -> Loop:
        num_consts, num_carry = eqn.params["num_consts"], eqn.params["num_carry"]
        is_row = [is_variable(v) and v in rows for v in eqn.invars]
        body = eqn.params["jaxpr"]
        while True:  # a carry that once depends on the example does from the start
            outs = _dependent(body.jaxpr, is_row)
            carry = [a or b for a, b in zip(is_row[num_consts:], outs[:num_carry], strict=False)]
            if carry == is_row[num_consts : num_consts + num_carry]:
                break
            is_row[num_consts : num_consts + num_carry] = carry
        is_path = [
            is_variable(v) and v in paths and not row and i < num_consts
            for i, (v, row) in enumerate(zip(eqn.invars, is_row, strict=True))
        ]
        for i, v in enumerate(eqn.invars):
            if i >= num_consts and is_variable(v) and v in paths and v not in rows:
                self.spoiled.add(paths[v].leaf)
        flat = _flattened(body, is_row, is_path)
        inside = {
            inner: paths[outer]
            for inner, outer, found in zip(flat.invars, eqn.invars, is_path, strict=True)
            if found
        }
        row_vars = {v for v, row in zip(flat.invars, is_row, strict=True) if row}
        block = self.block(flat, row_vars, inside, (*times, eqn.params["length"]))
        ends = num_consts + num_carry
        return Loop(eqn, block, tuple(is_row[num_consts:ends]), tuple(is_row[ends:]))


def _loop_outs(loop: Loop) -> tuple[bool, ...]:
    num_carry = len(loop.is_carry_row)
    return (*loop.is_carry_row, *loop.body.is_out_row[num_carry:])


def is_variable(atom: Any) -> bool:
    return not isinstance(atom, core.Literal)


def variables(eqn: Any) -> list[Any]:
    """Its inputs that are variables, each once."""
    return list(dict.fromkeys(v for v in eqn.invars if is_variable(v)))


def _dependent(jaxpr: Any, flags: Sequence[bool]) -> list[bool]:
    """Which outputs depend on the flagged inputs, equations taken whole."""
    reached = {v for v, flag in zip(jaxpr.invars, flags, strict=True) if flag}
    for eqn in jaxpr.eqns:
        if any(v in reached for v in variables(eqn)):
            reached.update(eqn.outvars)
    return [is_variable(v) and v in reached for v in jaxpr.outvars]


def _extended(eqn: Any, entering: dict[Any, Path]) -> Path | None:
    """The path of the equation's result, if it only reshapes or broadcasts one leaf's value."""
    if len(entering) != 1 or len(eqn.invars) != 1:
        return None
    (var,), name = eqn.invars, eqn.primitive.name
    path, out = entering[var], eqn.outvars[0].aval
    if name == "broadcast_in_dim":
        is_reshape = math.prod(out.shape) == math.prod(var.aval.shape)
    elif name in RESHAPES and jnp.issubdtype(out.dtype, jnp.floating):
        is_reshape = True
    else:
        return None
    if is_reshape and not path.spread:
        return path._replace(steps=(*path.steps, eqn))
    return path._replace(spread=(*path.spread, eqn))


def _flattened(closed: Any, is_row: Sequence[bool], is_leaf: Sequence[bool]) -> _Flat:
    """The same with calls that leaves enter written out, and without what is not used."""
    made = jax.make_jaxpr(lambda *values: _written_out(closed, values, is_row, is_leaf)[0])(
        *(jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in closed.jaxpr.invars)
    )
    needed = set(filter(is_variable, made.jaxpr.outvars))
    eqns = []
    for eqn in reversed(made.jaxpr.eqns):
        if eqn.effects or any(v in needed for v in eqn.outvars):
            needed.update(variables(eqn))
            eqns.append(eqn)
    consts = dict(zip(made.jaxpr.constvars, made.consts, strict=True))
    return _Flat(list(made.jaxpr.invars), list(made.jaxpr.outvars), eqns[::-1], consts)


def _written_out(
    closed: Any, values: Sequence[Any], is_row: Sequence[bool], is_leaf: Sequence[bool]
) -> tuple[list[Any], list[bool], list[bool]]:
    """The jaxpr's results, and which of them depend on the example, and on leaves alone."""
    jaxpr = closed.jaxpr
    env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*closed.consts, *values), strict=True))
    rows = {v for v, flag in zip(jaxpr.invars, is_row, strict=True) if flag}
    leaves = {v for v, flag in zip(jaxpr.invars, is_leaf, strict=True) if flag}

    def flags(atoms: Sequence[Any], among: set[Any]) -> list[bool]:
        return [is_variable(v) and v in among for v in atoms]

    for eqn in jaxpr.eqns:
        has_rows, has_leaves = flags(eqn.invars, rows), flags(eqn.invars, leaves)
        if eqn.primitive.name in CALLS and any(has_leaves):
            inner = eqn.params["jaxpr"] if "jaxpr" in eqn.params else eqn.params["call_jaxpr"]
            inner = inner if hasattr(inner, "consts") else core.ClosedJaxpr(inner, ())
            inputs = [env[v] if is_variable(v) else v.val for v in eqn.invars]
            outs, outs_rows, outs_leaves = _written_out(inner, inputs, has_rows, has_leaves)
        else:
            outs = as_function(eqn)(*(env[v] for v in variables(eqn)))
            outs_rows = [any(has_rows)] * len(outs)
            outs_leaves = [any(has_leaves)] * len(outs)
        for var, out, row, leaf in zip(eqn.outvars, outs, outs_rows, outs_leaves, strict=True):
            env[var] = out
            (rows if row else leaves if leaf else set()).add(var)
    results = [env[v] if is_variable(v) else v.val for v in jaxpr.outvars]
    return results, flags(jaxpr.outvars, rows), flags(jaxpr.outvars, leaves)


@functools.cache
def _empty() -> core.Jaxpr:
    """Has the debugging names that one made bare would lack."""
    return jax.make_jaxpr(lambda: ())().jaxpr


def as_function(eqn: Any) -> Callable[..., list[Any]]:
    """The equation as a function of its variables."""
    jaxpr = _empty().replace(
        invars=variables(eqn), outvars=eqn.outvars, eqns=[eqn], effects=eqn.effects
    )
    return core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, ()))


def reshaped(path: Path, leaf: Array, is_cast: bool = True) -> Array:
    for eqn in path.steps:
        if is_cast or eqn.primitive.name != "convert_element_type":
            (leaf,) = as_function(eqn)(leaf)
    return leaf


def spread(path: Path, value: Array) -> Array:
    for eqn in path.spread:
        (value,) = as_function(eqn)(value)
    return value
