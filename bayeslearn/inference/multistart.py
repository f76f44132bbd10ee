"""Several initialisations of a network, of which the best goes on.

A network's lower bound has many optima, which differ in the hidden units they use, and the first
steps decide which one is found.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax

from bayeslearn import tree
from bayeslearn.algorithms.base import Algorithm
from bayeslearn.algorithms.bayes_by_backprop import BayesByBackprop
from bayeslearn.algorithms.vogn import VOGN
from bayeslearn.errors import DivergenceError, check_whole, refuse
from bayeslearn.inference.context import RunContext, named_key
from bayeslearn.inference.evaluate import final_lower_bound
from bayeslearn.inference.evaluation_plan import EVALUATIONS
from bayeslearn.inference.optimize import PATIENCE, optimize
from bayeslearn.inference.outcomes import StartingPoint
from bayeslearn.models.target import Target
from bayeslearn.precision import user_precision
from bayeslearn.tree import PyTree

PERTURBATIONS = (4, 2, 2, 2)  # candidates around the best start, then around the best of those
PERTURBATION_STEPS = 1000
MIN_GAIN_PER_WEIGHT = 0.01  # nats by which a candidate must be better, to be perturbed in its turn

WarmStarter = Callable[[RunContext, PyTree], StartingPoint | None]


@dataclasses.dataclass(frozen=True)
class MultiStart:
    """Try several initialisations, keep the best, then perturb and refine it.

    Args:
        num_starts: initialisations of the network.
        rounds: pairs (steps from each start still tried, how many are kept).
        perturb_with: the algorithm whose noise moves the best start, which reactivates hidden units
            that mean-field inference had pruned; "auto": `VOGN()` where the prior is Gaussian;
            None: no perturbation.
        perturbations: candidates around the best so far, round by round; a round that gains less
            than 1 % of a nat per weight is the last.
        perturbation_steps: steps of `perturb_with`, and then of the method itself before the best
            is chosen.
        settle_steps: most steps of the method from the best start, those of the rounds included,
            before it is perturbed.
    """

    num_starts: int = 8
    rounds: tuple[tuple[int, int], ...] = ((1000, 4), (1000, 1))
    perturb_with: Algorithm | str | None = "auto"
    perturbations: tuple[int, ...] = PERTURBATIONS
    perturbation_steps: int = PERTURBATION_STEPS
    settle_steps: int = 5000

    def __post_init__(self) -> None:
        check_whole("num_starts", self.num_starts, least=1)
        check_whole("perturbation_steps", self.perturbation_steps, least=1)
        is_rounds = isinstance(self.rounds, Sequence) and len(self.rounds) > 0
        if not is_rounds or any(len(pair) != 2 for pair in self.rounds) or self.rounds[-1][1] != 1:
            must = "be pairs (steps, kept), of which the last keeps one: ((1000, 4), (1000, 1))"
            refuse("rounds", self.rounds, must)
        is_known = self.perturb_with is None or self.perturb_with == "auto"
        if not is_known and not isinstance(self.perturb_with, Algorithm):
            refuse("perturb_with", self.perturb_with, 'be an algorithm, "auto" or None')

    def stored(self) -> dict[str, Any]:
        """Its settings by name, for a run's folder."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def perturbation(self, algorithm: Algorithm, target: Target) -> Algorithm | None:
        """The algorithm that perturbs, where it can be used for this model."""
        other = self.perturb_with
        if other == "auto":
            is_mean_field = isinstance(algorithm, BayesByBackprop) and algorithm.q is None
            other = VOGN() if is_mean_field else None
        if not isinstance(other, Algorithm):
            return None
        return other

    @property
    def first_steps(self) -> int:
        """Steps of the method in all rounds together, from the start that is chosen."""
        return sum(steps for steps, _ in self.rounds)

    def within(self, num_steps: int) -> MultiStart:
        """The same with fewer steps where it would take more than half of a given total."""
        tried = [self.num_starts, *(kept for _, kept in self.rounds[:-1])]
        cost = sum(n * steps for n, (steps, _) in zip(tried, self.rounds, strict=True))
        if self.perturb_with is not None:
            cost += self.settle_steps
            cost += 2 * sum(self.perturbations) * self.perturbation_steps
        scale = min(1.0, 0.5 * num_steps / cost)

        def scaled(steps: int) -> int:
            return max(1, round(scale * steps))

        return dataclasses.replace(
            self,
            rounds=tuple((scaled(steps), kept) for steps, kept in self.rounds),
            perturbation_steps=scaled(self.perturbation_steps),
            settle_steps=scaled(self.settle_steps),
        )

    def run(
        self,
        context: RunContext,
        algorithm: Algorithm,
        starts: list[PyTree],
        num_steps: int,
        warm_start: WarmStarter,
    ) -> StartingPoint:
        """The best start after the rounds, perturbed and refined. `warm_start` prepares one."""
        other = self.perturbation(algorithm, context.target)
        number, found = self.select_start(
            context, algorithm, starts, num_steps if other is None else None, warm_start
        )
        if other is None:
            return found
        return self.perturb_and_select(context, algorithm, other, starts[number], found, num_steps)

    def select_start(
        self,
        context: RunContext,
        algorithm: Algorithm,
        starts: list[PyTree],
        num_steps: int | None,
        warm_start: WarmStarter,
    ) -> tuple[int, StartingPoint]:
        """The first steps from every start; the best few go on. All rounds run the same program."""
        stepper = algorithm.with_run_length(
            algorithm.auto_steps if num_steps is None else num_steps
        )
        contexts = [context.subphase(f"start {number}") for number in range(len(starts))]
        points: dict[int, StartingPoint | None] = dict.fromkeys(range(len(starts)))
        compile_time, done = 0.0, 0
        failure = DivergenceError(
            f"{algorithm.name} found no start with a finite lower bound. Scale x and y to unit"
            " variance, or start elsewhere with `init=`."
        )
        for turn, (steps, kept) in enumerate(self.rounds):
            bounds, done = {}, done + steps
            for number, point in points.items():
                here, params = contexts[number], starts[number]
                try:
                    if point is None:
                        point = warm_start(here, params)
                        compile_time += 0.0 if point is None else point.compile_time
                    here = dataclasses.replace(
                        here,
                        phase=f"{here.phase}.{turn}",
                        key=named_key(here.key, f"{turn}"),
                    )
                    bound, point = run_candidate(here, stepper, params, point, done)
                except DivergenceError as error:
                    failure = error
                    continue
                compile_time += point.compile_time
                if math.isfinite(bound):
                    bounds[number], points[number] = bound, point._replace(compile_time=0.0)
            if not bounds:
                raise failure
            best = sorted(bounds, key=lambda number: -bounds[number])[:kept]
            points = {number: points[number] for number in best}
            context.choose(f"start {number}" for number in best)
        found = points[best[0]]
        assert found is not None
        return best[0], found._replace(compile_time=compile_time)

    def perturb_and_select(
        self,
        context: RunContext,
        algorithm: Algorithm,
        other: Algorithm,
        params: PyTree,
        found: StartingPoint,
        num_steps: int,
    ) -> StartingPoint:
        """The best of a converged start and of candidates around it.

        Hidden units that mean field has pruned stay so: nothing pulls at them any more. The noise
        of another method reactivates some of them, and those that are useful stay active. Around a
        candidate that is much better it is done again: there is often more to be found.
        """
        stepper, steps = algorithm.with_run_length(num_steps), self.perturbation_steps
        point, compile_time = StartingPoint(found.q, found.target), found.compile_time
        if self.settle_steps > found.steps_done:  # the rounds count
            here = context.subphase("converged")
            run = optimize(here, algorithm, params, found, self.settle_steps, None, PATIENCE)
            point = StartingPoint(algorithm.approximation(run.target, run.state), run.target)
            compile_time += run.compile_time
        bound, best = run_candidate(context.subphase("candidate 0"), stepper, params, point, steps)
        compile_time += best.compile_time
        min_gain, chosen = max(1.0, MIN_GAIN_PER_WEIGHT * tree.size(params)), 0
        prior, numbers = context.target.prior, itertools.count(1)
        suits = not other.capabilities.needs_gaussian_prior or prior is None or prior.is_gaussian
        for tries in self.perturbations if suits else ():
            before = bound
            for number in itertools.islice(numbers, tries):
                here = context.subphase(f"perturbed {number}")
                try:
                    run = optimize(here, other, params, point, steps)
                    compile_time += run.compile_time
                    moved = StartingPoint(other.approximation(run.target, run.state), run.target)
                    here = context.subphase(f"candidate {number}")
                    now, candidate = run_candidate(here, stepper, params, moved, steps)
                except DivergenceError:
                    continue
                compile_time += candidate.compile_time
                if now > bound or math.isnan(bound):
                    bound, best, chosen = now, candidate, number
            if not bound > before + min_gain:
                break
            point = StartingPoint(best.q, best.target)
        context.choose((f"perturbed {chosen}", f"candidate {chosen}"))
        return best._replace(compile_time=compile_time)


def run_candidate(
    context: RunContext,
    algorithm: Algorithm,
    params: PyTree,
    start: StartingPoint | None,
    num_steps: int,
) -> tuple[float, StartingPoint]:
    """A start after so many steps of the method in all: its lower bound, and where it is now."""
    eval_every = max(1, algorithm.auto_steps // EVALUATIONS)
    run = optimize(context, algorithm, params, start, num_steps, eval_every)
    q = algorithm.approximation(run.target, run.state)
    key = named_key(context.key, "fresh")
    bound = final_lower_bound(algorithm, run.target, run.state, key, context.validation)
    context.set_bound(bound)
    return bound, StartingPoint(q, run.target, run.compile_time, run.state, num_steps)


def further_starts(
    context_key: jax.Array, target: Target, params: PyTree, num: int
) -> list[PyTree]:
    """`num` initialisations: the first, and the network by other keys in its structure."""
    assert target.data is not None
    example = jax.tree.map(lambda leaf: leaf[0], target.data.x)
    found = [params]
    for number in range(1, num):
        key = jax.random.fold_in(named_key(context_key, "network"), number)
        with user_precision():
            network = target.network.init(key, example, target.likelihood.num_outputs)
        found.append(tree.cast_like(params | {"network": network}, params))
    return found
