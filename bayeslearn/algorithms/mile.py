r"""MILE: microcanonical Langevin ensembles (Sommer et al. 2025).

    1. members: a network trained from each of M independent starts, stopped early on held-out rows
    2. sampling: from each member a chain on all rows, MCLMC by default; draws of all are pooled

The posterior of a network has many modes, and a chain explores only one of them. Chains that start
at the members of an ensemble cover several modes, and add the uncertainty within each. By default
draws are thinned to 1,000 in total. Each chain adapts by itself: a step size that suits all modes
is too short for most.

The result is a good predictive distribution, not a set of exact draws: the chains of a network are
not stationary after a few thousand steps (their log-density still increases), and all modes have
the same weight.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from bayeslearn.algorithms.base import Algorithm, Capabilities, hyper
from bayeslearn.algorithms.ensemble import Composite
from bayeslearn.algorithms.map import MAP
from bayeslearn.algorithms.mclmc import MCLMC
from bayeslearn.algorithms.sampler import Sampler
from bayeslearn.errors import refuse
from bayeslearn.families.base import Family
from bayeslearn.models.target import Target
from bayeslearn.tree import PyTree


class MILEState(NamedTuple):
    """The members' approximations before sampling, and the chains' last states."""

    members: tuple[Family, ...]
    chains: PyTree


class MILE(Composite):
    """An ensemble, then a sampler from each of its members.

    >>> algorithm = bl.MILE(num_members=2, sampler=bl.MCLMC(num_warmup=200, num_samples=50))
    >>> posterior = bl.fit(model, algorithm, (x, y), seed=0, num_steps=200)
    >>> posterior.family.num_chains
    2
    """

    name: ClassVar[str] = "mile"
    title: ClassVar[str] = "microcanonical Langevin ensemble"
    capabilities: ClassVar[Capabilities] = Capabilities(
        has_lower_bound=False, takes_minibatches=False, is_composite=True
    )

    member: Algorithm = hyper(MAP(), "the method that trains each member", free=True)
    sampler: Sampler = hyper(
        MCLMC(num_warmup=5000, num_samples=100, thin=50), "the sampler of each chain", free=True
    )
    validation_fraction: float = hyper(
        0.15,
        "fraction of the rows held out for early stopping of the members, if there are no"
        " validation rows; 0: none. Sampling uses all rows.",
        least=0,
        below=1,
    )

    def __check_init__(self) -> None:
        if not isinstance(self.sampler, Sampler):
            refuse("sampler", self.sampler, "be a sampler, such as bl.MCLMC()")

    @property
    def last_part(self) -> Sampler:
        """The sampler of each chain."""
        return self.sampler

    def check(self, target: Target, params: PyTree) -> None:
        """Refuse a model that the members' method or the sampler does not support."""
        super().check(target, params)
        self.sampler.check(target, params)
