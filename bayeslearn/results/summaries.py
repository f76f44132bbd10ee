"""Mean, standard deviation and credible interval of every parameter."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import tree
from bayeslearn.families import Draws
from bayeslearn.families.base import Family
from bayeslearn.models.target import Target
from bayeslearn.tree import PyTree

NUM_DRAWS = 4000  # of q, where parameters are constrained and q is not


def summarize(target: Target, family: Family, level: float) -> list[dict[str, Any]]:
    """A row for each leaf; see `Posterior.summary`."""
    columns = _moments(target, family, (1.0 - level) / 2.0)
    names = tree.leaf_names(columns[0])
    leaves = [jax.tree.leaves(part) for part in columns]
    return [
        {
            "name": name,
            "shape": tuple(m.shape),
            "mean": np.asarray(m),
            "std": np.asarray(s),
            "lower": np.asarray(low),
            "upper": np.asarray(up),
        }
        for name, m, s, low, up in zip(names, *leaves, strict=True)
    ]


def _moments(target: Target, family: Family, tail: float) -> tuple[PyTree, ...]:
    """Mean, standard deviation, and the ends of the interval."""
    is_real = target.kinds is None
    if isinstance(family, Draws) or not is_real:
        draws = family.flat() if isinstance(family, Draws) else None
        if draws is None:
            draws = family.sample(jax.random.key(0), NUM_DRAWS)
        draws = target.constrained(draws)
        ends = (
            jax.tree.map(lambda w, q=q: jnp.quantile(w, q, axis=0), draws)
            for q in (tail, 1.0 - tail)
        )
        if is_real:
            return family.mean, family.std, *ends
        mean = jax.tree.map(lambda w: jnp.mean(w, axis=0), draws)
        return mean, jax.tree.map(lambda w: jnp.std(w, axis=0, ddof=1), draws), *ends
    mean, std = family.mean, family.std
    z = jax.scipy.stats.norm.ppf(1.0 - tail)
    return (
        mean,
        std,
        jax.tree.map(lambda m, s: m - z * s, mean, std),
        jax.tree.map(lambda m, s: m + z * s, mean, std),
    )
