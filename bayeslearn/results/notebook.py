"""What a posterior shows in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bayeslearn import markup, tree

if TYPE_CHECKING:
    from bayeslearn.results.posterior import Posterior


def posterior_html(posterior: Posterior) -> str:
    """How the run went, with its trace."""
    about: dict[str, object] = {
        "family": f"{type(posterior.family).__name__}, {tree.size(posterior.family.mean)} weights"
    }
    for name in ("eval_elbo", "eval_log_joint", "log_density"):
        if name in posterior.trace:
            values = np.asarray(posterior.trace[name], np.float64)
            values = values.mean(axis=0) if values.ndim == 2 else values
            label = name.removeprefix("eval_").replace("_", " ")
            picture = markup.trace(values, f"trace of the {label}")
            about[label] = markup.Drawn(f"{values[-1]:.4g} {picture}")
            break
    seconds = f"{posterior.wall_time:.1f} s, of which {posterior.compile_time:.1f} s compiling"
    about |= {"stopped": posterior.stopped, "time": seconds}
    title = f"Posterior by {posterior.algorithm.name}"
    return markup.block(title, markup.pairs(about), *posterior.notes)
