"""Several starts: mean field is tried from several initialisations, and the best goes on."""

from __future__ import annotations

import jax
import numpy as np
import problems
import pytest

import bayeslearn as bl
from bayeslearn.inference import fitting
from bayeslearn.storage import checkpoints

STARTS = 3


class Cut(BaseException):
    """A process that ends there."""


@pytest.fixture(scope="module", autouse=True)
def short():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "ROUNDS", ((100, 2), (50, 1)))
        patch.setattr(fitting, "STIRRED", (2, 1))
        patch.setattr(fitting, "WORTH", 1e9)  # one turn, unless a test says otherwise
        patch.setattr(fitting, "STIRRED_STEPS", 60)
        patch.setattr(bl.MAP, "auto_steps", 200)
        patch.setattr(bl.BayesByBackprop, "auto_steps", 200)
        yield


@pytest.fixture(scope="module")
def problem():
    model = bl.Model(bl.networks.MLP([4]), bl.likelihoods.Gaussian(noise_scale=0.3))
    return model, problems.wiggle(40)


def fit(problem, algorithm="bayes-by-backprop", **options):
    model, data = problem
    return bl.fit(model, algorithm, data, **({"seed": 0, "num_steps": 100} | options))


@pytest.fixture(scope="module")
def told(problem):
    """A whole run, and the bound of every start in each round."""
    told = {}
    measure = fitting._fresh_bound

    def watch(setting, *arguments):
        told[setting.phase] = measure(setting, *arguments)
        return told[setting.phase]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "_fresh_bound", watch)
        posterior = fit(problem, starts=STARTS)
    return posterior, told


def same(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def assert_same(one, other):
    same(one.family, other.family)
    assert one.elbo == other.elbo


def test_the_best_starts_go_on(told):
    _, bounds = told
    first = {name: bound for name, bound in bounds.items() if name.endswith(".0")}
    second = {name: bound for name, bound in bounds.items() if name.endswith(".1")}
    assert set(first) == {f"main/start {number}.0" for number in range(STARTS)}
    assert len(set(first.values())) == STARTS  # they began apart
    better = sorted(first, key=first.get, reverse=True)[:2]
    assert set(second) == {name.removesuffix("0") + "1" for name in better}


def seen_runs(problem, monkeypatch, algorithm="bayes-by-backprop"):
    """(algorithm, warm, run) of every phase."""
    runs, optimise = {}, fitting._optimise

    def watch(setting, algorithm, start, warm, *arguments, **options):
        run = optimise(setting, algorithm, start, warm, *arguments, **options)
        runs[setting.phase] = (algorithm, warm, run)
        return run

    monkeypatch.setattr(fitting, "_optimise", watch)
    fit(problem, algorithm, starts=STARTS)
    return runs


def test_the_best_is_brought_to_rest_and_stirred(problem, told, monkeypatch):
    _, bounds = told
    runs = seen_runs(problem, monkeypatch)
    best = max((name for name in bounds if name.endswith(".1")), key=bounds.get)
    settled = runs["main/settled"]
    assert settled[1].state is runs[best][2].state
    for number in (1, 2):
        other, warm, _ = runs[f"main/stirred {number}"]
        assert isinstance(other, bl.VOGN)
        same(warm.q.mean, settled[0].approximation(settled[2].target, settled[2].state).mean)
    places = {name for name in bounds if name.startswith("main/place")}
    assert places == {"main/place 0", "main/place 1", "main/place 2"}
    assert len({bounds[name] for name in places}) == 3
    assert runs["main"][1].state is runs[max(places, key=bounds.get)][2].state
    assert runs["main"][1].state.unit is not None  # from there steps are in standard deviations
    assert settled[1].state.unit is None


@pytest.mark.parametrize("gain", [100.0, 0.4])
def test_a_place_that_is_much_better_is_stirred_in_its_turn(problem, monkeypatch, gain):
    monkeypatch.setattr(fitting, "WORTH", 0.0)  # 1 nat is then enough
    bounds = iter(gain * number for number in range(100))
    monkeypatch.setattr(fitting, "_fresh_bound", lambda *arguments: next(bounds))
    runs = seen_runs(problem, monkeypatch)
    if gain < 1:
        assert "main/stirred 3" not in runs
        return
    algorithm, _, run = runs["main/place 2"]
    same(runs["main/stirred 3"][1].q, algorithm.approximation(run.target, run.state))
    assert runs["main"][1].state is runs["main/place 3"][2].state


def test_a_q_of_ones_own_goes_on_from_its_best_start(problem, monkeypatch):
    """It need not be a Gaussian, which is what the other method asks for."""
    q = bl.BayesByBackprop(q=lambda params: bl.families.DiagonalGaussian(params, _tenths(params)))
    runs = seen_runs(problem, monkeypatch, q)
    tried = {name for name in runs if name.endswith(".1")}
    assert len(tried) == 2
    assert any(runs["main"][1].state is runs[name][2].state for name in tried)
    assert runs["main"][2].stopped == "All 100 steps were done."
    assert not any("settled" in name for name in runs)


def _tenths(params):
    return jax.tree.map(lambda leaf: 0.1 + 0 * leaf, params)


def test_a_prior_that_the_other_method_refuses(problem, monkeypatch):
    model, data = problem
    model = bl.Model(model.network, model.likelihood, prior=bl.priors.Laplace())
    runs = seen_runs((model, data), monkeypatch)
    assert set(runs) >= {"main/settled", "main/place 0", "main"}
    assert not any("stirred" in name for name in runs)


def test_nothing_is_compiled_again(problem, told):
    """All starts and the run after them share their compiled steps."""
    before = fitting._steps._cache_size()
    fit(problem, starts=STARTS + 1, seed=1)
    assert fitting._steps._cache_size() == before


def test_the_size_of_chunks_changes_nothing(problem, told):
    assert_same(told[0], fit(problem, starts=STARTS, options=bl.FitOptions(chunk_size=7)))


@pytest.mark.parametrize(
    ("phase", "looks"),
    [
        ("main/start 1.0", 1),
        ("main/start 1.0", 2),
        ("main/stirred 1", 2),
        ("main/place 2", 2),
        ("main", 1),
    ],
)
def test_a_run_cut_between_starts_ends_the_same(problem, told, tmp_path, monkeypatch, phase, looks):
    look, seen = checkpoints.Keeper.look, []

    def cut(self, name, *arguments):
        look(self, name, *arguments)
        seen.append(name)
        if seen.count(phase) == looks:
            raise Cut

    monkeypatch.setattr(checkpoints.Keeper, "look", cut)
    with pytest.raises(Cut):
        fit(problem, starts=STARTS, checkpoint=bl.Checkpoint(tmp_path / "run", every=50))
    monkeypatch.undo()
    again = []
    monkeypatch.setattr(
        checkpoints.Keeper,
        "look",
        lambda self, name, *rest: again.append(name) or look(self, name, *rest),
    )
    assert_same(told[0], bl.resume(tmp_path / "run", problem[1]))
    assert "main/start 0.0" not in again  # it was over


def phases(monkeypatch, *arguments, **options):
    """The phases of a run, none of which is run."""
    seen = []

    def stop(setting, *rest, **more):
        seen.append(setting.phase)
        raise Cut

    monkeypatch.setattr(fitting, "_optimise", stop)
    with pytest.raises(Cut):
        bl.fit(*arguments, seed=0, **options)
    return seen[0]


def test_where_starts_are_tried_unasked(problem, monkeypatch):
    model, data = problem
    several = "main/start 0/warm start"
    assert phases(monkeypatch, model, bl.BayesByBackprop(), data) == several
    within = "main/warm start/start 0/warm start"
    assert phases(monkeypatch, model, bl.NGVI(), data) == within
    one = "main/warm start/warm start"
    assert phases(monkeypatch, model, bl.NGVI(), data, starts=1) == one
    assert phases(monkeypatch, model, bl.NGVI(), data, num_steps=10) == one
    single = "main/warm start"
    assert phases(monkeypatch, model, bl.BayesByBackprop(), data, num_steps=10) == single
    assert phases(monkeypatch, model, bl.VOGN(), data) == single
    linear = bl.Model(bl.networks.MLP([]), bl.likelihoods.Gaussian())
    assert phases(monkeypatch, linear, bl.BayesByBackprop(), data) == single
    classes = bl.Model(model.network, bl.likelihoods.Bernoulli())
    signs = data[0], (np.asarray(data[1]) > 0).astype(int)
    assert phases(monkeypatch, classes, bl.BayesByBackprop(), signs) == single
    wide = bl.Model(bl.networks.MLP([200, 200]), bl.likelihoods.Gaussian())
    assert phases(monkeypatch, wide, bl.BayesByBackprop(), data) == single


def test_given_parameters_are_the_only_start(problem, told, monkeypatch):
    model, data = problem
    mean = told[0].family.mean
    assert phases(monkeypatch, model, bl.BayesByBackprop(), data, params=mean) == "main/warm start"
    assert phases(monkeypatch, model, bl.NGVI(), data, params=told[0].family) == "main"
    with pytest.raises(bl.ArgumentError, match="`params` say where to start"):
        bl.fit(model, bl.NGVI(), data, seed=0, init=mean, starts=2)


def test_starts_that_cannot_be_tried_are_refused(problem):
    model, data = problem
    with pytest.raises(bl.ArgumentError, match="hmc does not begin with mean field"):
        bl.fit(model, bl.HMC(), data, seed=0, starts=2)
    for odd in (0, 1.5, "many"):
        with pytest.raises(bl.ArgumentError, match="`starts`"):
            bl.fit(model, bl.NGVI(), data, seed=0, starts=odd)


def test_a_start_that_fails_is_passed_over(problem, told, monkeypatch):
    """The others are tried; where none is left, the failure is told."""
    optimise = fitting._optimise
    failing = {"main/start 0.0", "main/stirred 1", "main/place 2"}

    def fail(setting, *arguments, **options):
        if setting.phase in failing:
            raise bl.DivergenceError("lost")
        return optimise(setting, *arguments, **options)

    monkeypatch.setattr(fitting, "_optimise", fail)
    assert np.isfinite(fit(problem, starts=STARTS).elbo)
    failing |= {f"main/start {number}.0" for number in range(STARTS)}
    with pytest.raises(bl.DivergenceError, match="lost"):
        fit(problem, starts=STARTS)
