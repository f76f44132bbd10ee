"""Step sizes that decay to zero over a run, and decays that are shortened at convergence."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import problems
import pytest
from interruption import Killed, kill_after

import bayeslearn as bl
from bayeslearn.algorithms.gaussian import draw_shrinkage
from bayeslearn.algorithms.optimizers import warmup_cosine
from bayeslearn.inference import phases, run

SHORTENED = "its step size then decayed to zero by"


@pytest.fixture(scope="module")
def problem():
    return problems.regression()


@pytest.fixture(scope="module")
def converged(problem):
    return fit(problem)


def fit(problem, **options):
    """A run that is soon taken for converged."""
    data = problem.x, problem.y
    return bl.fit(
        problem.model,
        "bayes-by-backprop",
        data,
        seed=0,
        **options,
        options=bl.FitOptions(patience=3),
    )


def rates(algorithm, counts):
    return [float(algorithm.schedule()(jnp.asarray(t))) for t in counts]


@pytest.mark.usefixtures("x64")
def test_the_step_size_decays_to_zero_over_the_run():
    algorithm = bl.BayesByBackprop(learning_rate=0.5).with_run_length(100)
    np.testing.assert_allclose(rates(algorithm, (0, 50, 99, 200)), [0.5, 0.25, 0.005, 0.005])
    steep = bl.NGVI(learning_rate=0.5, power=2.0).with_run_length(100)
    np.testing.assert_allclose(rates(steep, (0, 50)), [0.5, 0.125])
    assert rates(bl.NGVI(learning_rate=0.5), (0, 50)) == [0.5, 0.5]  # of no known length


@pytest.mark.usefixtures("x64")
def test_other_schedules_know_nothing_of_the_length():
    monro = bl.NGVI(learning_rate=0.5, decay_steps=10.0, power=0.5)
    constant = bl.NGVI(learning_rate=0.5, power=0.0)
    own = bl.NGVI(learning_rate=0.5, length=50.0)
    for algorithm in (monro, constant, own):
        assert algorithm.with_run_length(1000) is algorithm
    np.testing.assert_allclose(rates(monro, (0, 30)), [0.5, 0.25])
    assert rates(constant, (0, 30)) == [0.5, 0.5]
    np.testing.assert_allclose(rates(own, (0, 25)), [0.5, 0.25])


@pytest.mark.usefixtures("x64")
def test_a_share_shortens_steps_and_stretches_time():
    monro = bl.NGVI(learning_rate=1.0, decay_steps=10.0)
    np.testing.assert_allclose(float(monro.schedule(0.25)(jnp.asarray(40))), 0.125)
    assert draw_shrinkage(96, 16, "reparam", True) == 0.25  # outer products of 16 draws: rank 32
    assert draw_shrinkage(48, 16, "score", True) == 0.25
    assert draw_shrinkage(96, 1, "hessian", True) == 0.125
    for gradient in ("reparam", "score", "hessian"):
        assert draw_shrinkage(96, 16, gradient, False) == 1.0


def test_the_largest_block_says_how_many_draws():
    class Frame:
        size = 0

    for size, draws in ((1, 16), (96, 16), (240, 40), (1000, 64)):
        Frame.size = size
        assert bl.MGVB().draws(Frame) == draws
        assert bl.MGVB(num_draws=4).draws(Frame) == 4


def test_the_decay_of_a_converged_run_is_shortened(converged):
    assert SHORTENED in converged.stopped
    steps = converged.trace["eval_step"]
    assert steps[-1] < bl.BayesByBackprop.auto_steps
    assert converged.stopped.endswith(f"{SHORTENED} {steps[-1]}.")


def test_a_run_of_given_length_is_not(problem):
    posterior = bl.fit(
        problem.model,
        "bayes-by-backprop",
        (problem.x, problem.y),
        seed=0,
        num_steps=300,
        options=bl.FitOptions(warm_start=0),
    )
    assert posterior.stopped == "All 300 steps were done."


@pytest.mark.parametrize("before_the_end", [4, 1])
def test_a_shortened_run_killed_anywhere_ends_the_same(
    problem, converged, tmp_path, monkeypatch, before_the_end
):
    kill_after(len(converged.trace["eval_step"]) - before_the_end, monkeypatch)
    with pytest.raises(Killed):
        fit(problem, checkpoint=bl.Checkpoint(tmp_path / "run", every=100))
    monkeypatch.undo()
    again = bl.resume(tmp_path / "run", (problem.x, problem.y))
    assert again.stopped == converged.stopped
    leaves = jax.tree.leaves(again.family), jax.tree.leaves(converged.family)
    for a, b in zip(*leaves, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_warm_start_is_what_the_method_gives_on_its_own(problem, monkeypatch):
    data = problem.x, problem.y
    alone = bl.fit(problem.model, "bayes-by-backprop", data, seed=0)
    seen = {}
    optimize = run.optimize

    def watch(context, algorithm, params, start, *arguments, **options):
        seen[context.phase] = start
        if context.phase == "main":
            raise Killed
        return optimize(context, algorithm, params, start, *arguments, **options)

    monkeypatch.setattr(run, "optimize", watch)
    monkeypatch.setattr(phases, "optimize", watch)
    with pytest.raises(Killed):
        bl.fit(problem.model, bl.NGVI(), data, seed=0)
    for a, b in zip(jax.tree.leaves(seen["main"].q), jax.tree.leaves(alone.family), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("x64")
def test_a_cosine_rises_in_a_twentieth_of_the_run_and_ends_at_zero():
    schedule = warmup_cosine(0.5, 1000.0)
    found = [float(schedule(jnp.asarray(t))) for t in (0, 24, 49, 524, 999, 1500)]
    np.testing.assert_allclose(found, [0.01, 0.25, 0.5, 0.25, 0.0, 0.0], atol=1e-12)
    assert float(warmup_cosine(0.5, 0.0)(jnp.asarray(7))) == 0.5  # of no known length


@pytest.mark.parametrize(
    "name", [n for n, a in bl.ALGORITHMS.items() if "decay" in a.sized_defaults]
)
def test_defaults_depend_on_the_size_and_given_values_do_not(name):
    algorithm = bl.ALGORITHMS[name]()
    small, large = algorithm.for_network(10_000), algorithm.for_network(10_001)
    for field, pair in algorithm.sized_defaults.items():
        least, most = (value(10_001) if callable(value) else value for value in pair)
        assert (getattr(small, field), getattr(large, field)) == (least, most)
        assert algorithm.setting(field) == pair[0]
    assert large.has_decaying_rate
    assert large.with_run_length(70).length == 70.0
    given = bl.ALGORITHMS[name](learning_rate=0.02, decay="power").for_network(10_001)
    assert given.learning_rate == 0.02
    assert given.decay == "power"
    assert large.for_network(10) == large  # what is filled in stays


@pytest.mark.parametrize("cls", [bl.IVON, bl.Vadam, bl.VOGN])
def test_steps_of_larger_networks_are_shorter(cls):
    found = [cls().for_network(n).clip for n in (20_000, 100_000, 400_000, 10_000_000)]
    np.testing.assert_allclose(found, [0.001, 0.001, 0.0005, 0.0001])
    assert cls(clip=0.3).for_network(10_000_000).clip == 0.3


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("cls", [bl.IVON, bl.Vadam, bl.VOGN])
@pytest.mark.parametrize("rate", [{}, {"decay": "power"}, {"learning_rate": lambda t: 0.1}])
def test_averages_of_curvature_are_renewed_so_often_in_a_run_whatever_its_step_size(cls, rate):
    """IVON with a power forgot h at once; Vadam and VOGN with one did not look at `renewals`."""
    large = cls(**rate).for_network(10_001)
    for length, weight in ((1000, 0.002), (2, 0.5), (0, cls.usual_weight)):
        algorithm = large.with_run_length(length)
        np.testing.assert_allclose(float(algorithm.renewal_weight()), weight)
    small = cls(**rate, renewals=20.0).for_network(100).with_run_length(1000)
    np.testing.assert_allclose(float(small.renewal_weight()), 0.02)


def test_a_step_size_can_be_an_optax_schedule(problem):
    """Of each method; it is called with the step's number, and shorter steps scale it."""
    fall = optax.cosine_decay_schedule(0.1, 100)
    for cls in (bl.MAP, bl.VOGN, bl.Vadam, bl.IVON, bl.BayesByBackprop, bl.MCDropout):
        algorithm = cls(learning_rate=fall).for_network(100).with_run_length(50)
        np.testing.assert_allclose(rates(algorithm, (0, 50, 100)), [0.1, 0.05, 0.0], atol=1e-9)
        np.testing.assert_allclose(rates(algorithm.with_shorter_steps(0.5), (50,)), [0.025])
        assert not algorithm.has_decaying_rate
    assert bl.IVON(learning_rate=fall).with_run_length(50).length == 50  # its beta2 needs it
    with pytest.raises(bl.ArgumentError, match="function that returns one"):
        bl.IVON(learning_rate=lambda count: (count, count))


def test_a_schedule_of_ones_own_is_fitted_saved_and_loaded(problem, tmp_path):
    """A constant function has the bits of a constant; a posterior with it is saved."""
    data = problem.x, problem.y
    number = bl.VOGN(learning_rate=0.25, power=0.0)
    function = bl.VOGN(learning_rate=optax.constant_schedule(0.25))
    a, b = (bl.fit(problem.model, one, data, seed=0, num_steps=50) for one in (number, function))
    for left, right in zip(jax.tree.leaves(a.family), jax.tree.leaves(b.family), strict=True):
        np.testing.assert_array_equal(left, right)
    b.save(tmp_path / "run")
    loaded = bl.load(tmp_path / "run")
    np.testing.assert_array_equal(loaded.predict(problem.x).mean, b.predict(problem.x).mean)


def test_a_step_size_is_the_first_argument():
    """It was the length of the schedule, without a word."""
    for name, cls in bl.ALGORITHMS.items():
        if "length" in cls.__dataclass_fields__:
            assert cls(0.02).setting("learning_rate") == 0.02, name


def test_back_offs_shorten_the_updates_of_an_optax_object(problem):
    optimizer = optax.sgd(1.0)
    scaled = bl.MAP(optimizer=optimizer).with_shorter_steps(0.25)
    assert bl.MAP(optimizer=optimizer).with_shorter_steps(0.25).optimizer is scaled.optimizer
    gradient = {"w": jnp.ones(3, jnp.float32)}
    updates, _ = scaled.optimizer.update(gradient, scaled.optimizer.init(gradient))
    np.testing.assert_array_equal(updates["w"], np.full(3, -0.25, np.float32))
    assert updates["w"].dtype == jnp.float32


def test_steps_of_an_optax_object_that_are_too_long_are_halved_until_they_are_not(problem):
    """With the bare step size every back-off was in vain."""
    wild = bl.BayesByBackprop(optimizer=optax.sgd(1e2))
    options = {"num_steps": 400, "options": bl.FitOptions(warm_start=0)}
    found = bl.fit(problem.model, wild, (problem.x, problem.y), seed=0, **options)
    assert any("step size was halved" in note for note in found.notes)
    mean = np.ravel(jax.tree.leaves(found.family.mean)[0])
    assert np.all(np.abs(mean - problem.mean) < 3 * problem.std)
