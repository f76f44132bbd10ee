"""Guards: steps back from a state that makes no sense, shorter steps, and a named error."""

from __future__ import annotations

import warnings
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from interruption import Killed, assert_same, kill_after

import bayeslearn as bl
from bayeslearn.algorithms.base import Algorithm, hyper
from bayeslearn.inference import guards
from bayeslearn.inference.early_stopping import EarlyStopping
from bayeslearn.inference.run_state import OptimizationState
from bayeslearn.storage.checkpoints import Checkpointer


@pytest.fixture(scope="module")
def problem():
    return problems.regression()


@pytest.fixture
def data(problem):
    return problem.x, problem.y


@pytest.fixture(scope="module")
def mode(problem):
    """The posterior of MAP, to start from."""
    return bl.fit(problem.model, "map", (problem.x, problem.y), seed=0, num_steps=60)


def test_back_offs_are_remembered(tmp_path, monkeypatch):
    """The run that has to shorten its step is killed between the first back-off and the last."""
    target = bl.Target.from_log_density(lambda w: -(w**4), jnp.asarray(3.0))
    algorithm = bl.MAP(optimizer="sgd", learning_rate=1.0, power=0.0)
    options = {"seed": 0, "num_steps": 100, "options": bl.FitOptions(eval_every=50)}
    whole = bl.fit(target, algorithm, **options)
    assert "halved 5 time(s)" in whole.notes[0]
    original = Checkpointer.maybe_save
    for occasions in (3, 5, 7):
        run, count = tmp_path / str(occasions), [0]

        def maybe_save(self, phase, state, position=None, occasions=occasions, count=count):
            count[0] += 1
            if count[0] == occasions:
                self.save(phase, state)
                raise Killed
            original(self, phase, state, position)

        monkeypatch.setattr(Checkpointer, "maybe_save", maybe_save)
        with pytest.raises(Killed):
            bl.fit(target, algorithm, checkpoint=bl.Checkpoint(run, every="1h"), **options)
        monkeypatch.undo()
        assert_same(whole, bl.resume(run, model=target))


@jax.custom_jvp
def cliff(w):
    return w


@cliff.defjvp
def _(primals, tangents):
    (w,), (t,) = primals, tangents
    return w, t * jnp.where(w > 2.0, jnp.inf, 1.0)


def test_an_infinite_gradient_shortens_the_step():
    """The first step leads to 2.25, where the gradient is infinite; half of it does not."""
    target = bl.Target.from_log_density(lambda w: -0.5 * (cliff(w) - 1.5) ** 2, jnp.asarray(0.0))
    algorithm = bl.MAP(optimizer="sgd", learning_rate=1.5, power=0.0)
    found = bl.fit(target, algorithm, seed=0, num_steps=40, options=bl.FitOptions(eval_every=20))
    assert "halved 1 time(s)" in found.notes[0]
    assert found.trace["eval_back_offs"][-1] == 1
    assert "0.5 of the requested learning rate" in found.notes[0]
    np.testing.assert_allclose(float(found.family.mean), 1.5, rtol=1e-9)


def test_a_bound_that_sinks_for_long_shortens_the_step():
    """On -w^2 / 2 each step of 2.005 multiplies w by -1.005: slowly, but away from the mode."""
    target = bl.Target.from_log_density(lambda w: -0.5 * w**2, jnp.asarray(3.0))
    algorithm = bl.MAP(optimizer="sgd", learning_rate=2.005, power=0.0)
    found = bl.fit(target, algorithm, seed=0, num_steps=400)
    assert "the lower bound was lost for long (1)" in found.notes[0]
    assert abs(float(found.family.mean)) < 1e-6
    assert np.min(found.trace["eval_log_joint"]) < found.trace["eval_log_joint"][0] - 1.0


def around(q, std):
    """A Gaussian at the mean of another, to start from."""
    stds = jax.tree.map(lambda w: jnp.full_like(w, std), q.mean)
    return bl.families.DiagonalGaussian(q.mean, stds)


def test_a_scale_that_collapses_shortens_the_step(tmp_path, problem, data, mode, monkeypatch):
    """Steps so long that the standard deviations of four weights decay to zero."""
    options = {
        "seed": 0,
        "num_steps": 60,
        "init": around(mode.family, 0.1),
        "options": bl.FitOptions(eval_every=5),
    }
    fit = (problem.model, bl.BBVI(learning_rate=10.0), data)
    found = bl.fit(*fit, **options)
    assert "the bound or the scale of q exploded or collapsed (" in found.notes[-1]
    assert np.min(jax.tree.leaves(found.family.std)) > 1e-8
    assert np.isfinite(found.elbo)
    kill_after(8, monkeypatch)
    with pytest.raises(Killed):
        bl.fit(*fit, **options, checkpoint=bl.Checkpoint(tmp_path / "run", every=5))
    monkeypatch.undo()
    assert_same(found, bl.resume(tmp_path / "run", data, init=options["init"]))


class CollapsingState(NamedTuple):
    q: bl.families.DiagonalGaussian
    count: jax.Array


class Collapsing(Algorithm):
    """A method whose q is sound for five steps and then a point, however short its steps."""

    name: ClassVar[str] = "collapsing"
    title: ClassVar[str] = "collapsing"

    learning_rate: float = hyper(0.1, "has no effect", above=0)

    def init(self, key, target, params):
        return CollapsingState(around(bl.families.Point(params), 0.1), jnp.zeros((), jnp.int32))

    def step(self, key, target, state, batch):
        scale = jnp.where(state.count < 5, 0.1, 1e-12)
        std = jax.tree.map(lambda s: jnp.full_like(s, scale), state.q.std)
        q = bl.families.DiagonalGaussian(state.q.mean, std)
        return CollapsingState(q, state.count + 1), CollapsingInfo(scale)

    def approximation(self, target, state, draws=None):
        return state.q


class CollapsingInfo(NamedTuple):
    scale: jax.Array


def test_a_scale_that_always_collapses_is_a_named_error(problem, data, mode):
    message = (
        r"collapsing diverged: a posterior std left \[1e-08, 10000\] times the prior std after step"
        r" \d+ .*lower `learning_rate`"
    )
    with pytest.raises(bl.DivergenceError, match=message):
        bl.fit(
            problem.model,
            Collapsing(),
            data,
            seed=0,
            num_steps=60,
            init=mode.family.mean,
            options=bl.FitOptions(eval_every=5),
        )


@pytest.mark.parametrize("num_steps", [5, 60])
def test_a_scale_beyond_all_bounds_is_a_named_error(mode, problem, data, num_steps):
    """A first q a million times as wide as the prior, and steps that do not lead away from it."""
    q = around(mode.family, 1e6)
    with pytest.raises(bl.DivergenceError, match="diverged: a posterior std left"):
        bl.fit(
            problem.model,
            bl.BBVI(learning_rate=1e-6),
            data,
            seed=0,
            num_steps=num_steps,
            init=q,
            options=bl.FitOptions(eval_every=5),
        )


class Leaping(Collapsing):
    """A method that leaps 1e9 away after five steps, if these are longer than `far`."""

    far: float = hyper(0.06, "learning rate above which it leaps", least=0)

    def init(self, key, target, params):
        return CollapsingState(around(bl.families.Point(params), 0.1), jnp.zeros((), jnp.int32))

    def step(self, key, target, state, batch):
        is_gone = (state.count >= 5) & (self.learning_rate > self.far)
        mean = jax.tree.map(lambda m: jnp.where(is_gone, 1e9, m), state.q.mean)
        q = bl.families.DiagonalGaussian(mean, state.q.std)
        return CollapsingState(q, state.count + 1), CollapsingInfo(jnp.ones(()))


def test_a_run_that_explodes_steps_back(problem, data, mode):
    """Its q is as wide as ever, and its bound finite."""
    options = {"seed": 0, "num_steps": 60, "init": mode.family.mean}
    options["options"] = bl.FitOptions(eval_every=5)
    found = bl.fit(problem.model, Leaping(), data, **options)
    assert "the bound or the scale of q exploded or collapsed (1)" in found.notes[0]
    assert np.max(np.abs(jax.tree.leaves(found.family.mean)[0])) < 1e3
    with pytest.raises(bl.DivergenceError, match="diverged: its lower bound fell far below"):
        bl.fit(problem.model, Leaping(far=0.0), data, **options)


def test_a_run_of_few_evaluations_steps_back_sooner():
    run = OptimizationState(None, None, None, 10)
    assert not guards.lower_bound_lost(run, -5.0, 0.1, 10.0, 2)
    lost = [guards.lower_bound_lost(run, bound, 0.1, 10.0, 2) for bound in (-16.0, -14.0)]
    assert lost == [False, False]  # a nat per row below the first, then not
    assert [guards.lower_bound_lost(run, -16.0, 0.1, 10.0, 2) for _ in range(2)] == [False, True]


def test_gains_too_small_to_matter_end_a_warm_start():
    """0.05 nats an evaluation: the moving average never gains 0.1 at once."""
    for min_gain, is_going_on in ((0.0, True), (0.1, False)):
        best = EarlyStopping(5)
        best.min_gain = min_gain
        found = [best.update(0.01 * step, 0.0, "state", None, step) for step in range(100)]
        assert all(found) == is_going_on
        assert best.step == (99 if is_going_on else best.step)


def test_chains_start_near_the_mode_and_not_at_it():
    """Their warm-up leaves it anyway; a fraction of a nat from it costs a fraction of the steps."""
    x, y = problems.two_classes(60)
    model = bl.Model(bl.networks.MLP([]), bl.likelihoods.Categorical(2), bl.priors.Normal(1.0))
    algorithm = bl.HMC(num_warmup=20, num_samples=20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bl.MixingWarning)
        posterior = bl.fit(model, algorithm, (x, y), seed=0, num_chains=2)
    starts = [phase for phase in posterior.phases if "warm start" in phase.name]
    whole = bl.fit(model, bl.MAP(), (x, y), seed=0)
    assert len(starts) == 2
    assert all(start.num_steps < 0.5 * whole.phases[-1].num_steps for start in starts)
