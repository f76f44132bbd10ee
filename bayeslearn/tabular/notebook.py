"""What a fitted estimator shows in a notebook."""

from __future__ import annotations

import html

import numpy as np

from bayeslearn.results.posterior import Posterior
from bayeslearn.tree import size


def summary_html(posterior: Posterior) -> str:
    """A few lines and the trace of the run."""
    lines = [
        f"{posterior.algorithm.name}: {type(posterior.family).__name__} over"
        f" {size(posterior.family.mean)} weights, {posterior.wall_time:.1f} s",
        posterior.stopped,
        *posterior.notes,
    ]
    for name in ("eval_elbo", "eval_log_joint", "log_density"):
        if name in posterior.trace:
            values = np.asarray(posterior.trace[name], np.float64)
            values = values.mean(axis=0) if values.ndim == 2 else values
            label = name.removeprefix("eval_").replace("_", " ")
            lines.insert(1, f"{label} {values[-1]:.4g} {_sparkline(values)}")
            break
    escaped = [line if "<svg" in line else html.escape(line) for line in lines]
    return '<div class="bayeslearn">' + "".join(f"<div>{line}</div>" for line in escaped) + "</div>"


def _sparkline(values: np.ndarray, width: int = 160, height: int = 24) -> str:
    """A line without axes; the lowest tenth is clipped, for a run begins far below its end."""
    values = values[np.isfinite(values)]
    if len(values) < 2:
        return ""
    low, high = np.quantile(values, 0.1), np.max(values)
    heights = np.clip((values - low) / (high - low if high > low else 1.0), 0.0, 1.0)
    across = np.linspace(1, width - 1, len(values))
    points = " ".join(
        f"{x:.1f},{y:.1f}" for x, y in zip(across, height - 1 - heights * (height - 2), strict=True)
    )
    return (
        f'<svg width="{width}" height="{height}" role="img" aria-label="trace of the run">'
        f'<polyline points="{points}" fill="none" stroke="currentColor"/></svg>'
    )
