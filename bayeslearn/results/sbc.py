"""Simulation-based calibration."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import tree
from bayeslearn.errors import refuse
from bayeslearn.inference.api import fit
from bayeslearn.precision import double_precision
from bayeslearn.results.diagnostics import check_generative
from bayeslearn.tree import PyTree


class Calibration(NamedTuple):
    """Result of simulation-based calibration; `ranks` lie in 0..num_samples."""

    ranks: np.ndarray  # (data sets, quantities)
    num_samples: int
    p_values: np.ndarray  # of a chi-square test of uniform ranks, one per quantity


@double_precision
def simulation_based_calibration(
    model: Any,
    algorithm: Any,
    data: tuple[Any, Any],
    *,
    num_datasets: int,
    seed: int,
    num_samples: int = 99,
    num_bins: int = 10,
    **fit_options: Any,
) -> Calibration:
    """Ranks of true weights among posterior draws, over data sets made by the model itself.

    True weights are drawn from the prior, observations from the likelihood at `data`'s inputs,
    and the posterior is inferred from them. If the inference is right every rank is equally
    likely (Talts et al. 2018). `data`'s observations only fix shapes and the noise prior.
    """
    if num_datasets < num_bins:
        refuse("num_datasets", num_datasets, f"be at least num_bins ({num_bins})")
    root = jax.random.key(seed)
    target, params = model.bind(data, root)
    check_generative(target)
    ranks = []
    for index in range(num_datasets):
        truth, simulated = _simulate(target, params, jax.random.fold_in(root, index))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            posterior = fit(simulated, algorithm, seed=seed + index, init=params, **fit_options)
        draws = posterior.sample(jax.random.fold_in(root, index), num_samples)
        below = jax.vmap(tree.ravel)(draws) < tree.ravel(truth)
        ranks.append(np.asarray(jnp.sum(below, axis=0)))
    table = np.stack(ranks)
    return Calibration(table, num_samples, _uniformity(table, num_samples, num_bins))


@jax.jit
def _simulate(target: Any, params: PyTree, key: Any) -> tuple[PyTree, Any]:
    key_truth, key_y = jax.random.split(key)
    truth = target.prior.sample(key_truth, params)
    outputs = target.outputs(truth, target.data.x)
    keys = jax.random.split(key_y, len(outputs))
    y = jax.vmap(target.likelihood.sample, (0, 0, None))(keys, outputs, truth["likelihood"])
    data = target.data._replace(y=y.astype(target.data.y.dtype))
    from equinox import tree_at

    return truth, tree_at(lambda t: t.data, target, data)


def _uniformity(ranks: np.ndarray, num_samples: int, num_bins: int) -> np.ndarray:
    from scipy.stats import chisquare

    edges = np.linspace(0, num_samples + 1, num_bins + 1)
    expected = np.diff(np.ceil(edges)) / (num_samples + 1) * len(ranks)
    return np.array(
        [chisquare(np.histogram(column, bins=edges)[0], expected).pvalue for column in ranks.T]
    )
