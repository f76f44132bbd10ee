r"""Ensembles: one method from several independent starts of the network.

    q(w) = sum_m q_m(w) / M

Members differ in the network's initialisation and in their random seeds. With `MAP()` it is the
deep ensemble (Lakshminarayanan et al. 2017), with `Laplace()` the mixture of Laplace approximations
(Eschenhagen et al. 2021), with `VOGN()` multi-modal mean field, and with a sampler a set of chains
that start in different modes. `fit` runs the members; this file only describes them.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from bayeslearn.algorithms.base import Algorithm, Capabilities, hyper
from bayeslearn.algorithms.map import MAP
from bayeslearn.algorithms.swag import SWAG
from bayeslearn.errors import refuse
from bayeslearn.families import Mixture
from bayeslearn.families.base import Family
from bayeslearn.families.streamed import are_many, draws_of, streamed
from bayeslearn.jobs import check_jobs
from bayeslearn.models.protocols import Network
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree


class Composite(Algorithm):
    """Base of the methods that consist of runs of others (abstract); they have no step."""

    num_members: int = hyper(10, "independent starts of the network", least=1)
    member: Algorithm = hyper(MAP(), "the method of each member", free=True)
    validation_fraction: float = hyper(
        0.0,
        "fraction of the rows held out for early stopping of the members, if there are no"
        " validation rows; 0: none",
        least=0,
        below=1,
    )

    n_jobs: int | None = hyper(
        None,
        "members trained at a time, each in a process of joblib; -1: as many as cores; none:"
        " threads of this process, or what `joblib.parallel_config` says",
        optional=True,
        least=-1,
    )

    def __check_init__(self) -> None:
        check_jobs(self.n_jobs)
        if not isinstance(self.member, Algorithm) or isinstance(self.member, Composite):
            refuse("member", self.member, "be an algorithm of single runs, such as bl.MAP()")
        if self.validation_fraction and self.member.capabilities.is_sampler:
            refuse("validation_fraction", self.validation_fraction, "be 0 for samplers")

    @property
    def last_part(self) -> Algorithm:
        """The method whose result is kept."""
        return self.member

    def check(self, target: Target, params: PyTree) -> None:
        """Refuse a model that the members' method does not support."""
        self.member.check(self.member_target(target), params)

    def member_target(self, target: Target) -> Target:
        """What members are fitted to: the posterior, or for points a density whose mode is good."""
        return target.to_train() if isinstance(self.member, MAP | SWAG) else target


class Ensemble(Composite):
    """The equal mixture of a method's results from independent starts.

    >>> algorithm = bl.Ensemble(num_members=3, member=bl.MAP())
    >>> posterior = bl.fit(model, algorithm, (x, y), seed=0, num_steps=200)
    >>> posterior.family.num_members
    3
    """

    name: ClassVar[str] = "ensemble"
    title: ClassVar[str] = "deep ensemble, or any method from several starts"
    capabilities: ClassVar[Capabilities] = Capabilities(has_lower_bound=False, is_composite=True)

    def predictive_draws(
        self, target: Target, q: Family, key: Array, num: int, x: PyTree
    ) -> tuple[Target, PyTree, PyTree]:
        """Each draw with the network of its member's predictive target."""
        members = q.members if isinstance(q, Mixture) else ()
        targets = [self.member.predictive_target(target, member) for member in members]
        if all(one is target for one in targets):
            return target, draws_of(q, key, num), x
        assert isinstance(q, Mixture)
        networks = jax.tree.map(
            lambda *leaves: jnp.stack(leaves), *[one.network for one in targets]
        )
        frozen = None if target.frozen is None else {"member": None, "weights": target.frozen}
        pooled = dataclasses.replace(
            target,
            network=MemberNetworks(networks),
            dtypes=("int32", *targets[0].dtypes),
            frozen=frozen,
        )
        if are_many(q, num):
            return pooled, streamed(q, key, num, is_numbered=True), x
        draws, numbers = q.sample_members(key, num)
        return pooled, {**draws, "network": {"member": numbers, "weights": draws["network"]}}, x


class MemberNetworks(eqx.Module):
    """Networks along a leading axis; a draw is the number of one, and its weights."""

    networks: Network

    def init(self, key: Array, x_example: PyTree, num_outputs: int) -> PyTree:
        """Initial parameters of the first network."""
        first = jax.tree.map(lambda leaf: leaf[0], self.networks)
        weights = first.init(key, x_example, num_outputs)
        return {"member": jnp.zeros((), jnp.int32), "weights": weights}

    def apply(self, params: PyTree, x: PyTree, key: Array | None = None) -> Array:
        """Outputs of the draw's network for one example."""
        network = jax.tree.map(lambda leaf: leaf[params["member"]], self.networks)
        return network.apply(params["weights"], x, key)
