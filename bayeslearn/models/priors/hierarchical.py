r"""Weights whose scales are unknown, with the scales integrated out.

    w_g | s_g ~ N(0, s_g^2 I),   s_g^2 ~ scale^2 InverseGamma(df / 2, df / 2),   for each group g

so that a group of k weights has the multivariate t density

    log p(w_g) = log Gamma((df + k) / 2) - log Gamma(df / 2) - k / 2 log(pi df scale^2)
                 - (df + k) / 2 log(1 + |w_g|^2 / (df scale^2))

A group is a leaf, or, for automatic relevance determination, the weights of one input (Neal 1996).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln

from bayeslearn import tree
from bayeslearn.errors import check_positive, refuse
from bayeslearn.models.priors.base import BoundPrior, Prior
from bayeslearn.models.priors.gaussian import GaussianPrior
from bayeslearn.models.priors.nongaussian import ProductPrior
from bayeslearn.models.priors.specs import FanIn, is_kernel
from bayeslearn.tree import Array, PyTree

Axes = tuple[int | None, ...]  # of each leaf, the axis along which groups lie; None: one group


def _as_patterns(patterns: str | Sequence[str]) -> tuple[str, ...]:
    found = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    if not all(isinstance(pattern, str) for pattern in found):
        refuse("by_input", patterns, 'be name patterns, such as "layers.0.weight"')
    return found


class HierarchicalPrior(BoundPrior):
    """Groups of weights with unknown scales, bound to a network."""

    is_gaussian: ClassVar[bool] = False
    is_independent: ClassVar[bool] = False

    scale: PyTree
    train_scale: PyTree
    df: Array
    axes: Axes = eqx.field(static=True)

    def join(self, likelihood: GaussianPrior) -> ProductPrior:
        """The prior of a whole model."""
        return ProductPrior(self, likelihood)

    def to_train(self) -> GaussianPrior:
        """Gaussians of a typical scale: with unknown scales the mode is at zero weights."""
        zero = jax.tree.map(jnp.zeros_like, self.train_scale)
        return GaussianPrior(zero, jax.tree.map(lambda s: 1.0 / s**2, self.train_scale))

    def log_prob_terms(self, params: PyTree) -> PyTree:
        """The normalised log-density of each leaf."""

        def in_groups(w: Array, _: Array, axis: int | None) -> Array:
            groups = w.reshape(1, -1) if axis is None else jnp.moveaxis(w, axis, 0)
            return groups.reshape(len(groups), -1)

        groups = _by_leaf(in_groups, params, self.scale, self.axes)
        sizes = sorted({leaf.shape[1] for leaf in jax.tree.leaves(groups)})
        # One call for all leaves: each compiles to a hundred operations.
        of_df, *of_sizes = gammaln(0.5 * (self.df + jnp.asarray([0, *sizes], jnp.float64)))
        normalisers = {
            size: value - of_df - 0.5 * size * jnp.log(jnp.pi * self.df)
            for size, value in zip(sizes, of_sizes, strict=True)
        }

        def term(groups: Array, scale: Array, _: int | None) -> Array:
            number, size = groups.shape
            df, scale = jnp.asarray(self.df, groups.dtype), jnp.asarray(scale, groups.dtype)
            squares = jnp.sum((groups / scale) ** 2, axis=1)
            tails = 0.5 * (df + size) * jnp.sum(jnp.log1p(squares / df), dtype=jnp.float64)
            return number * (normalisers[size] - size * jnp.log(scale)) - tails

        return _by_leaf(term, groups, self.scale, self.axes)

    def broadcast(self, params: PyTree) -> tuple[PyTree, PyTree]:
        """Mean and precision of `to_train`."""
        return self.to_train().broadcast(params)

    def sample(self, key: Array, params: PyTree) -> PyTree:
        """One draw, with the shapes of `params`."""
        key_scale, key_noise = jax.random.split(key)
        noise = tree.normal_like(key_noise, tree.double(params))
        keys = iter(jax.random.split(key_scale, len(self.axes)))

        def draw(z: Array, scale: Array, axis: int | None) -> Array:
            shape = [size if i == axis else 1 for i, size in enumerate(z.shape)]
            gamma = jax.random.gamma(next(keys), 0.5 * self.df, shape, jnp.float64)
            return z * scale * jnp.sqrt(0.5 * self.df / gamma)

        return _by_leaf(draw, noise, self.scale, self.axes)


class Hierarchical(Prior):
    """Scales of weights that are not known, so that none has to be chosen.

    Each leaf has a scale of its own. The typical one is `gain` / sqrt(fan-in) for weight matrices
    and `gain` for the rest, as in `Normal.fan_in`; with `df` = 2 degrees of freedom a scale ten
    times as large has probability 0.01. `by_input` are name patterns of weight matrices in which
    every input has a scale of its own, with the gain `input_gain`, so that inputs without effect
    are recognised (automatic relevance determination).

    For samplers. The mode of this density is at zero weights: members of `Ensemble` and `MILE` are
    trained with `Normal.fan_in(gain)`.
    """

    gain: float = 3.0
    df: float = 2.0
    by_input: tuple[str, ...] = eqx.field(static=True, default=(), converter=_as_patterns)
    input_gain: float = 1.0

    def __check_init__(self) -> None:
        for name in ("gain", "df", "input_gain"):
            check_positive(name, getattr(self, name))

    def bind(self, params: PyTree) -> HierarchicalPrior:
        """The prior over a network's parameters."""
        names, leaves = tree.leaf_names(params), jax.tree.leaves(params)
        axes = tuple(map(self._axis, names, leaves))
        train_scale = FanIn(self.gain).scales(params)
        scale = [
            s if axis is None else s * self.input_gain / self.gain
            for s, axis in zip(jax.tree.leaves(train_scale), axes, strict=True)
        ]
        scale = jax.tree.unflatten(jax.tree.structure(params), scale)
        return HierarchicalPrior(scale, train_scale, jnp.asarray(self.df, jnp.float64), axes)

    def _axis(self, name: str, leaf: Array) -> int | None:
        if leaf.ndim < 2 or not any(fnmatch.fnmatchcase(name, p) for p in self.by_input):
            return None
        return leaf.ndim - 2 if is_kernel(name) else 1


def _by_leaf(
    function: Callable[[Array, Array, int | None], Array],
    params: PyTree,
    scale: PyTree,
    axes: Axes,
) -> PyTree:
    leaves, treedef = jax.tree.flatten(params)
    scales = jax.tree.leaves(scale)
    return jax.tree.unflatten(treedef, map(function, leaves, scales, axes))
