r"""Sites of a network's weights: the equations of its jaxpr that combine a weight with the example.

A network is traced for one example. An equation that combines a leaf with the example is a site of
that leaf; casts, transposes, reshapes and broadcasts before it are its path. Calls that take leaves
are inlined, also inside a `lax.scan`. Leaves with several sites (tied weights), or that are
transformed before they are combined with the example (w^2, a normalised w), are the plan's
`fallbacks`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeGuard, cast

import jax
import jax.numpy as jnp
from jax.extend import core

from bayeslearn.tree import Array, PyTree

CALLS = {"pjit", "jit", "closed_call", "core_call", "checkpoint", "remat", "remat2"}
RESHAPES = {"convert_element_type", "reshape", "transpose", "squeeze", "slice", "rev", "copy"}

Eqn = core.JaxprEqn
Var = core.Var
Atom = core.Var | core.Literal
Value = PyTree  # of a variable: an array, traced or not


class Path(NamedTuple):
    """A value that is a leaf reshaped (`reshapes`), then perhaps broadcast (`broadcasts`)."""

    leaf: int
    reshapes: tuple[Eqn, ...] = ()
    broadcasts: tuple[Eqn, ...] = ()


class Inlined(NamedTuple):
    """A jaxpr without calls that take leaves."""

    invars: list[Var]
    outvars: list[Atom]
    eqns: list[Eqn]
    consts: dict[Var, Value]


@dataclasses.dataclass
class Site:
    """An equation that combines leaves with the example; `times` are lengths of scans around it."""

    eqn: Eqn
    paths: dict[Var, Path]  # of its inputs
    is_row: tuple[bool, ...]  # of its variables
    times: tuple[int, ...]

    def has_other_than(self, leaves: Sequence[int]) -> bool:
        """Whether it has a leaf that is not among these."""
        return any(path.leaf not in leaves for path in self.paths.values())


@dataclasses.dataclass
class Loop:
    """A `lax.scan` with leaves among its constants."""

    eqn: Eqn
    body: Block
    is_carry_row: tuple[bool, ...]
    is_x_row: tuple[bool, ...]


@dataclasses.dataclass
class Block:
    """An inlined jaxpr, and which of its equations are sites or loops."""

    jaxpr: Inlined
    rows: set[Var]  # variables that depend on the example, and have its batch axis
    special: dict[int, Site | Loop]  # by the number of the equation
    is_out_row: tuple[bool, ...]


@dataclasses.dataclass
class Plan:
    """The inlined network, its sites, and the leaves that need another method."""

    block: Block
    all_sites: list[Site]
    fallbacks: tuple[int, ...]

    def sites(self) -> list[Site]:
        """The sites of leaves that are not fallbacks."""
        return [s for s in self.all_sites if s.has_other_than(self.fallbacks)]


def aval(atom: Atom) -> jax.core.ShapedArray:
    """Shape and dtype of a variable."""
    return cast("jax.core.ShapedArray", atom.aval)


def float_outs(eqn: Eqn) -> list[Var]:
    """The floating-point results of an equation."""
    return [v for v in eqn.outvars if jnp.issubdtype(aval(v).dtype, jnp.inexact)]


def make_plan(function: Callable[..., Array], params: PyTree, rows: PyTree) -> Plan:
    """The sites of `function(params, row)`."""
    leaves = jax.tree.leaves(params)
    row = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), rows)
    like = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), params)
    closed = jax.make_jaxpr(function)(like, row)
    num_leaves = len(leaves)
    is_row = [False] * num_leaves + [True] * (len(closed.jaxpr.invars) - num_leaves)
    is_leaf = [True] * num_leaves + [False] * (len(is_row) - num_leaves)
    inlined = inline(closed, is_row, is_leaf)
    analysis = _Analysis()
    paths = {var: Path(i) for i, var in enumerate(inlined.invars[:num_leaves])}
    block = analysis.block(inlined, set(inlined.invars[num_leaves:]), paths, ())
    counts: dict[int, int] = {}
    for site in analysis.sites:
        for path in site.paths.values():
            counts[path.leaf] = counts.get(path.leaf, 0) + 1
    several = {leaf for leaf, count in counts.items() if count > 1}
    return Plan(block, analysis.sites, tuple(sorted(analysis.fallbacks | several)))


class _Analysis:
    """Finds the sites, and the leaves that are used in other ways."""

    def __init__(self) -> None:
        self.sites: list[Site] = []
        self.fallbacks: set[int] = set()

    def block(
        self, jaxpr: Inlined, rows: set[Var], paths: dict[Var, Path], times: tuple[int, ...]
    ) -> Block:
        """The sites of a jaxpr; adds to `rows` and `paths` as it goes."""
        mixed: dict[Var, set[int]] = {}  # leaves of values that are no longer a reshaped leaf
        special: dict[int, Site | Loop] = {}
        for number, eqn in enumerate(jaxpr.eqns):
            inputs = variables(eqn)
            entering = {v: paths[v] for v in inputs if v in paths and v not in rows}
            transformed = set[int]().union(*(mixed.get(v, set()) for v in inputs))
            if not any(v in rows for v in inputs):
                path = _extended(eqn, entering)
                if path is not None:
                    paths[eqn.outvars[0]] = path
                elif entering or transformed:
                    leaves = transformed | {path.leaf for path in entering.values()}
                    mixed.update({v: leaves for v in eqn.outvars})
                continue
            rows.update(eqn.outvars)
            self.fallbacks |= transformed
            if eqn.primitive.name == "scan" and entering:
                loop = self.loop(eqn, rows, paths, times)
                special[number] = loop
                # Results that do not depend on the example have no batch axis.
                for var, is_row in zip(eqn.outvars, _loop_outs(loop), strict=True):
                    if not is_row:
                        rows.discard(var)
            elif entering:
                twice = {p.leaf for v, p in entering.items() if list(eqn.invars).count(v) > 1}
                self.fallbacks |= twice
                site = Site(eqn, entering, tuple(v in rows for v in inputs), times)
                special[number] = site
                self.sites.append(site)
        is_out_row = tuple(is_variable(v) and v in rows for v in jaxpr.outvars)
        for var in filter(is_variable, jaxpr.outvars):
            if var not in rows:  # returned without being combined with the example
                self.fallbacks |= mixed.get(var, set())
                self.fallbacks |= {paths[var].leaf} if var in paths else set()
        return Block(jaxpr, rows, special, is_out_row)

    def loop(
        self, eqn: Eqn, rows: set[Var], paths: dict[Var, Path], times: tuple[int, ...]
    ) -> Loop:
        """The sites in the body of a scan."""
        num_consts, num_carry = loop_sizes(eqn)
        is_row = [is_variable(v) and v in rows for v in eqn.invars]
        body = eqn.params["jaxpr"]
        while True:  # a carry that depends on the example after a step does so from the start
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
                self.fallbacks.add(paths[v].leaf)
        inlined = inline(body, is_row, is_path)
        inside = {
            inner: paths[cast("Var", outer)]
            for inner, outer, found in zip(inlined.invars, eqn.invars, is_path, strict=True)
            if found
        }
        row_vars = {v for v, row in zip(inlined.invars, is_row, strict=True) if row}
        block = self.block(inlined, row_vars, inside, (*times, eqn.params["length"]))
        ends = num_consts + num_carry
        return Loop(eqn, block, tuple(is_row[num_consts:ends]), tuple(is_row[ends:]))


def is_lookup(site: Site, var: Var) -> bool:
    """Whether the site takes whole entries of a table, `var`, by numbers that rows have."""
    eqn, shape = site.eqn, aval(var).shape
    if eqn.primitive.name != "gather" or eqn.invars[0] is not var or sum(site.is_row) != 1:
        return False
    numbers, out = eqn.params["dimension_numbers"], aval(eqn.outvars[0])
    return (
        tuple(numbers.collapsed_slice_dims) == tuple(numbers.start_index_map) == (0,)
        and not numbers.operand_batching_dims
        and tuple(eqn.params["slice_sizes"]) == (1, *shape[1:])
        and tuple(numbers.offset_dims) == tuple(range(out.ndim - len(shape) + 1, out.ndim))
    )


def loop_sizes(eqn: Eqn) -> tuple[int, int]:
    """How many of a scan's inputs are constants, and how many are its carry.

    By shapes, for versions of JAX name these numbers differently: what is scanned over has one axis
    more outside the body than inside.
    """
    body = eqn.params["jaxpr"].jaxpr

    def same(outer: Sequence[Atom], inner: Sequence[Atom]) -> int:
        pairs = zip(outer, inner, strict=True)
        return sum(len(a.aval.shape) == len(b.aval.shape) for a, b in pairs)  # type: ignore[attr-defined]

    num_carry = same(eqn.outvars, body.outvars)
    return same(eqn.invars, body.invars) - num_carry, num_carry


def _loop_outs(loop: Loop) -> tuple[bool, ...]:
    """Which results of the scan depend on the example."""
    num_carry = len(loop.is_carry_row)
    return (*loop.is_carry_row, *loop.body.is_out_row[num_carry:])


def is_variable(atom: Atom) -> TypeGuard[Var]:
    """Whether it is a variable, not a literal."""
    return not isinstance(atom, core.Literal)


def variables(eqn: Eqn) -> list[Var]:
    """The inputs of an equation that are variables, each once."""
    return list(dict.fromkeys(v for v in eqn.invars if is_variable(v)))


def _dependent(jaxpr: core.Jaxpr, flags: Sequence[bool]) -> list[bool]:
    """Which outputs depend on the flagged inputs; inner jaxprs count as a whole."""
    reached = {v for v, flag in zip(jaxpr.invars, flags, strict=True) if flag}
    for eqn in jaxpr.eqns:
        if any(v in reached for v in variables(eqn)):
            reached.update(eqn.outvars)
    return [is_variable(v) and v in reached for v in jaxpr.outvars]


def _extended(eqn: Eqn, entering: dict[Var, Path]) -> Path | None:
    """The path of the result, if the equation only reshapes or broadcasts a leaf."""
    if len(entering) != 1 or len(eqn.invars) != 1:
        return None
    ((var, path),), name = entering.items(), eqn.primitive.name
    out = aval(eqn.outvars[0])
    if name == "broadcast_in_dim":
        is_reshape = math.prod(out.shape) == math.prod(aval(var).shape)
    elif name in RESHAPES and jnp.issubdtype(out.dtype, jnp.floating):
        is_reshape = True
    else:
        return None
    if is_reshape and not path.broadcasts:
        return path._replace(reshapes=(*path.reshapes, eqn))
    return path._replace(broadcasts=(*path.broadcasts, eqn))


def inline(closed: core.ClosedJaxpr, is_row: Sequence[bool], is_leaf: Sequence[bool]) -> Inlined:
    """The jaxpr with calls that take leaves inlined, without equations that are not used."""
    made = jax.make_jaxpr(lambda *values: _evaluate(closed, values, is_row, is_leaf)[0])(
        *(jax.ShapeDtypeStruct(aval(v).shape, aval(v).dtype) for v in closed.jaxpr.invars)
    )
    needed = set(filter(is_variable, made.jaxpr.outvars))
    eqns: list[Eqn] = []
    for eqn in reversed(made.jaxpr.eqns):
        if eqn.effects or any(v in needed for v in eqn.outvars):
            needed.update(variables(eqn))
            eqns.append(eqn)
    consts = dict(zip(made.jaxpr.constvars, made.consts, strict=True))
    return Inlined(list(made.jaxpr.invars), list(made.jaxpr.outvars), eqns[::-1], consts)


def _evaluate(
    closed: core.ClosedJaxpr,
    values: Sequence[Value],
    is_row: Sequence[bool],
    is_leaf: Sequence[bool],
) -> tuple[list[Value], list[bool], list[bool]]:
    """The jaxpr's results, and which of them depend on the example, and on leaves alone."""
    jaxpr = closed.jaxpr
    env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*closed.consts, *values), strict=True))
    rows = {v for v, flag in zip(jaxpr.invars, is_row, strict=True) if flag}
    leaves = {v for v, flag in zip(jaxpr.invars, is_leaf, strict=True) if flag}

    def flags(atoms: Sequence[Atom], among: set[Var]) -> list[bool]:
        return [is_variable(v) and v in among for v in atoms]

    for eqn in jaxpr.eqns:
        has_rows, has_leaves = flags(eqn.invars, rows), flags(eqn.invars, leaves)
        if eqn.primitive.name in CALLS and any(has_leaves):
            inner = eqn.params["jaxpr"] if "jaxpr" in eqn.params else eqn.params["call_jaxpr"]
            if not isinstance(inner, core.ClosedJaxpr):
                inner = core.ClosedJaxpr(inner, ())
            inputs = [value_of(env, v) for v in eqn.invars]
            outs, outs_rows, outs_leaves = _evaluate(inner, inputs, has_rows, has_leaves)
        else:
            outs = as_function(eqn)(*(env[v] for v in variables(eqn)))
            outs_rows = [any(has_rows)] * len(outs)
            outs_leaves = [any(has_leaves)] * len(outs)
        for var, out, row, leaf in zip(eqn.outvars, outs, outs_rows, outs_leaves, strict=True):
            env[var] = out
            (rows if row else leaves if leaf else set()).add(var)
    results = [value_of(env, v) for v in jaxpr.outvars]
    return results, flags(jaxpr.outvars, rows), flags(jaxpr.outvars, leaves)


def value_of(env: dict[Var, Value], atom: Atom) -> Value:
    """The value of a variable, or the literal."""
    return env[atom] if is_variable(atom) else cast("core.Literal", atom).val


@functools.cache
def _empty() -> core.Jaxpr:
    """A jaxpr with the debug information that a constructed one would lack."""
    return jax.make_jaxpr(lambda: ())().jaxpr


def as_function(eqn: Eqn) -> Callable[..., list[Value]]:
    """The equation as a function of its variables."""
    jaxpr = _empty().replace(
        invars=variables(eqn), outvars=eqn.outvars, eqns=[eqn], effects=eqn.effects
    )
    return core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, ()))


def apply_reshapes(path: Path, leaf: Array, is_cast: bool = True) -> Array:
    """The leaf after the reshapes of its path; without casts unless `is_cast`."""
    for eqn in path.reshapes:
        if is_cast or eqn.primitive.name != "convert_element_type":
            (leaf,) = as_function(eqn)(leaf)
    return leaf


def apply_broadcasts(path: Path, value: Array) -> Array:
    """The reshaped leaf after the broadcasts of its path."""
    for eqn in path.broadcasts:
        (value,) = as_function(eqn)(value)
    return value
