"""Whether a sampler's draws can be trusted: R-hat, effective sample sizes, and what went wrong.

Both are rank-normalised and split; see `bayeslearn.results.convergence`. Hidden units of a network
can be swapped without changing its predictions, so chains may sit in different copies of the same
mode: R-hat of single weights is then large although the predictions agree. Judge by the
predictions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from bayeslearn import tree
from bayeslearn.algorithms.ensemble import Composite
from bayeslearn.algorithms.sampler import Sampler
from bayeslearn.channels_last import channels_last
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
MAX_DIVERGING = 1e-3  # fraction of the trajectories
MAX_SATURATED = 0.05  # fraction of the draws whose trajectories were cut at the longest
MIN_BFMI = 0.3
# No mass matrix suits all of a network's posterior, whose scales change from place to place.
NETWORK_REMEDY = (
    "use bl.MCLMC(num_samples=1000, thin=100), which draws independent predictions of a network"
    " with fewer gradients"
)
MIN_DRAWS_FOR_BFMI = 100


class Diagnostics(NamedTuple):
    """R-hat, bulk and tail ESS of some weights, of predictions at training rows, and of the
    log-density; `warning` is empty if nothing is wrong with the draws.

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
    weights = convergence(_some_weights(posterior))
    values, what = _monitored(posterior)
    predictions = weights if values is None else convergence(values)
    rhat_density = _rhat_log_density(posterior)
    divergences = int(np.sum(posterior.trace.get("diverging", 0)))
    warning = " ".join(_problems(posterior, predictions, rhat_density, what)[0])
    fraction = _bfmi(posterior)
    return Diagnostics(*weights, *predictions, rhat_density, divergences, warning, fraction)


@double_precision
def problems(posterior: Posterior) -> tuple[list[str], list[str]]:
    """What to warn about in a sampler's run, and what is worth a note."""
    values, what = _monitored(posterior)
    values = _some_weights(posterior) if values is None else values
    statistics = convergence(values, has_tail=False)
    return _problems(posterior, statistics, _rhat_log_density(posterior), what)


def _problems(
    posterior: Posterior, statistics: Statistics, rhat_density: float, what: str
) -> tuple[list[str], list[str]]:
    """Warnings and notes."""
    name = posterior.algorithm.name
    chains, num = posterior.trace["log_density"].shape
    found = [_low_bfmi(name, _bfmi(posterior))]
    if not posterior.algorithm.capabilities.is_composite:  # whose chains stay in modes of their own
        mixing = _not_mixed(name, what, statistics, chains, num)
        if not mixing and not posterior.target.is_density and rhat_density > MAX_RHAT:
            mixing = _disagreement(name, "log-density", rhat_density)
        found.insert(0, mixing)
    warnings = [text for text in found if text]
    diverging, is_many = _divergences(posterior)
    warnings += [diverging] if is_many else []
    notes = [diverging] if diverging and not is_many else []
    sampler = _sampler(posterior)
    own = "" if sampler is None else sampler.trace_note(posterior.trace)
    notes += [own] if own else []
    saturated = _saturation(posterior)
    if saturated:  # of NUTS it overrules the criterion, elsewhere it costs effective draws alone
        (warnings if name == "nuts" else notes).append(saturated)
    return warnings, notes


def _rhat_log_density(posterior: Posterior) -> float:
    return float(rhat(posterior.trace["log_density"][:, :, None])[0])


def _sampler(posterior: Posterior) -> Sampler | None:
    """The sampler that made the chains, which may be a part of the method."""
    algorithm = posterior.algorithm
    if isinstance(algorithm, Composite):
        algorithm = algorithm.last_part
    return algorithm if isinstance(algorithm, Sampler) else None


def _thin(posterior: Posterior) -> int:
    """Steps per saved draw."""
    sampler = _sampler(posterior)
    return 1 if sampler is None else sampler.thin


def _divergences(posterior: Posterior) -> tuple[str, bool]:
    """The sentence on divergent trajectories, and whether they are too many."""
    diverging = posterior.trace.get("diverging")
    if diverging is None or not np.sum(diverging):
        return "", False
    sampler = _sampler(posterior)
    number, total = int(np.sum(diverging)), diverging.size * _thin(posterior)
    remedy = "" if sampler is None else f"{sampler.remedy_for_divergences()}, or "
    text = (
        f"{number} of {total} trajectories diverged: the draws may miss where the density changes"
        f" quickly; {remedy}use parameters of like scale and without limits."
    )
    return text, number > MAX_DIVERGING * total


def _saturation(posterior: Posterior) -> str:
    """The warning where many trajectories were cut at their longest."""
    algorithm, numbers = posterior.algorithm, posterior.trace.get("num_gradients")
    if not isinstance(algorithm, Sampler) or numbers is None:
        return ""
    longest, remedy = algorithm.longest_trajectory(tree.size(posterior.family.mean))
    fraction = float(np.mean(numbers >= longest * algorithm.thin))
    if fraction <= MAX_SATURATED:
        return ""
    if algorithm.name != "mclmc" and not posterior.target.is_density:
        remedy = f"{NETWORK_REMEDY}, or {remedy}"
    effect = "may be off" if algorithm.name == "nuts" else "are more correlated than they need be"
    return (
        f"{fraction:.0%} of the trajectories of {algorithm.name} were saturated: cut at"
        f" {longest:.0f} gradients, the longest allowed. The draws {effect}; {remedy}."
    )


def _low_bfmi(name: str, fractions: np.ndarray) -> str:
    if np.all(np.isnan(fractions)) or np.nanmin(fractions) >= MIN_BFMI:
        return ""
    return (
        f"E-BFMI of {name} is down to {np.nanmin(fractions):.2f} (below {MIN_BFMI}): energies are"
        " explored slowly, and tails may be missed. Rescale the parameters, or run longer."
    )


def _bfmi(posterior: Posterior) -> np.ndarray:
    """E-BFMI of each chain; NaN without energies, and for chains that are too short."""
    energy = _energy(posterior)
    chains, num = posterior.trace["log_density"].shape
    if energy is None or num < MIN_DRAWS_FOR_BFMI:
        return np.full(chains, np.nan)
    return bfmi(energy)


def _energy(posterior: Posterior) -> np.ndarray | None:
    """Energies (chains, draws); None without, or if they are averages over thinned steps."""
    return None if _thin(posterior) > 1 else posterior.trace.get("energy")


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


def stored_outputs(posterior: Posterior) -> np.ndarray | None:
    """The outputs that diagnostics of chains need once the training rows are gone."""
    has_chains = posterior.draws is not None and "log_density" in posterior.trace
    data = posterior.target.data
    if posterior.row_outputs is not None or not has_chains or data is None or not len(data.y):
        return posterior.row_outputs
    return outputs_at_rows(posterior.target, posterior.draws)


def outputs_at_rows(target: Target, draws: PyTree) -> np.ndarray:
    """The network at some training rows, for every draw: (chains, draws, outputs)."""
    data = target.rows()
    rows = np.linspace(0, len(data.y) - 1, min(ROWS, len(data.y))).astype(int)
    x = jax.tree.map(lambda leaf: leaf[rows], data.x)
    outputs = np.asarray(_outputs(target, draws, x))
    return outputs.reshape(*outputs.shape[:2], -1)


@jax.jit
@channels_last
def _outputs(target: Target, draws: PyTree, x: PyTree) -> Array:
    def chain(part: PyTree) -> Array:
        return jax.lax.map(lambda params: target.outputs(params, x), part)

    return jax.lax.map(chain, draws)


def _not_mixed(name: str, what: str, statistics: Statistics, chains: int, num: int) -> str:
    rhats, bulk, _ = statistics
    # Constant quantities have no R-hat; they cannot disagree either.
    worst = np.nan if np.all(np.isnan(rhats)) else float(np.nanmax(rhats))
    fewest = np.nan if np.all(np.isnan(bulk)) else float(np.nanmin(bulk))
    if chains < 2:
        return ""
    if worst > MAX_RHAT:
        return _disagreement(name, what, worst)
    if fewest < MIN_ESS_PER_CHAIN * chains:
        return (
            f"The {chains * num} draws of {name} are worth only {fewest:.0f} independent ones for"
            f" some {what}. Means are usable, tails are not; run longer (num_samples, thin)."
        )
    return ""


def _disagreement(name: str, what: str, worst: float) -> str:
    others = "a variational method" if name == "nuts" else "nuts or a variational method"
    return (
        f"The chains of {name} have not mixed: R-hat of the {what} is up to {worst:.3g}"
        f" (above {MAX_RHAT}). Do not trust standard deviations and intervals yet; run longer"
        f" (num_warmup, num_samples, thin), or use {others}."
    )


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
