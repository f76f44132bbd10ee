"""Priors as a user writes them; `bind(params)` makes one for a network's parameters."""

from __future__ import annotations

import dataclasses
import math
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from bayeslearn import tree
from bayeslearn.errors import Shown, refuse
from bayeslearn.models.priors.base import Prior
from bayeslearn.models.priors.checks import check_matrix, check_numbers
from bayeslearn.models.priors.correlated import BlockPrior
from bayeslearn.models.priors.gaussian import GaussianPrior
from bayeslearn.models.priors.leaves import broadcast_like, per_leaf
from bayeslearn.models.priors.nongaussian import LaplacePrior, ScaleMixturePrior
from bayeslearn.tree import Array, PyTree

NORMS = (eqx.nn.LayerNorm, eqx.nn.GroupNorm, eqx.nn.RMSNorm, eqx.nn.BatchNorm)
NORM_SCALE = 0.5  # of the gains of norms, around 1
LeafNumbers = PyTree  # a number, numbers by name pattern, or a pytree like the parameters


def is_kernel(name: str) -> bool:
    """Whether the weight is (..., in, out), as in Flax and Keras, and not (out, in, ...)."""
    return "kernel" in name.split(".")


def norm_gains(params: PyTree) -> list[bool]:
    """Which leaves multiply what a layer has normalised: by module (Equinox), else by name."""
    modules = jax.tree.leaves(params, is_leaf=lambda node: isinstance(node, NORMS))
    known = {id(node.weight) for node in modules if isinstance(node, NORMS)}
    leaves, names = jax.tree.leaves(params), tree.leaf_names(params)

    def is_gain(name: str, leaf: Array) -> bool:
        # A vector called weight is no matrix's: PyTorch and Equinox call a norm's gain so.
        last = name.split(".")[-1]
        return leaf.ndim <= 1 and (
            last in ("scale", "gamma") or (last == "weight" and leaf.ndim == 1)
        )

    pairs = zip(names, leaves, strict=True)
    return [id(leaf) in known or is_gain(name, leaf) for name, leaf in pairs]


def embeddings(params: PyTree) -> list[bool]:
    """Which leaves are tables of vectors, of which each input chooses one."""
    modules = jax.tree.leaves(params, is_leaf=lambda node: isinstance(node, eqx.nn.Embedding))
    known = {id(node.weight) for node in modules if isinstance(node, eqx.nn.Embedding)}
    pairs = zip(tree.leaf_names(params), jax.tree.leaves(params), strict=True)
    return [
        id(leaf) in known or name.split(".")[-1].endswith(("embedding", "embeddings"))
        for name, leaf in pairs
    ]


def fan_in(name: str, shape: tuple[int, ...]) -> int:
    """Inputs of each output of a weight: (out, in, ...), or a kernel (..., in, out)."""
    if not is_kernel(name):
        return math.prod(shape[1:])
    parts = name.split(".")
    # Projections of Flax's attention have kernels (in, heads, size of a head).
    is_projection = len(shape) == 3 and not {"query", "key", "value"}.isdisjoint(parts)
    return shape[0] if is_projection else math.prod(shape[:-1])


class FanIn(eqx.Module):
    """`gain` / sqrt(fan-in) for weight matrices; see `Normal.fan_in`."""

    gain: ArrayLike = 1.0

    def scales(self, params: PyTree) -> PyTree:
        """The standard deviation of each leaf."""
        leaves, treedef = jax.tree.flatten(params)
        found, kinds = [], zip(norm_gains(params), embeddings(params), strict=True)
        for name, leaf, (is_gain, is_embedding) in zip(
            tree.leaf_names(params), leaves, kinds, strict=True
        ):
            is_bias = name.split(".")[-1] == "bias"  # also of a norm over several axes
            is_matrix = leaf.ndim > 1 and not (is_embedding or is_bias)
            number = self.gain / math.sqrt(fan_in(name, leaf.shape)) if is_matrix else self.gain
            found.append(jnp.asarray(NORM_SCALE if is_gain else number, jnp.float64))
        return jax.tree.unflatten(treedef, found)


class BySize(eqx.Module):
    """The default scale: 1, and for a large network that of `Normal.fan_in(gain)`."""

    gain: ArrayLike = 3.0

    def scale(self, params: PyTree) -> FanIn | float:
        """The scale for a network of this size."""
        return FanIn(self.gain) if tree.size(params) > tree.LARGE_NETWORK else 1.0


class Normal(Prior):
    """A Gaussian prior; `scale` is a standard deviation.

    `mean` and `scale` take a number (the same for all weights), a mapping from name patterns to
    numbers (`{"layers.0.*": 0.5, "*.bias": 10.0, "*": 1.0}`, the first match counts), or a pytree
    with the structure of the network's parameters. `Normal.fan_in()` scales by the width of layers.

    `cov` or `prec`, in place of `scale`, is the covariance or precision matrix of all weights of
    the network, in the order of `jax.flatten_util.ravel_pytree`; `mean` may then be a vector.

    With `learn=True` the scale is learned too, one factor for each leaf, by empirical Bayes: it
    maximises the lower bound, s^2 = E_q[(w - mean)^2], between rounds of steps (for the Laplace
    approximation, its evidence). `scale` is the initial value.
    """

    mean: LeafNumbers = 0.0
    scale: LeafNumbers = 1.0
    cov: ArrayLike | None = eqx.field(default=None, kw_only=True)
    prec: ArrayLike | None = eqx.field(default=None, kw_only=True)
    learn: bool = eqx.field(default=False, kw_only=True, static=True)

    def __check_init__(self) -> None:
        check_numbers("mean", self.mean)
        check_numbers("scale", self.scale, "It is a standard deviation, e.g. scale=1.0.")
        if not isinstance(self.learn, bool):
            refuse("learn", self.learn, "be True or False")
        if self.cov is None and self.prec is None:
            return
        argument, matrix = ("prec", self.prec) if self.cov is None else ("cov", self.cov)
        if self.cov is not None and self.prec is not None:
            refuse("prec", Shown("a matrix beside `cov`"), "be left out if `cov` is given")
        if not (isinstance(self.scale, float) and self.scale == 1.0):
            refuse("scale", self.scale, f"be left out if `{argument}` is given")
        if self.learn:
            refuse("learn", True, f"be left out if `{argument}` is given")
        check_matrix(argument, matrix)

    @classmethod
    def fan_in(
        cls, gain: ArrayLike = 1.0, *, mean: LeafNumbers = 0.0, learn: bool = False
    ) -> Normal:
        """Standard deviation gain / sqrt(fan-in), so that no layer's outputs grow with its width.

        A leaf with two or more dimensions is a weight, (out, in) or (out, in, height, width), and
        its fan-in is the product of all dimensions but the first; for one named `kernel`
        (in, out), as in Flax and Keras, of all but the last, and for the (in, heads, size) of
        attention's query, key and value of the first. Embeddings, of which an input chooses one
        row, and all other leaves (biases) have `gain` itself. Gains of norms have mean 1 and
        standard deviation 0.5. For anything else use name patterns: `Normal(scale={...})`.
        """
        return cls(mean, FanIn(gain), learn=learn)

    @classmethod
    def by_size(cls) -> Normal:
        """The prior of a model that is given none.

        A standard deviation of 1 up to 10,000 weights, `Normal.fan_in(3.0)` above: a scale of 1
        would make the outputs of wide layers hundreds. Gains of norms have mean 1 in both.
        """
        return cls(scale=BySize())

    def bind(self, params: PyTree) -> GaussianPrior | BlockPrior:
        """The prior over a network's parameters."""
        if self.cov is not None or self.prec is not None:
            return self._bind_matrix(params)
        scale = self.scale.scale(params) if isinstance(self.scale, BySize) else self.scale
        mean = self.mean
        if isinstance(self.scale, BySize | FanIn) and tree.has_structure(mean, 0.0) and mean == 0:
            structure = jax.tree.structure(params)
            mean = jax.tree.unflatten(structure, list(map(float, norm_gains(params))))
        if isinstance(scale, FanIn):
            scale = scale.scales(params)
        else:
            scale = per_leaf(scale, params, "scale")
        learned = (True,) * len(jax.tree.leaves(params)) if self.learn else ()
        prec = jax.tree.map(lambda s: 1.0 / s**2, scale)
        return GaussianPrior(per_leaf(mean, params, "mean"), prec, learned)

    def restrict(self, params: PyTree, chosen: tuple[bool, ...]) -> Self:
        """The prior for the chosen leaves of `params` alone."""
        if self.cov is not None or self.prec is not None:
            refuse(
                "prior",
                Shown("a matrix over all weights"),
                "be independent for each weight if `bayesian` selects some of them",
                "Give `scale`.",
            )
        if isinstance(self.scale, BySize):  # by the size of the whole network
            return dataclasses.replace(self, scale=self.scale.scale(params))
        return super().restrict(params, chosen)

    def _bind_matrix(self, params: PyTree) -> BlockPrior:
        argument = "prec" if self.cov is None else "cov"
        matrix = np.asarray(self.prec if self.cov is None else self.cov, np.float64)
        k = tree.size(params)
        tree.check_dense(k, "`scale`, a standard deviation for each weight,")
        if matrix.shape != (k, k):
            names = tree.leaf_names(params)
            refuse(
                argument,
                Shown(f"shape {matrix.shape}"),
                f"be ({k}, {k}), the number of weights of the network",
                f"Their order is {names}, each leaf row by row.",
            )
        prec = np.linalg.inv(matrix) if argument == "cov" else matrix
        if np.ndim(self.mean) == 1 and np.size(self.mean) == k:
            mean = tree.unraveler(params)(jnp.asarray(self.mean, jnp.float64))
        else:
            mean = broadcast_like(per_leaf(self.mean, params, "mean"), tree.double(params))
        groups = (tuple(range(len(jax.tree.leaves(params)))),)
        return BlockPrior.from_precs(mean, (jnp.asarray(0.5 * (prec + prec.T)),), groups)


class Laplace(Prior):
    """A Laplace distribution for each weight, exp(-|w - mean| / scale) / (2 scale): favours zeros.

    Its standard deviation is sqrt(2) `scale`. Both arguments take what those of `Normal` take.
    """

    mean: LeafNumbers = 0.0
    scale: LeafNumbers = 1.0

    def __check_init__(self) -> None:
        check_numbers("mean", self.mean)
        check_numbers("scale", self.scale, "The standard deviation is sqrt(2) times it.")

    def bind(self, params: PyTree) -> LaplacePrior:
        """The prior over a network's parameters."""
        return LaplacePrior(
            per_leaf(self.mean, params, "mean"), per_leaf(self.scale, params, "scale")
        )


class ScaleMixture(Prior):
    """Each weight from N(0, scales[j]^2) with probability weights[j] (Blundell et al. 2015).

    A wide and a very narrow component express that most weights are nearly zero.
    """

    scales: ArrayLike | tuple[float, ...] = (1.0, 0.0025)
    weights: ArrayLike | tuple[float, ...] = (0.5, 0.5)

    def __check_init__(self) -> None:
        for name in ("scales", "weights"):
            check_numbers(name, getattr(self, name), "Such as scales=(1.0, 0.0025).", True)
        scales, weights = np.asarray(self.scales), np.asarray(self.weights)
        if scales.ndim != 1 or weights.shape != scales.shape:
            refuse("weights", self.weights, f"be as many numbers as scales ({scales.size})")
        if not np.isclose(weights.sum(), 1.0):
            refuse("weights", self.weights, "add up to one")

    def bind(self, params: PyTree) -> ScaleMixturePrior:
        """The prior over a network's parameters."""
        weights = jnp.asarray(self.weights, jnp.float64)
        scales = jnp.asarray(self.scales, jnp.float64)
        return ScaleMixturePrior(scales, weights / jnp.sum(weights))
