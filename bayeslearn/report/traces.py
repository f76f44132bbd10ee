"""The charts of a run: its trace, its chains, and the posterior of its weights."""

from __future__ import annotations

import numpy as np

from bayeslearn.errors import ArgumentError
from bayeslearn.families import Draws
from bayeslearn.report.thinning import TRACE_POINTS, evenly_spaced, significant, smallest
from bayeslearn.results import diagnostics
from bayeslearn.results.plots.runs import leaf_widths
from bayeslearn.results.posterior import Posterior
from bayeslearn.tabular.json_values import JSON

MAX_CHAINS = 8  # drawn


def trace(posterior: Posterior) -> JSON:
    """The lower bound by step (of a point: the log-joint), or the log-density of the chains."""
    values = posterior.trace
    for name in ("elbo", "log_joint", "objective"):
        if f"eval_{name}" in values:
            steps = np.asarray(values["eval_step"])
            shown = evenly_spaced(len(steps), TRACE_POINTS)
            return {
                "kind": "steps",
                "label": name.replace("_", "-"),
                "steps": steps[shown].tolist(),
                "values": significant(np.asarray(values[f"eval_{name}"])[shown]),
                "result": posterior.elbo if name == "elbo" else None,
            }
    if posterior.draws is None or "log_density" not in values:
        return None
    density = np.atleast_2d(np.asarray(values["log_density"]))
    shown = evenly_spaced(density.shape[1], TRACE_POINTS)
    return {
        "kind": "chains",
        "label": "log-density",
        "steps": (shown + 1).tolist(),
        "values": [significant(chain) for chain in density[:MAX_CHAINS, shown]],
    }


def chains(posterior: Posterior) -> JSON:
    """R-hat and effective sample sizes of a sampler."""
    family = posterior.family
    if not isinstance(family, Draws):
        return None
    try:
        found = posterior.diagnostics()
    except (ArgumentError, ImportError) as error:
        return {"error": str(error)}
    parts: dict[str, JSON] = {}
    for what in ("predictions", "weights"):
        rhat, bulk, tail = (
            np.asarray(getattr(found, f"{name}_{what}"))
            for name in ("rhat", "ess_bulk", "ess_tail")
        )
        rhat = np.sort(rhat[np.isfinite(rhat)])
        parts[what] = {
            "rhat": significant(rhat[evenly_spaced(len(rhat), TRACE_POINTS // 2)], 4),
            "ess_bulk": smallest(bulk),
            "ess_tail": smallest(tail),
        }
    return parts | {
        "rhat_log_density": found.rhat_log_density,
        "divergences": found.divergences,
        "warning": found.warning,
        "limit": diagnostics.MAX_RHAT,
        "chains": family.num_chains,
        "draws": family.num_draws,
    }


def widths(posterior: Posterior) -> list[JSON]:
    """Quantiles of the weights' posterior standard deviations by leaf; none for a point."""
    return [
        {
            "name": name,
            "weights": len(stds),
            "quantiles": significant(np.quantile(stds, [0.05, 0.25, 0.5, 0.75, 0.95]), 3),
            "prior": prior,
        }
        for name, stds, prior in leaf_widths(posterior)
        if len(stds)
    ]
