"""ArviZ."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import numpy as np

from bayeslearn import tree
from bayeslearn.families import Draws, Point
from bayeslearn.precision import double_precision


def arviz() -> Any:
    """ArviZ, without its notice of future changes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import arviz as az
    return az


# ArviZ's names for what our samplers report
ARVIZ_NAMES = {
    "log_density": "lp",
    "acceptance": "acceptance_rate",
    "num_gradients": "n_steps",
}


@double_precision
def to_arviz(posterior: Any, *, num_samples: int = 1000, seed: int = 0) -> Any:
    """InferenceData with posterior, log_likelihood, observed_data and sample_stats.

    A sampler gives its own chains, other methods `num_samples` draws of q as one chain (a point
    one). Variables carry the names of the leaves. sample_stats holds what a sampler said of each
    draw, or the lower bound and its parts over the steps at which they were measured.
    """
    family, target = posterior.family, posterior.target
    if isinstance(family, Draws):
        chains, num = family.num_chains, family.num_draws // family.num_chains
    else:
        chains, num = 1, 1 if isinstance(family, Point) else num_samples
    draws = posterior.sample(jax.random.key(seed), chains * num)

    def by_chain(values: Any) -> np.ndarray:
        return np.asarray(values).reshape(chains, num, *np.shape(values)[1:])

    az = arviz()
    weights = dict(zip(tree.leaf_names(draws), jax.tree.leaves(draws), strict=True))
    groups = {"posterior": az.dict_to_dataset({n: by_chain(w) for n, w in weights.items()})}
    if not target.is_density and len(target.data.y):  # a loaded posterior has no rows
        y = np.asarray(target.data.y)
        predictive = posterior.predict(target.data.x, num_samples=chains * num, seed=seed)
        terms = {"y": by_chain(predictive.log_prob_by_draw(y))}
        observed = {"y": predictive.align_y(y)}
        rows = {"y": ["row"]}
        columns = {"y": ["row", "column"][: observed["y"].ndim]}
        groups["log_likelihood"] = az.dict_to_dataset(terms, dims=rows)
        groups["observed_data"] = az.dict_to_dataset(observed, dims=columns, default_dims=[])
    stats, steps = posterior.trace, posterior.trace.get("eval_step")
    if steps is not None:
        found = {n.removeprefix("eval_"): v for n, v in stats.items() if n.startswith("eval_")}
        del found["step"]
        groups["sample_stats"] = az.dict_to_dataset(
            found, dims={n: ["step"] for n in found}, coords={"step": steps}, default_dims=[]
        )
    elif stats:
        told = {n: v for n, v in stats.items() if not n.startswith("warmup_")}
        groups["sample_stats"] = az.dict_to_dataset(
            {
                ARVIZ_NAMES.get(n, n): v.astype(bool) if n == "diverging" else v
                for n, v in told.items()
            }
        )
    return az.InferenceData(
        attrs={"algorithm": posterior.algorithm.name, "stopped": posterior.stopped}, **groups
    )
