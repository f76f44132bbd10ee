"""Runs of the methods that consist of others: `Ensemble` and `MILE`."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, cast

import jax

from bayeslearn.algorithms.base import Algorithm
from bayeslearn.algorithms.ensemble import Composite
from bayeslearn.algorithms.mile import MILE, MILEState
from bayeslearn.algorithms.sampler import Sampler
from bayeslearn.families import Draws, Mixture
from bayeslearn.families.base import Family
from bayeslearn.inference.context import RunContext
from bayeslearn.inference.member_jobs import trained_in_workers, uses_workers
from bayeslearn.inference.members import (
    Members,
    RunMember,
    all_rows,
    hold_out,
    run_members,
)
from bayeslearn.inference.optimize import optimize
from bayeslearn.inference.outcomes import RunOutcome, StartingPoint
from bayeslearn.inference.phases import WarmStart
from bayeslearn.inference.sample import sample
from bayeslearn.inference.step_plan import StepPlan
from bayeslearn.tree import PyTree


class MemberSettings(NamedTuple):
    """How long each member runs."""

    plan: StepPlan
    eval_every: int | None
    patience: int | None


def run_composite(
    context: RunContext, algorithm: Composite, starts: list[PyTree], settings: MemberSettings
) -> tuple[RunOutcome, Family]:
    """The members, and what is made of them: the outcome and its family."""
    given = context
    if context.validation is None:
        target, validation = hold_out(
            context.target, float(algorithm.validation_fraction), context.key
        )
        context = dataclasses.replace(context, target=target, validation=validation)
    members = _run_members(context, algorithm, starts, settings)
    if isinstance(algorithm, MILE):
        return _run_chains(given, algorithm, members)
    states = tuple(outcome.state for outcome in members.outcomes)
    outcome = RunOutcome(
        states,
        given.target,
        None,
        {},
        None,
        f"{len(states)} members were trained.",
        members.notes,
        members.compile_time,
    )
    return outcome, _pooled(members.families)


def _run_members(
    context: RunContext, algorithm: Composite, starts: list[PyTree], settings: MemberSettings
) -> Members:
    member = algorithm.member
    context = dataclasses.replace(context, target=algorithm.member_target(context.target))
    run: RunMember = training(member, settings)
    if uses_workers(context, algorithm):
        context, run = trained_in_workers(context, algorithm, starts, training, (member, settings))
    return run_members(context, member, starts, run)


def training(member: Algorithm, settings: MemberSettings) -> RunMember:
    """What trains one member from a start."""
    plan = settings.plan

    def run(here: RunContext, params: PyTree) -> tuple[RunOutcome, Family]:
        begin = WarmStart().run(here, member, [params], plan)
        if member.capabilities.is_sampler:
            outcome = sample(here, cast(Sampler, member), [params], [begin])
        else:
            outcome = optimize(
                here,
                member,
                params,
                begin,
                plan.own,
                settings.eval_every,
                settings.patience,
            )
        return outcome, member.approximation(outcome.target, outcome.state, outcome.draws)

    return run


def _pooled(families: list[Family]) -> Family:
    """Draws of all members as chains, or the mixture of their approximations."""
    draws = [family.draws for family in families if isinstance(family, Draws)]
    if len(draws) == len(families):
        return Draws(jax.tree.map(lambda *leaves: jax.numpy.concatenate(leaves), *draws))
    return Mixture(tuple(families))


def _run_chains(
    context: RunContext, algorithm: MILE, members: Members
) -> tuple[RunOutcome, Family]:
    """A chain from every member, on all rows."""
    target = all_rows(context.target, context.validation)
    context = dataclasses.replace(context, target=target, host_rows=target.data, validation=None)
    starts = [StartingPoint(family, target) for family in members.families]
    means = [q.mean for q in members.families]
    outcome = sample(context, algorithm.sampler, means, starts, pools=False)
    family = algorithm.sampler.approximation(outcome.target, outcome.state, outcome.draws)
    outcome = outcome._replace(
        state=MILEState(tuple(members.families), outcome.state),
        stop_reason=f"{len(starts)} members: {outcome.stop_reason}",
        notes=[*members.notes, *outcome.notes],
        compile_time=outcome.compile_time + members.compile_time,
    )
    return outcome, family
