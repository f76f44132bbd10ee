"""Simulation-based calibration."""

from __future__ import annotations

import os
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import tree
from bayeslearn.algorithms.base import Algorithm
from bayeslearn.errors import refuse
from bayeslearn.families import Draws
from bayeslearn.inference.api import fit
from bayeslearn.inference.arguments import check_algorithm
from bayeslearn.jobs import ResultFolder, run_tasks
from bayeslearn.models.model import Model
from bayeslearn.models.target import Target
from bayeslearn.precision import double_precision
from bayeslearn.results.diagnostics import check_generative
from bayeslearn.results.posterior import Posterior
from bayeslearn.storage.fingerprints import digest
from bayeslearn.tree import Array, PyTree


class Calibration(NamedTuple):
    """Result of simulation-based calibration; `ranks` are from 0 to num_samples."""

    ranks: np.ndarray  # (data sets, quantities)
    num_samples: int
    p_values: np.ndarray  # of a chi-square test of uniform ranks, one per quantity


@double_precision
def simulation_based_calibration(
    model: Model,
    algorithm: Algorithm | str,
    data: tuple[PyTree, Any],
    *,
    num_datasets: int,
    seed: int,
    num_samples: int = 99,
    num_bins: int = 10,
    n_jobs: int | None = None,
    results: str | os.PathLike[str] | None = None,
    **fit_options: Any,
) -> Calibration:
    """Simulation-based calibration of an inference algorithm (Talts et al. 2018).

    For each of `num_datasets` simulated data sets, weights are drawn from the prior and
    observations from the likelihood at `data`'s inputs, and the posterior is inferred. If the
    inference is exact, the rank of a true weight among `num_samples` posterior draws is uniformly
    distributed. `data`'s observations only fix shapes and the noise prior.

    Args:
        model: a `Model` whose parameters all have a prior.
        algorithm: an algorithm such as `bl.HMC()`, or its name.
        data: (x, y).
        num_datasets: number of simulated data sets.
        seed: a whole number; the same seed gives the same ranks.
        num_samples: posterior draws among which a weight is ranked. A sampler's should be nearly
            independent (thinned).
        num_bins: bins of the chi-square test.
        n_jobs: how many data sets are fitted at a time, in processes of joblib; -1: as many as
            cores; None: one, or what `joblib.parallel_config` says, whose backend is used. The
            ranks are the same.
        results: a folder for the ranks of each data set, so that an interrupted study goes on.
        fit_options: further arguments of `fit`.
    """
    if num_datasets < num_bins:
        refuse("num_datasets", num_datasets, f"be at least num_bins ({num_bins})")
    key_bind, key_datasets = jax.random.split(jax.random.key(seed))
    target, params = model.bind(data, key_bind)
    check_generative(target)
    algorithm = check_algorithm(algorithm)
    files = None
    if results is not None:
        files = ResultFolder(
            results,
            {
                "data": digest(data),
                "model": repr(model),
                "algorithm": repr(algorithm),
                "fit_options": {name: repr(value) for name, value in fit_options.items()},
                **{"seed": seed, "num_samples": num_samples},
            },
        )
    names = [f"dataset-{index:06d}.json" for index in range(num_datasets)]
    ranks = [None if files is None else files.read(name) for name in names]
    missing = [index for index, found in enumerate(ranks) if found is None]
    key_data = np.asarray(jax.random.key_data(key_datasets))
    study = (*jax.tree.map(np.asarray, (target, params)), algorithm, key_data, num_samples)
    study = (*study, fit_options)
    for number, found in run_tasks(rank_one, study, [(index,) for index in missing], n_jobs):
        index = missing[number]
        ranks[index] = found
        if files is not None:
            files.write(names[index], found)
    table = np.array(ranks)
    return Calibration(table, num_samples, _uniformity(table, num_samples, num_bins))


@double_precision
def rank_one(
    target: Target,
    params: PyTree,
    algorithm: Algorithm,
    key: np.ndarray,
    num_samples: int,
    fit_options: dict[str, Any],
    index: int,
) -> list[int]:
    """The ranks of one simulated data set's true weights; a function of its arguments alone."""
    key_datasets = jax.random.wrap_key_data(jnp.asarray(key))
    key_data, key_fit, key_draws = jax.random.split(jax.random.fold_in(key_datasets, index), 3)
    truth, simulated = _simulate(target, params, key_data)
    fit_seed = int(jax.random.randint(key_fit, (), 0, np.iinfo(np.int32).max))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = fit(simulated, algorithm, seed=fit_seed, init=params, **fit_options)
    below = jax.vmap(tree.ravel)(_draws(posterior, key_draws, num_samples)) < tree.ravel(truth)
    return np.asarray(jnp.sum(below, axis=0)).tolist()


def _draws(posterior: Posterior, key: Array, num: int) -> PyTree:
    """Draws of the posterior, without repeats where a sampler has enough of them."""
    family = posterior.family
    if isinstance(family, Draws) and num <= family.num_draws:
        return family.thinned(num)
    return posterior.sample(key, num)


@jax.jit
def _simulate(target: Target, params: PyTree, key: Array) -> tuple[PyTree, Target]:
    """True parameters, and the target with observations simulated from them."""
    assert target.prior is not None
    assert target.data is not None
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
