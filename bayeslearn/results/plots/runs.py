"""Plots of runs and of weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import numpy as np

from bayeslearn import tree
from bayeslearn.errors import ArgumentError, refuse
from bayeslearn.families import Draws
from bayeslearn.models.priors.gaussian import GaussianPrior
from bayeslearn.precision import double_precision
from bayeslearn.results import diagnostics
from bayeslearn.results.plots.style import (
    BLACK,
    BLUE,
    GREY,
    NATS,
    ORANGE,
    PALETTE,
    SKY,
    VERMILION,
    add_legend,
    make_axes,
    weight_name,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bayeslearn.results.posterior import Posterior


def lower_bound_trace(posterior: Posterior, *, ax: Axes | None = None) -> Axes:
    """The lower bound over the steps (for a point: the log-joint), and the value reported.

    The first steps may lie below the picture, so that the last nats can be seen.
    """
    trace = posterior.trace
    name = next((n for n in ("elbo", "log_joint", "objective") if f"eval_{n}" in trace), None)
    if name is None:
        raise ArgumentError(
            f"{posterior.algorithm.name} has no lower bound to plot: use chain_traces."
        )
    steps, values = np.asarray(trace["eval_step"]), np.asarray(trace[f"eval_{name}"])
    ax = make_axes(ax)
    marker = "o" if len(steps) == 1 else ""
    ax.plot(steps, values, color=BLUE, marker=marker, label="at each evaluation")
    if name == "elbo" and posterior.elbo is not None:
        ax.axhline(posterior.elbo, color=VERMILION, ls="--", lw=1, label="of the result")
    shown = np.append(values, posterior.elbo if posterior.elbo is not None else values[-1])
    low, high = np.quantile(shown, 0.1), shown.max()
    room = 0.3 * (high - low) or 0.05 * abs(high) or 1.0
    bottom = max(min(low - room, high - NATS), shown.min() - 0.3 * room)
    ax.set(
        xlabel="step", ylabel=name.replace("_", "-"), ylim=(bottom, high + 0.08 * (high - bottom))
    )
    add_legend(ax, loc="lower right")
    return ax


@double_precision
def chain_traces(
    posterior: Posterior, weight: int | None = None, *, ax: Axes | None = None
) -> Axes:
    """The log-density of a sampler's draws, chain by chain, and its R-hat; or one weight.

    `weight` is the weight's place in the vector of all of them.
    """
    family = posterior.family
    if not isinstance(family, Draws) or "log_density" not in posterior.trace:
        raise ArgumentError(
            f"This posterior by {posterior.algorithm.name} has no chains: use lower_bound_trace."
        )
    if weight is None:
        values, label = np.asarray(posterior.trace["log_density"]), "log-density"
    else:
        matrix = np.asarray(family.matrix())
        if not 0 <= weight < matrix.shape[1]:
            refuse("weight", weight, f"be a whole number from 0 to {matrix.shape[1] - 1}")
        values = matrix[:, weight].reshape(family.num_chains, -1)
        label = weight_name(family.mean, weight)
    rhat = float(diagnostics.convergence(values[:, :, None])[0][0])
    ax = make_axes(ax)
    for index, chain in enumerate(values):
        color = PALETTE[index % len(PALETTE)]
        ax.plot(chain, color=color, lw=0.8, alpha=0.8, label=f"chain {index}")
    ax.set(xlabel="draw", ylabel=label)
    ax.set_title(
        "one chain: no R-hat" if np.isnan(rhat) else f"R-hat {rhat:.3f}", fontsize="medium"
    )
    ax.margins(x=0.01)
    if len(values) <= len(PALETTE):
        add_legend(ax, room=0.3, ncols=min(4, len(values)))
    return ax


def rhat(posterior: Posterior, *, ax: Axes | None = None) -> Axes:
    """R-hat of predictions at training rows and of single weights, in order of size.

    Hidden units can be swapped without changing the predictions: judge by the predictions.
    """
    found = posterior.diagnostics()
    ax = make_axes(ax)
    for values, color, marker, label in (
        (found.rhat_weights, ORANGE, "s", "weights"),
        (found.rhat_predictions, BLUE, "o", "predictions"),
    ):
        values = np.sort(values[np.isfinite(values)])
        share = np.linspace(0.0, 1.0, len(values))
        ax.plot(share, values, marker, color=color, ms=4, alpha=0.8, label=label)
    ax.axhline(
        diagnostics.MAX_RHAT, color=VERMILION, ls="--", lw=1, label=f"limit {diagnostics.MAX_RHAT}"
    )
    ax.set(xlabel="share of quantities", ylabel="R-hat")
    ax.ticklabel_format(useOffset=False)
    add_legend(ax)
    return ax


@double_precision
def weight_widths(posterior: Posterior, *, ax: Axes | None = None) -> Axes:
    """Posterior standard deviations of the weights by leaf, beside the prior's where it has them.

    Leaves as wide as their prior have learned little.
    """
    kept = leaf_widths(posterior)
    if not any(len(part) for _, part, _ in kept):
        raise ArgumentError(
            f"The weights of {posterior.algorithm.name} have no variance: it gives a single point."
        )
    places = np.arange(len(kept), 0, -1)
    ax = make_axes(ax)
    full = [(place, part) for place, (_, part, _) in zip(places, kept, strict=True) if len(part)]
    ax.boxplot(
        [part for _, part in full],
        positions=[place for place, _ in full],
        orientation="horizontal",
        widths=0.5,
        patch_artist=True,
        boxprops={"facecolor": SKY, "edgecolor": BLUE, "alpha": 0.7},
        medianprops={"color": BLACK},
        whiskerprops={"color": BLUE},
        capprops={"color": BLUE},
        flierprops={"marker": ".", "markersize": 3, "markeredgecolor": GREY},
    )
    scales = [scale for _, _, scale in kept]
    if not np.all(np.isnan(scales)):
        ax.plot(scales, places, "D", color=VERMILION, ms=6, zorder=4, label="prior")
        add_legend(ax)
    ax.set_yticks(places, [name for name, _, _ in kept])
    ax.set_xscale("log")
    ax.set_xlabel("standard deviation of a weight")
    ax.set_ylim(0.3, len(kept) + 0.7)
    return ax


@double_precision
def leaf_widths(posterior: Posterior) -> list[tuple[str, np.ndarray, float]]:
    """Name, standard deviations above zero, and the prior's middle one (or NaN) of each leaf."""
    family, prior = posterior.family, posterior.target.prior
    scales: dict[str, float] = {}
    if isinstance(prior, GaussianPrior):
        # A covariance that a sampler drew along has no prior of this form.
        leaves = zip(tree.leaf_names(prior.prec), jax.tree.leaves(prior.prec), strict=True)
        scales = {name: float(np.median(np.asarray(prec) ** -0.5)) for name, prec in leaves}
    stds = zip(tree.leaf_names(family.mean), jax.tree.leaves(family.std), strict=True)
    widths = [(name, np.asarray(leaf).reshape(-1)) for name, leaf in stds]
    return [
        (name.removeprefix("network."), part[part > 0], scales.get(name, np.nan))
        for name, part in widths
    ]
