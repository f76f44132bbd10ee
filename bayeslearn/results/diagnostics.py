"""Whether a sampler has mixed: R-hat and effective sample sizes.

Both are rank-normalised and split; see `bayeslearn.results.convergence`. Hidden units of a network
can be swapped without changing its predictions, so chains may sit in different copies of the same
mode: R-hat of single weights is then large although the predictions agree. Judge by the
predictions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from bayeslearn.algorithms.sampler import Sampler
from bayeslearn.data.rows import Batch, total_weight
from bayeslearn.errors import ArgumentError, Shown, refuse
from bayeslearn.families import Draws
from bayeslearn.models.target import Target
from bayeslearn.precision import double_precision
from bayeslearn.results.convergence import bfmi, ess_bulk, ess_tail, rhat
from bayeslearn.tree import Array, PyTree

if TYPE_CHECKING:
    from bayeslearn.results.posterior import Posterior

ROWS = 20  # training rows whose predictions are examined
WEIGHTS = 200  # single weights that are examined
MAX_RHAT = 1.05
MIN_ESS_PER_CHAIN = 50


class Diagnostics(NamedTuple):
    """R-hat, bulk and tail ESS of some weights, of predictions at training rows, and of the
    log-density; `warning` is empty if the chains have mixed.

    `bfmi` is the E-BFMI of each chain of HMC and NUTS, NaN for other samplers and thinned chains.
    """

    rhat_weights: np.ndarray
    ess_bulk_weights: np.ndarray
    ess_tail_weights: np.ndarray
    rhat_predictions: np.ndarray
    ess_bulk_predictions: np.ndarray
    ess_tail_predictions: np.ndarray
    rhat_log_density: float
    divergences: int
    warning: str
    bfmi: np.ndarray


Statistics = tuple[np.ndarray, np.ndarray, np.ndarray]  # R-hat, bulk and tail ESS


def convergence(values: np.ndarray, has_tail: bool = True) -> Statistics:
    """R-hat, bulk and tail ESS of quantities (chains, draws, quantities).

    NaN where they are undefined: fewer than four draws, and R-hat of a single chain. Without
    `has_tail` the tail ESS is NaN and takes no time.
    """
    values = np.asarray(values)
    tail = ess_tail(values) if has_tail else np.full(values.shape[-1], np.nan)
    return rhat(values), ess_bulk(values), tail


@double_precision
def diagnose(posterior: Posterior) -> Diagnostics:
    """R-hat and effective sample sizes of a sampler's chains, and a warning if they are poor."""
    if posterior.draws is None:
        raise ArgumentError(
            f"{posterior.algorithm.name} is not a sampler: look at posterior.trace['eval_elbo']."
        )
    if "log_density" not in posterior.trace:
        raise ArgumentError(
            "These draws are not of chains: they were reweighted by an update (see"
            " posterior.notes), or kept along a run of minibatches."
        )
    chains, num = posterior.trace["log_density"].shape
    weights = convergence(_some_weights(posterior))
    values, what = _monitored(posterior)
    predictions = weights if values is None else convergence(values)
    log_density = posterior.trace["log_density"][:, :, None]
    rhat_density = float(convergence(log_density, has_tail=False)[0][0])
    divergences = int(np.sum(posterior.trace.get("diverging", 0)))
    warning = ""
    if not posterior.algorithm.capabilities.is_composite:  # whose chains stay in modes of their own
        warning = _warning(posterior.algorithm.name, what, predictions, chains, num)
    energy = _energy(posterior)
    fraction = np.full(chains, np.nan) if energy is None else bfmi(energy)
    return Diagnostics(*weights, *predictions, rhat_density, divergences, warning, fraction)


def _energy(posterior: Posterior) -> np.ndarray | None:
    """Energies (chains, draws); None without, or if they are averages over thinned steps."""
    is_thinned = isinstance(posterior.algorithm, Sampler) and posterior.algorithm.thin > 1
    return None if is_thinned else posterior.trace.get("energy")


@double_precision
def not_mixed(posterior: Posterior) -> str:
    """The warning of `diagnose` alone, at a fraction of the time."""
    chains, num = posterior.trace["log_density"].shape
    if chains < 2:
        return ""
    values, what = _monitored(posterior)
    values = _some_weights(posterior) if values is None else values
    statistics = convergence(values, has_tail=False)
    return _warning(posterior.algorithm.name, what, statistics, chains, num)


def _some_weights(posterior: Posterior) -> np.ndarray:
    """(chains, draws, weights)"""
    assert isinstance(posterior.family, Draws)
    matrix = np.asarray(posterior.family.matrix())
    spaced = np.unique(np.linspace(0, matrix.shape[-1] - 1, WEIGHTS).round().astype(int))
    return matrix.reshape(*posterior.trace["log_density"].shape, -1)[:, :, spaced]


def _monitored(posterior: Posterior) -> tuple[np.ndarray | None, str]:
    """The quantities that decide whether chains have mixed, and their name.

    None for a bare density, whose weights decide.
    """
    if posterior.target.is_density:
        return None, "parameters"
    outputs = posterior.row_outputs
    if outputs is None:
        outputs = outputs_at_rows(posterior.target, posterior.draws)
    return outputs, "predictions"


def outputs_at_rows(target: Target, draws: PyTree) -> np.ndarray:
    """The network at some training rows, for every draw: (chains, draws, outputs)."""
    data = target.rows()
    rows = np.linspace(0, len(data.y) - 1, min(ROWS, len(data.y))).astype(int)
    x = jax.tree.map(lambda leaf: leaf[rows], data.x)
    outputs = np.asarray(_outputs(target, draws, x))
    return outputs.reshape(*outputs.shape[:2], -1)


@jax.jit
def _outputs(target: Target, draws: PyTree, x: PyTree) -> Array:
    def chain(part: PyTree) -> Array:
        return jax.lax.map(lambda params: target.outputs(params, x), part)

    return jax.lax.map(chain, draws)


def _warning(name: str, what: str, statistics: Statistics, chains: int, num: int) -> str:
    rhats, bulk, _ = statistics
    # Constant quantities have no R-hat; they cannot disagree either.
    worst = np.nan if np.all(np.isnan(rhats)) else float(np.nanmax(rhats))
    fewest = np.nan if np.all(np.isnan(bulk)) else float(np.nanmin(bulk))
    if chains < 2:
        return ""
    if worst > MAX_RHAT:
        return (
            f"The chains of {name} have not mixed: R-hat of the {what} is up to {worst:.3g}"
            f" (above {MAX_RHAT}). Do not trust standard deviations and intervals yet; run longer"
            " (num_warmup, num_samples, thin), or use nuts or a variational method."
        )
    if fewest < MIN_ESS_PER_CHAIN * chains:
        return (
            f"The {chains * num} draws of {name} are worth only {fewest:.0f} independent ones for"
            f" some {what}. Means are usable, tails are not; run longer (num_samples, thin)."
        )
    return ""


def has_all_rows(target: Target) -> bool:
    """Whether a target holds all of its training rows.

    It does not after loading, and after a fit to an iterable.
    """
    data = target.data
    if target.is_density or data is None or len(data.y) == 0:
        return False
    weight = None if data.weight is None else np.asarray(data.weight)
    total = total_weight(np.asarray(data.y), weight)
    return bool(np.isclose(total, float(target.num_data), rtol=1e-9))


def all_rows(posterior: Posterior) -> Batch:
    """The data behind a posterior, refused where only a part of them is available."""
    target = posterior.target
    if target.is_density:
        raise ArgumentError("A bare log-density has no rows to predict.")
    data = target.rows()
    if not has_all_rows(target):
        raise ArgumentError(
            f"This needs all {float(target.num_data):.0f} rows, and the posterior of an iterable"
            f" keeps only {len(data.y)} of them. Fit arrays (x, y)."
        )
    return data


def row_counts(weight: np.ndarray | None, rows: int) -> np.ndarray | None:
    """How many equal rows each row stands for; None where weights are not whole numbers."""
    if weight is None:
        return np.ones(rows, int)
    counts = np.rint(weight).astype(int)
    return counts if np.array_equal(counts, weight) else None


def check_generative(target: Target) -> None:
    """Refuse a model from whose prior no data can be drawn."""
    if target.likelihood.refreshes:
        must = "hold all its unknowns as parameters, to be drawn from the prior"
        refuse("model", Shown(f"one with {type(target.likelihood).__name__}()"), must)
