r"""Kronecker factors of the curvature of a network's layers (Martens and Grosse 2015).

For a layer (`layers`) with the inputs a and the cotangents s at each of T positions of a row,

    A = mean_i sum_t a_t a_t^T / T,     S = mean_i sum_t s_t s_t^T,     curvature ~ N A (x) S

S is summed over the columns of a square root of the likelihood's information about the outputs
("gauss-newton", one backward pass for each output), over a label drawn from the model ("fisher",
one), or taken from the labels as they are ("examples", the empirical Fisher). Where s does not
depend on the row and T = 1, as in a linear network with Gaussian noise, N A (x) S is the layer's
block of the Gauss-Newton matrix. Elsewhere that a and s, and positions, are uncorrelated is an
approximation (KFC, Grosse and Martens 2016, for convolutions; the same for layers shared over
time). A side of more than MAX_SIDE entries has the diagonal of its factor, and so have tables of
vectors, whose A is diagonal. Leaves that belong to no layer have the diagonal of the curvature.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from bayeslearn import precision, tree
from bayeslearn.data.rows import Batch, weights_of
from bayeslearn.errors import Shown, refuse
from bayeslearn.families.kronecker import KroneckerGaussian, Layer, multiply
from bayeslearn.gradients import per_example, sites
from bayeslearn.gradients.curvature import output_factor, row_function
from bayeslearn.gradients.entries import LeafAtSite, sum_by_chunks
from bayeslearn.gradients.layers import find_layers
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

KINDS = ("gauss-newton", "fisher", "examples")
MAX_SIDE = 8192  # rows of a factor; a larger one has its diagonal only
HIGH = jax.lax.Precision.HIGHEST  # of these products also where a device prefers speed
CELLS = 2**26  # numbers of per-row gradients that are stored at once


class Factors(NamedTuple):
    """Curvature per datum: (A, S) of each layer, the squares of the leaves that have none."""

    pairs: tuple[tuple[Array, Array], ...]
    squares: tuple[Array, ...]


class Recorded:
    """A network's outputs for all rows of x, and what its layers take and return."""

    def __init__(self, target: Target, params: PyTree, x: PyTree):
        self._function, weights = row_function(target, params)
        self._weights, self._x = weights, x
        self.taped = per_example.taped(self._function, weights, x)
        found = find_layers(self.taped.plan, self.taped.leaves)
        self.layers = tuple(layer for layer, _ in found)
        self.sites = tuple(site for _, site in found)
        covered = {i for layer in self.layers for i in layer.leaves}
        self.alone = [i for i in range(len(self.taped.leaves)) if i not in covered]

    @property
    def num_rows(self) -> int:
        """Rows of x."""
        return len(self.taped.outputs)

    def pull(self, d: Array) -> tuple[list[Array], list[list[Array]]]:
        """The leaves' gradients, and the cotangents at each site."""
        return self.taped.pullback(d.astype(self.taped.outputs.dtype))

    def at(self, leaf: int, ds: list[list[Array]] | None = None) -> LeafAtSite | None:
        """A leaf at its site; None if it has no site."""
        ds = self.taped.probes if ds is None else ds
        plan = self.taped.plan
        for site, inputs, d in zip(plan.sites(), self.taped.recorded, ds, strict=True):
            for path in site.paths.values():
                if path.leaf == leaf and leaf not in plan.fallbacks:
                    return LeafAtSite(site, path, self.taped.leaves, inputs, d)
        return None

    def inputs(self, layer: Layer) -> tuple[Array, Callable[[Array], Array], int]:
        """Rows x, what makes the (positions, inputs) of one, and the number of positions."""
        if layer.weight is None:
            return jnp.ones((self.num_rows, 1, 1)), lambda x: x, 1
        entry = self.at(layer.weight)
        assert entry is not None
        x, make = entry.inputs()
        row = jax.eval_shape(make, jax.ShapeDtypeStruct(x.shape[1:], x.dtype))
        if layer.bias is None or row.ndim == 1:
            return x, make, row.shape[0]
        return x, lambda x: _with_one(make(x)), row.shape[0]

    def cotangents(self, layer: Layer, ds: list[list[Array]]) -> Array:
        """(rows, positions, outputs)."""
        leaf = layer.bias if layer.weight is None else layer.weight
        assert leaf is not None
        entry = self.at(leaf, ds)
        assert entry is not None
        if layer.weight is None:
            return entry.row_gradients().reshape(self.num_rows, 1, -1)
        return entry.cotangents()

    def left(self, layer: Layer, weight: Array) -> Array:
        """sum_i weight_i sum_t a_t a_t^T / T."""
        x, make, positions = self.inputs(layer)
        size = layer.num_inputs + (layer.bias is not None)
        is_table = jnp.issubdtype(x.dtype, jnp.integer)
        weight = weight / positions

        def of_rows(arguments: tuple[Array], weight: Array | None) -> Array:
            assert weight is not None
            a = jax.vmap(make)(arguments[0])
            if is_table:
                counts = jnp.broadcast_to(weight[:, None], a.shape)
                return jnp.zeros(size, weight.dtype).at[a.ravel()].add(counts.ravel())
            if size > MAX_SIDE:
                return jnp.einsum("r,rti,rti->i", weight, a, a, precision=HIGH)
            scaled = (a * weight.astype(a.dtype)[:, None, None]).reshape(-1, size)
            return jnp.matmul(scaled.T, a.reshape(-1, size), precision=HIGH)

        return sum_by_chunks(of_rows, (x,), weight, 4 * positions * size)

    def right(self, layer: Layer, ds: list[list[Array]], weight: Array) -> Array:
        """sum_i weight_i sum_t s_t s_t^T."""
        s = self.cotangents(layer, ds)
        scaled, size = s * weight.astype(s.dtype)[:, None, None], s.shape[-1]
        if size > MAX_SIDE:
            return jnp.einsum("rti,rti->i", scaled, s, precision=HIGH)
        return jnp.matmul(scaled.reshape(-1, size).T, s.reshape(-1, size), precision=HIGH)

    def squares(self, d: Array, ds: list[list[Array]], weight: Array) -> tuple[Array, ...]:
        """sum_i weight_i g_i^2 of the leaves without a layer."""
        found: dict[int, Array] = {}
        for leaf in self.alone:
            entry = self.at(leaf, ds)
            if entry is not None:
                found[leaf] = entry.squares(weight)
        missing = tuple(i for i in self.alone if i not in found and i in self.taped.plan.fallbacks)
        if missing:
            slow = per_example.squares_one_by_one(
                self._function, self._weights, self._x, d, weight, missing
            )
            found |= dict(zip(missing, slow, strict=True))
        return tuple(found.get(i, jnp.zeros_like(self.taped.leaves[i])) for i in self.alone)

    def row_gradients(self, leaf: int, d: Array, ds: list[list[Array]]) -> Array:
        """Each row's gradient of a leaf without a layer."""
        entry = self.at(leaf, ds)
        if entry is not None:
            return entry.row_gradients()
        leaves, treedef = self.taped.leaves, jax.tree.structure(self._weights)

        def one(row: PyTree, d: Array) -> Array:
            def of(w: Array) -> Array:
                filled = [*leaves[:leaf], w, *leaves[leaf + 1 :]]
                return self._function(jax.tree.unflatten(treedef, filled), row)

            return jax.vjp(of, leaves[leaf])[1](d)[0]

        return jax.vmap(one)(self._x, d.astype(self.taped.outputs.dtype))


def layers_of(target: Target, params: PyTree) -> tuple[Layer, ...]:
    """The layers of the network, their leaves as positions among all parameters."""
    assert target.data is not None
    with precision.network_precision(target.dtype):
        function, weights = row_function(target, params)
        plan = sites.make_plan(function, weights, target.data.x)
        found = find_layers(plan, jax.tree.leaves(weights))
    own = len(jax.tree.leaves(params["likelihood"]))  # they come before the network's
    return tuple(_shifted(layer, own) for layer, _ in found)


def notes(target: Target, params: PyTree) -> list[str]:
    """Which of the network's leaves have a diagonal, for the user."""
    covered = {i for layer in layers_of(target, params) for i in layer.leaves}
    names = tree.leaf_names(params)
    own = len(jax.tree.leaves(params["likelihood"]))
    alone = [name for i, name in enumerate(names) if i >= own and i not in covered]
    if not alone:
        return []
    return [
        f"Without Kronecker factors, with a diagonal covariance: {', '.join(alone)}. They are used"
        " in several places, transformed, or not a factor of a product with the input."
    ]


def check_factors(target: Target, name: str) -> None:
    """Refuse a target that has no Kronecker factors, or a prior that has correlations."""
    if target.is_density:
        refuse("covariance", "kronecker", "be another one: a bare log-density has no layers")
    if target.prior is not None and not target.prior.is_independent:
        refuse(
            "prior",
            Shown(f"a {target.prior.title} prior"),
            f"have independent weights for the Kronecker factors of {name}",
            'Use bl.Laplace(covariance="block"), or `algorithm=` of `update`.',
        )


def _shifted(layer: Layer, by: int) -> Layer:
    weight, bias = (None if i is None else i + by for i in (layer.weight, layer.bias))
    return layer._replace(weight=weight, bias=bias)


def factors(key: Array, target: Target, params: PyTree, batch: Batch, kind: str) -> Factors:
    """The curvature at `params` per datum, of one of `KINDS`."""
    return value_and_factors(key, target, params, batch, kind)[2]


def value_and_factors(
    key: Array, target: Target, params: PyTree, batch: Batch, kind: str
) -> tuple[Array, PyTree, Factors]:
    """Means over the rows of log p and of its gradient, and the curvature per datum."""
    weight = weights_of(batch)
    own_params = params["likelihood"]
    with precision.network_precision(target.dtype):
        recorded = Recorded(target, params, batch.x)
    outputs = recorded.taped.outputs
    wide = outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32))
    values, (d, own) = jax.vmap(
        jax.value_and_grad(target.likelihood.log_prob, argnums=(0, 2)), (0, 0, None)
    )(wide, batch.y, own_params)

    def summed(g: Array) -> Array:
        counts = weight.reshape(-1, *[1] * (g.ndim - 1))
        return jnp.sum(counts * jnp.where(counts > 0, g, 0.0), axis=0)

    if kind == "examples":
        columns = d[None]
        own_squares = jax.tree.map(lambda g: summed(g**2), own)
    else:
        if kind == "fisher":
            keys = jax.random.split(key, len(batch.y))
            labels = jax.vmap(target.likelihood.sample, (0, 0, None))(keys, wide, own_params)
            columns = jax.vmap(jax.grad(target.likelihood.log_prob), (0, 0, None))(
                wide, labels.astype(batch.y.dtype), own_params
            )[None]
        else:
            roots = jax.vmap(lambda f, y: output_factor(target, f, own_params, y))(wide, batch.y)
            columns = jnp.moveaxis(roots, 2, 0)
        information = jax.vmap(target.likelihood.own_information, (0, None))(wide, own_params)
        own_squares = jax.tree.map(summed, information)
    with precision.network_precision(target.dtype):
        counts, d, columns = (v.astype(outputs.dtype) for v in (weight, d, columns))
        gradient = recorded.pull(jnp.where(counts[:, None] > 0, counts[:, None] * d, 0.0))[0]
        pairs, squares = _summed(recorded, jnp.where(counts[:, None] > 0, columns, 0.0), counts)
    per_datum = target.scale(batch) / target.num_data

    def mean(leaf: Array) -> Array:
        return leaf.astype(jnp.float64) * per_datum

    network = jax.tree.unflatten(jax.tree.structure(params["network"]), gradient)
    found = {"network": network, "likelihood": jax.tree.map(summed, own)}
    return (
        mean(summed(values.astype(jnp.float64))),
        tree.cast_like(jax.tree.map(mean, found), params),
        jax.tree.map(mean, Factors(pairs, (*jax.tree.leaves(own_squares), *squares))),
    )


def _summed(
    recorded: Recorded, columns: Array, weight: Array
) -> tuple[tuple[tuple[Array, Array], ...], tuple[Array, ...]]:
    """Sums over the rows of A and S, and of squares, S and squares over the columns as well."""

    def of_column(d: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        _, ds = recorded.pull(d)
        rights = tuple(recorded.right(layer, ds, weight) for layer in recorded.layers)
        return rights, recorded.squares(d, ds, weight)

    if len(columns) == 1:
        rights, squares = of_column(columns[0])
    else:
        shapes = jax.eval_shape(of_column, columns[0])
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        (rights, squares), _ = jax.lax.scan(
            lambda sums, d: (jax.tree.map(jnp.add, sums, of_column(d)), None), zeros, columns
        )
    lefts = [recorded.left(layer, weight) for layer in recorded.layers]
    return tuple(zip(lefts, rights, strict=True)), squares


def outputs_and_cov(target: Target, q: KroneckerGaussian, x: PyTree) -> tuple[Array, Array]:
    """Outputs at q's mean, and the covariance J Sigma J^T of the linearised network's, by row."""
    own = len(jax.tree.leaves(q.mean["likelihood"]))
    with precision.network_precision(target.dtype):
        recorded = Recorded(target, q.mean, x)
        outputs = recorded.taped.outputs
        rows, num = outputs.shape

        def of_output(direction: Array) -> tuple[list[Array], list[Array]]:
            d = jnp.broadcast_to(direction, outputs.shape)
            _, ds = recorded.pull(d)
            of_layers = [recorded.cotangents(layer, ds) for layer in recorded.layers]
            return of_layers, [recorded.row_gradients(i, d, ds) for i in recorded.alone]

        of_layers, others = jax.lax.map(of_output, jnp.eye(num, dtype=outputs.dtype))
    total = jnp.zeros((rows, num, num), jnp.float64)
    matrices = zip(recorded.layers, q.left, q.right, q.scale, of_layers, strict=True)
    for layer, left, right, scale, s in matrices:
        with precision.network_precision(target.dtype):
            x_of, make, _ = recorded.inputs(layer)
            a = jax.vmap(make)(x_of)
        total = total + _layer_cov(a, multiply(s.astype(jnp.float64), right), left, scale)
    for std, g in zip(q.rest[own:], others, strict=True):
        scaled = (g.astype(jnp.float64) * std).reshape(num, rows, -1)
        total = total + jnp.einsum("crk,erk->rce", scaled, scaled)
    return outputs.astype(jnp.float64), total


def _layer_cov(a: Array, s: Array, left: Array, scale: Array) -> Array:
    """A layer's part of J Sigma J^T; `s` (outputs of the network, rows, positions, outputs)."""
    if jnp.issubdtype(a.dtype, jnp.integer):  # a table: positions of the same entry
        variance = (left[a][..., None] * scale[a]) ** 2
        is_same = (a[:, :, None] == a[:, None, :]).astype(s.dtype)
        gathered = jnp.einsum("rtu,erus->erts", is_same, s)
        return jnp.einsum("crts,rts,erts->rce", s, variance, gathered)
    u = multiply(a.astype(s.dtype), left)
    if s.shape[2] == 1:
        variance = u[:, 0] ** 2 @ scale**2
        return jnp.einsum("crs,rs,ers->rce", s[:, :, 0], variance, s[:, :, 0])

    def one(row: tuple[Array, Array]) -> Array:
        u, s = row  # (positions, inputs), (outputs of the network, positions, outputs)
        scaled = (scale * jnp.einsum("ti,cts->cis", u, s)).reshape(len(s), -1)
        return scaled @ scaled.T

    at_once = max(1, CELLS // (scale.size * len(s)))
    return jax.lax.map(one, (u, jnp.moveaxis(s, 1, 0)), batch_size=min(len(u), at_once))


def _with_one(a: Array) -> Array:
    """Inputs with a 1 at the end, for the bias."""
    return jnp.concatenate([a, jnp.ones((*a.shape[:-1], 1), a.dtype)], axis=-1)
