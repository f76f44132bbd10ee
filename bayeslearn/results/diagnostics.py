"""Whether a sampler has mixed: R-hat and effective sample sizes.

Both are ArviZ's (rank-normalised, split). Hidden units of a network can be swapped without changing
its predictions, so chains may sit in different copies of the same mode: R-hat of single weights is
then large although the predictions agree. Judge by the predictions.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import jax
import numpy as np

from bayeslearn.errors import ArgumentError, Shown, refuse
from bayeslearn.precision import double_precision
from bayeslearn.results.arviz import arviz
from bayeslearn.tree import PyTree

ROWS = 20  # training rows whose predictions are looked at
WEIGHTS = 200  # single weights looked at
MAX_RHAT = 1.05
MIN_ESS_PER_CHAIN = 50


class Diagnostics(NamedTuple):
    """R-hat, bulk and tail ESS of some weights, of predictions at training rows, and of the
    log-density; `warning` is empty if the chains have mixed."""

    rhat_weights: np.ndarray
    ess_bulk_weights: np.ndarray
    ess_tail_weights: np.ndarray
    rhat_predictions: np.ndarray
    ess_bulk_predictions: np.ndarray
    ess_tail_predictions: np.ndarray
    rhat_log_density: float
    divergences: int
    warning: str


def convergence(
    values: np.ndarray, has_tail: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """R-hat, bulk and tail ESS of quantities (chains, draws, quantities).

    NaN where ArviZ cannot tell: fewer than four draws, and R-hat of a single chain. The tail's
    takes as long as the other two together, and is left out if not asked for.
    """
    chains, draws, num = np.shape(values)
    unknown = np.full(num, np.nan)
    if draws < 4:
        return unknown, unknown, unknown
    az = arviz()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = az.convert_to_dataset({"q": np.asarray(values)})
        rhat = az.rhat(data)["q"].to_numpy() if chains > 1 else unknown
        bulk = az.ess(data, method="bulk")["q"].to_numpy()
        tail = az.ess(data, method="tail")["q"].to_numpy() if has_tail else unknown
    return rhat, bulk, tail


@double_precision
def diagnose(posterior: Any) -> Diagnostics:
    """Has this sampler mixed?"""
    if posterior.draws is None:
        raise ArgumentError(
            f"{posterior.algorithm.name} is not a sampler: look at posterior.trace['eval_elbo']."
        )
    if "log_density" not in posterior.trace:
        raise ArgumentError("These draws are no chains, they were reweighed: see posterior.notes.")
    chains, kept = posterior.trace["log_density"].shape
    weights = convergence(_some_weights(posterior))
    values, what = _judged(posterior)
    predictions = weights if values is None else convergence(values)
    log_density = posterior.trace["log_density"][:, :, None]
    rhat_density = float(convergence(log_density, has_tail=False)[0][0])
    divergences = int(np.sum(posterior.trace.get("diverging", 0)))
    warning = _warning(posterior.algorithm.name, what, predictions, chains, kept)
    return Diagnostics(*weights, *predictions, rhat_density, divergences, warning)


@double_precision
def not_mixed(posterior: Any) -> str:
    """The warning of `diagnose` alone, at a fraction of the time."""
    chains, kept = posterior.trace["log_density"].shape
    if chains < 2:
        return ""
    values, what = _judged(posterior)
    values = _some_weights(posterior) if values is None else values
    told = convergence(values, has_tail=False)
    return _warning(posterior.algorithm.name, what, told, chains, kept)


def _some_weights(posterior: Any) -> np.ndarray:
    """(chains, draws, weights)"""
    matrix = np.asarray(posterior.family.matrix())
    spaced = np.unique(np.linspace(0, matrix.shape[-1] - 1, WEIGHTS).round().astype(int))
    return matrix.reshape(*posterior.trace["log_density"].shape, -1)[:, :, spaced]


def _judged(posterior: Any) -> tuple[np.ndarray | None, str]:
    """What says whether chains have mixed, and its name; None: the weights of a bare density."""
    if posterior.target.is_density:
        return None, "parameters"
    outputs = posterior.row_outputs
    if outputs is None:
        outputs = outputs_at_rows(posterior.target, posterior.draws)
    return outputs, "predictions"


def outputs_at_rows(target: Any, draws: PyTree) -> np.ndarray:
    """The network at some training rows, for every draw: (chains, draws, outputs)."""
    data = target.rows()
    rows = np.linspace(0, len(data.y) - 1, min(ROWS, len(data.y))).astype(int)
    x = jax.tree.map(lambda leaf: leaf[rows], data.x)
    outputs = np.asarray(_outputs(target, draws, x))
    return outputs.reshape(*outputs.shape[:2], -1)


@jax.jit
def _outputs(target: Any, draws: PyTree, x: PyTree) -> Any:
    def chain(part: PyTree) -> Any:
        return jax.lax.map(lambda params: target.outputs(params, x), part)

    return jax.lax.map(chain, draws)


def _warning(name: str, what: str, told: Any, chains: int, kept: int) -> str:
    rhat, bulk, _ = told
    # Constant quantities have no R-hat; they cannot disagree either.
    worst = np.nan if np.all(np.isnan(rhat)) else float(np.nanmax(rhat))
    fewest = np.nan if np.all(np.isnan(bulk)) else float(np.nanmin(bulk))
    if chains < 2:
        return ""
    if worst > MAX_RHAT:
        return (
            f"The chains of {name} have not mixed: R-hat of the {what} is up to {worst:.3g}"
            f" (above {MAX_RHAT}). Do not trust the spread yet; run longer (num_warmup,"
            " num_samples, thin), or use nuts or a variational method."
        )
    if fewest < MIN_ESS_PER_CHAIN * chains:
        return (
            f"The {chains * kept} draws of {name} are worth only {fewest:.0f} independent ones for"
            f" some {what}. Means are usable, tails are not; run longer (num_samples, thin)."
        )
    return ""


def all_rows(posterior: Any) -> Any:
    """The data behind a posterior, refused where only a part of them is at hand."""
    target = posterior.target
    if target.is_density:
        raise ArgumentError("A bare log-density has no rows to predict.")
    data = target.rows()
    if len(data.y) != round(float(target.num_data)):
        raise ArgumentError(
            f"This needs all {float(target.num_data):.0f} rows, and the posterior of an iterable"
            f" keeps only {len(data.y)} of them. Fit arrays (x, y)."
        )
    return data


def check_generative(target: Any) -> None:
    """Refuse a model from whose prior no data can be drawn."""
    if target.likelihood.refreshes:
        must = "hold all its unknowns as parameters, to be drawn from the prior"
        refuse("model", Shown(f"one with {type(target.likelihood).__name__}()"), must)
