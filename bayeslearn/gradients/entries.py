"""Summed squares of one leaf's per-example gradients, from inputs and cotangents at its site."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from bayeslearn import tree
from bayeslearn.gradients import sites
from bayeslearn.tree import Array, PyTree

CHUNK_BYTES = {"cpu": 16e6}  # of per-example gradients that are stored at a time
DEFAULT_CHUNK_BYTES = 2e9


def summed_squares(
    gradient: Callable[..., PyTree], arguments: tuple[PyTree, ...], scale: Array | None
) -> PyTree:
    """sum_i scale_i gradient(*arguments[i])^2, by chunks of rows of at most `CHUNK_BYTES`."""
    num_rows = len(jax.tree.leaves(arguments)[0])
    shapes = jax.eval_shape(gradient, *jax.tree.map(lambda a: a[0], arguments))
    bytes_each = 4 * tree.size(shapes)
    limit = CHUNK_BYTES.get(jax.default_backend(), DEFAULT_CHUNK_BYTES)
    size = min(num_rows, max(1, int(limit / max(bytes_each, 1))))

    def of_rows(arguments: tuple[PyTree, ...], scale: Array | None) -> PyTree:
        def summed(g: Array) -> Array:
            wide = g.astype(widened(g.dtype))
            if scale is not None:
                wide = wide * jnp.sqrt(scale).astype(wide.dtype).reshape(-1, *[1] * (g.ndim - 1))
            return jnp.sum(wide * wide, axis=0)

        return jax.tree.map(summed, jax.vmap(gradient)(*arguments))

    if size == num_rows:
        return of_rows(arguments, scale)
    scale = jnp.ones(num_rows, jnp.float32) if scale is None else scale
    whole = num_rows // size * size
    chunks = jax.tree.map(lambda a: a[:whole].reshape(-1, size, *a.shape[1:]), (arguments, scale))
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, widened(s.dtype)), shapes)
    total, _ = jax.lax.scan(
        lambda sums, chunk: (jax.tree.map(jnp.add, sums, of_rows(*chunk)), None), zeros, chunks
    )
    if whole == num_rows:
        return total
    rest = of_rows(*jax.tree.map(lambda a: a[whole:], (arguments, scale)))
    return jax.tree.map(jnp.add, total, rest)


def widened(dtype: DTypeLike) -> np.dtype:
    """The type of sums of squares: float32 at least."""
    return jnp.promote_types(dtype, jnp.float32)


class LeafAtSite:
    """A leaf at its site, with inputs and cotangents recorded there; rows are the first axis."""

    def __init__(
        self,
        site: sites.Site,
        path: sites.Path,
        leaves: Sequence[Array],
        inputs: dict[int, Array],
        ds: Sequence[Array],
    ):
        self.eqn, self.path, self.leaf = site.eqn, path, leaves[path.leaf]
        self.variables = sites.variables(site.eqn)
        self.num_times = len(site.times)
        self.index = next(i for i, v in enumerate(self.variables) if site.paths.get(v) is path)
        self.shape = sites.aval(self.variables[self.index]).shape
        self.fixed = {  # other leaves at this site
            i: sites.apply_broadcasts(
                site.paths[v], sites.apply_reshapes(site.paths[v], leaves[site.paths[v].leaf])
            )
            for i, v in enumerate(self.variables)
            if v in site.paths and i != self.index
        }
        self.of_rows = {i: self._rows_first(v) for i, v in inputs.items() if site.is_row[i]}
        self.of_all = {i: v for i, v in inputs.items() if not site.is_row[i]}
        self.ds = [self._rows_first(d) for d in ds]

    def _rows_first(self, value: Array) -> Array:
        """The batch axis in front of the axes of scans."""
        return jnp.moveaxis(value, self.num_times, 0)

    def squares(self, scale: Array | None) -> Array:
        """sum_i scale_i g_i^2 in the leaf's shape, g_i the leaf's gradient for row i."""
        rules = {
            "dot_general": (self._is_dense, self._dense),
            "conv_general_dilated": (self._is_convolution, self._convolution),
            "gather": (self._is_lookup, self._lookup),
        }
        applies, rule = rules.get(self.eqn.primitive.name, (lambda: False, self._by_vjp))
        has_rule = not self.path.broadcasts and applies()
        found = (rule if has_rule else self._by_vjp)(scale)
        like = jax.ShapeDtypeStruct(self.leaf.shape, found.dtype)
        reshape = partial(sites.apply_reshapes, self.path, is_cast=False)
        return jax.linear_transpose(reshape, like)(found)[0]

    def _by_vjp(self, scale: Array | None) -> Array:
        """By the equation's own vjp, for any primitive."""
        before = sites.apply_reshapes(self.path, self.leaf)

        def gradient(of_row: dict[int, Array], ds: list[Array]) -> Array:
            return jax.vjp(lambda w: self._outs(w, of_row), before)[1](ds)[0]

        return summed_squares(gradient, (self.of_rows, self.ds), scale)

    def _outs(self, before: Array, of_row: dict[int, Array]) -> list[Array]:
        """The equation's results for one row, at all times, as a function of the reshaped leaf."""
        weight = sites.apply_broadcasts(self.path, before)

        def once(of_row: dict[int, Array], of_all: dict[int, Array]) -> list[Array]:
            values = {**of_row, **of_all, **self.fixed, self.index: weight}
            outs = sites.as_function(self.eqn)(*(values[i] for i in range(len(values))))
            floats = sites.float_outs(self.eqn)
            return [out for v, out in zip(self.eqn.outvars, outs, strict=True) if v in floats]

        for _ in range(self.num_times):
            once = jax.vmap(once)
        return once(of_row, self.of_all)

    def _other(self) -> Array:
        """The one input that is not the leaf, for all rows."""
        (value,) = self.of_rows.values()
        return value.astype(widened(value.dtype))

    # Dense layers: a weight that multiplies one input

    def _is_dense(self) -> bool:
        return not self.eqn.params["dimension_numbers"][1][0] and len(self.of_rows) == 1

    def _dense(self, scale: Array | None) -> Array:
        """(a * a)^T (scale d * d) for one position; the squares of a_i^T d_i for several."""
        (left, right), _ = self.eqn.params["dimension_numbers"]
        is_second = self.eqn.invars[1] is self.variables[self.index]
        summed, of_x = (right, left) if is_second else (left, right)
        shape = self.shape
        free = [i for i in range(len(shape)) if i not in summed]
        x, d = self._other(), self.ds[0].astype(widened(self.ds[0].dtype))
        # x as (rows, positions, inputs), d as (rows, positions, outputs)
        start = 1 + self.num_times
        num_inputs = math.prod(shape[i] for i in summed)
        num_outputs = math.prod(shape[i] for i in free)
        x = jnp.moveaxis(x, [start + i for i in of_x], range(x.ndim - len(of_x), x.ndim))
        if not is_second:
            d = jnp.moveaxis(d, range(start, start + len(free)), range(d.ndim - len(free), d.ndim))
        x, d = x.reshape(len(x), -1, num_inputs), d.reshape(len(d), -1, num_outputs)
        is_turned = bool(free) and free[0] == 0  # so that the product has the layout of the leaf
        first, second = (d, x) if is_turned else (x, d)
        if x.shape[1] == 1:
            weighted = first[:, 0] ** 2
            if scale is not None:
                weighted = weighted * _column(scale, weighted.dtype)
            found = weighted.T @ (second[:, 0] ** 2)
        else:
            found = summed_squares(lambda a, b: a.T @ b, (first, second), scale)
        order = [*free, *summed] if is_turned else [*summed, *free]
        back = sorted(range(len(order)), key=lambda i: order[i])
        return found.reshape([shape[i] for i in order]).transpose(back)

    # Convolutions: a kernel

    def _is_convolution(self) -> bool:
        params = self.eqn.params
        is_kernel = self.eqn.invars[1] is self.variables[self.index]
        is_single = params["feature_group_count"] == params["batch_group_count"] == 1
        return is_kernel and is_single and len(self.of_rows) == 1

    def _convolution(self, scale: Array | None) -> Array:
        """The squares of products of patches and cotangents."""
        params = self.eqn.params
        numbers = params["dimension_numbers"]
        shape = [self.shape[i] for i in numbers.rhs_spec]
        x, d = self._other(), self.ds[0].astype(widened(self.ds[0].dtype))
        # both as (rows, images, channels, space); steps of a scan count as images
        start = 1 + self.num_times
        x = x.transpose(*range(start), *(start + i for i in numbers.lhs_spec))
        d = d.transpose(*range(start), *(start + i for i in numbers.out_spec))
        x, d = (
            x.reshape(len(x), -1, *x.shape[start + 1 :]),
            d.reshape(len(d), -1, *d.shape[start + 1 :]),
        )
        edges = [(0, 0, 0)] * 2 + [
            (low, high, dilation - 1)
            for (low, high), dilation in zip(params["padding"], params["lhs_dilation"], strict=True)
        ]
        offsets = list(itertools.product(*(range(n) for n in shape[2:])))

        def gradient(x: Array, d: Array) -> Array:
            padded = jax.lax.pad(x, jnp.zeros((), x.dtype), edges)
            patches = [self._patch(padded, offset, d.shape[2:]) for offset in offsets]
            stacked = jnp.stack(patches, axis=1)  # images, offsets, channels, space
            flat = stacked.reshape(*stacked.shape[:3], -1)
            return jnp.einsum("npcs,nos->pco", flat, d.reshape(*d.shape[:2], -1))

        found = summed_squares(gradient, (x, d), scale)
        found = found.reshape(*shape[2:], shape[1], shape[0])
        axes = [found.ndim - 1, found.ndim - 2, *range(found.ndim - 2)]  # of out, in, space
        order = sorted(range(found.ndim), key=lambda i: numbers.rhs_spec[i])
        return found.transpose([axes[i] for i in order])

    def _patch(self, x: Array, offset: tuple[int, ...], sizes: tuple[int, ...]) -> Array:
        """The inputs that the kernel's entry at `offset` multiplies, one for each output."""
        params = self.eqn.params
        starts = [p * n for p, n in zip(offset, params["rhs_dilation"], strict=True)]
        strides = params["window_strides"]
        ends = [
            start + (size - 1) * stride + 1
            for start, size, stride in zip(starts, sizes, strides, strict=True)
        ]
        return jax.lax.slice(x, (0, 0, *starts), (*x.shape[:2], *ends), (1, 1, *strides))

    # Embeddings: a table of vectors

    def _is_lookup(self) -> bool:
        numbers, sizes = self.eqn.params["dimension_numbers"], self.eqn.params["slice_sizes"]
        shape = self.shape
        out = sites.aval(self.eqn.outvars[0])
        return (
            self.eqn.invars[0] is self.variables[self.index]
            and len(self.of_rows) == 1
            and tuple(numbers.collapsed_slice_dims) == tuple(numbers.start_index_map) == (0,)
            and not numbers.operand_batching_dims
            and tuple(sizes) == (1, *shape[1:])
            and tuple(numbers.offset_dims) == tuple(range(out.ndim - len(shape) + 1, out.ndim))
        )

    def _lookup(self, scale: Array | None) -> Array:
        """d times the sum of the d of the same entry, scattered into the table."""
        (indices,) = self.of_rows.values()
        rows = len(indices)
        number = indices.reshape(rows, -1)
        if self.eqn.params["mode"] == jax.lax.GatherScatterMode.CLIP:
            number = jnp.clip(number, 0, self.leaf.shape[0] - 1)
        (d,) = self.ds
        flat = d.astype(widened(d.dtype)).reshape(*number.shape, -1)
        is_same = (number[:, :, None] == number[:, None, :]).astype(flat.dtype)
        product = flat * (is_same @ flat)
        if scale is not None:
            product = product * _column(scale, flat.dtype)[..., None]
        before = sites.apply_reshapes(self.path, self.leaf).astype(flat.dtype)
        pull = jax.vjp(lambda w: jax.vmap(self._outs, (None, 0))(w, self.of_rows), before)[1]
        return pull([product.reshape(d.shape)])[0]


def _column(scale: Array, dtype: DTypeLike) -> Array:
    return scale.astype(dtype)[:, None]
