r"""Priors over the weights of a network.

A prior is written by a person (`Normal(scale=1.0)`, `Laplace(scale=0.5)`), bound to a network's
parameters (`bind(params)`), and joined with that of the likelihood's own parameters
(`joined(likelihood)`). What comes out speaks of all parameters of a model:

    log_prob_terms(params)       the log-density as a sum over leaves
    broadcast(params)            mean and precision of each weight
    conditional(params)          the same for each weight given the others, as mean field sees it
    prec_blocks(params, groups)  precision matrices of groups of leaves
    sample(key, params)          one draw

The last three are for Gaussians (`is_gaussian`). Of a prior that is not one, `broadcast` gives the
Gaussian with the same moments, which is where a run takes its first spread from and nothing else.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import tree
from bayeslearn.errors import Shown, refuse
from bayeslearn.tree import Array, PyTree

LOG_2PI = math.log(2 * math.pi)
LEAST_SCALE = 1e-4  # below which a learned scale does not fall

Groups = tuple[tuple[int, ...], ...]


class GaussianPrior(eqx.Module):
    """Independent Gaussians over every weight: a mean and a precision for each leaf.

    Leaves are numbers or arrays that broadcast to the leaf they speak of. `learned` says of which
    leaves the precision is learned (empty: none).
    """

    is_gaussian: ClassVar[bool] = True
    is_independent: ClassVar[bool] = True

    mean: PyTree
    prec: PyTree
    learned: tuple[bool, ...] = eqx.field(static=True, default=())

    def joined(self, likelihood: GaussianPrior) -> GaussianPrior:
        parts = {"network": self, "likelihood": likelihood}
        flags = {
            name: [name == "network" and self.refreshes] * len(jax.tree.leaves(part.mean))
            for name, part in parts.items()
        }
        learned = tuple(jax.tree.leaves(flags)) if self.refreshes else ()
        means = {name: part.mean for name, part in parts.items()}
        return GaussianPrior(means, {name: part.prec for name, part in parts.items()}, learned)

    def log_prob_terms(self, params: PyTree) -> PyTree:
        """The normalised log-density of each leaf."""

        def term(w: Array, mean: Array, prec: Array) -> Array:
            mean, prec = jnp.asarray(mean, w.dtype), jnp.asarray(prec, w.dtype)
            normaliser = jnp.broadcast_to(0.5 * jnp.log(prec / (2 * jnp.pi)), w.shape)
            return jnp.sum(normaliser - 0.5 * prec * (w - mean) ** 2, dtype=jnp.float64)

        return jax.tree.map(term, params, self.mean, self.prec)

    def log_prob(self, params: PyTree) -> Array:
        return tree.total(self.log_prob_terms(params))

    def broadcast(self, params: PyTree) -> tuple[PyTree, PyTree]:
        """Mean and precision with the shape and dtype of each leaf of `params`."""
        return _like(self.mean, params), _like(self.prec, params)

    def conditional(self, params: PyTree) -> tuple[PyTree, PyTree]:
        return self.broadcast(params)

    def prec_blocks(self, params: PyTree, groups: Groups) -> tuple[Array, ...]:
        leaves = jax.tree.leaves(self.broadcast(tree.double(params))[1])
        return tuple(jnp.diag(tree.ravel([leaves[i] for i in group])) for group in groups)

    def sample(self, key: Array, params: PyTree) -> PyTree:
        mean, prec = self.broadcast(tree.double(params))
        noise = tree.normal_like(key, mean)
        return jax.tree.map(lambda m, p, e: m + e / jnp.sqrt(p), mean, prec, noise)

    @property
    def refreshes(self) -> bool:
        return any(self.learned)

    def refresh(self, target: Any, q: Any, key: Array) -> GaussianPrior:
        """Learned scales at the top of the lower bound, given q: s^2 = E_q[(w - mean)^2].

        The mean is over a leaf. A point has no spread, and its best scale would be nothing: it
        leaves the prior as it is.
        """
        if not hasattr(q, "log_prob"):
            return self
        if hasattr(q, "std"):
            second = jax.tree.map(
                lambda m, s, m0: (m - m0) ** 2 + s**2, tree.double(q.mean), q.std, self.mean
            )
        else:
            draws = tree.double(q.sample(key, 256))
            second = jax.tree.map(lambda w, m0: jnp.mean((w - m0) ** 2, 0), draws, self.mean)
        return self._rescaled(lambda prec, square: 1.0 / jnp.mean(prec * square), second)

    def by_evidence(self, q: Any) -> GaussianPrior:
        """MacKay's step: prec |w - mean|^2 = gamma, the number of weights the data determine.

        It rests where `refresh` does, and gets there sooner.
        """
        away = jax.tree.map(lambda m, m0: (m - m0) ** 2, tree.double(q.mean), self.mean)

        def factor(prec: Array, squares: tuple[Array, Array]) -> Array:
            away, std = squares
            gamma = away.size - jnp.sum(prec * std**2)
            return jnp.maximum(gamma, 1e-9) / jnp.maximum(jnp.sum(prec * away), 1e-30)

        pairs = jax.tree.map(lambda a, s: (a, s), away, tree.double(q.std))
        return self._rescaled(factor, pairs)

    def _rescaled(self, factor: Any, told: PyTree) -> GaussianPrior:
        """Precisions of learned leaves times `factor(prec, told)`: one number for each leaf."""
        leaves, treedef = jax.tree.flatten(self.prec)
        facts = treedef.flatten_up_to(told)  # type: ignore[attr-defined]
        new = [
            jnp.minimum(p * factor(p, fact), LEAST_SCALE**-2) if is_learned else p
            for p, fact, is_learned in zip(leaves, facts, self.learned, strict=True)
        ]
        return GaussianPrior(self.mean, jax.tree.unflatten(treedef, new), self.learned)


class CorrelatedPrior(eqx.Module):
    """A Gaussian over all weights that are not independent (abstract).

    Subclasses know how to multiply by the precision matrix P, and what its diagonal is.
    """

    is_gaussian: ClassVar[bool] = True
    is_independent: ClassVar[bool] = False

    mean: eqx.AbstractVar[PyTree]
    log_det: eqx.AbstractVar[Array]  # of P

    def times(self, values: Array) -> Array:
        """P values, for a vector (k,) or columns (k, n)."""
        raise NotImplementedError

    def diagonal(self) -> Array:
        raise NotImplementedError

    def prec_blocks(self, params: PyTree, groups: Groups) -> tuple[Array, ...]:
        """P's own rows and columns of each group of leaves."""
        raise NotImplementedError

    def quadratic(self, params: PyTree) -> Array:
        """(w - mean)^T P (w - mean)."""
        away = self._away(params)
        return away @ self.times(away)

    def log_prob_terms(self, params: PyTree) -> PyTree:
        """Terms that add up to the log-density. Each holds its leaf, and others with it."""
        away = self._away(params)
        values = 0.5 * (self.log_det / len(away) - LOG_2PI - away * self.times(away))
        return jax.tree.map(jnp.sum, tree.unraveler(params)(values))

    def log_prob(self, params: PyTree) -> Array:
        return tree.total(self.log_prob_terms(params))

    def broadcast(self, params: PyTree) -> tuple[PyTree, PyTree]:
        """Mean and diagonal of the precision."""
        diagonal = tree.unraveler(params)(self.diagonal())
        return _like(self.mean, params), _like(diagonal, params)

    def conditional(self, params: PyTree) -> tuple[PyTree, PyTree]:
        """N(w_i - (P (w - mean))_i / P_ii, 1 / P_ii)."""
        diagonal = self.diagonal()
        mean = tree.ravel(tree.double(params)) - self.times(self._away(params)) / diagonal
        unravel = tree.unraveler(params)
        return _like(unravel(mean), params), _like(unravel(diagonal), params)

    def _away(self, params: PyTree) -> Array:
        return tree.ravel(tree.double(params)) - tree.ravel(tree.double(self.mean))


class BlockPrior(CorrelatedPrior):
    """Groups of leaves that are independent of each other: `precs[g]` is the g-th's precision.

    `groups[g]` are positions among the leaves; one group of all is the full Gaussian.
    """

    mean: PyTree
    precs: tuple[Array, ...]
    log_det: Array
    groups: Groups = eqx.field(static=True)

    @staticmethod
    def from_precs(mean: PyTree, precs: Sequence[Array], groups: Groups) -> BlockPrior:
        lowers = [jnp.linalg.cholesky(prec) for prec in precs]
        log_det = tree.total([2.0 * jnp.log(jnp.diagonal(lower)) for lower in lowers])
        return BlockPrior(mean=mean, precs=tuple(precs), log_det=log_det, groups=groups)

    def joined(self, likelihood: GaussianPrior) -> BlockPrior:
        means = {"network": self.mean, "likelihood": likelihood.mean}
        names = [name.split(".")[0] for name in tree.leaf_names(means)]
        first = names.index("network")  # where the network's leaves begin
        own = tuple((i,) for i, name in enumerate(names) if name != "network")
        precs = likelihood.prec_blocks(likelihood.mean, tuple((i,) for i in range(len(own))))
        groups = tuple(tuple(i + first for i in group) for group in self.groups)
        return BlockPrior.from_precs(means, (*self.precs, *precs), (*groups, *own))

    def times(self, values: Array) -> Array:
        found = jnp.zeros_like(values, jnp.float64)
        for rows, prec in zip(self._rows(self.groups), self.precs, strict=True):
            found = found.at[rows].set(prec @ values[rows])
        return found

    def diagonal(self) -> Array:
        found = jnp.zeros(tree.size(self.mean), jnp.float64)
        for rows, prec in zip(self._rows(self.groups), self.precs, strict=True):
            found = found.at[rows].set(jnp.diagonal(prec))
        return found

    def prec_blocks(self, params: PyTree, groups: Groups) -> tuple[Array, ...]:
        if groups == self.groups:
            return self.precs
        return tuple(map(self._block, self._rows(groups)))

    def _block(self, wanted: np.ndarray) -> Array:
        found = jnp.zeros((len(wanted), len(wanted)), jnp.float64)
        for rows, prec in zip(self._rows(self.groups), self.precs, strict=True):
            place = np.flatnonzero(np.isin(wanted, rows))
            order = np.argsort(rows)
            among = order[np.searchsorted(rows, wanted[place], sorter=order)]
            found = found.at[np.ix_(place, place)].set(prec[np.ix_(among, among)])
        return found

    def sample(self, key: Array, params: PyTree) -> PyTree:
        noise = jax.random.normal(key, (tree.size(params),), jnp.float64)
        found = tree.ravel(tree.double(self.mean))
        for rows, prec in zip(self._rows(self.groups), self.precs, strict=True):
            lower = jnp.linalg.cholesky(prec)
            away = jax.scipy.linalg.solve_triangular(lower, noise[rows], trans=1, lower=True)
            found = found.at[rows].add(away)
        return tree.unraveler(params)(found)

    def _rows(self, groups: Groups) -> list[np.ndarray]:
        """Positions of each group's weights in the vector of all."""
        sizes = [math.prod(jnp.shape(leaf)) for leaf in jax.tree.leaves(self.mean)]
        ends = np.cumsum(sizes)
        return [
            np.concatenate([np.arange(ends[i] - sizes[i], ends[i]) for i in group])
            for group in groups
        ]


class LowRankPrior(CorrelatedPrior):
    """Covariance diag(variance) + factor factor^T, factor (k, r): for many correlated weights."""

    mean: PyTree
    variance: Array  # (k,)
    pulled: Array  # (k, r): P = diag(1 / variance) - pulled pulled^T
    log_det: Array

    @staticmethod
    def from_factor(mean: PyTree, variance: Array, factor: Array) -> LowRankPrior:
        """P by Woodbury: with M = I + F^T D^-1 F = L L^T, pulled = D^-1 F L^-T."""
        scaled = factor / variance[:, None]
        lower = jnp.linalg.cholesky(jnp.eye(factor.shape[1]) + factor.T @ scaled)
        pulled = jax.scipy.linalg.solve_triangular(lower, scaled.T, lower=True).T
        log_det = -jnp.sum(jnp.log(variance)) - 2.0 * jnp.sum(jnp.log(jnp.diagonal(lower)))
        return LowRankPrior(mean=mean, variance=variance, pulled=pulled, log_det=log_det)

    def times(self, values: Array) -> Array:
        variance = self.variance.reshape(-1, *[1] * (values.ndim - 1))
        return values / variance - self.pulled @ (self.pulled.T @ values)

    def diagonal(self) -> Array:
        return 1.0 / self.variance - jnp.sum(self.pulled**2, axis=1)

    def prec_blocks(self, params: PyTree, groups: Groups) -> tuple[Array, ...]:
        unravel = tree.unraveler(params)
        variances = jax.tree.leaves(unravel(self.variance))
        pulled = jax.tree.leaves(jax.vmap(unravel, 1, -1)(self.pulled))
        rank, found = self.pulled.shape[1], []
        for group in groups:
            rows = jnp.concatenate([pulled[i].reshape(-1, rank) for i in group])
            found.append(jnp.diag(1.0 / tree.ravel([variances[i] for i in group])) - rows @ rows.T)
        return tuple(found)


class ProductPrior(eqx.Module):
    """A network's prior that is not Gaussian, beside the Gaussian of the likelihood's own."""

    is_gaussian: ClassVar[bool] = False
    is_independent: ClassVar[bool] = True

    network: Any
    likelihood: GaussianPrior

    def _parts(self, params: PyTree) -> dict[str, tuple[Any, PyTree]]:
        return {name: (getattr(self, name), params[name]) for name in ("network", "likelihood")}

    def log_prob_terms(self, params: PyTree) -> PyTree:
        parts = self._parts(params)
        return {name: part.log_prob_terms(own) for name, (part, own) in parts.items()}

    def log_prob(self, params: PyTree) -> Array:
        return tree.total(self.log_prob_terms(params))

    def broadcast(self, params: PyTree) -> tuple[PyTree, PyTree]:
        """Mean and precision of the Gaussians with the same moments."""
        found = {name: part.broadcast(own) for name, (part, own) in self._parts(params).items()}
        mean, prec = ({name: pair[i] for name, pair in found.items()} for i in (0, 1))
        return mean, prec

    def prec_blocks(self, params: PyTree, groups: Groups) -> tuple[Array, ...]:
        return GaussianPrior(*self.broadcast(params)).prec_blocks(params, groups)

    def sample(self, key: Array, params: PyTree) -> PyTree:
        keys = dict(zip(("network", "likelihood"), jax.random.split(key), strict=True))
        parts = self._parts(params)
        return {name: part.sample(keys[name], own) for name, (part, own) in parts.items()}


class LaplacePrior(eqx.Module):
    """Independent double exponentials: a mean and a scale for each leaf."""

    mean: PyTree
    scale: PyTree

    def joined(self, likelihood: GaussianPrior) -> ProductPrior:
        return ProductPrior(self, likelihood)

    def log_prob_terms(self, params: PyTree) -> PyTree:
        def term(w: Array, mean: Array, scale: Array) -> Array:
            mean, scale = jnp.asarray(mean, w.dtype), jnp.asarray(scale, w.dtype)
            values = -jnp.abs(w - mean) / scale - jnp.log(2.0 * scale)
            return jnp.sum(jnp.broadcast_to(values, w.shape), dtype=jnp.float64)

        return jax.tree.map(term, params, self.mean, self.scale)

    def broadcast(self, params: PyTree) -> tuple[PyTree, PyTree]:
        prec = jax.tree.map(lambda s: 0.5 / s**2, self.scale)
        return _like(self.mean, params), _like(prec, params)

    def sample(self, key: Array, params: PyTree) -> PyTree:
        params = tree.double(params)
        flat = jax.random.laplace(key, (tree.size(params),), jnp.float64)
        noise, mean, scale = tree.unraveler(params)(flat), self.mean, self.scale
        return jax.tree.map(lambda e, m, s: m + s * e, noise, mean, scale)


class ScaleMixturePrior(eqx.Module):
    """Each weight from one of several Gaussians around zero."""

    scales: Array
    weights: Array

    def joined(self, likelihood: GaussianPrior) -> ProductPrior:
        return ProductPrior(self, likelihood)

    def log_prob_terms(self, params: PyTree) -> PyTree:
        def term(w: Array) -> Array:
            scales, weights = self.scales.astype(w.dtype), self.weights.astype(w.dtype)
            z = w[..., None] / scales
            parts = jnp.log(weights / scales) - 0.5 * (z**2 + LOG_2PI)
            return jnp.sum(jax.nn.logsumexp(parts, axis=-1), dtype=jnp.float64)

        return jax.tree.map(term, params)

    def broadcast(self, params: PyTree) -> tuple[PyTree, PyTree]:
        prec = 1.0 / jnp.sum(self.weights * self.scales**2)
        return jax.tree.map(jnp.zeros_like, params), jax.tree.map(
            lambda w: jnp.full_like(w, prec), params
        )

    def sample(self, key: Array, params: PyTree) -> PyTree:
        key_scale, key_noise = jax.random.split(key)
        k = tree.size(params)
        which = jax.random.choice(key_scale, len(self.scales), (k,), p=self.weights)
        noise = jax.random.normal(key_noise, (k,), jnp.float64)
        return tree.unraveler(params)(self.scales[which] * noise)


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


def check_gaussian(prior: Any, what: str) -> None:
    """Refuse a prior that is not Gaussian, for a method that needs one."""
    if prior is not None and not prior.is_gaussian:
        shown = Shown(f"a {type(prior.network).__name__.removesuffix('Prior')}")
        remedy = "Use bl.priors.Normal, or a method for any prior, such as bl.NGVI() or bl.NUTS()."
        refuse("prior", shown, f"be Gaussian for {what}", remedy)


def check_given(prior: Any, what: str, remedy: str) -> None:
    """Refuse a prior with a learned scale, for a method that cannot learn it."""
    if getattr(prior, "refreshes", False):
        refuse(
            "prior", Shown("one with learn=True"), f"have a scale that is given for {what}", remedy
        )


def _check_numbers(argument: str, value: Any, positive: str = "", is_plain: bool = False) -> None:
    numbers = jax.tree.leaves(value)
    if not numbers:
        refuse(argument, value, "hold at least one number")
    for number in numbers:
        if not np.issubdtype(np.asarray(number).dtype, np.number):
            must = (
                "be numbers" if is_plain else "be a number, a mapping of name patterns, or a pytree"
            )
            refuse(argument, number, must)
        if not np.all(np.isfinite(number)):
            refuse(argument, number, "be finite")
        if positive and not np.all(np.asarray(number) > 0):
            refuse(argument, number, "be positive", positive)


def _check_matrix(argument: str, matrix: Any) -> None:
    try:
        matrix = np.asarray(matrix, np.float64)
    except (TypeError, ValueError):
        refuse(argument, matrix, "be a matrix of numbers")
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        refuse(argument, Shown(f"shape {matrix.shape}"), "be a square matrix")
    if not np.all(np.isfinite(matrix)):
        refuse(argument, Shown("NaN or infinity"), "be finite")
    if not np.allclose(matrix, matrix.T, rtol=1e-8, atol=1e-10 * np.abs(matrix).max()):
        refuse(argument, Shown("one that is not"), "be symmetric")
    if np.linalg.eigvalsh(matrix)[0] <= 0:
        refuse(argument, Shown("one that is not"), "be a positive definite matrix")


def _like(values: PyTree, params: PyTree) -> PyTree:
    """`values` with the shape and dtype of each leaf of `params`."""
    return jax.tree.map(
        lambda w, v: jnp.broadcast_to(jnp.asarray(v, w.dtype), w.shape), params, values
    )


def _spread(value: Any, params: PyTree, argument: str) -> PyTree:
    """One number or array for each leaf of `params`."""
    leaves, treedef = jax.tree.flatten(params)
    names = tree.leaf_names(params)
    structure: Any = jax.tree.structure(value)
    if structure == jax.tree.structure(0.0):
        found = [value] * len(leaves)
    elif structure == treedef:
        found = jax.tree.leaves(value)
    elif isinstance(value, Mapping) and all(isinstance(pattern, str) for pattern in value):
        found = [_first_match(name, value, argument, names) for name in names]
    else:
        refuse(
            argument,
            Shown(f"a tree {jax.tree.structure(value)}"),
            f"be a number, a mapping of name patterns, or a tree like the parameters ({treedef})",
        )
    for name, leaf, number in zip(names, leaves, found, strict=True):
        try:
            fits = np.broadcast_shapes(np.shape(number), leaf.shape) == leaf.shape
        except ValueError:
            fits = False
        if not fits:
            refuse(argument, Shown(f"shape {np.shape(number)} for {name}"), f"fit {leaf.shape}")
    return jax.tree.unflatten(treedef, [jnp.asarray(number, jnp.float64) for number in found])


def _first_match(name: str, patterns: Mapping[str, Any], argument: str, names: list[str]) -> Any:
    for pattern, number in patterns.items():
        if fnmatch.fnmatchcase(name, pattern):
            return number
    refuse(
        argument,
        Shown(f"patterns {list(patterns)}, none of which names {name!r}"),
        "cover every leaf of the network",
        f'Add "*" as the last pattern; the leaves are {names}.',
    )
