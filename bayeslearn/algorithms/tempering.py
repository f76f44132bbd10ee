"""The weight T of the complexity cost: E_q[log p(D | w)] - T KL(q | prior).

Divided by T that is the lower bound of a likelihood to the power 1 / T, with the same optimum. So
the steps of a method are given the target with `num_data` / T, and know nothing of T
(`Algorithm.training_target`). What an evaluation reports as the lower bound has T = 1.
"""

from __future__ import annotations

import jax.numpy as jnp

from bayeslearn.algorithms.base import Algorithm, hyper
from bayeslearn.errors import refuse
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

FIRST_WEIGHT = 0.01  # of the complexity cost, at the start of a warm-up
WARMUP_DOC = "steps over which the weight of the complexity cost increases from 0.01 of it"


def kl_weight(count: Array, steps: int) -> Array:
    """The weight after so many of the steps of a warm-up; 1 after them."""
    fraction = jnp.minimum(count / max(steps, 1), 1.0)
    return FIRST_WEIGHT + (1.0 - FIRST_WEIGHT) * fraction


class KLWarmup(Algorithm):
    """Base of the methods whose complexity cost can be warmed up (abstract)."""

    kl_warmup: int = hyper(0, WARMUP_DOC, least=0, keyword=True)

    def training_target(self, target: Target, count: Array | None) -> Target:
        """With the weight of a warm-up."""
        if self.kl_warmup == 0 or count is None:
            return target
        return target.tempered(kl_weight(count, self.kl_warmup))


class Tempered(KLWarmup):
    """Base of the methods whose temperature is that of their target (abstract)."""

    temperature: float = hyper(
        1.0, "weight of the complexity cost; 1: Bayes' rule", above=0, keyword=True
    )

    def check(self, target: Target, params: PyTree) -> None:
        """Refuse another temperature for a density, whose prior is not known."""
        super().check(target, params)
        for name, default in (("temperature", 1.0), ("kl_warmup", 0)):
            if target.is_density and getattr(self, name) != default:
                must = f"be {default:g} for a density, which has no prior apart from it"
                refuse(name, getattr(self, name), must)

    def training_target(self, target: Target, count: Array | None) -> Target:
        """With the likelihood to the power of 1 / T."""
        return super().training_target(target, count).tempered(self.temperature)
