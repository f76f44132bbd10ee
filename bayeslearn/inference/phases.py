"""The phases before a method's own: training of frozen leaves, and warm starts."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp

from bayeslearn.algorithms.base import Algorithm
from bayeslearn.algorithms.map import MAP
from bayeslearn.errors import DivergenceError
from bayeslearn.inference.context import RunContext
from bayeslearn.inference.kernels import log_joint
from bayeslearn.inference.multistart import MultiStart
from bayeslearn.inference.optimize import PATIENCE, optimize
from bayeslearn.inference.outcomes import StartingPoint
from bayeslearn.inference.step_plan import StepPlan, plan_steps
from bayeslearn.models.model import Model
from bayeslearn.models.target import Target
from bayeslearn.tree import PyTree

NO_MODE = "a warm start, which met a density that is not finite."
# Draws have log-densities d / 2 below the mode's: a chain has to come near it, and leaves it
# again.
CHAIN_GAIN, CHAIN_PATIENCE = 0.1, 5  # nats of the moving average, in so many evaluations


class WarmStart(NamedTuple):
    """What a method starts from: the result of another, which has a warm start of its own.

    `multistart` applies to the first method of that chain that supports it.
    """

    multistart: MultiStart | None = None
    min_gain: float = 0.0
    patience: int = PATIENCE

    def run(
        self, context: RunContext, algorithm: Algorithm, starts: list[PyTree], plan: StepPlan
    ) -> StartingPoint | None:
        """The start of an algorithm; None: the network's initialisation."""
        is_multi = algorithm.capabilities.supports_multistart and len(starts) > 1
        if self.multistart is not None and is_multi:

            def from_one(here: RunContext, params: PyTree) -> StartingPoint | None:
                return WarmStart().run(here, algorithm, [params], plan)

            return self.multistart.run(context, algorithm, starts, plan.own, from_one)
        before = algorithm.warm_start()
        if before is None or plan.warm_start == 0:
            return None
        # With the randomness that it has on its own, so that a method started from its result
        # continues exactly that run.
        here = context.subphase("warm start", key=context.key)
        given = here.target
        if given.prior is not None:
            here = dataclasses.replace(here, target=given.with_prior(given.prior.to_train()))
        own = plan_steps(before, plan.warm_start)
        earlier = self.run(here, before, starts, own)
        run = optimize(
            here,
            before,
            starts[0],
            earlier,
            own.own,
            None,
            self.patience,
            min_gain=self.min_gain,
        )
        q = before.approximation(run.target, run.state)
        compile_time = run.compile_time + (0.0 if earlier is None else earlier.compile_time)
        is_same = here.target.prior is given.prior
        return StartingPoint(q, run.target if is_same else given, compile_time)

    def run_if_possible(
        self, context: RunContext, algorithm: Algorithm, starts: list[PyTree], plan: StepPlan
    ) -> tuple[StartingPoint | None, bool]:
        """The same, and whether it failed, which a bare density may: then there is no start.

        It may have no mode that can be reached, such as one truncated where it is highest, or a
        Gamma of shape 0.5. A method whose result is the mode's has to fail, too.
        """
        is_needed = not context.target.is_density or algorithm.capabilities.init_is_result
        try:
            begin = self.run(context, algorithm, starts, plan)
        except DivergenceError:
            if is_needed:
                raise
            return None, True
        if begin is not None and not is_needed and not _is_finite(begin):
            return None, True
        return begin, False


def start_chains(
    context: RunContext,
    algorithm: Algorithm,
    starts: list[PyTree],
    plan: StepPlan,
    *,
    is_legacy: bool = False,
) -> tuple[list[StartingPoint | None], list[str]]:
    """The warm start of each chain, and notes.

    Where a bare density has none, chains start at the parameters themselves.
    """
    # Those of version 0.1 went on to the mode itself; a bare density may be truncated there.
    is_whole = is_legacy or context.target.is_density
    warm_start = WarmStart() if is_whole else WarmStart(None, CHAIN_GAIN, CHAIN_PATIENCE)
    begins: list[StartingPoint | None] = []
    failures = []
    for chain, params in enumerate(starts):
        here = context if chain == 0 else context.subphase(f"chain {chain}")
        begin, has_failed = warm_start.run_if_possible(here, algorithm, [params], plan)
        failures += [chain] if has_failed else []
        begins.append(begin)
    if not failures:
        return begins, []
    who = "The chains" if len(failures) == len(starts) else f"{len(failures)} chain(s)"
    return begins, [f"{who} start without {NO_MODE}"]


def _is_finite(begin: StartingPoint) -> bool:
    return bool(jnp.isfinite(log_joint(begin.target, begin.q.mean)))


def freeze_leaves(
    context: RunContext, model: Model, params: PyTree, num_steps: int | None
) -> tuple[Target, PyTree, float]:
    """The density of the Bayesian leaves, after all leaves were trained together.

    With `frozen="given"` nothing is trained.
    """
    if model.frozen == "given":
        return *model.freeze(context.target, params), 0.0
    first = MAP(learn_noise=False)
    here = context.subphase("frozen leaves")
    steps = first.auto_steps if num_steps is None else num_steps
    run = optimize(here, first, params, None, steps, None, PATIENCE)
    q = first.approximation(run.target, run.state)
    return *model.freeze(context.target, q.mean), run.compile_time
