"""Priors as a person writes them; `bind(params)` fits one to a network."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import tree
from bayeslearn.errors import Shown, refuse
from bayeslearn.models.priors.checks import _check_matrix, _check_numbers
from bayeslearn.models.priors.correlated import BlockPrior
from bayeslearn.models.priors.gaussian import GaussianPrior
from bayeslearn.models.priors.leaves import _like, _spread
from bayeslearn.models.priors.nongaussian import LaplacePrior, ScaleMixturePrior
from bayeslearn.tree import PyTree


class FanIn(eqx.Module):
    """`gain` / sqrt(fan-in) for weight matrices, `gain` for the rest; see `Normal.fan_in`."""

    gain: Any = 1.0

    def spread(self, params: PyTree) -> PyTree:
        leaves, treedef = jax.tree.flatten(params)
        found = []
        for name, leaf in zip(tree.leaf_names(params), leaves, strict=True):
            inputs = leaf.shape[:-1] if "kernel" in name.split(".") else leaf.shape[1:]
            number = self.gain / math.sqrt(math.prod(inputs)) if leaf.ndim > 1 else self.gain
            found.append(jnp.asarray(number, jnp.float64))
        return jax.tree.unflatten(treedef, found)


class Normal(eqx.Module):
    """A Gaussian prior; `scale` is a standard deviation.

    `mean` and `scale` take a number (all weights alike), a mapping from name patterns to numbers
    (`{"layers.0.*": 0.5, "*.bias": 10.0, "*": 1.0}`, the first match counts), or a pytree with
    the structure of the network's parameters. `Normal.fan_in()` scales by the width of layers.

    `cov` or `prec`, in the place of `scale`, is the covariance or precision matrix of all weights
    of the network, in the order of `jax.flatten_util.ravel_pytree`; `mean` may then be a vector.

    With `learn=True` the scale is learned too, a factor of its own for each leaf, by empirical
    Bayes: the best of the lower bound, s^2 = E_q[(w - mean)^2], between rounds of steps (for the
    Laplace approximation the best of its evidence). `scale` is where it starts.
    """

    mean: Any = 0.0
    scale: Any = 1.0
    cov: Any = eqx.field(default=None, kw_only=True)
    prec: Any = eqx.field(default=None, kw_only=True)
    learn: bool = eqx.field(default=False, kw_only=True, static=True)

    def __check_init__(self) -> None:
        _check_numbers("mean", self.mean)
        _check_numbers("scale", self.scale, "It is a standard deviation, e.g. scale=1.0.")
        if not isinstance(self.learn, bool):
            refuse("learn", self.learn, "be True or False")
        if self.cov is None and self.prec is None:
            return
        argument, matrix = ("prec", self.prec) if self.cov is None else ("cov", self.cov)
        if self.cov is not None and self.prec is not None:
            refuse("prec", Shown("a matrix beside `cov`"), "be left out where `cov` is given")
        if not (isinstance(self.scale, float) and self.scale == 1.0):
            refuse("scale", self.scale, f"be left out where `{argument}` is given")
        if self.learn:
            refuse("learn", True, f"be left out where `{argument}` is given")
        _check_matrix(argument, matrix)

    @classmethod
    def fan_in(cls, gain: Any = 1.0, *, mean: Any = 0.0, learn: bool = False) -> Normal:
        """Standard deviation gain / sqrt(fan-in), so that no layer's outputs grow with its width.

        A leaf with two or more dimensions is a weight, (out, in) or (out, in, height, width), and
        its fan-in is the product of all dimensions but the first; for one named `kernel`
        (in, out), as in Flax and Keras, of all but the last. All other leaves (biases, scales)
        have `gain` itself. Anything else can be said by name patterns: `Normal(scale={...})`.
        """
        return cls(mean, FanIn(gain), learn=learn)

    def bind(self, params: PyTree) -> GaussianPrior | BlockPrior:
        if self.cov is not None or self.prec is not None:
            return self._bind_matrix(params)
        is_fan_in = isinstance(self.scale, FanIn)
        scale = self.scale.spread(params) if is_fan_in else _spread(self.scale, params, "scale")
        learned = (True,) * len(jax.tree.leaves(params)) if self.learn else ()
        prec = jax.tree.map(lambda s: 1.0 / s**2, scale)
        return GaussianPrior(_spread(self.mean, params, "mean"), prec, learned)

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
                f"be ({k}, {k}), as many as the network has weights",
                f"Their order is {names}, each leaf row by row.",
            )
        prec = np.linalg.inv(matrix) if argument == "cov" else matrix
        if np.ndim(self.mean) == 1 and np.size(self.mean) == k:
            mean = tree.unraveler(params)(jnp.asarray(self.mean, jnp.float64))
        else:
            mean = _like(_spread(self.mean, params, "mean"), tree.double(params))
        groups = (tuple(range(len(jax.tree.leaves(params)))),)
        return BlockPrior.from_precs(mean, (jnp.asarray(0.5 * (prec + prec.T)),), groups)


class Laplace(eqx.Module):
    """A double exponential for each weight, exp(-|w - mean| / scale) / (2 scale): favours zeros.

    Its standard deviation is sqrt(2) `scale`. Both arguments take what those of `Normal` take.
    """

    mean: Any = 0.0
    scale: Any = 1.0

    def __check_init__(self) -> None:
        _check_numbers("mean", self.mean)
        _check_numbers("scale", self.scale, "The standard deviation is sqrt(2) times it.")

    def bind(self, params: PyTree) -> LaplacePrior:
        return LaplacePrior(
            _spread(self.mean, params, "mean"), _spread(self.scale, params, "scale")
        )


class ScaleMixture(eqx.Module):
    """Each weight from N(0, scales[j]^2) with probability weights[j] (Blundell et al. 2015).

    A wide and a very narrow one say that most weights are nearly zero and a few are not.
    """

    scales: Any = (1.0, 0.0025)
    weights: Any = (0.5, 0.5)

    def __check_init__(self) -> None:
        for name in ("scales", "weights"):
            _check_numbers(name, getattr(self, name), "Such as scales=(1.0, 0.0025).", True)
        scales, weights = np.asarray(self.scales), np.asarray(self.weights)
        if scales.ndim != 1 or weights.shape != scales.shape:
            refuse("weights", self.weights, f"be as many numbers as scales ({scales.size})")
        if not np.isclose(weights.sum(), 1.0):
            refuse("weights", self.weights, "add up to one")

    def bind(self, params: PyTree) -> ScaleMixturePrior:
        weights = jnp.asarray(self.weights, jnp.float64)
        scales = jnp.asarray(self.scales, jnp.float64)
        return ScaleMixturePrior(scales, weights / jnp.sum(weights))


def restricted(prior: Any, params: PyTree, chosen: tuple[bool, ...]) -> Any:
    """The prior as written, for the chosen leaves of `params` alone."""
    if getattr(prior, "cov", None) is not None or getattr(prior, "prec", None) is not None:
        refuse(
            "prior",
            Shown("a matrix over all weights"),
            "be independent for each weight where `bayesian` names some of them",
            "Give `scale`.",
        )
    structure: Any = jax.tree.structure(params)
    values = {field.name: getattr(prior, field.name) for field in dataclasses.fields(prior)}
    trees = {
        name: tree.select(value, chosen)
        for name, value in values.items()
        if len(chosen) > 1 and structure == jax.tree.structure(value)
    }
    return dataclasses.replace(prior, **trees)
