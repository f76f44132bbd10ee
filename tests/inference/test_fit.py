"""The loop: batches, streams, stopping, guards, and what it reports."""

from __future__ import annotations

import itertools
import re
import time
import warnings
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import problems
import pytest
from scipy import stats

import bayeslearn as bl
from bayeslearn import progress, tree
from bayeslearn.algorithms.base import Capabilities
from bayeslearn.data import batches
from bayeslearn.data.rows import Batch
from bayeslearn.errors import ArgumentError, DivergenceError
from bayeslearn.families import Point


@pytest.fixture(scope="module")
def problem():
    return problems.regression()


def same(first, second):
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(a, b)


# Minibatches


@pytest.mark.parametrize(("rows", "size"), [(11, 4), (12, 4), (11, 11), (11, 10)])
def test_an_epoch_takes_every_row_once(x64, rows, size):
    data = Batch(jnp.arange(rows), jnp.arange(rows))
    number = -(-rows // size)
    seen = []
    for epoch in range(2):
        order = batches.permutation(jax.random.key(0), epoch, rows)
        parts = [batches.take(data, order, jnp.asarray(i), size) for i in range(number)]
        weights = [np.ones(size) if b.weight is None else np.asarray(b.weight) for b in parts]
        taken = np.concatenate(
            [np.asarray(b.x)[w > 0] for b, w in zip(parts, weights, strict=True)]
        )
        assert sorted(taken) == list(range(rows))
        assert sum(w.sum() for w in weights) == rows
        seen.append(list(taken))
    assert seen[0] != seen[1]
    assert seen[0] != sorted(seen[0])


def test_the_last_partial_batch_is_unbiased(x64, problem):
    """Over all 120 orders of five rows, batches of two, two and one."""
    target, params = problem.model.bind((problem.x[:5], problem.y[:5]), jax.random.key(0))
    data = jax.tree.map(jnp.asarray, target.data)
    full = np.asarray(tree.ravel(jax.jit(jax.grad(target.scaled_log_likelihood))(params)))

    @jax.jit
    @jax.vmap
    def gradients(order):
        parts = [batches.take(data, order, jnp.asarray(i), 2) for i in range(3)]
        gradient = jax.grad(target.scaled_log_likelihood)
        return jnp.stack([tree.ravel(gradient(params, part)) for part in parts])

    found = np.asarray(gradients(jnp.array(list(itertools.permutations(range(5))))))
    for position in range(3):
        np.testing.assert_allclose(found[:, position].mean(axis=0), full, rtol=1e-10)
    # in one epoch, each batch counted by its rows, the full gradient comes back exactly
    shares = np.array([2, 2, 1]) / 5
    np.testing.assert_allclose(
        np.einsum("b,obk->ok", shares, found), np.broadcast_to(full, (120, 4)), rtol=1e-9
    )
    assert np.abs(found[:, 2] - full).max() > 1e-3 * np.abs(full).max()


class WatchState(NamedTuple):
    position: dict


class WatchInfo(NamedTuple):
    rows: jax.Array  # the rows of the batch, one bit each


class Watch(bl.Algorithm):
    """Learns nothing and tells which rows it was given (x is the row's number)."""

    name: ClassVar[str] = "watch"
    title: ClassVar[str] = "tells its batches"
    capabilities: ClassVar[Capabilities] = Capabilities(has_lower_bound=False)

    def init(self, key, target, params):
        return WatchState(params)

    def step(self, key, target, state, batch):
        bits = jnp.left_shift(1, batch.x[:, 0].astype(jnp.int64))
        weight = jnp.ones(len(batch.y)) if batch.weight is None else batch.weight
        return state, WatchInfo(jnp.sum(bits * (weight > 0)))

    def approximation(self, target, state, draws=None):
        return Point(state.position)


@pytest.mark.parametrize("chunk_size", [2, 100])
def test_fit_walks_through_the_data_without_replacement(chunk_size):
    x = np.arange(11.0)[:, None]
    model = bl.Model(bl.networks.MLP([]), bl.likelihoods.Gaussian())
    posterior = bl.fit(
        model,
        Watch(),
        (x, x[:, 0]),
        seed=0,
        batch_size=4,
        num_steps=12,
        options=bl.FitOptions(chunk_size=chunk_size),
    )
    masks = posterior.trace["rows"].astype(int).reshape(4, 3)
    for epoch in masks:
        assert [bin(mask).count("1") for mask in epoch] == [4, 4, 3]
        assert epoch[0] | epoch[1] | epoch[2] == 2**11 - 1
    assert len({tuple(epoch) for epoch in masks}) == 4


# Where data come from


def test_an_iterable_of_the_full_batch_is_the_array(problem):
    data = (problem.x, problem.y)
    array = bl.fit(problem.model, "map", data, seed=0, num_steps=60)
    stream = bl.fit(
        problem.model, "map", [data], seed=0, num_steps=60, options=bl.FitOptions(num_data=60)
    )
    np.testing.assert_allclose(array.family.mean_vector(), stream.family.mean_vector(), rtol=1e-10)
    np.testing.assert_allclose(array.trace["log_joint"], stream.trace["log_joint"], rtol=1e-10)


def test_num_data_scales_the_batches(problem):
    """Each batch stands for the whole: without it the prior would count four times as much."""
    parts = [(problem.x[i::4], problem.y[i::4]) for i in range(4)]
    algorithm = bl.MAP(optimizer="sgd", learning_rate=0.05, decay_steps=100.0, power=1.0)
    posterior = bl.fit(
        problem.model, algorithm, parts, seed=0, num_steps=4000, options=bl.FitOptions(num_data=60)
    )
    error = np.abs(posterior.family.mean_vector() - problem.mean)
    wrong = np.linalg.solve(problem.prec + 3 * 0.5 * np.eye(4), problem.x.T @ problem.y / 0.7**2)
    assert np.linalg.norm(error) < 0.25 * np.linalg.norm(wrong - problem.mean)


def test_a_generator_that_ends_ends_the_run(problem):
    data = (problem.x, problem.y)
    posterior = bl.fit(
        problem.model,
        "map",
        (data for _ in range(50)),
        seed=0,
        options=bl.FitOptions(num_data=60, eval_every=20),
    )
    assert posterior.stopped == "The data iterator ended after 50 steps."
    assert posterior.trace["log_joint"].shape == (50,)


def test_a_generator_that_ends_between_two_evaluations_says_so(problem):
    data = (problem.x, problem.y)
    posterior = bl.fit(
        problem.model,
        "map",
        (data for _ in range(40)),
        seed=0,
        options=bl.FitOptions(num_data=60, eval_every=20),
    )
    assert posterior.stopped == "The data iterator ended after 40 steps."


@pytest.mark.parametrize("number", [40, 50])
def test_a_generator_that_ends_before_the_steps_asked_for_is_an_error(problem, number):
    data = ((problem.x, problem.y) for _ in range(number))
    message = f"ended after {number} of 100 steps. Give more batches"
    with pytest.raises(bl.DataError, match=message):
        bl.fit(
            problem.model,
            "map",
            data,
            seed=0,
            num_steps=100,
            options=bl.FitOptions(num_data=60, eval_every=20),
        )


def test_a_frame_is_its_array(problem):
    frame = pd.DataFrame(problem.x, columns=list("abcd"))
    by_frame = bl.fit(problem.model, "map", (frame, pd.Series(problem.y)), seed=0, num_steps=60)
    by_array = bl.fit(problem.model, "map", (problem.x, problem.y), seed=0, num_steps=60)
    same(by_frame.family, by_array.family)
    same(by_frame.predict(frame).mean, by_array.predict(problem.x).mean)


# Starting and stopping


def quietly(*args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bl.MixingWarning)
        return bl.fit(*args, **options)


def walk(problem, fit_options=None, **options):
    """A short random walk; always the same program."""
    algorithm = bl.MetropolisHastings(num_warmup=30, num_samples=60, thin=2)
    data = (problem.x, problem.y)
    chunks = bl.FitOptions(chunk_size=20, **(fit_options or {}))
    return quietly(problem.model, algorithm, data, seed=0, options=chunks, **options)


def test_init_is_where_it_starts(problem):
    data = (problem.x, problem.y)
    _, start = problem.model.bind(data, jax.random.key(0))
    given = jax.tree.map(lambda w: np.full(w.shape, 0.25), start)
    slow = bl.MAP(learning_rate=1e-9)
    posterior = bl.fit(problem.model, slow, data, seed=0, num_steps=1, init=given)
    np.testing.assert_allclose(posterior.family.mean_vector(), 0.25, atol=1e-8)


def test_an_algorithm_by_name_is_its_default(problem):
    data = (problem.x, problem.y)
    by_name = bl.fit(problem.model, "map", data, seed=0, num_steps=60)
    same(by_name.family, bl.fit(problem.model, bl.MAP(), data, seed=0, num_steps=60).family)


@pytest.fixture(scope="module")
def overfitted():
    """Twelve rows, a network that learns them by heart, and data held out."""
    x, y = problems.wiggle(12)
    held_out = problems.wiggle(50, seed=1)
    model = bl.Model(
        bl.networks.MLP([30]), bl.likelihoods.Gaussian(noise_scale=0.05), bl.priors.Normal(scale=10)
    )
    options = {"seed": 0, "validation": held_out, "options": bl.FitOptions(eval_every=20)}
    patient = options | {"options": bl.FitOptions(eval_every=20, patience=15)}
    stopped = bl.fit(model, bl.MAP(), (x, y), num_steps=4000, **patient)
    return model, (x, y), held_out, options, stopped


def test_early_stopping_returns_the_best_iterate_and_says_so(overfitted):
    model, data, held_out, options, posterior = overfitted
    match = re.fullmatch(
        r"The objective's moving average had no new best for 15 evaluations, after step (\d+);"
        r" the iterate of step (\d+) is returned\.",
        posterior.stopped,
    )
    last, best = map(int, match.groups())
    assert best < last < 4000
    trace = posterior.trace
    assert trace["eval_step"][-1] == last == len(trace["log_joint"])
    # a run that ends at that step ends with the same weights
    again = bl.fit(model, bl.MAP(), data, num_steps=best, **options)
    same(posterior.family, again.family)
    score = bl.metrics.log_likelihood(posterior.predict(held_out[0]), held_out[1])
    at_best = trace["eval_validation"][list(trace["eval_step"]).index(best)]
    assert score == pytest.approx(at_best, rel=1e-4)
    assert score > trace["eval_validation"][-1] + 0.01


def test_without_validation_the_log_joint_decides(overfitted):
    model, data, _, _, _ = overfitted
    posterior = bl.fit(model, bl.MAP(), data, num_steps=200, seed=0)
    np.testing.assert_allclose(posterior.trace["eval_objective"], posterior.trace["eval_log_joint"])
    assert "eval_validation" not in posterior.trace
    assert posterior.stopped == "All 200 steps were done."


def test_a_callback_hears_of_every_evaluation_and_can_stop(problem):
    seen = []

    def watch(event):
        seen.append(event)
        return event.phase == "main" and event.step >= 40

    posterior = bl.fit(
        problem.model,
        "bayes-by-backprop",
        (problem.x, problem.y),
        seed=0,
        num_steps=100,
        callback=watch,
        options=bl.FitOptions(eval_every=20),
    )
    assert posterior.stopped == "The callback stopped it at step 40."
    own = [event for event in seen if event.phase == "main"]
    assert [event.step for event in own] == [20, 40]
    assert {event.algorithm for event in own} == {"bayes-by-backprop"}
    assert {"elbo", "nll", "kl"} <= set(own[0].metrics)
    before = seen[: -len(own)]
    assert {(event.phase, event.algorithm) for event in before} == {("main/warm start", "map")}
    assert posterior.trace["nll"].shape == (40,)


def test_a_callback_can_stop_a_sampler_after_warm_up(problem):
    posterior = walk(problem, num_chains=2, callback=lambda event: event.step > 30)
    assert posterior.stopped == "The callback stopped it at step 70."
    assert posterior.family.num_draws == 2 * 20
    assert posterior.trace["acceptance"].shape == (2, 20)
    assert posterior.trace["warmup_acceptance"].shape == (2, 30)


def test_what_a_run_leaves_behind(problem, capsys):
    posterior = bl.fit(
        problem.model,
        "bayes-by-backprop",
        (problem.x, problem.y),
        seed=3,
        num_steps=100,
        options=bl.FitOptions(eval_every=30, warm_start=0),
    )
    trace = posterior.trace
    assert trace["nll"].shape == (100,)
    assert np.all(np.isfinite(trace["nll"]))
    np.testing.assert_array_equal(trace["eval_step"], [30, 60, 90, 100])
    assert trace["eval_elbo"].shape == (4,)
    np.testing.assert_allclose(
        trace["eval_elbo"], -trace["eval_nll"] - trace["eval_kl"], rtol=1e-10
    )
    assert posterior.wall_time >= posterior.compile_time > 0
    assert posterior.seed == 3
    assert posterior.notes == ()
    assert "Posterior by bayes-by-backprop: DiagonalGaussian over 4 weights" in repr(posterior)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""  # quiet when it is not a terminal


@pytest.mark.parametrize(
    ("algorithm", "each"),
    [
        (bl.MAP(), 1),
        (bl.Laplace(newton_steps=2), 3),
        (bl.BayesByBackprop(num_draws=3), 3),
        (bl.VOGN(num_draws=4, draw_rows="share"), 1),
        (bl.Vadam(num_draws=3), 6),
        (bl.NGVI(num_draws=5), 5),
        (bl.VON(num_draws=2), 16),
        (bl.NGVI(num_draws=5, gradient="score"), 0),
        (bl.BBVI(num_draws=4), 0),
    ],
    ids=lambda value: value.name if isinstance(value, bl.Algorithm) else "",
)
def test_phases_count_gradients(problem, algorithm, each):
    posterior = bl.fit(problem.model, algorithm, (problem.x, problem.y), seed=0, num_steps=6)
    *earlier, main = posterior.phases
    assert main.num_steps > 0
    assert main.num_gradients == each * main.num_steps
    per_step = {"map": 1, "bayes-by-backprop": bl.BayesByBackprop().setting("num_draws")}
    assert len(earlier) == (0 if algorithm.name == "map" else 1)
    for phase in earlier:
        assert phase.num_gradients == per_step[phase.algorithm] * phase.num_steps > 0


def test_progress_is_shown_on_request(problem, capsys, monkeypatch):
    monkeypatch.setattr(progress, "HEARTBEAT", 0.005)  # seconds between two lines
    bl.fit(
        problem.model,
        "map",
        (problem.x, problem.y),
        seed=0,
        num_steps=60,
        progress=True,
        callback=lambda event: time.sleep(0.05),
    )
    shown = capsys.readouterr().err
    assert "map: step 30 of 60" in shown
    assert "nll" in shown


def test_the_lower_bound_reported_is_that_of_the_q_returned(problem):
    """Against its closed form, 5 standard errors of the 256 fresh draws."""
    posterior = bl.fit(
        problem.model,
        "bayes-by-backprop",
        (problem.x, problem.y),
        seed=0,
        num_steps=100,
        options=bl.FitOptions(eval_every=30, warm_start=0),
    )
    q = posterior.family
    mean, var = np.asarray(q.mean_vector()), np.diag(q.cov_matrix())
    noise = 0.7**2
    residual = problem.y - problem.x @ mean
    variance = problem.x**2 @ var
    fit = stats.norm.logpdf(residual, 0, 0.7).sum() - 0.5 * variance.sum() / noise
    kl = 0.5 * np.sum(0.5 * (var + mean**2) - 1 - np.log(0.5 * var))
    draws = mean + np.sqrt(var) * np.random.default_rng(0).normal(size=(2000, 4))
    errors = problem.y - draws @ problem.x.T
    one = stats.norm.logpdf(errors, 0, 0.7).sum(axis=1).std()
    assert abs(posterior.elbo - (fit - kl)) < 5 * one / np.sqrt(256)


# Guards


def test_batches_beyond_all_bounds_are_skipped_and_noted():
    """One batch in four overflows the network's float32; the others are learned from."""
    x, y = problems.wiggle(40)
    parts = [(x[i::4], y[i::4]) for i in range(4)]
    parts[2] = (np.full_like(parts[2][0], 3e38), np.full_like(parts[2][1], -3e38))
    model = bl.Model(bl.networks.MLP([]), bl.likelihoods.Gaussian(noise_scale=0.1))
    posterior = bl.fit(
        model, "map", parts, seed=0, num_steps=80, options=bl.FitOptions(num_data=40, eval_every=20)
    )
    assert posterior.notes == ("20 steps met non-finite numbers and were skipped.",)
    assert posterior.trace["eval_skipped"][-1] == 20
    assert np.all(np.isfinite(posterior.family.mean_vector()))
    assert np.sum(~np.isfinite(posterior.trace["log_joint"])) == 20


def beyond_two(w):
    """Rises towards 3, but is not a number beyond 2."""
    return jnp.where(w > 2.0, jnp.nan, -0.5 * (w - 3.0) ** 2)


def test_a_run_that_cannot_go_on_says_so():
    target = bl.Target.from_log_density(beyond_two, jnp.asarray(0.0))
    with pytest.raises(DivergenceError, match=r"met non-finite .*learning_rate"):
        bl.fit(
            target,
            bl.MAP(learning_rate=0.05),
            seed=0,
            num_steps=400,
            options=bl.FitOptions(eval_every=4),
        )


def test_a_step_too_long_is_shortened_and_noted():
    """Gradient ascent on -w^4 from 3 explodes unless |3 - 108 step| < 3, so step < 1 / 18."""
    target = bl.Target.from_log_density(lambda w: -(w**4), jnp.asarray(3.0))
    algorithm = bl.MAP(optimizer="sgd", learning_rate=1.0, power=0.0)
    posterior = bl.fit(
        target, algorithm, seed=0, num_steps=400, options=bl.FitOptions(eval_every=50)
    )
    assert abs(float(posterior.family.mean)) < 0.5
    (note,) = posterior.notes
    assert "halved 5 time(s)" in note
    assert "ended at 0.03125 of the requested learning rate" in note
    assert np.all(np.isfinite(posterior.trace["log_joint"]))


def test_a_gradient_that_is_never_a_number_is_a_named_error():
    def log_density(w):
        return -jnp.sqrt(jnp.sum(w * 0.0)) - jnp.sum(w**2)

    target = bl.Target.from_log_density(log_density, jnp.ones(2))
    with pytest.raises(DivergenceError, match="map met non-finite numbers after step 0"):
        bl.fit(target, "map", seed=0, num_steps=50)


@pytest.mark.parametrize("name", ["map", "hmc"])
def test_a_start_without_a_density_is_a_named_error(name):
    target = bl.Target.from_log_density(lambda w: jnp.log(w), jnp.asarray(-1.0))
    with pytest.raises(DivergenceError, match=r"log-density at the starting point is nan.*init="):
        bl.fit(target, name, seed=0)


# Chains


def test_chains_start_apart_around_the_mode(problem):
    """With a proposal that stays, 64 chains show their starts: Laplace standard deviations.

    The curvature is itself estimated from one sampled label per row (60 of them), so its inverse
    square root is good to some 20 %, and the standard deviation of 64 starts to 9 %.
    """
    frozen = bl.MetropolisHastings(proposal=lambda key, w: w, num_warmup=0, num_samples=4, thin=1)
    posterior = quietly(problem.model, frozen, (problem.x, problem.y), seed=0, num_chains=64)
    starts = np.asarray(posterior.family.matrix()).reshape(64, 4, 4)[:, 0]
    assert len(np.unique(starts[:, 0])) == 64
    laplace = 1.0 / np.sqrt(np.diag(problem.prec))
    ratio = starts.std(axis=0, ddof=1) / laplace
    assert np.all((ratio > 0.5) & (ratio < 2.0)), ratio
    error = np.abs(starts.mean(axis=0) - problem.mean) / (laplace / np.sqrt(64))
    assert np.all(error < 5 * ratio)


def test_chains_do_not_repeat_each_other(problem):
    posterior = walk(problem, num_chains=3)
    draws = np.asarray(posterior.family.matrix()).reshape(3, -1, 4)
    for a, b in itertools.combinations(draws, 2):
        assert not np.any(a[:, None] == b)
    assert posterior.family.num_chains == 3


# What is refused, and what is not


def test_a_generator_also_serves_a_method_with_a_warm_start(problem):
    data = ((problem.x, problem.y) for _ in range(200))
    bl.fit(
        problem.model,
        "bayes-by-backprop",
        data,
        seed=0,
        num_steps=100,
        options=bl.FitOptions(num_data=60),
    )


@pytest.mark.parametrize("num_data", [0, -5, 0.5, "a"])
def test_num_data_is_a_count(problem, num_data):
    data = [(problem.x, problem.y)]
    with pytest.raises(ArgumentError, match="`num_data` must"):
        bl.fit(
            problem.model,
            "map",
            data,
            seed=0,
            num_steps=20,
            options=bl.FitOptions(num_data=num_data),
        )


def test_validation_has_the_columns_of_x(problem):
    data, held_out = (problem.x, problem.y), (problem.x[:, :2], problem.y)
    with pytest.raises(ArgumentError, match=r"`validation`|`x` must have rows"):
        bl.fit(problem.model, "map", data, seed=0, num_steps=20, validation=held_out)


def test_a_bare_density_has_no_validation(problem):
    target = bl.Target.from_log_density(lambda w: -jnp.sum(w**2), jnp.ones(2))
    with pytest.raises(ArgumentError, match="`validation`"):
        bl.fit(target, "map", seed=0, validation=(problem.x, problem.y))


def test_init_has_the_networks_shapes(problem):
    data = (problem.x, problem.y)
    _, start = problem.model.bind(data, jax.random.key(0))
    wrong = jax.tree.map(lambda w: np.zeros(3), start)
    with pytest.raises(ArgumentError, match="`init` must have shape"):
        bl.fit(problem.model, "map", data, seed=0, init=wrong)


@pytest.mark.parametrize("option", ["validation", "eval_every", "patience"])
def test_samplers_refuse_what_they_would_ignore(problem, option):
    given = {"fit_options": {option: 3}}
    if option == "validation":
        given = {"validation": (problem.x, problem.y)}
    with pytest.raises(ArgumentError, match=f"`{option}` must be left out"):
        walk(problem, num_chains=2, **given)


def test_batch_size_is_refused_beside_an_iterable(problem):
    with pytest.raises(ArgumentError, match="`batch_size` must be left out"):
        bl.fit(
            problem.model,
            "map",
            [(problem.x, problem.y)],
            seed=0,
            num_steps=20,
            batch_size=7,
            options=bl.FitOptions(num_data=60),
        )
