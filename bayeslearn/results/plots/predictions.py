"""Plots of predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from bayeslearn.errors import Shown, refuse
from bayeslearn.predictive_base import PredictiveBase
from bayeslearn.results.plots.style import (
    BLACK,
    BLUE,
    GREY,
    MARKERS,
    PALETTE,
    SKY,
    VERMILION,
    add_legend,
    check_kind,
    column_index,
    line_through,
    make_axes,
    marker_size,
    normal_quantile,
    padded_range,
    table_of,
    to_rgb,
)
from bayeslearn.tree import PyTree

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bayeslearn.results.posterior import Posterior


def predictive_band(
    posterior: Posterior,
    x: PyTree | None = None,
    y: ArrayLike | None = None,
    *,
    along: int | str = 0,
    level: float = 0.9,
    output: int = 0,
    num_points: int = 200,
    ax: Axes | None = None,
) -> Axes:
    """Predictive mean and intervals over one input, with the data.

    The wide band is for a new observation, the narrow one for its mean (epistemic uncertainty
    alone, as a Gaussian). `x` and `y` default to the training data. With several inputs the line
    runs along column `along`, or along the first principal component ("principal"), through the
    mean of the others, and points are partial residuals: the line plus the residual of their row.
    `output` is the column of y.
    """
    check_kind(posterior, "regression", "predictive_band")
    x, y = table_of(posterior, x, y)
    grid, place, at, label = line_through(x, along, num_points)
    predictive = posterior.predict(grid)
    lower, upper = predictive.interval(level)
    mean, epistemic, lower, upper = (
        column_index(part, output) for part in (predictive.mean, predictive.epistemic, lower, upper)
    )
    z = normal_quantile(0.5 + 0.5 * level)
    ax = make_axes(ax)
    ax.fill_between(place, lower, upper, color=SKY, alpha=0.35, lw=0, label=f"{level:.0%} interval")
    narrow = z * np.sqrt(epistemic)
    ax.fill_between(
        place, mean - narrow, mean + narrow, color=BLUE, alpha=0.4, lw=0, label="of the mean"
    )
    ax.plot(place, mean, color=BLUE, label="mean")
    if y is not None:
        observed, shown = column_index(np.asarray(y), output), "data"
        if x.shape[1] > 1:
            residual = observed - column_index(posterior.predict(x).mean, output)
            observed, shown = np.interp(at, place, mean) + residual, "line + residual"
        ax.plot(at, observed, ".", color=BLACK, ms=marker_size(len(at)), alpha=0.7, label=shown)
    ax.set(xlabel=label, ylabel="y")
    ax.margins(x=0)
    add_legend(ax)
    return ax


def decision_regions(
    posterior: Posterior,
    x: PyTree | None = None,
    y: ArrayLike | None = None,
    *,
    what: str = "probs",
    num_points: int = 120,
    ax: Axes | None = None,
) -> Axes:
    """Classes over two inputs: colours mixed by their probabilities, and the data.

    `what="epistemic"` or `"aleatoric"` shows that uncertainty in nats instead. `x` and `y` default
    to the training data.
    """
    check_kind(posterior, "classification", "decision_regions")
    choices = ("probs", "epistemic", "aleatoric")
    if what not in choices:
        refuse("what", what, "be one of " + ", ".join(map(repr, choices)))
    x, y = table_of(posterior, x, y)
    if x.shape[1] != 2:
        refuse("x", Shown(f"{x.shape[1]} columns"), "have two columns")
    low, high = padded_range(x, 0.1)
    across, up = (np.linspace(low[i], high[i], num_points) for i in (0, 1))
    rows = np.stack(np.meshgrid(across, up), axis=-1).reshape(-1, 2)
    predictive = posterior.predict(rows)
    ax = make_axes(ax)
    extent = (low[0], high[0], low[1], high[1])
    shape = (num_points, num_points)
    if what == "probs":
        probs = predictive.probs
        mixed = 0.55 * probs @ to_rgb(probs.shape[1]) + 0.45  # paler than the points on it
        ax.imshow(mixed.reshape(*shape, 3), extent=extent, origin="lower", aspect="auto")
        for index in range(1 if probs.shape[1] == 2 else 0, probs.shape[1]):
            others = np.max(np.delete(probs, index, axis=1), axis=1)
            margin = (probs[:, index] - others).reshape(shape)
            if margin.min() < 0 < margin.max():
                ax.contour(across, up, margin, [0.0], colors=BLACK, linewidths=1)
    else:
        values = getattr(predictive, what).reshape(shape)
        image = ax.imshow(values, extent=extent, origin="lower", aspect="auto", cmap="cividis")
        ax.figure.colorbar(image, ax=ax, label=f"{what} (nats)")
    if y is not None:
        labels = np.asarray(y).reshape(-1)
        for index in np.unique(labels).astype(int):
            ax.scatter(
                x[labels == index, 0],
                x[labels == index, 1],
                s=4 * marker_size(len(x)),
                color=PALETTE[index % len(PALETTE)],
                marker=MARKERS[index % len(MARKERS)],
                edgecolors="white",
                linewidths=0.5,
                label=f"class {index}",
            )
        add_legend(ax)
    ax.set(xlabel="x[0]", ylabel="x[1]", xlim=extent[:2], ylim=extent[2:])
    return ax


def intervals_against_residuals(
    predictive: PredictiveBase,
    y: ArrayLike,
    *,
    level: float = 0.9,
    output: int = 0,
    ax: Axes | None = None,
) -> Axes:
    """Residuals inside their intervals, rows in order of the interval's width.

    Where the uncertainty is informative, residuals fan out with the band.
    """
    lower, upper = predictive.interval(level)
    parts = (predictive.mean, lower, upper, predictive.align_y(y))
    mean, lower, upper, observed = (column_index(part, output) for part in parts)
    order = np.argsort(upper - lower, kind="stable")
    mean, lower, upper, observed = (part[order] for part in (mean, lower, upper, observed))
    rank = np.arange(len(mean))
    inside = (lower <= observed) & (observed <= upper)
    ax = make_axes(ax)
    ax.fill_between(
        rank, lower - mean, upper - mean, color=SKY, alpha=0.4, lw=0, label=f"{level:.0%} interval"
    )
    ax.axhline(0.0, color=GREY, lw=1, ls="--")
    size = marker_size(len(mean))
    for chosen, color, marker, label in (
        (inside, BLUE, "o", f"inside ({np.mean(inside):.0%})"),
        (~inside, VERMILION, "x", f"outside ({np.mean(~inside):.0%})"),
    ):
        residual = (observed - mean)[chosen]
        ax.plot(rank[chosen], residual, marker, color=color, ms=0.6 * size, label=label)
    ax.set(xlabel="rows, from sure to unsure", ylabel="observation - mean")
    ax.margins(x=0.01)
    add_legend(ax, room=0.25)
    return ax


def epistemic_against_aleatoric(
    predictive: PredictiveBase,
    y: ArrayLike | None = None,
    *,
    output: int = 0,
    ax: Axes | None = None,
) -> Axes:
    """The two kinds of uncertainty at each row; with `y` of a classifier, which rows were wrong."""
    is_classes = predictive.kind == "classification"
    epistemic, aleatoric = (
        column_index(part, output) for part in (predictive.epistemic, predictive.aleatoric)
    )
    ax = make_axes(ax)
    size = 0.8 * marker_size(len(epistemic))
    if is_classes and y is not None:
        wrong = predictive.probs.argmax(axis=1) != predictive.align_y(y)
        for chosen, color, marker, label in (
            (~wrong, BLUE, "o", "right"),
            (wrong, VERMILION, "x", "wrong"),
        ):
            pair = aleatoric[chosen], epistemic[chosen]
            ax.plot(*pair, marker, color=color, ms=size, alpha=0.7, label=label)
        add_legend(ax, room=0.2)
    else:
        ax.plot(aleatoric, epistemic, "o", color=BLUE, ms=size, alpha=0.7)
    unit = " (nats)" if is_classes else " (variance)"
    ax.set(xlabel="aleatoric" + unit, ylabel="epistemic" + unit)
    if np.ptp(aleatoric) <= 1e-9 * np.max(np.abs(aleatoric)):  # the same noise everywhere
        ax.set_xlim(0.0, 2.0 * float(np.max(aleatoric)))
    ax.set_ylim(bottom=0.0)
    return ax
