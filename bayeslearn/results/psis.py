"""Pareto-smoothed importance sampling, and leave-one-out cross-validation by it.

The largest M = min(S / 5, 3 sqrt(S / r)) of S importance weights are replaced by quantiles of a
generalised Pareto distribution fitted to them (Vehtari, Simpson, Gelman, Yao and Gabry 2024, JMLR
25); r is the relative efficiency of the draws. Its shape k says whether the estimate can be
trusted: below min(1 - 1 / log10(S), 0.7). The fit is that of Zhang and Stephens (2009,
Technometrics 51), with k shrunk towards 0.5 by a prior worth ten observations. Numbers are ArviZ's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bayeslearn.errors import Shown, refuse

MIN_TAIL = 5  # weights to which a Pareto distribution is fitted
MAX_PARETO_K = 0.7
PRIOR_SIZE = 10.0
PRIOR_K = 0.5


class LOO(NamedTuple):
    """Leave-one-out cross-validation by Pareto-smoothed importance sampling.

    Attributes:
        elpd_loo: expected log pointwise predictive density, summed over rows (higher is better).
        se: its standard error.
        p_loo: effective number of parameters.
        elpd_i: `elpd_loo` of each row.
        pareto_k: shape of each row's importance weights; above 0.7 its `elpd_i` is unreliable.
        num_samples: draws of all chains.
        warning: empty if every row is reliable.
    """

    elpd_loo: float
    se: float
    p_loo: float
    elpd_i: np.ndarray
    pareto_k: np.ndarray
    num_samples: int
    warning: str

    def __repr__(self) -> str:
        limit = max_pareto_k(self.num_samples)
        num_bad = int(np.sum(~(self.pareto_k <= limit)))
        lines = [
            f"PSIS-LOO of {len(self.elpd_i)} rows from {self.num_samples} draws",
            f"  elpd_loo {self.elpd_loo:10.2f}  (standard error {self.se:.2f})",
            f"  p_loo    {self.p_loo:10.2f}",
            f"  Pareto k {np.max(self.pareto_k):10.2f}  at most; {num_bad} rows above {limit:.2f}",
        ]
        return "\n".join([*lines, *([f"  {self.warning}"] if self.warning else [])])


def max_pareto_k(num_samples: int) -> float:
    """The k up to which an estimate from that many draws is reliable."""
    if num_samples < 2:
        return -np.inf
    return min(1.0 - 1.0 / np.log10(num_samples), MAX_PARETO_K)


def psis(
    log_weights: np.ndarray, relative_efficiency: float = 1.0
) -> tuple[np.ndarray, np.ndarray | float]:
    """Pareto-smoothed importance weights.

    Args:
        log_weights: logarithms of unnormalised importance weights (..., draws).
        relative_efficiency: effective sample size of the draws divided by their number.

    Returns:
        Logarithms of the smoothed weights, which add up to one along the last axis, and the Pareto
        k of each row (a number for a single row). k is infinite where the tail is too short.
    """
    log_weights = np.asarray(log_weights, np.float64)
    if log_weights.ndim == 0 or log_weights.shape[-1] == 0:
        refuse("log_weights", Shown(f"shape {log_weights.shape}"), "hold one number per draw")
    if not relative_efficiency > 0:
        refuse("relative_efficiency", relative_efficiency, "be positive")
    num = log_weights.shape[-1]
    tail_size = int(np.ceil(min(num / 5.0, 3.0 * np.sqrt(num / relative_efficiency))))
    smoothed, k = np.empty(log_weights.shape), np.empty(log_weights.shape[:-1])
    for index in np.ndindex(k.shape):
        smoothed[index], k[index] = _smooth(log_weights[index], tail_size)
    return smoothed, k if k.ndim else float(k)


def _smooth(log_weights: np.ndarray, tail_size: int) -> tuple[np.ndarray, float]:
    """One row of `psis`."""
    with np.errstate(invalid="ignore"):
        values = log_weights - np.max(log_weights)
    order = np.argsort(values, kind="stable")
    cutoff = values[order[-tail_size - 1]] if tail_size < len(values) else -np.inf
    cutoff = max(cutoff, np.log(np.finfo(np.float64).tiny))
    tail = order[values[order] > cutoff]
    k = np.inf
    if len(tail) >= MIN_TAIL:
        excess = np.exp(values[tail]) - np.exp(cutoff)
        k, scale = fit_generalized_pareto(excess)
        if np.isfinite(k):
            survival = np.log1p(-(np.arange(len(tail)) + 0.5) / len(tail))
            quantiles = scale * (np.expm1(-k * survival) / k if k else -survival)
            values[tail] = np.minimum(np.log(quantiles + np.exp(cutoff)), 0.0)
    return values - np.logaddexp.reduce(values), float(k)


def fit_generalized_pareto(excess: np.ndarray) -> tuple[float, float]:
    """Shape k and scale of a generalised Pareto distribution, from values sorted upwards.

    With b = -k / scale the likelihood is maximal in k at k(b) = mean of log(1 - b x). b is averaged
    over a grid, weighted by this profile likelihood.
    """
    num = len(excess)
    grid = 30 + int(np.sqrt(num))
    quartile = excess[int(num / 4.0 + 0.5) - 1]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        b = (1.0 - np.sqrt(grid / (np.arange(grid) + 0.5))) / (3.0 * quartile) + 1.0 / excess[-1]
        k = np.mean(np.log1p(-b[:, None] * excess), axis=1)
        profile = num * (np.log(-b / k) - k - 1.0)
        weights = np.exp(profile - np.logaddexp.reduce(profile))
        mean_b = np.sum(b * weights)
        shape = np.mean(np.log1p(-mean_b * excess))
        scale = -shape / mean_b
    shape = (num * shape + PRIOR_SIZE * PRIOR_K) / (num + PRIOR_SIZE)
    return float(shape), float(scale)


def psis_loo(
    log_likelihood: np.ndarray,
    relative_efficiency: float = 1.0,
    counts: np.ndarray | None = None,
) -> LOO:
    """Leave-one-out cross-validation of a model from draws of its posterior, without refitting.

    Args:
        log_likelihood: log-likelihood (chains, draws, rows).
        relative_efficiency: effective sample size of the draws divided by their number.
        counts: how many equal rows each row stands for; default: one.
    """
    if np.ndim(log_likelihood) != 3:
        refuse("log_likelihood", Shown(f"shape {np.shape(log_likelihood)}"), "have 3 axes")
    terms = np.asarray(log_likelihood, np.float64).reshape(-1, np.shape(log_likelihood)[-1]).T
    rows, num = terms.shape
    log_weights, k = psis(-terms, relative_efficiency)
    elpd = np.logaddexp.reduce(log_weights + terms, axis=1)
    density = np.logaddexp.reduce(terms, axis=1) - np.log(num)
    counts = np.ones(rows, int) if counts is None else np.asarray(counts, int)
    elpd, density, k = (np.repeat(part, counts) for part in (elpd, density, k))
    se = np.sqrt(len(elpd) * np.var(elpd))
    total, p_loo = np.sum(elpd), np.sum(density) - np.sum(elpd)
    return LOO(float(total), float(se), float(p_loo), elpd, k, num, _warning(k, num))


def _warning(k: np.ndarray, num: int) -> str:
    limit = max_pareto_k(num)
    num_bad = int(np.sum(~(k <= limit)))
    if not num_bad:
        return ""
    return (
        f"Pareto k is above {limit:.2f} for {num_bad} of {len(k)} rows, so elpd_loo is unreliable:"
        " the posterior changes too much when they are left out."
    )
