"""Numbers of the charts of a run."""

from __future__ import annotations

from typing import Any

import numpy as np

from bayeslearn.errors import ArgumentError
from bayeslearn.report.thinning import TRACE, _figures, _least, _spread_out
from bayeslearn.results import diagnostics
from bayeslearn.results.plots.runs import leaf_widths


def _trace(posterior: Any) -> dict[str, Any] | None:
    """Course of the lower bound (of a point: the log-joint), or of the chains' log-density."""
    trace = posterior.trace
    for name in ("elbo", "log_joint", "objective"):
        if f"eval_{name}" in trace:
            steps = np.asarray(trace["eval_step"])
            kept = _spread_out(len(steps), TRACE)
            return {
                "kind": "steps",
                "label": name.replace("_", "-"),
                "steps": steps[kept].tolist(),
                "values": _figures(np.asarray(trace[f"eval_{name}"])[kept]),
                "result": posterior.elbo if name == "elbo" else None,
            }
    if posterior.draws is None or "log_density" not in trace:
        return None
    values = np.atleast_2d(np.asarray(trace["log_density"]))
    kept = _spread_out(values.shape[1], TRACE)
    return {
        "kind": "chains",
        "label": "log-density",
        "steps": (kept + 1).tolist(),
        "values": [_figures(chain) for chain in values[:8, kept]],
    }


def _chains(posterior: Any) -> dict[str, Any] | None:
    """R-hat and effective sample sizes of a sampler."""
    if posterior.draws is None:
        return None
    try:
        found = posterior.diagnostics()
    except (ArgumentError, ImportError) as error:
        return {"error": str(error)}
    parts: dict[str, Any] = {}
    for what in ("predictions", "weights"):
        rhat, bulk, tail = (
            np.asarray(getattr(found, f"{name}_{what}"))
            for name in ("rhat", "ess_bulk", "ess_tail")
        )
        rhat = np.sort(rhat[np.isfinite(rhat)])
        parts[what] = {
            "rhat": _figures(rhat[_spread_out(len(rhat), TRACE // 2)], 4),
            "ess_bulk": _least(bulk),
            "ess_tail": _least(tail),
        }
    draws = posterior.family.num_draws
    return parts | {
        "rhat_log_density": found.rhat_log_density,
        "divergences": found.divergences,
        "warning": found.warning,
        "limit": diagnostics.MAX_RHAT,
        "chains": posterior.family.num_chains,
        "draws": draws,
    }


def _widths(posterior: Any) -> list[dict[str, Any]]:
    """Quantiles of the weights' standard deviations by leaf; none for a point."""
    return [
        {
            "name": name,
            "weights": len(widths),
            "quantiles": _figures(np.quantile(widths, [0.05, 0.25, 0.5, 0.75, 0.95]), 3),
            "prior": prior,
        }
        for name, widths, prior in leaf_widths(posterior)
        if len(widths)
    ]
