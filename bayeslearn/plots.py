"""Pictures of predictives and posteriors, drawn with Matplotlib.

Every function draws on `ax` and returns it. Without one it makes a figure of its own, apart from
pyplot's, so that it works without a display and in threads: `ax.figure.savefig("band.png")`.
Colours are those of Okabe and Ito, which colour-blind readers can tell apart.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from bayeslearn import diagnostics, metrics, tree
from bayeslearn.errors import ArgumentError, Shown, check_whole, refuse
from bayeslearn.precision import double_precision
from bayeslearn.priors import GaussianPrior

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, YELLOW, BLACK = "#56B4E9", "#CC79A7", "#F0E442", "#000000"
GREY = "#777777"
PALETTE = (BLUE, VERMILION, GREEN, ORANGE, SKY, PURPLE, YELLOW, BLACK)
MARKERS = "os^Dv<>P"
SIZE = (5.6, 4.0)  # inches
NATS = 2.0  # of the lower bound that are always shown
MANY = 200  # points above which they are drawn smaller


# Predictions over the inputs


def predictive_band(
    posterior: Any,
    x: Any = None,
    y: Any = None,
    *,
    along: int | str = 0,
    level: float = 0.9,
    output: int = 0,
    num_points: int = 200,
    ax: Any = None,
) -> Any:
    """Predictive mean and intervals over one input, with the data.

    The wide band is for a new observation, the narrow one for its mean (epistemic doubt alone,
    as if Gaussian). `x` and `y` are the training data unless given. With several inputs the line
    runs along column `along`, or along the first principal component ("principal"), through the
    mean of the others, and a point is the line plus the residual at its own row: what the other
    inputs explain is taken off. `output` is the column of y.
    """
    _need(posterior, "regression", "predictive_band")
    x, y = _data(posterior, x, y)
    grid, place, at, label = _line(x, along, num_points)
    predictive = posterior.predict(grid)
    lower, upper = predictive.interval(level)
    mean, epistemic, lower, upper = (
        _column(part, output) for part in (predictive.mean, predictive.epistemic, lower, upper)
    )
    z = _normal_quantile(0.5 + 0.5 * level)
    ax = _axes(ax)
    ax.fill_between(place, lower, upper, color=SKY, alpha=0.35, lw=0, label=f"{level:.0%} interval")
    narrow = z * np.sqrt(epistemic)
    ax.fill_between(
        place, mean - narrow, mean + narrow, color=BLUE, alpha=0.4, lw=0, label="of the mean"
    )
    ax.plot(place, mean, color=BLUE, label="mean")
    if y is not None:
        observed, shown = _column(np.asarray(y), output), "data"
        if x.shape[1] > 1:
            residual = observed - _column(posterior.predict(x).mean, output)
            observed, shown = np.interp(at, place, mean) + residual, "line + residual"
        ax.plot(at, observed, ".", color=BLACK, ms=_size(len(at)), alpha=0.7, label=shown)
    ax.set(xlabel=label, ylabel="y")
    ax.margins(x=0)
    _legend(ax)
    return ax


def decision_regions(
    posterior: Any,
    x: Any = None,
    y: Any = None,
    *,
    what: str = "probs",
    num_points: int = 120,
    ax: Any = None,
) -> Any:
    """Classes over two inputs: colours mixed by their probabilities, and the data.

    `what="epistemic"` or `"aleatoric"` shows that doubt in nats instead. `x` and `y` are the
    training data unless given.
    """
    _need(posterior, "classification", "decision_regions")
    choices = ("probs", "epistemic", "aleatoric")
    if what not in choices:
        refuse("what", what, "be one of " + ", ".join(map(repr, choices)))
    x, y = _data(posterior, x, y)
    if x.shape[1] != 2:
        refuse("x", Shown(f"{x.shape[1]} columns"), "have two columns")
    low, high = _padded(x, 0.1)
    across, up = (np.linspace(low[i], high[i], num_points) for i in (0, 1))
    rows = np.stack(np.meshgrid(across, up), axis=-1).reshape(-1, 2)
    predictive = posterior.predict(rows)
    ax = _axes(ax)
    extent = (low[0], high[0], low[1], high[1])
    shape = (num_points, num_points)
    if what == "probs":
        probs = predictive.probs
        mixed = 0.55 * probs @ _rgb(probs.shape[1]) + 0.45  # paler than the points on it
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
                *x[labels == index].T,
                s=4 * _size(len(x)),
                color=PALETTE[index % len(PALETTE)],
                marker=MARKERS[index % len(MARKERS)],
                edgecolors="white",
                linewidths=0.5,
                label=f"class {index}",
            )
        _legend(ax)
    ax.set(xlabel="x[0]", ylabel="x[1]", xlim=extent[:2], ylim=extent[2:])
    return ax


# Predictions against observations


def calibration_curve(predictive: Any, y: Any, *, num_bins: int = 10, ax: Any = None) -> Any:
    """What was promised against what came true; on the diagonal if calibrated.

    Regression: the level of central intervals against their coverage. Classes: the probability of
    the predicted class against how often it was right, the points as large as their rows are many.
    """
    ax = _axes(ax)
    ax.plot([0, 1], [0, 1], "--", color=GREY, lw=1, label="calibrated")
    if predictive.kind == "regression":
        levels = np.linspace(0.0, 1.0, 101)
        inner = np.sort(np.abs(2.0 * metrics.pit(predictive, y) - 1.0), axis=None)
        covered = np.searchsorted(inner, levels, side="right") / inner.size
        ax.plot(levels, covered, color=BLUE, label="intervals")
        error = 1.96 * np.sqrt(levels * (1.0 - levels) / inner.size)
        ax.fill_between(
            levels, levels - error, levels + error, color=GREY, alpha=0.2, lw=0, label="95% by luck"
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
    _legend(ax)
    return ax


def pit_histogram(predictive: Any, y: Any, *, num_bins: int = 10, ax: Any = None) -> Any:
    """Histogram of PIT values: flat if calibrated, a hump if too wide, a valley if too narrow."""
    check_whole("num_bins", num_bins, least=1)
    values = metrics.pit(predictive, y).reshape(-1)
    ax = _axes(ax)
    edges = np.linspace(0.0, 1.0, num_bins + 1)
    style = {"color": SKY, "edgecolor": BLUE, "alpha": 0.7, "zorder": 2}
    ax.hist(values, edges, density=True, label="observations", **style)
    error = 1.96 * np.sqrt((num_bins - 1) / len(values))
    band = {"color": GREY, "alpha": 0.3, "lw": 0, "zorder": 1}
    ax.axhspan(max(0.0, 1 - error), 1 + error, label="95% by luck", **band)
    ax.axhline(1.0, ls="--", lw=1, color=BLACK, zorder=3)
    ax.set(xlabel="PIT value", ylabel="density", xlim=(0, 1))
    _legend(ax, room=0.25)
    return ax


def intervals_against_residuals(
    predictive: Any, y: Any, *, level: float = 0.9, output: int = 0, ax: Any = None
) -> Any:
    """Residuals inside their intervals, rows in order of the interval's width.

    Where doubt is informative the residuals fan out with the band.
    """
    lower, upper = predictive.interval(level)
    parts = (predictive.mean, lower, upper, predictive.like_mean(y))
    mean, lower, upper, observed = (_column(part, output) for part in parts)
    order = np.argsort(upper - lower, kind="stable")
    mean, lower, upper, observed = (part[order] for part in (mean, lower, upper, observed))
    rank = np.arange(len(mean))
    inside = (lower <= observed) & (observed <= upper)
    ax = _axes(ax)
    ax.fill_between(
        rank, lower - mean, upper - mean, color=SKY, alpha=0.4, lw=0, label=f"{level:.0%} interval"
    )
    ax.axhline(0.0, color=GREY, lw=1, ls="--")
    size = _size(len(mean))
    for chosen, color, marker, label in (
        (inside, BLUE, "o", f"inside ({np.mean(inside):.0%})"),
        (~inside, VERMILION, "x", f"outside ({np.mean(~inside):.0%})"),
    ):
        residual = (observed - mean)[chosen]
        ax.plot(rank[chosen], residual, marker, color=color, ms=0.6 * size, label=label)
    ax.set(xlabel="rows, from sure to unsure", ylabel="observation - mean")
    ax.margins(x=0.01)
    _legend(ax, room=0.25)
    return ax


def epistemic_against_aleatoric(
    predictive: Any, y: Any = None, *, output: int = 0, ax: Any = None
) -> Any:
    """The two kinds of doubt at each row; with `y` of a classifier, which rows were wrong."""
    is_classes = predictive.kind == "classification"
    epistemic, aleatoric = (
        _column(part, output) for part in (predictive.epistemic, predictive.aleatoric)
    )
    ax = _axes(ax)
    size = 0.8 * _size(len(epistemic))
    if is_classes and y is not None:
        wrong = predictive.probs.argmax(axis=1) != predictive.like_mean(y)
        for chosen, color, marker, label in (
            (~wrong, BLUE, "o", "right"),
            (wrong, VERMILION, "x", "wrong"),
        ):
            style = {"color": color, "ms": size, "alpha": 0.7, "label": label}
            ax.plot(aleatoric[chosen], epistemic[chosen], marker, **style)
        _legend(ax, room=0.2)
    else:
        ax.plot(aleatoric, epistemic, "o", color=BLUE, ms=size, alpha=0.7)
    unit = " (nats)" if is_classes else " (variance)"
    ax.set(xlabel="aleatoric" + unit, ylabel="epistemic" + unit)
    if np.ptp(aleatoric) <= 1e-9 * np.max(np.abs(aleatoric)):  # the same noise everywhere
        ax.set_xlim(0.0, 2.0 * float(np.max(aleatoric)))
    ax.set_ylim(bottom=0.0)
    return ax


# The run


def lower_bound_trace(posterior: Any, *, ax: Any = None) -> Any:
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
    ax = _axes(ax)
    marker = "o" if len(steps) == 1 else ""
    ax.plot(steps, values, color=BLUE, marker=marker, label="at each evaluation")
    if name == "elbo" and posterior.elbo is not None:
        ax.axhline(posterior.elbo, color=VERMILION, ls="--", lw=1, label="of the result")
    told = np.append(values, posterior.elbo if posterior.elbo is not None else values[-1])
    low, high = np.quantile(told, 0.1), told.max()
    room = 0.3 * (high - low) or 0.05 * abs(high) or 1.0
    bottom = max(min(low - room, high - NATS), told.min() - 0.3 * room)
    ax.set(
        xlabel="step", ylabel=name.replace("_", "-"), ylim=(bottom, high + 0.08 * (high - bottom))
    )
    _legend(ax, loc="lower right")
    return ax


@double_precision
def chain_traces(posterior: Any, weight: int | None = None, *, ax: Any = None) -> Any:
    """The log-density of a sampler's draws, chain by chain, and its R-hat; or one weight.

    `weight` is the weight's place in the vector of all of them.
    """
    if posterior.draws is None or "log_density" not in posterior.trace:
        raise ArgumentError(
            f"This posterior by {posterior.algorithm.name} has no chains: use lower_bound_trace."
        )
    if weight is None:
        values, label = np.asarray(posterior.trace["log_density"]), "log-density"
    else:
        matrix = np.asarray(posterior.family.matrix())
        if not 0 <= weight < matrix.shape[1]:
            refuse("weight", weight, f"be a whole number from 0 to {matrix.shape[1] - 1}")
        values = matrix[:, weight].reshape(posterior.family.num_chains, -1)
        label = _weight_name(posterior.family.mean, weight)
    rhat = float(diagnostics.convergence(values[:, :, None])[0][0])
    ax = _axes(ax)
    for index, chain in enumerate(values):
        color = PALETTE[index % len(PALETTE)]
        ax.plot(chain, color=color, lw=0.8, alpha=0.8, label=f"chain {index}")
    ax.set(xlabel="draw", ylabel=label)
    ax.set_title(
        "one chain: no R-hat" if np.isnan(rhat) else f"R-hat {rhat:.3f}", fontsize="medium"
    )
    ax.margins(x=0.01)
    if len(values) <= len(PALETTE):
        _legend(ax, room=0.3, ncols=min(4, len(values)))
    return ax


def rhat(posterior: Any, *, ax: Any = None) -> Any:
    """R-hat of predictions at training rows and of single weights, in order of size.

    Hidden units can be swapped without changing the predictions: judge by the predictions.
    """
    found = posterior.diagnostics()
    ax = _axes(ax)
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
    _legend(ax)
    return ax


@double_precision
def weight_widths(posterior: Any, *, ax: Any = None) -> Any:
    """Posterior standard deviations of the weights by leaf, beside the prior's where it has them.

    Leaves as wide as their prior have learned little.
    """
    kept = leaf_widths(posterior)
    if not any(len(part) for _, part, _ in kept):
        raise ArgumentError(
            f"The weights of {posterior.algorithm.name} have no spread: it leaves a single point."
        )
    places = np.arange(len(kept), 0, -1)
    ax = _axes(ax)
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
        _legend(ax)
    ax.set_yticks(places, [name for name, _, _ in kept])
    ax.set_xscale("log")
    ax.set_xlabel("standard deviation of a weight")
    ax.set_ylim(0.3, len(kept) + 0.7)
    return ax


@double_precision
def leaf_widths(posterior: Any) -> list[tuple[str, np.ndarray, float]]:
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


# How it is drawn


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Plots need Matplotlib: pip install 'bayeslearn[plots]'.") from error
    return Figure(figsize=SIZE, layout="constrained").subplots()


def _legend(ax: Any, room: float = 0.0, **options: Any) -> None:
    """A legend, with a share of the height added above for it."""
    if room:
        bottom, top = ax.get_ylim()
        ax.set_ylim(bottom, top + room * (top - bottom))
        options = {"loc": "upper center", "ncols": 3, **options}
    options = {"handlelength": 1.2, "columnspacing": 1.0, **options}
    ax.legend(frameon=True, framealpha=0.8, edgecolor="none", fontsize="small", **options)


def _size(num: int) -> float:
    return 5.0 if num <= MANY else 3.0


def _rgb(num_classes: int) -> np.ndarray:
    colors = [PALETTE[index % len(PALETTE)] for index in range(num_classes)]
    return np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in colors])


def _need(posterior: Any, kind: str, what: str) -> None:
    target = posterior.target
    found = "a bare log-density" if target.is_density else target.likelihood.kind
    if found != kind:
        raise ArgumentError(f"`{what}` needs a {kind} model; this posterior is of {found}.")


def _data(posterior: Any, x: Any, y: Any) -> tuple[np.ndarray, Any]:
    """Inputs as a table; the training data where none are given."""
    data = posterior.target.data
    if x is None:
        x, y = data.x, np.asarray(data.y) if y is None else y
    leaves = jax.tree.leaves(x)
    if len(leaves) != 1 or np.ndim(leaves[0]) != 2:
        refuse("x", Shown("inputs that are no table"), "be (rows, columns) to be plotted")
    return np.asarray(leaves[0], np.float64), y


def _line(
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
    low, high = _padded(at[:, None], 0.15)
    place = np.linspace(low[0], high[0], num_points)
    return center + place[:, None] * direction, place, at, label


def _padded(x: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    low, high = x.min(axis=0), x.max(axis=0)
    room = share * np.where(high > low, high - low, 1.0)
    return low - room, high + room


def _column(values: np.ndarray, output: int) -> np.ndarray:
    values = np.asarray(values)
    if values.ndim == 1:
        return values
    if not 0 <= output < values.shape[1]:
        refuse("output", output, f"be a column of y (0 to {values.shape[1] - 1})")
    return values[:, output]


def _normal_quantile(q: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(q)


def _weight_name(params: Any, weight: int) -> str:
    """The leaf that holds this weight of the vector, and its place in it."""
    for name, leaf in zip(tree.leaf_names(params), jax.tree.leaves(params), strict=True):
        if weight < np.size(leaf):
            index = np.unravel_index(weight, np.shape(leaf))
            return name.removeprefix("network.") + (f"{[int(i) for i in index]}" if index else "")
        weight -= np.size(leaf)
    raise AssertionError
