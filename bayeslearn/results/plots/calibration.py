"""Plots of calibration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from bayeslearn.errors import check_whole
from bayeslearn.predictive_base import PredictiveBase
from bayeslearn.results import metrics
from bayeslearn.results.plots.style import BLACK, BLUE, GREY, SKY, add_legend, make_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def calibration_curve(
    predictive: PredictiveBase, y: ArrayLike, *, num_bins: int = 10, ax: Axes | None = None
) -> Axes:
    """Predicted against observed frequencies; on the diagonal if calibrated.

    Regression: the level of central intervals against their coverage. Classification: the
    probability of the predicted class against its accuracy; points are sized by their rows.
    """
    ax = make_axes(ax)
    ax.plot([0, 1], [0, 1], "--", color=GREY, lw=1, label="calibrated")
    if predictive.kind == "regression":
        levels = np.linspace(0.0, 1.0, 101)
        inner = np.sort(np.abs(2.0 * metrics.pit(predictive, y) - 1.0), axis=None)
        covered = np.searchsorted(inner, levels, side="right") / inner.size
        ax.plot(levels, covered, color=BLUE, label="intervals")
        error = 1.96 * np.sqrt(levels * (1.0 - levels) / inner.size)
        ax.fill_between(
            levels,
            levels - error,
            levels + error,
            color=GREY,
            alpha=0.2,
            lw=0,
            label="95% by chance",
        )
        ax.set(xlabel="level of the interval", ylabel="share of observations inside")
    else:
        table = metrics.reliability(predictive, y, num_bins)
        has = table.rows > 0
        share, confidence = table.accuracy[has], table.confidence[has]
        rows = table.rows[has]
        error = np.sqrt(confidence * (1.0 - confidence) / rows)
        ax.errorbar(confidence, confidence, 1.96 * error, fmt="none", ecolor=GREY, capsize=3)
        ax.plot(confidence, share, color=BLUE, lw=1)
        ax.scatter(
            confidence,
            share,
            s=15 + 150 * rows / rows.max(),
            color=BLUE,
            zorder=3,
            clip_on=False,
            label=f"classes (ECE {table.error:.3f})",
        )
        ax.set(xlabel="probability of the predicted class", ylabel="share of rows that were right")
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    add_legend(ax)
    return ax


def pit_histogram(
    predictive: PredictiveBase, y: ArrayLike, *, num_bins: int = 10, ax: Axes | None = None
) -> Axes:
    """Histogram of PIT values: flat if calibrated, a hump if too wide, a valley if too narrow."""
    check_whole("num_bins", num_bins, least=1)
    values = metrics.pit(predictive, y).reshape(-1)
    ax = make_axes(ax)
    edges = np.linspace(0.0, 1.0, num_bins + 1)
    ax.hist(
        values,
        edges.tolist(),
        density=True,
        label="observations",
        color=SKY,
        edgecolor=BLUE,
        alpha=0.7,
        zorder=2,
    )
    error = 1.96 * np.sqrt((num_bins - 1) / len(values))
    low, high = max(0.0, 1 - error), 1 + error
    ax.axhspan(low, high, label="95% by chance", color=GREY, alpha=0.3, lw=0, zorder=1)
    ax.axhline(1.0, ls="--", lw=1, color=BLACK, zorder=3)
    ax.set(xlabel="PIT value", ylabel="density", xlim=(0, 1))
    add_legend(ax, room=0.25)
    return ax
