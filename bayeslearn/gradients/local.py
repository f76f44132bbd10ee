r"""Noise where a row meets the weights, in the place of one draw of the weights for all rows.

The log-likelihood is a sum over rows, so E_q[log p(D | w)] asks of each row alone that it sees a
draw of q. With one draw for all rows their errors add up: the variance of a gradient over n rows
has a part, n (n - 1) times the covariance between two rows, that draws of their own take away.
For q(w) = N(M, S^2), independent weights, and row i with the input x_i of a leaf's site:

    own       M + S eps_i                           biases, scales: no larger than the result there
    local     x_i M + sqrt(x_i^2 S^2) eps_i         a matrix that meets one vector of the row
    flipout   x_i M + ((x_i r_i) (S eps)) s_i       a matrix or kernel; r_i, s_i random signs
    shared    M + S eps                             any other leaf: one draw for all rows

Local reparametrisation (Kingma, Salimans and Welling 2015) is exact where a row meets the matrix
once: the entries of x_i W are then independent Gaussians of those moments. Positions of a sequence
or an image see the same weights of the row, and are not independent. Flipout (Wen et al. 2018) is
exact for them also: signs per channel, one for all positions, leave S eps a draw of the same law.
So every row has the law of a weight draw, given `perturb`:

    "local"     own, local, shared
    "flipout"   own, flipout, shared

and the expected gradient is that of weight draws; what differs is its variance. The network is
rewritten at its sites (see `sites`) for one row, and mapped over rows as it is otherwise.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from bayeslearn import precision, tree
from bayeslearn.data.rows import Batch
from bayeslearn.gradients import sites
from bayeslearn.gradients.curvature import row_function
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

KINDS = ("weights", "local", "flipout")


class Role(NamedTuple):
    """How noise enters at a leaf, and the shapes of what a row draws for it."""

    kind: str = "shared"
    shapes: tuple[tuple[int, ...], ...] = ()
    dtype: Any = None
    path: sites.Path | None = None  # where the noise is added to a product
    is_first: bool = False  # of its two factors


class Perturbation(eqx.Module):
    """The log-likelihood of a batch as a function of q and of standard normal noise."""

    target: Target  # its network takes means and spreads, and rows with their noise
    batch: Batch
    roles: tuple[Role, ...] = eqx.field(static=True)
    noise: PyTree  # shapes of a draw's

    @property
    def has_one_network(self) -> bool:
        """Whether draws differ in the rows' noise alone, and no matrix is a draw's own."""
        return not jax.tree.leaves(self.noise["weights"])

    def scaled_log_likelihood(self, q: Any, noise: PyTree) -> Array:
        params, x = self.inputs(q, noise)
        return self.target.scaled_log_likelihood(params, self.batch._replace(x=x))

    def inputs(self, q: Any, noise: PyTree) -> tuple[PyTree, PyTree]:
        """What `target` takes for parameters, and for rows."""
        means, stds = (jax.tree.leaves(part["network"]) for part in (q.mean, q.std))
        centres, spreads = list(means), list(stds)
        for i, (role, e) in enumerate(zip(self.roles, noise["weights"], strict=True)):
            if role.kind == "shared":
                centres[i], spreads[i] = means[i] + stds[i] * e, None
            elif role.kind == "flipout":
                spreads[i] = stds[i] * e
        own = (part["likelihood"] for part in (q.mean, q.std, noise))
        drawn = jax.tree.map(lambda m, s, e: m + s * e, *own)
        return {"network": (centres, spreads), "likelihood": drawn}, (self.batch.x, noise["rows"])


def perturbation(
    target: Target, params: PyTree, batch: Batch | None, kind: str, key: Array | None = None
) -> Perturbation:
    """`key` is for a network that draws itself, as in `Target.outputs`."""
    batch = target.rows() if batch is None else batch
    plan, leaves, roles = _planned(target, params, batch.x, kind, key)
    num_rows = len(batch.y)
    noise = {
        "likelihood": params["likelihood"],
        "weights": [
            w if role.kind in ("shared", "flipout") else None
            for role, w in zip(roles, jax.tree.leaves(params["network"]), strict=True)
        ],
        "rows": [
            [jnp.zeros((num_rows, *shape), role.dtype) for shape in role.shapes] for role in roles
        ],
    }
    dtypes = [w.dtype for w in leaves]
    dtypes += [w.dtype for w, role in zip(leaves, roles, strict=True) if role.kind != "shared"]
    perturbed = dataclasses.replace(
        target, network=_Network(plan, roles), dtypes=tuple(map(str, dtypes)), held=None
    )
    return Perturbation(perturbed, batch, roles, noise)


def shared(target: Target, params: PyTree, kind: str) -> list[str]:
    """Names of the leaves of which all rows see the same draw."""
    assert target.data is not None
    roles = _planned(target, params, target.data.x, kind)[2]
    names = tree.leaf_names(params["network"])
    return [name for name, role in zip(names, roles, strict=True) if role.kind == "shared"]


def _planned(
    target: Target, params: PyTree, x: PyTree, kind: str, key: Array | None = None
) -> tuple[sites.Plan, list[Array], tuple[Role, ...]]:
    with precision.network_precision(target.dtype):
        function, weights = row_function(target, params, key)
        plan = sites.planned(function, weights, x)
    leaves = jax.tree.leaves(weights)
    roles = [Role()] * len(leaves)
    for site in plan.sites():
        for var, path in site.paths.items():
            if path.leaf not in plan.fallbacks:
                roles[path.leaf] = _role(site, var, path, leaves[path.leaf], kind)
    return plan, leaves, tuple(roles)


def _role(site: sites.Site, var: Any, path: sites.Path, leaf: Array, kind: str) -> Role:
    eqn = site.eqn
    name, out = eqn.primitive.name, eqn.outvars[0].aval
    rules = {"dot_general": _dense_axes, "conv_general_dilated": _kernel_axes}
    if name not in rules:
        is_small = leaf.size <= math.prod(site.times) * out.size
        return Role("own", (leaf.shape,), leaf.dtype) if is_small else Role()
    axes = None if path.spread else rules[name](eqn, var)
    if axes is None:
        return Role()
    is_first = eqn.invars[0] is var
    if kind == "flipout":
        x = next(v for v in eqn.invars if v is not var).aval
        shapes = tuple(
            tuple(n if i in among else 1 for i, n in enumerate(array.shape))
            for array, among in zip((x, out), axes, strict=True)
        )
        return Role(kind, shapes, out.dtype, path, is_first)
    is_once = not site.times and out.size == math.prod(out.shape[i] for i in axes[1])
    return Role(kind, (out.shape,), out.dtype, path, is_first) if is_once else Role()


Axes = tuple[Sequence[int], Sequence[int]]  # of the input and of the result


def _dense_axes(eqn: Any, var: Any) -> Axes | None:
    """Those that the matrix sums over and makes; None where it has an axis beside."""
    contracted, (is_beside, _) = eqn.params["dimension_numbers"]
    if is_beside:
        return None
    place = 1 if eqn.invars[1] is var else 0
    num_made = len(var.aval.shape) - len(contracted[place])
    ends = len(eqn.outvars[0].aval.shape)
    made = range(ends - num_made, ends) if place == 1 else range(num_made)
    return contracted[1 - place], made


def _kernel_axes(eqn: Any, var: Any) -> Axes | None:
    """Channels of the images, where the leaf is the kernel."""
    if eqn.invars[1] is not var or eqn.params["batch_group_count"] != 1:
        return None
    numbers = eqn.params["dimension_numbers"]
    return (numbers.lhs_spec[1],), (numbers.out_spec[1],)


class _Network(eqx.Module):
    """The network on one row and its noise, as a function of means (or draws) and spreads."""

    plan: Any = eqx.field(static=True)
    roles: tuple[Role, ...] = eqx.field(static=True)

    def apply(self, params: PyTree, x: Any, key: Array | None = None) -> Array:
        (centres, spreads), (row, noise) = params, x
        values = [
            m + s * e[0] if role.kind == "own" else m
            for role, m, s, e in zip(self.roles, centres, spreads, noise, strict=True)
        ]

        def at_site(site: sites.Site, inputs: list[Array]) -> list[Array]:
            for i, var in enumerate(sites.variables(site.eqn)):
                role = self.roles[site.paths[var].leaf] if var in site.paths else Role()
                if role.path is not None:
                    spread, e = spreads[role.path.leaf], noise[role.path.leaf]
                    return [_drawn(site.eqn, role, inputs[1 - i], inputs[i], spread, e)]
            return sites.as_function(site.eqn)(*inputs)

        (outputs,) = _evaluated(self.plan.block, [*values, *jax.tree.leaves(row)], at_site)
        return outputs


def _drawn(eqn: Any, role: Role, x: Array, mean: Array, spread: Array, noise: list[Array]) -> Array:
    """A row's draw of the result of a site, where the leaf has a mean and a spread."""
    assert role.path is not None
    spread = sites.reshaped(role.path, spread)
    if role.kind == "local":
        variance = _product(eqn, role, x * x, spread * spread)
        # The root has no derivative at zero, where all inputs are.
        is_some = variance > jnp.finfo(variance.dtype).tiny
        std = jnp.where(is_some, jnp.sqrt(jnp.where(is_some, variance, 1)), 0)
        return _product(eqn, role, x, mean) + noise[0] * std
    of_x, of_out = (jnp.where(e < 0, -1, 1) for e in noise)
    turned = _product(eqn, role, x * of_x.astype(x.dtype), spread)
    return _product(eqn, role, x, mean) + turned * of_out.astype(mean.dtype)


def _product(eqn: Any, role: Role, x: Array, weight: Array) -> Array:
    """The site's own, of other factors; a row's vector goes first, as rows lie in a batch."""
    if role.kind == "local":
        sums = eqn.params["dimension_numbers"][0]
        found = jax.lax.dot_general(
            x,
            weight,
            (sums[::-1] if role.is_first else sums, ((), ())),
            precision=eqn.params["precision"],
            preferred_element_type=eqn.params["preferred_element_type"],
        )
        return found.reshape(eqn.outvars[0].aval.shape)
    return sites.as_function(eqn)(*((weight, x) if role.is_first else (x, weight)))[0]


def _evaluated(
    block: sites.Block, arguments: Sequence[Any], at_site: Callable[..., list[Any]]
) -> list[Any]:
    """The block for one row, with `at_site(site, inputs)` for the equations at its sites."""
    env = dict(block.jaxpr.consts)
    env.update(zip(block.jaxpr.invars, arguments, strict=True))
    for number, eqn in enumerate(block.jaxpr.eqns):
        special = block.special.get(number)
        if isinstance(special, sites.Loop):
            outs = _looped(special, [_value(env, v) for v in eqn.invars], at_site)
        else:
            inputs = [env[v] for v in sites.variables(eqn)]
            outs = at_site(special, inputs) if special else sites.as_function(eqn)(*inputs)
        env.update(zip(eqn.outvars, outs, strict=True))
    return [_value(env, v) for v in block.jaxpr.outvars]


def _value(env: dict[Any, Any], atom: Any) -> Any:
    return env[atom] if sites.is_variable(atom) else jnp.asarray(atom.val, atom.aval.dtype)


def _looped(loop: sites.Loop, values: list[Any], at_site: Callable[..., list[Any]]) -> list[Any]:
    params = loop.eqn.params
    begin, end = params["num_consts"], params["num_consts"] + params["num_carry"]

    def step(carry: list[Any], now: list[Any]) -> tuple[list[Any], list[Any]]:
        outs = _evaluated(loop.body, [*values[:begin], *carry, *now], at_site)
        return outs[: end - begin], outs[end - begin :]

    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    last, stacked = jax.lax.scan(step, values[begin:end], values[end:], **options)
    return [*last, *stacked]
