r"""Noise for each row, by local reparametrisation or Flipout, in place of one draw for all rows.

The log-likelihood is a sum over rows, so E_q[log p(D | w)] only needs a draw of q for each row.
With one draw for all rows their errors are correlated: the variance of a gradient over n rows has
a term, n (n - 1) times the covariance between two rows, that vanishes with independent draws. For
q(w) = N(M, S^2), independent weights, and row i with the input x_i of a leaf's site:

    own       M + S eps_i                           biases, scales: no larger than the result there
    local     x_i M + sqrt(x_i^2 S^2) eps_i         a matrix that multiplies one vector of the row
    flipout   x_i M + ((x_i r_i) (S eps)) s_i       a matrix or kernel; r_i, s_i random signs
    shared    M + S eps                             any other leaf: one draw for all rows

Local reparametrisation (Kingma, Salimans and Welling 2015) is exact where the matrix multiplies one
vector of a row: the entries of x_i W are then independent Gaussians with those moments. Positions
of a sequence or an image share the weights of the row, and are not independent. Flipout (Wen et al.
2018) is exact for them too: signs per channel, the same for all positions, do not change the
distribution of S eps. So with `perturb`

    "local"     own, local, shared
    "flipout"   own, flipout, shared

every row has the distribution of a weight draw. The expected gradient is that of weight draws, and
only its variance differs. The network is rewritten at its sites (see `sites`) for one row, and
mapped over rows as usual.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import precision, tree
from bayeslearn.data.rows import Batch
from bayeslearn.gradients import sites
from bayeslearn.gradients.curvature import row_function
from bayeslearn.gradients.sites import Atom, Eqn, Value, Var, aval
from bayeslearn.models.protocols import Approximation
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

KINDS = ("weights", "local", "flipout")
AtSite = Callable[[sites.Site, list[Value]], list[Value]]


class Role(NamedTuple):
    """How noise enters at a leaf, and the shapes of a row's noise."""

    kind: str = "shared"
    shapes: tuple[tuple[int, ...], ...] = ()
    dtype: np.dtype | None = None
    path: sites.Path | None = None  # of the factor, where the noise is added to a product
    is_first: bool = False  # of the two factors of the product


class Perturbation(eqx.Module):
    """The log-likelihood of a batch as a function of q and of standard normal noise."""

    target: Target  # its network takes means and stds, and rows with their noise
    batch: Batch
    roles: tuple[Role, ...] = eqx.field(static=True)
    noise: PyTree  # shapes of the noise of a draw

    @property
    def has_one_network(self) -> bool:
        """Whether draws differ only in the noise of rows, and share all matrices."""
        return not jax.tree.leaves(self.noise["weights"])

    def scaled_log_likelihood(self, q: Approximation, noise: PyTree) -> Array:
        """An unbiased estimate of the whole data set's log-likelihood."""
        params, x = self.inputs(q, noise)
        return self.target.scaled_log_likelihood(params, self.batch._replace(x=x))

    def inputs(self, q: Approximation, noise: PyTree) -> tuple[PyTree, PyTree]:
        """Parameters and rows of `target`."""
        means, stds = (jax.tree.leaves(part["network"]) for part in (q.mean, q.std))
        centres, scales = list(means), list(stds)
        for i, (role, e) in enumerate(zip(self.roles, noise["weights"], strict=True)):
            if role.kind == "shared":
                centres[i], scales[i] = means[i] + stds[i] * e, None
            elif role.kind == "flipout":
                scales[i] = stds[i] * e
        own = (part["likelihood"] for part in (q.mean, q.std, noise))
        drawn = jax.tree.map(lambda m, s, e: m + s * e, *own)
        return {"network": (centres, scales), "likelihood": drawn}, (self.batch.x, noise["rows"])


def perturbation(
    target: Target, params: PyTree, batch: Batch | None, kind: str, key: Array | None = None
) -> Perturbation:
    """The rewritten target; `key` is for stochastic networks, as in `Target.outputs`."""
    batch = target.rows() if batch is None else batch
    plan, leaves, roles = _roles(target, params, batch.x, kind, key)
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
        target, network=_Network(plan, roles), dtypes=tuple(map(str, dtypes)), frozen=None
    )
    return Perturbation(perturbed, batch, roles, noise)


def shared(target: Target, params: PyTree, kind: str) -> list[str]:
    """Names of the leaves that have one draw for all rows."""
    assert target.data is not None
    roles = _roles(target, params, target.data.x, kind)[2]
    names = tree.leaf_names(params["network"])
    return [name for name, role in zip(names, roles, strict=True) if role.kind == "shared"]


def _roles(
    target: Target, params: PyTree, x: PyTree, kind: str, key: Array | None = None
) -> tuple[sites.Plan, list[Array], tuple[Role, ...]]:
    """The sites of the network, its leaves, and the role of each leaf."""
    with precision.network_precision(target.dtype):
        function, weights = row_function(target, params, key)
        plan = sites.make_plan(function, weights, x)
    leaves = jax.tree.leaves(weights)
    roles = [Role()] * len(leaves)
    for site in plan.sites():
        for var, path in site.paths.items():
            if path.leaf not in plan.fallbacks:
                roles[path.leaf] = _role(site, var, path, leaves[path.leaf], kind)
    return plan, leaves, tuple(roles)


def _role(site: sites.Site, var: Var, path: sites.Path, leaf: Array, kind: str) -> Role:
    """The role of a leaf at its site."""
    eqn = site.eqn
    name, out = eqn.primitive.name, aval(eqn.outvars[0])
    rules = {"dot_general": _dense_axes, "conv_general_dilated": _kernel_axes}
    if name not in rules:
        is_small = leaf.size <= math.prod(site.times) * out.size
        return Role("own", (leaf.shape,), leaf.dtype) if is_small else Role()
    axes = None if path.broadcasts else rules[name](eqn, var)
    if axes is None:
        return Role()
    is_first = eqn.invars[0] is var
    if kind == "flipout":
        x = aval(next(v for v in eqn.invars if v is not var))
        shapes = tuple(
            tuple(n if i in among else 1 for i, n in enumerate(array.shape))
            for array, among in zip((x, out), axes, strict=True)
        )
        return Role(kind, shapes, out.dtype, path, is_first)
    is_once = not site.times and out.size == math.prod(out.shape[i] for i in axes[1])
    return Role(kind, (out.shape,), out.dtype, path, is_first) if is_once else Role()


Axes = tuple[Sequence[int], Sequence[int]]  # of the input and of the result


def _dense_axes(eqn: Eqn, var: Var) -> Axes | None:
    """The axes of a matrix product; None if it has batch axes."""
    contracted, (batch_axes, _) = eqn.params["dimension_numbers"]
    if batch_axes:
        return None
    side = 1 if eqn.invars[1] is var else 0
    num_new = len(aval(var).shape) - len(contracted[side])
    ends = len(aval(eqn.outvars[0]).shape)
    new = range(ends - num_new, ends) if side == 1 else range(num_new)
    return contracted[1 - side], new


def _kernel_axes(eqn: Eqn, var: Var) -> Axes | None:
    """The channel axes of a convolution; None unless the leaf is its kernel."""
    if eqn.invars[1] is not var or eqn.params["batch_group_count"] != 1:
        return None
    numbers = eqn.params["dimension_numbers"]
    return (numbers.lhs_spec[1],), (numbers.out_spec[1],)


class _Network(eqx.Module):
    """The network on one row and its noise, as a function of means (or draws) and stds."""

    plan: sites.Plan = eqx.field(static=True)
    roles: tuple[Role, ...] = eqx.field(static=True)

    def init(self, key: Array, x_example: PyTree, num_outputs: int) -> PyTree:
        """Not available: the parameters are those of q."""
        raise NotImplementedError

    def apply(self, params: PyTree, x: PyTree, key: Array | None = None) -> Array:
        """Outputs for one row with its noise."""
        (centres, scales), (row, noise) = params, x
        values = [
            m + s * e[0] if role.kind == "own" else m
            for role, m, s, e in zip(self.roles, centres, scales, noise, strict=True)
        ]

        def at_site(site: sites.Site, inputs: list[Value]) -> list[Value]:
            for i, var in enumerate(sites.variables(site.eqn)):
                role = self.roles[site.paths[var].leaf] if var in site.paths else Role()
                if role.path is not None:
                    std, e = scales[role.path.leaf], noise[role.path.leaf]
                    return [_draw(site.eqn, role, inputs[1 - i], inputs[i], std, e)]
            return sites.as_function(site.eqn)(*inputs)

        (outputs,) = _evaluate(self.plan.block, [*values, *jax.tree.leaves(row)], at_site)
        return outputs


def _draw(eqn: Eqn, role: Role, x: Array, mean: Array, std: Array, noise: list[Array]) -> Array:
    """A row's draw of the result of a site, for a leaf with this mean and std."""
    assert role.path is not None
    std = sites.apply_reshapes(role.path, std)
    if role.kind == "local":
        variance = _product(eqn, role, x * x, std * std)
        # The root has no derivative at zero, which is the variance if all inputs are zero.
        is_positive = variance > jnp.finfo(variance.dtype).tiny
        out_std = jnp.where(is_positive, jnp.sqrt(jnp.where(is_positive, variance, 1)), 0)
        return _product(eqn, role, x, mean) + noise[0] * out_std
    of_x, of_out = (jnp.where(e < 0, -1, 1) for e in noise)
    flipped = _product(eqn, role, x * of_x.astype(x.dtype), std)
    return _product(eqn, role, x, mean) + flipped * of_out.astype(mean.dtype)


def _product(eqn: Eqn, role: Role, x: Array, weight: Array) -> Array:
    """The site's product, of other factors; a row's vector comes first, as in a batch."""
    if role.kind == "local":
        sums = eqn.params["dimension_numbers"][0]
        found = jax.lax.dot_general(
            x,
            weight,
            (sums[::-1] if role.is_first else sums, ((), ())),
            precision=eqn.params["precision"],
            preferred_element_type=eqn.params["preferred_element_type"],
        )
        return found.reshape(aval(eqn.outvars[0]).shape)
    return sites.as_function(eqn)(*((weight, x) if role.is_first else (x, weight)))[0]


def _evaluate(block: sites.Block, arguments: Sequence[Value], at_site: AtSite) -> list[Value]:
    """The block for one row, with `at_site(site, inputs)` for the equations at its sites."""
    env = dict(block.jaxpr.consts)
    env.update(zip(block.jaxpr.invars, arguments, strict=True))
    for number, eqn in enumerate(block.jaxpr.eqns):
        special = block.special.get(number)
        if isinstance(special, sites.Loop):
            outs = _evaluate_loop(special, [_value(env, v) for v in eqn.invars], at_site)
        else:
            inputs = [env[v] for v in sites.variables(eqn)]
            outs = at_site(special, inputs) if special else sites.as_function(eqn)(*inputs)
        env.update(zip(eqn.outvars, outs, strict=True))
    return [_value(env, v) for v in block.jaxpr.outvars]


def _value(env: dict[Var, Value], atom: Atom) -> Value:
    """The value of a variable, or the literal as an array."""
    value = sites.value_of(env, atom)
    return value if sites.is_variable(atom) else jnp.asarray(value, aval(atom).dtype)


def _evaluate_loop(loop: sites.Loop, values: list[Value], at_site: AtSite) -> list[Value]:
    """A scan for one row."""
    params = loop.eqn.params
    begin, num_carry = sites.loop_sizes(loop.eqn)
    end = begin + num_carry

    def step(carry: list[Value], now: list[Value]) -> tuple[list[Value], list[Value]]:
        outs = _evaluate(loop.body, [*values[:begin], *carry, *now], at_site)
        return outs[: end - begin], outs[end - begin :]

    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    last, stacked = jax.lax.scan(step, values[begin:end], values[end:], **options)
    return [*last, *stacked]
