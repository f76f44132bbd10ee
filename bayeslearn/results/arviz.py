"""A posterior in the form that ArviZ takes, and its pointwise log-likelihood."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from bayeslearn import tree
from bayeslearn.families import Draws, Mixture, Point
from bayeslearn.precision import double_precision
from bayeslearn.results.diagnostics import has_all_rows, row_counts

if TYPE_CHECKING:
    import xarray

    from bayeslearn.results.posterior import Posterior

# ArviZ's names for what our samplers report
ARVIZ_NAMES = {
    "log_density": "lp",
    "acceptance": "acceptance_rate",
    "num_gradients": "n_steps",
}
CHAIN_DRAW = ("chain", "draw")


def arviz() -> ModuleType:
    """ArviZ, imported without its warnings of future changes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import arviz as az
    return az


class Pointwise(NamedTuple):
    """Log-likelihood of the training rows under each draw.

    Attributes:
        terms: (chains, draws, rows).
        y: observations (rows, ...), shaped as predictions are.
        counts: how many equal rows each row stands for.
    """

    terms: np.ndarray
    y: np.ndarray
    counts: np.ndarray


def chain_shape(posterior: Posterior, num_samples: int) -> tuple[int, int]:
    """Chains, and draws of each: a sampler's own, otherwise one chain of `num_samples`."""
    family = posterior.family
    if isinstance(family, Draws):
        return family.num_chains, family.num_draws // family.num_chains
    return 1, 1 if isinstance(family, Point) else num_samples


@double_precision
def pointwise_log_likelihood(posterior: Posterior, num_samples: int, seed: int) -> Pointwise:
    """The log-likelihood of each training row under each draw, in the order of the draws.

    Rows of weight 0 are left out. Whole weights are counts of equal rows; otherwise a row's
    log-likelihood is multiplied by its weight.
    """
    x, y, weight = posterior.training_data()
    if weight is not None:
        is_used = weight > 0
        x, y, weight = jax.tree.map(lambda leaf: leaf[is_used], (x, y, weight))
    chains, num = chain_shape(posterior, num_samples)
    predictive = posterior.uncalibrated().predict(x, num_samples=chains * num, seed=seed)
    terms = np.asarray(predictive.log_prob_by_draw(y)).reshape(chains, num, -1)
    counts = row_counts(weight, len(y))
    if counts is None:
        terms, counts = terms * weight, np.ones(len(y), int)
    return Pointwise(terms, np.asarray(predictive.align_y(y)), counts)


@double_precision
def to_arviz(posterior: Posterior, *, num_samples: int = 1000, seed: int = 0) -> Any:
    """The groups posterior, log_likelihood, observed_data and sample_stats for ArviZ.

    An InferenceData with ArviZ 0.x, an xarray DataTree with ArviZ 1.x. A sampler gives its chains,
    other methods `num_samples` draws of q as one chain (a point: one). Each member of an ensemble
    is a chain, all with as many draws, since members weigh the same: `num_samples` in all, or one
    of each point. R-hat is then how far members disagree, not whether anything has converged, and
    `az.loo` needs `reff=1`, for the draws are independent. Variables have the names of
    the parameters' leaves. A row of weight n is there n times; where weights are not whole numbers
    log-likelihoods are multiplied by them. log_likelihood and observed_data need all training rows
    and are left out without. sample_stats has a sampler's statistics of each draw, or the lower
    bound and its parts by step.
    """
    az = arviz()
    family = posterior.family
    attrs = {"algorithm": posterior.algorithm.name, "stopped": posterior.stopped}
    if isinstance(family, Mixture):
        each = 1 if family.is_of_points else max(1, num_samples // family.num_members)
        num_samples = each * family.num_members
        layout = np.asarray(family.draws_by_member(jax.random.key(seed), each))
        attrs["chains"] = "members of an ensemble"
    else:
        chains, num = chain_shape(posterior, num_samples)
        layout = np.arange(chains * num).reshape(chains, num)
    if isinstance(family, Draws):
        draws = posterior.target.constrained(family.flat())
    else:
        draws = posterior.sample(seed, layout.size)
    weights = {
        name: np.asarray(leaf)[layout]
        for name, leaf in zip(tree.leaf_names(draws), jax.tree.leaves(draws), strict=True)
    }
    groups = {"posterior": _dataset(weights, CHAIN_DRAW)}
    if has_all_rows(posterior.target):
        terms, y, counts = pointwise_log_likelihood(posterior, num_samples, seed)
        terms = terms.reshape(layout.size, -1)[layout]
        terms, y = np.repeat(terms, counts, axis=-1), np.repeat(y, counts, axis=0)
        groups["log_likelihood"] = _dataset({"y": terms}, (*CHAIN_DRAW, "row"))
        groups["observed_data"] = _dataset({"y": y}, ("row", "column"))
    if posterior.trace:
        groups["sample_stats"] = _sample_stats(posterior.trace)
    if int(az.__version__.partition(".")[0]) < 1:
        return az.InferenceData(attrs=attrs, **groups)
    import xarray

    data = xarray.DataTree.from_dict(groups)
    data.attrs = attrs
    return data


def _sample_stats(trace: Mapping[str, np.ndarray]) -> xarray.Dataset:
    """Statistics of each draw, or of each evaluation of the lower bound."""
    if "eval_step" in trace:
        stats = {n.removeprefix("eval_"): v for n, v in trace.items() if n.startswith("eval_")}
        return _dataset(stats, ("step",))
    stats = {ARVIZ_NAMES.get(n, n): v for n, v in trace.items() if not n.startswith("warmup_")}
    if "diverging" in stats:
        stats["diverging"] = stats["diverging"].astype(bool)
    return _dataset(stats, CHAIN_DRAW)


def _dataset(variables: Mapping[str, np.ndarray], dims: tuple[str, ...]) -> xarray.Dataset:
    """Arrays as a Dataset: first axes named by `dims`, further ones `<variable>_dim_<number>`.

    A variable that has the name of an axis is its coordinate; other coordinates count from 0.
    """
    import xarray

    named: dict[str, tuple[list[str], np.ndarray]] = {}
    coords: dict[str, np.ndarray] = {}
    for name, values in variables.items():
        values = np.asarray(values)
        own = [f"{name}_dim_{i}" for i in range(values.ndim - len(dims))]
        axes = [*dims[: values.ndim], *own]
        coords |= {axis: np.arange(size) for axis, size in zip(axes, values.shape, strict=True)}
        named[name] = (axes, values)
    coords |= {name: values for name, (axes, values) in named.items() if axes == [name]}
    named = {name: found for name, found in named.items() if name not in coords}
    return xarray.Dataset(named, coords)
