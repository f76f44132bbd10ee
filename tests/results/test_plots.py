"""Every plot draws the numbers it should, and can be saved without a display."""

from __future__ import annotations

import dataclasses
import io
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import problems
import pytest
from matplotlib.collections import FillBetweenPolyCollection, PathCollection
from matplotlib.figure import Figure

import bayeslearn as bl
from bayeslearn.errors import ArgumentError
from bayeslearn.results import metrics
from bayeslearn.results.plots import calibration, predictions, runs, style


@pytest.fixture(scope="module")
def problem():
    return problems.regression()


@pytest.fixture(scope="module")
def line(problem):
    """Four inputs, with a lower bound to trace."""
    return bl.fit(problem.model, bl.NGVI(), (problem.x, problem.y), seed=0, num_steps=40)


@pytest.fixture(scope="module")
def curve():
    """One input, two columns of y."""
    x, y = problems.wiggle(40)
    model = bl.Model(bl.networks.MLP([]), bl.likelihoods.Gaussian())
    return bl.fit(model, "laplace", (x, np.stack([y, 10 + y], axis=1)), seed=0)


@pytest.fixture(scope="module")
def labels():
    x, y = problems.two_classes()
    model = bl.Model(bl.networks.MLP([]), bl.likelihoods.Categorical(num_classes=3))
    return bl.fit(model, "laplace", (x, y + (x[:, 0] > 2)), seed=0)


@pytest.fixture(scope="module")
def chains(problem):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bl.fit(
            problem.model, problems.quick("hmc"), (problem.x, problem.y), seed=0, num_chains=3
        )


def saved(ax):
    """The picture as PNG; also that it stands apart from pyplot's figures."""
    file = io.BytesIO()
    ax.figure.savefig(file, format="png")
    assert file.getvalue().startswith(b"\x89PNG")
    if "matplotlib.pyplot" in sys.modules:
        assert sys.modules["matplotlib.pyplot"].get_fignums() == []
    return ax


def named(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def data_of(ax, label):
    (line,) = (part for part in ax.lines if part.get_label() == label)
    return line.get_xydata().T


def bands(ax):
    return [part for part in ax.collections if isinstance(part, FillBetweenPolyCollection)]


def test_predictive_band_over_one_input(curve):
    ax = saved(predictions.predictive_band(curve, output=1, level=0.8, num_points=50))
    assert named(ax) == ["80% interval", "of the mean", "mean", "data"]
    place, mean = data_of(ax, "mean")
    p = curve.predict(place[:, None])
    np.testing.assert_allclose(mean, p.mean[:, 1], rtol=1e-5)
    wide, narrow = (band.get_datalim(ax.transData) for band in bands(ax))
    assert wide.y0 == pytest.approx(p.interval(0.8)[0][:, 1].min(), rel=1e-5)
    assert wide.y0 < narrow.y0 < mean.min() < mean.max() < narrow.y1 < wide.y1
    np.testing.assert_allclose(data_of(ax, "data")[1], curve.target.data.y[:, 1])
    with pytest.raises(ArgumentError, match=r"`output` must be a column of y \(0 to 1\)"):
        predictions.predictive_band(curve, output=2)


@pytest.mark.parametrize("along", [2, "principal"])
def test_predictive_band_along_a_line(problem, line, along):
    """Residuals from the line are those from the predictions, wherever a row lies."""
    ax = saved(predictions.predictive_band(line, problem.x, problem.y, along=along))
    place, mean = data_of(ax, "mean")
    at, points = data_of(ax, "line + residual")
    residual = problem.y - line.predict(problem.x).mean
    np.testing.assert_allclose(points - np.interp(at, place, mean), residual, atol=1e-9)
    slope = np.diff(mean) / np.diff(place)
    weights = line.predict(np.eye(4)).mean
    if along == 2:
        np.testing.assert_allclose(slope, weights[2], rtol=1e-6)
    else:
        direction = np.linalg.eigh(np.cov(problem.x.T))[1][:, -1]
        np.testing.assert_allclose(np.abs(slope), np.abs(weights @ direction), rtol=1e-6)
    with pytest.raises(ArgumentError, match=r"`along` must be a column of x \(0 to 3\)"):
        predictions.predictive_band(line, along=4)


def test_decision_regions(labels):
    ax = saved(predictions.decision_regions(labels, num_points=30))
    assert named(ax) == ["class 0", "class 1", "class 2"]
    points = [part for part in ax.collections if isinstance(part, PathCollection)]
    assert sum(len(part.get_offsets()) for part in points) == 120
    pixels = np.asarray(ax.images[0].get_array())
    assert pixels.shape == (30, 30, 3)
    # The first pixel is the lower left corner, where class 0 is sure.
    x0, _, y0, _ = ax.images[0].get_extent()
    probs = labels.predict([[x0, y0]]).probs[0]
    np.testing.assert_allclose(pixels[0, 0], 0.45 + 0.55 * probs @ style.to_rgb(3), rtol=1e-4)
    figure = saved(predictions.decision_regions(labels, what="epistemic", num_points=20))
    assert np.asarray(figure.images[0].get_array()).min() >= 0
    with pytest.raises(ArgumentError, match="`what` must be one of"):
        predictions.decision_regions(labels, what="doubt")


def test_calibration_of_intervals(problem, line):
    p = line.predict(problem.x)
    ax = saved(calibration.calibration_curve(p, problem.y))
    levels, covered = data_of(ax, "intervals")
    for index in (25, 50, 90):
        assert covered[index] == metrics.coverage(p, problem.y, float(levels[index]))


def test_calibration_of_classes(labels):
    x, y = np.asarray(labels.target.data.x), np.asarray(labels.target.data.y)
    p = labels.predict(x)
    ax = saved(calibration.calibration_curve(p, y, num_bins=5))
    table = metrics.reliability(p, y, num_bins=5)
    (points,) = (part for part in ax.collections if isinstance(part, PathCollection))
    has = table.rows > 0
    wanted = np.stack([table.confidence, table.accuracy], axis=1)[has]
    np.testing.assert_allclose(points.get_offsets(), wanted)
    assert f"classes (ECE {table.error:.3f})" in named(ax)


def test_pit_histogram(problem, line):
    p = line.predict(problem.x)
    ax = saved(calibration.pit_histogram(p, problem.y, num_bins=6))
    heights = [bar.get_height() for bar in ax.containers[0]]
    wanted = np.histogram(metrics.pit(p, problem.y), 6, (0, 1), density=True)[0]
    np.testing.assert_allclose(heights, wanted)


def test_intervals_against_residuals(problem, line):
    p = line.predict(problem.x)
    ax = saved(predictions.intervals_against_residuals(p, problem.y, level=0.7))
    share = metrics.coverage(p, problem.y, 0.7)
    _, inside = data_of(ax, f"inside ({share:.0%})")
    _, outside = data_of(ax, f"outside ({1 - share:.0%})")
    found = np.sort(np.append(inside, outside))
    np.testing.assert_allclose(found, np.sort(problem.y - p.mean), rtol=1e-9)
    assert len(inside) == round(60 * share)


def test_epistemic_against_aleatoric(problem, line, labels):
    p = line.predict(problem.x)
    ax = saved(predictions.epistemic_against_aleatoric(p))
    found = ax.lines[0].get_xydata()
    np.testing.assert_allclose(found, np.stack([p.aleatoric, p.epistemic], axis=1))
    x, y = np.asarray(labels.target.data.x), np.asarray(labels.target.data.y)
    p = labels.predict(x)
    ax = saved(predictions.epistemic_against_aleatoric(p, y))
    wrong = len(data_of(ax, "wrong")[0])
    assert wrong == round(120 * (1 - metrics.accuracy(p, y)))
    assert wrong + len(data_of(ax, "right")[0]) == 120


def test_lower_bound_trace(problem, line, chains):
    ax = saved(runs.lower_bound_trace(line))
    steps, values = data_of(ax, "at each evaluation")
    np.testing.assert_array_equal(steps, line.trace["eval_step"])
    np.testing.assert_array_equal(values, line.trace["eval_elbo"])
    np.testing.assert_allclose(data_of(ax, "of the result")[1], line.elbo)
    low, high = ax.get_ylim()
    assert low < values[-1] < high
    point = bl.fit(problem.model, "map", (problem.x, problem.y), seed=0, num_steps=5)
    assert runs.lower_bound_trace(point).get_ylabel() == "log-joint"
    with pytest.raises(ArgumentError, match="single point"):
        runs.weight_widths(point)
    with pytest.raises(ArgumentError, match="hmc has no lower bound to plot"):
        runs.lower_bound_trace(chains)


def test_chain_traces_and_rhat(line, chains):
    ax = saved(runs.chain_traces(chains))
    assert named(ax) == ["chain 0", "chain 1", "chain 2"]
    for index in range(3):
        drawn = data_of(ax, f"chain {index}")[1]
        np.testing.assert_array_equal(drawn, chains.trace["log_density"][index])
    found = chains.diagnostics()
    assert ax.get_title() == f"R-hat {found.rhat_log_density:.3f}"
    ax = saved(runs.chain_traces(chains, 2))
    assert ax.get_ylabel() == "layers.0.weight[0, 2]"
    assert ax.get_title() == f"R-hat {found.rhat_weights[2]:.3f}"
    ax = saved(runs.rhat(chains))
    np.testing.assert_array_equal(data_of(ax, "predictions")[1], np.sort(found.rhat_predictions))
    with pytest.raises(ArgumentError, match="`weight` must be a whole number from 0 to 3"):
        runs.chain_traces(chains, 4)
    with pytest.raises(ArgumentError, match="ngvi has no chains: use lower_bound_trace"):
        runs.chain_traces(line)


def test_weight_widths(curve):
    ax = saved(runs.weight_widths(curve))
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert names == ["likelihood.log_noise_scale", "layers.0.weight", "layers.0.bias"]
    medians = [part.get_xdata()[0] for part in ax.lines if part.get_color() == style.BLACK]
    wanted = [np.median(row["std"]) for row in curve.summary()]
    np.testing.assert_allclose(medians, wanted, rtol=1e-6)
    np.testing.assert_allclose(data_of(ax, "prior")[0], 1.0)


def test_weight_widths_of_what_has_no_prior_scale(curve):
    """A sampler may draw a covariance along with the weights."""
    draws = curve.sample(0, 8)
    draws["likelihood"]["cov"] = np.exp(np.arange(8.0))[:, None, None]
    family = bl.families.Draws(jax.tree.map(lambda w: np.asarray(w)[None], draws))
    ax = saved(runs.weight_widths(dataclasses.replace(curve, family=family)))
    np.testing.assert_allclose(data_of(ax, "prior")[0], [np.nan, 1.0, 1.0, 1.0])


def test_the_other_kind_is_refused(line, labels):
    with pytest.raises(ArgumentError, match="`predictive_band` needs a regression model"):
        predictions.predictive_band(labels)
    with pytest.raises(ArgumentError, match="`decision_regions` needs a classification model"):
        predictions.decision_regions(line)


def test_given_axes_are_drawn_on_and_threads_do_not_meet(problem, line):
    ax = Figure().subplots()
    p = line.predict(problem.x)
    assert calibration.pit_histogram(p, problem.y, ax=ax) is ax
    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(lambda _: calibration.pit_histogram(p, problem.y), range(8)))
    assert len({id(ax.figure) for ax in drawn}) == 8
    for ax in drawn:
        saved(ax)


def test_plots_do_not_import_pyplot():
    code = (
        "import sys, types, numpy as np, bayeslearn as bl\n"
        "trace = {'eval_step': np.arange(1, 9), 'eval_elbo': -1.0 / np.arange(1, 9)}\n"
        "bl.plots.lower_bound_trace(types.SimpleNamespace(trace=trace, elbo=-0.1))\n"
        "print('matplotlib.figure' in sys.modules, 'matplotlib.pyplot' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["True", "False"]
