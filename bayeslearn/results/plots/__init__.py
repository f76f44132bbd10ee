"""Pictures of predictives and posteriors, drawn with Matplotlib.

Every function draws on `ax` and returns it. Without one it makes a figure of its own, apart from
pyplot's, so that it works without a display and in threads: `ax.figure.savefig("band.png")`.
Colours are those of Okabe and Ito, which colour-blind readers can tell apart.
"""

from bayeslearn.results.plots.calibration import calibration_curve, pit_histogram
from bayeslearn.results.plots.predictions import (
    decision_regions,
    epistemic_against_aleatoric,
    intervals_against_residuals,
    predictive_band,
)
from bayeslearn.results.plots.runs import (
    chain_traces,
    leaf_widths,
    lower_bound_trace,
    rhat,
    weight_widths,
)
from bayeslearn.results.plots.style import PALETTE

__all__ = [
    "PALETTE",
    "calibration_curve",
    "chain_traces",
    "decision_regions",
    "epistemic_against_aleatoric",
    "intervals_against_residuals",
    "leaf_widths",
    "lower_bound_trace",
    "pit_histogram",
    "predictive_band",
    "rhat",
    "weight_widths",
]
