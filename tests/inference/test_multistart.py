"""Several starts: mean field is tried from several initialisations, and the best goes on."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np
import problems
import pytest
from interruption import Killed, kill_after

import bayeslearn as bl
from bayeslearn.inference import kernels, multistart, phases, run
from bayeslearn.inference.context import RunContext
from bayeslearn.storage.checkpoints import Checkpointer

STARTS = 3
# One round of perturbations by default: the gain that a second needs is out of reach.
SHORT = bl.MultiStart(
    num_starts=STARTS,
    rounds=((100, 2), (50, 1)),
    perturbations=(2, 1),
    perturbation_steps=60,
    settle_steps=200,
)


@pytest.fixture(scope="module", autouse=True)
def short():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multistart, "MIN_GAIN_PER_WEIGHT", 1e9)
        patch.setattr(bl.MAP, "auto_steps", 200)
        patch.setattr(bl.BayesByBackprop, "auto_steps", 200)
        yield


@pytest.fixture(scope="module")
def problem():
    model = bl.Model(bl.networks.MLP([4]), bl.likelihoods.Gaussian(noise_scale=0.3))
    return model, problems.wiggle(40)


def fit(problem, algorithm="bayes-by-backprop", **options):
    model, data = problem
    return bl.fit(model, algorithm, data, **({"seed": 0} | options))


class PhaseRun(NamedTuple):
    algorithm: bl.Algorithm
    start: Any
    outcome: Any


def watched(problem, monkeypatch, algorithm="bayes-by-backprop", **options):
    """The posterior, what every phase ran, and the bound of every candidate."""
    runs, bounds = {}, {}
    optimize, measure = multistart.optimize, multistart.final_lower_bound
    phase = []

    def watch(context, algorithm, params, start, *arguments, **more):
        outcome = optimize(context, algorithm, params, start, *arguments, **more)
        runs[context.phase] = PhaseRun(algorithm, start, outcome)
        phase[:] = [context.phase]
        return outcome

    def watch_bound(*arguments):
        bounds[phase[0]] = measure(*arguments)
        return bounds[phase[0]]

    for module in (multistart, phases, run):
        monkeypatch.setattr(module, "optimize", watch)
    monkeypatch.setattr(multistart, "final_lower_bound", watch_bound)
    posterior = fit(problem, algorithm, **({"starts": SHORT} | options))
    monkeypatch.undo()
    return posterior, runs, bounds


@pytest.fixture(scope="module")
def whole(problem):
    with pytest.MonkeyPatch.context() as patch:
        return watched(problem, patch)


def same(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def assert_same(one, other):
    same(one.family, other.family)
    assert one.elbo == other.elbo


def test_the_best_starts_go_on(whole):
    _, _, bounds = whole
    first = {name: bound for name, bound in bounds.items() if name.endswith(".0")}
    second = {name: bound for name, bound in bounds.items() if name.endswith(".1")}
    assert set(first) == {f"main/start {number}.0" for number in range(STARTS)}
    assert len(set(first.values())) == STARTS  # they began apart
    better = sorted(first, key=first.get, reverse=True)[:2]
    assert set(second) == {name.removesuffix("0") + "1" for name in better}


def test_the_best_start_is_perturbed_at_convergence(whole):
    _, runs, bounds = whole
    best = max((name for name in bounds if name.endswith(".1")), key=bounds.get)
    converged = runs["main/converged"]
    assert converged.start.state is runs[best].outcome.state
    outcome = converged.outcome
    for number in (1, 2):
        perturbed = runs[f"main/perturbed {number}"]
        assert isinstance(perturbed.algorithm, bl.VOGN)
        q = converged.algorithm.approximation(outcome.target, outcome.state)
        same(perturbed.start.q.mean, q.mean)
    candidates = {name for name in bounds if name.startswith("main/candidate")}
    assert candidates == {"main/candidate 0", "main/candidate 1", "main/candidate 2"}
    assert len({bounds[name] for name in candidates}) == 3
    chosen = max(candidates, key=bounds.get)
    assert runs["main"].start.state is runs[chosen].outcome.state
    assert runs["main"].start.state.unit is not None  # from there steps are in standard deviations
    assert converged.start.state.unit is None


def test_the_phases_of_a_run_are_listed(whole):
    posterior, runs, _ = whole
    assert {phase.name for phase in posterior.phases} == set(runs)
    assert posterior.phases[-1].name == "main"
    assert posterior.phases[-1].elbo == posterior.elbo
    chosen = {p.name for p in posterior.phases if p.is_chosen and p.name.endswith(".1")}
    assert len(chosen) == 1


@pytest.mark.parametrize("gain", [100.0, 0.4])
def test_a_candidate_that_is_much_better_is_perturbed_in_its_turn(problem, monkeypatch, gain):
    monkeypatch.setattr(multistart, "MIN_GAIN_PER_WEIGHT", 0.0)  # 1 nat is then enough
    bounds = iter(gain * number for number in range(100))
    monkeypatch.setattr(multistart, "final_lower_bound", lambda *arguments: next(bounds))
    runs = {}
    optimize = multistart.optimize

    def watch(context, algorithm, params, start, *arguments, **more):
        outcome = optimize(context, algorithm, params, start, *arguments, **more)
        runs[context.phase] = PhaseRun(algorithm, start, outcome)
        return outcome

    monkeypatch.setattr(multistart, "optimize", watch)
    monkeypatch.setattr(run, "optimize", watch)
    fit(problem, starts=SHORT)
    if gain < 1:
        assert "main/perturbed 3" not in runs
        return
    algorithm, _, outcome = runs["main/candidate 2"]
    q = algorithm.approximation(outcome.target, outcome.state)
    same(runs["main/perturbed 3"].start.q, q)
    assert runs["main"].start.state is runs["main/candidate 3"].outcome.state


def test_a_q_of_ones_own_goes_on_from_its_best_start(problem, monkeypatch):
    """It need not be a Gaussian, which is what the other method asks for."""
    algorithm = bl.BayesByBackprop(
        q=lambda params: bl.families.DiagonalGaussian(params, _tenths(params))
    )
    _, runs, _ = watched(problem, monkeypatch, algorithm)
    tried = {name for name in runs if name.endswith(".1")}
    assert len(tried) == 2
    assert any(runs["main"].start.state is runs[name].outcome.state for name in tried)
    assert not any("converged" in name for name in runs)


def _tenths(params):
    return jax.tree.map(lambda leaf: 0.1 + 0 * leaf, params)


def test_a_prior_that_the_other_method_refuses(problem, monkeypatch):
    model, data = problem
    model = bl.Model(model.network, model.likelihood, prior=bl.priors.Laplace())
    _, runs, _ = watched((model, data), monkeypatch)
    assert set(runs) >= {"main/converged", "main/candidate 0", "main"}
    assert not any("perturbed" in name for name in runs)


def test_no_perturbation_on_request(problem, monkeypatch):
    plain = dataclasses.replace(SHORT, perturb_with=None)
    _, runs, _ = watched(problem, monkeypatch, starts=plain)
    assert not any("converged" in name or "perturbed" in name for name in runs)


def test_nothing_is_compiled_again(problem, whole):
    """All starts and the run after them share their compiled steps."""
    before = kernels._steps._cache_size()
    fit(problem, starts=dataclasses.replace(SHORT, num_starts=STARTS + 1), seed=1)
    assert kernels._steps._cache_size() == before


def test_the_size_of_chunks_changes_nothing(problem, whole):
    assert_same(whole[0], fit(problem, starts=SHORT, options=bl.FitOptions(chunk_size=7)))


@pytest.mark.parametrize(
    ("phase", "occasions"),
    [
        ("main/start 1.0", 1),
        ("main/start 1.0", 2),
        ("main/perturbed 1", 2),
        ("main/candidate 2", 2),
        ("main", 1),
    ],
)
def test_a_run_killed_between_starts_ends_the_same(
    problem, whole, tmp_path, monkeypatch, phase, occasions
):
    kill_after(occasions, monkeypatch, phase)
    with pytest.raises(Killed):
        fit(problem, starts=SHORT, checkpoint=bl.Checkpoint(tmp_path / "run", every=50))
    monkeypatch.undo()
    again, maybe_save = [], Checkpointer.maybe_save
    monkeypatch.setattr(
        Checkpointer,
        "maybe_save",
        lambda self, name, *rest: again.append(name) or maybe_save(self, name, *rest),
    )
    assert_same(whole[0], bl.resume(tmp_path / "run", problem[1]))
    assert "main/start 0.0" not in again  # it was over


def first_phase(monkeypatch, *arguments, **options):
    """The first phase of a run, which is not run."""
    seen = []

    def stop(context, *rest, **more):
        seen.append(context.phase)
        raise Killed

    for module in (multistart, phases, run):
        monkeypatch.setattr(module, "optimize", stop)
    with pytest.raises(Killed):
        bl.fit(*arguments, seed=0, **options)
    return seen[0]


def test_where_several_starts_are_tried(problem, monkeypatch):
    """On request, by the first method of a chain of warm starts that begins with mean field."""
    model, data = problem
    single = "main/warm start"
    assert first_phase(monkeypatch, model, bl.BayesByBackprop(), data) == single
    assert first_phase(monkeypatch, model, bl.NGVI(), data) == "main/warm start/warm start"
    several = "main/start 0/warm start"
    assert first_phase(monkeypatch, model, bl.BayesByBackprop(), data, starts=2) == several
    within = "main/warm start/start 0/warm start"
    assert first_phase(monkeypatch, model, bl.NGVI(), data, starts=2) == within
    assert first_phase(monkeypatch, model, bl.NGVI(), data, starts=bl.MultiStart()) == within


def test_given_parameters_are_the_only_start(problem, whole, monkeypatch):
    model, data = problem
    family = whole[0].family
    algorithm = bl.BayesByBackprop()
    assert first_phase(monkeypatch, model, algorithm, data, init=family.mean) == "main/warm start"
    assert first_phase(monkeypatch, model, bl.NGVI(), data, init=family) == "main"
    with pytest.raises(bl.ArgumentError, match="`init` says where to start"):
        bl.fit(model, bl.NGVI(), data, seed=0, init=family.mean, starts=2)


def test_starts_that_cannot_be_tried_are_refused(problem):
    model, data = problem
    with pytest.raises(bl.ArgumentError, match="hmc does not begin with mean field"):
        bl.fit(model, bl.HMC(), data, seed=0, starts=2)
    for odd in (0, 1.5, "many"):
        with pytest.raises(bl.ArgumentError, match="`starts`"):
            bl.fit(model, bl.NGVI(), data, seed=0, starts=odd)
    with pytest.raises(bl.ArgumentError, match="`rounds` must be pairs"):
        bl.MultiStart(rounds=((100, 2),))
    with pytest.raises(bl.ArgumentError, match="`perturb_with` must be an algorithm"):
        bl.MultiStart(perturb_with="vogn")


def test_a_start_that_fails_is_passed_over(problem, monkeypatch):
    """The others are tried; where none is left, the failure is raised."""
    optimize = multistart.optimize
    failing = {"main/start 0.0", "main/perturbed 1", "main/candidate 2"}

    def fail(context, *arguments, **options):
        if context.phase in failing:
            raise bl.DivergenceError("lost")
        return optimize(context, *arguments, **options)

    for module in (multistart, phases, run):
        monkeypatch.setattr(module, "optimize", fail)
    assert np.isfinite(fit(problem, starts=SHORT).elbo)
    failing |= {f"main/start {number}.0" for number in range(STARTS)}
    with pytest.raises(bl.DivergenceError, match="lost"):
        fit(problem, starts=SHORT)


def test_a_candidate_that_fails_leaves_nothing_in_the_trace(problem, tmp_path, monkeypatch):
    """With checkpoints on: what it had written is there when the main phase begins."""
    maybe_save, last = RunContext.maybe_save, "main/candidate 2"
    occasions = []

    def fail(context, state):
        maybe_save(context, state)
        occasions.append(context.phase)
        if context.phase == last and state.now >= 40:
            raise bl.DivergenceError("lost")

    monkeypatch.setattr(RunContext, "maybe_save", fail)
    results = []
    for checkpoint in (None, bl.Checkpoint(tmp_path / "run", every=30)):
        occasions.clear()
        results.append(fit(problem, starts=SHORT, checkpoint=checkpoint))
        assert next(name for name in reversed(occasions) if name != "main") == last
    lengths = [{name: len(part) for name, part in p.trace.items()} for p in results]
    assert lengths[0] == lengths[1]
    assert_same(*results)


def test_starts_are_shortened_within_a_given_number_of_steps(problem, monkeypatch):
    """They take no more than half of it."""
    shorter = SHORT.within(600)
    assert shorter.num_starts == STARTS
    assert shorter.first_steps < SHORT.first_steps
    assert SHORT.within(10**6) == SHORT


def test_a_run_so_short_that_no_steps_remain_to_settle(problem):
    posterior = fit(problem, starts=2, num_steps=8)
    names = [phase.name for phase in posterior.phases]
    assert "main/candidate 0" in names
    assert "main/converged" not in names
    assert np.isfinite(posterior.elbo)
