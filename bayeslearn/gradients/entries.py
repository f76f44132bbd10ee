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
    shapes = jax.eval_shape(gradient, *jax.tree.map(lambda a: a[0], arguments))

    def of_rows(arguments: tuple[PyTree, ...], scale: Array | None) -> PyTree:
        def summed(g: Array) -> Array:
            wide = g.astype(widened(g.dtype))
            if scale is not None:
                wide = wide * jnp.sqrt(scale).astype(wide.dtype).reshape(-1, *[1] * (g.ndim - 1))
            return jnp.sum(wide * wide, axis=0)

        return jax.tree.map(summed, jax.vmap(gradient)(*arguments))

    return sum_by_chunks(of_rows, arguments, scale, 4 * tree.size(shapes))


def sum_by_chunks(
    of_rows: Callable[[tuple[PyTree, ...], Array | None], PyTree],
    arguments: tuple[PyTree, ...],
    scale: Array | None,
    bytes_each: int,
) -> PyTree:
    """The sum over chunks of `of_rows(arguments, scale)`, rows taking `bytes_each` bytes each."""
    num_rows = len(jax.tree.leaves(arguments)[0])
    limit = CHUNK_BYTES.get(jax.default_backend(), DEFAULT_CHUNK_BYTES)
    size = min(num_rows, max(1, int(limit / max(bytes_each, 1))))
    if size == num_rows:
        return of_rows(arguments, scale)
    scale = jnp.ones(num_rows, jnp.float32) if scale is None else scale
    whole = num_rows // size * size
    chunks = jax.tree.map(lambda a: a[:whole].reshape(-1, size, *a.shape[1:]), (arguments, scale))
    shapes = jax.eval_shape(of_rows, *jax.tree.map(lambda a: a[0], chunks))
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
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
        self.site, self.eqn, self.path, self.leaf = site, site.eqn, path, leaves[path.leaf]
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
        return self._undo_reshapes((rule if has_rule else self._by_vjp)(scale))

    def _undo_reshapes(self, found: Array) -> Array:
        """A value in the shape that the leaf has at its site, in the leaf's own."""
        like = jax.ShapeDtypeStruct(self.leaf.shape, found.dtype)
        reshape = partial(sites.apply_reshapes, self.path, is_cast=False)
        return jax.linear_transpose(reshape, like)(found)[0]

    def row_gradients(self) -> Array:
        """The leaf's gradient for each row, in the leaf's shape."""
        each = jax.vmap(self._gradient)(self.of_rows, self.ds)
        return jax.vmap(self._undo_reshapes)(each.astype(widened(each.dtype)))

    def inputs(self) -> tuple[Array, Callable[[Array], Array]]:
        """Of a layer's weight: rows x, and what makes the (positions, inputs) of one row of x.

        Of a table of vectors: the number of the entry at each position.
        """
        name = self.eqn.primitive.name
        if name == "gather":
            return self._numbers(), lambda numbers: numbers
        if name == "conv_general_dilated":
            return self._images()[0], self._patches
        return self._dense_rows()[0], lambda x: x

    def cotangents(self) -> Array:
        """Of a layer's weight: (rows, positions, outputs)."""
        name, (d, *_) = self.eqn.primitive.name, self.ds
        if name == "gather":
            return d.astype(widened(d.dtype)).reshape(*self._numbers().shape, -1)
        if name == "conv_general_dilated":
            images = jnp.moveaxis(self._images()[1], 2, -1)  # channels last
            return images.reshape(len(images), -1, images.shape[-1])
        return self._dense_rows()[1]

    def _gradient(self, of_row: dict[int, Array], ds: list[Array]) -> Array:
        """One row's gradient by the equation's own vjp, for any primitive."""
        before = sites.apply_reshapes(self.path, self.leaf)
        return jax.vjp(lambda w: self._outs(w, of_row), before)[1](ds)[0]

    def _by_vjp(self, scale: Array | None) -> Array:
        return summed_squares(self._gradient, (self.of_rows, self.ds), scale)

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

    def _dense_axes(self) -> tuple[list[int], list[int]]:
        """Axes of the weight that are summed over, and the others."""
        contracted, _ = self.eqn.params["dimension_numbers"]
        summed = list(contracted[int(self.eqn.invars[1] is self.variables[self.index])])
        return summed, [i for i in range(len(self.shape)) if i not in summed]

    def _dense_rows(self) -> tuple[Array, Array]:
        """x as (rows, positions, inputs), d as (rows, positions, outputs)."""
        (left, right), _ = self.eqn.params["dimension_numbers"]
        is_second = self.eqn.invars[1] is self.variables[self.index]
        of_x, (summed, free) = (left if is_second else right), self._dense_axes()
        x, d = self._other(), self.ds[0].astype(widened(self.ds[0].dtype))
        start = 1 + self.num_times
        x = jnp.moveaxis(x, [start + i for i in of_x], range(x.ndim - len(of_x), x.ndim))
        if not is_second:
            d = jnp.moveaxis(d, range(start, start + len(free)), range(d.ndim - len(free), d.ndim))
        num_inputs = math.prod(self.shape[i] for i in summed)
        num_outputs = math.prod(self.shape[i] for i in free)
        return x.reshape(len(x), -1, num_inputs), d.reshape(len(d), -1, num_outputs)

    def _dense(self, scale: Array | None) -> Array:
        """(a * a)^T (scale d * d) for one position; the squares of a_i^T d_i for several."""
        summed, free = self._dense_axes()
        shape = self.shape
        x, d = self._dense_rows()
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
        numbers = self.eqn.params["dimension_numbers"]
        shape = [self.shape[i] for i in numbers.rhs_spec]
        x, d = self._images()

        def gradient(x: Array, d: Array) -> Array:
            flat = self._stacked_patches(x)
            return jnp.einsum("npcs,nos->pco", flat, d.reshape(*d.shape[:2], -1))

        found = summed_squares(gradient, (x, d), scale)
        found = found.reshape(*shape[2:], shape[1], shape[0])
        axes = [found.ndim - 1, found.ndim - 2, *range(found.ndim - 2)]  # of out, in, space
        order = sorted(range(found.ndim), key=lambda i: numbers.rhs_spec[i])
        return found.transpose([axes[i] for i in order])

    def _images(self) -> tuple[Array, Array]:
        """x and d as (rows, images, channels, space); steps of a scan count as images."""
        numbers = self.eqn.params["dimension_numbers"]
        x, d = self._other(), self.ds[0].astype(widened(self.ds[0].dtype))
        start = 1 + self.num_times
        x = x.transpose(*range(start), *(start + i for i in numbers.lhs_spec))
        d = d.transpose(*range(start), *(start + i for i in numbers.out_spec))
        return (
            x.reshape(len(x), -1, *x.shape[start + 1 :]),
            d.reshape(len(d), -1, *d.shape[start + 1 :]),
        )

    def _stacked_patches(self, x: Array) -> Array:
        """One row's images as (images, offsets in the kernel, channels, positions)."""
        params = self.eqn.params
        numbers = params["dimension_numbers"]
        kernel = [self.shape[i] for i in numbers.rhs_spec[2:]]
        out = sites.aval(self.eqn.outvars[0]).shape
        sizes = tuple(out[i] for i in numbers.out_spec[2:])
        edges = [(0, 0, 0)] * 2 + [
            (low, high, dilation - 1)
            for (low, high), dilation in zip(params["padding"], params["lhs_dilation"], strict=True)
        ]
        padded = jax.lax.pad(x, jnp.zeros((), x.dtype), edges)
        offsets = itertools.product(*(range(n) for n in kernel))
        stacked = jnp.stack([self._patch(padded, offset, sizes) for offset in offsets], axis=1)
        return stacked.reshape(*stacked.shape[:3], -1)

    def _patches(self, x: Array) -> Array:
        """One row's images as (positions, inputs): the patch that each output is made of."""
        stacked = jnp.moveaxis(self._stacked_patches(x), -1, 1)
        return stacked.reshape(stacked.shape[0] * stacked.shape[1], -1)

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
        return sites.is_lookup(self.site, self.variables[self.index])

    def _numbers(self) -> Array:
        """The entry of the table at each position: (rows, positions)."""
        (indices,) = self.of_rows.values()
        numbers = indices.reshape(len(indices), -1)
        if self.eqn.params["mode"] == jax.lax.GatherScatterMode.CLIP:
            numbers = jnp.clip(numbers, 0, self.shape[0] - 1)
        return numbers

    def _lookup(self, scale: Array | None) -> Array:
        """d times the sum of the d of the same entry, scattered into the table."""
        number, (d,) = self._numbers(), self.ds
        flat = self.cotangents()
        is_same = (number[:, :, None] == number[:, None, :]).astype(flat.dtype)
        product = flat * (is_same @ flat)
        if scale is not None:
            product = product * _column(scale, flat.dtype)[..., None]
        before = sites.apply_reshapes(self.path, self.leaf).astype(flat.dtype)
        pull = jax.vjp(lambda w: jax.vmap(self._outs, (None, 0))(w, self.of_rows), before)[1]
        return pull([product.reshape(d.shape)])[0]


def _column(scale: Array, dtype: DTypeLike) -> Array:
    return scale.astype(dtype)[:, None]
