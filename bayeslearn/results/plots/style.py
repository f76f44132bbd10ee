"""Colours, axes and small helpers of the plots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from bayeslearn import tree
from bayeslearn.errors import ArgumentError, Shown, refuse
from bayeslearn.tree import PyTree

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bayeslearn.results.posterior import Posterior

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, YELLOW, BLACK = "#56B4E9", "#CC79A7", "#F0E442", "#000000"
GREY = "#777777"
PALETTE = (BLUE, VERMILION, GREEN, ORANGE, SKY, PURPLE, YELLOW, BLACK)
MARKERS = "os^Dv<>P"
SIZE = (5.6, 4.0)  # inches
NATS = 2.0  # of the lower bound that are always shown
MANY = 200  # points above which they are drawn smaller


def make_axes(ax: Axes | None) -> Axes:
    """The axes, or those of a new figure."""
    if ax is not None:
        return ax
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Plots need Matplotlib: pip install 'bayeslearn[plots]'.") from error
    return Figure(figsize=SIZE, layout="constrained").subplots()


def add_legend(ax: Axes, room: float = 0.0, **options: Any) -> None:
    """A legend, with a share of the height added above for it."""
    if room:
        bottom, top = ax.get_ylim()
        ax.set_ylim(bottom, top + room * (top - bottom))
        options = {"loc": "upper center", "ncols": 3, **options}
    options = {"handlelength": 1.2, "columnspacing": 1.0, **options}
    ax.legend(frameon=True, framealpha=0.8, edgecolor="none", fontsize="small", **options)


def marker_size(num: int) -> float:
    """Size of a marker in points, smaller for many."""
    return 5.0 if num <= MANY else 3.0


def to_rgb(num_classes: int) -> np.ndarray:
    """A colour for each class: (classes, 3)."""
    colors = [PALETTE[index % len(PALETTE)] for index in range(num_classes)]
    return np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in colors])


def check_kind(posterior: Posterior, kind: str, what: str) -> None:
    """Refuse a posterior of another kind of model."""
    target = posterior.target
    found = "a bare log-density" if target.is_density else target.likelihood.kind
    if found != kind:
        raise ArgumentError(f"`{what}` needs a {kind} model; this posterior is of {found}.")


def table_of(
    posterior: Posterior, x: PyTree | None, y: ArrayLike | None
) -> tuple[np.ndarray, ArrayLike | None]:
    """Inputs as a table; the training data where none are given."""
    if x is None:
        x, own_y, _ = posterior.training_data()
        y = own_y if y is None else y
    leaves = jax.tree.leaves(x)
    if len(leaves) != 1 or np.ndim(leaves[0]) != 2:
        refuse("x", Shown("inputs that are no table"), "be (rows, columns) to be plotted")
    return np.asarray(leaves[0], np.float64), y


def line_through(
    x: np.ndarray, along: int | str, num_points: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
    """Rows on a line through the data's mean, their places on it, and the data's own."""
    center = x.mean(axis=0)
    if along == "principal":
        direction = np.linalg.svd(x - center, full_matrices=False)[2][0]
        direction = direction * np.sign(direction[np.argmax(np.abs(direction))])
        at, label = (x - center) @ direction, "first principal component of x"
    else:
        column = along if isinstance(along, int | np.integer) else -1
        if isinstance(along, bool) or not 0 <= column < x.shape[1]:
            refuse("along", along, f'be a column of x (0 to {x.shape[1] - 1}) or "principal"')
        direction = np.eye(x.shape[1])[column]
        center = center - center[column] * direction
        at, label = x[:, column], "x" if x.shape[1] == 1 else f"x[{column}]"
    low, high = padded_range(at[:, None], 0.15)
    place = np.linspace(low[0], high[0], num_points)
    return center + place[:, None] * direction, place, at, label


def padded_range(x: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """The range of each column, with a margin of `share` on both sides."""
    low, high = x.min(axis=0), x.max(axis=0)
    room = share * np.where(high > low, high - low, 1.0)
    return low - room, high + room


def column_index(values: np.ndarray, output: int) -> np.ndarray:
    """One column of values (rows,) or (rows, columns)."""
    values = np.asarray(values)
    if values.ndim == 1:
        return values
    if not 0 <= output < values.shape[1]:
        refuse("output", output, f"be a column of y (0 to {values.shape[1] - 1})")
    return values[:, output]


def normal_quantile(q: float) -> float:
    """Quantile of the standard normal distribution."""

    from statistics import NormalDist

    return NormalDist().inv_cdf(q)


def weight_name(params: PyTree, weight: int) -> str:
    """The leaf that holds this weight of the vector, and its place in it."""
    for name, leaf in zip(tree.leaf_names(params), jax.tree.leaves(params), strict=True):
        if weight < np.size(leaf):
            index = np.unravel_index(weight, np.shape(leaf))
            return name.removeprefix("network.") + (f"{[int(i) for i in index]}" if index else "")
        weight -= np.size(leaf)
    raise AssertionError
