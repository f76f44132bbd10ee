"""What evaluations cost: a fixed rule on shapes, and pieces that change nothing but rounding."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import bayeslearn as bl
from bayeslearn import tree
from bayeslearn.data.rows import Batch
from bayeslearn.inference.evaluate import evaluate, held_out_scores
from bayeslearn.inference.evaluation_plan import (
    EVAL_BATCH,
    EVAL_DRAWS,
    EvaluationPlan,
    pad_to,
    plan_evaluations,
)
from bayeslearn.inference.step_plan import plan_steps

ROWS, COLUMNS = 600, 20


def bound(hidden, rows=ROWS):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(rows, COLUMNS)).astype(np.float32), rng.integers(0, 3, size=rows)
    model = bl.Model(bl.networks.MLP([hidden]), bl.likelihoods.Categorical(3))
    return model.bind((x, y), jax.random.key(0))


def planned(algorithm, hidden, num_steps, batch_size, rows=ROWS, **options):
    target, params = bound(hidden, rows)
    settings = {"gradients": lambda: 1, "is_minibatch": batch_size < rows} | options
    return plan_evaluations(
        algorithm, target, params, num_steps=num_steps, batch_size=batch_size, **settings
    )


def cost(plan, algorithm, num_steps, held_out=0):
    """Rows of all evaluations, in gradients of a row."""
    draws = plan.draws if algorithm.capabilities.has_lower_bound else 1
    number = -(-num_steps // plan.every)
    final = plan.final if algorithm.capabilities.has_lower_bound else 0
    return draws * (number * (plan.rows + held_out) + final * plan.rows) / 3.0


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("algorithm", [bl.MAP(), bl.IVON(), bl.VOGN()], ids=lambda a: a.name)
@pytest.mark.parametrize("num_steps", [150, 1000, 2343, 20_000])
def test_a_large_network_is_evaluated_for_a_tenth_of_its_steps(algorithm, num_steps):
    plan = planned(algorithm, 500, num_steps, 64)
    assert cost(plan, algorithm, num_steps) <= 0.1 * num_steps * 64
    assert plan.piece == 64
    assert plan.at_once == 1
    assert plan.every >= min(num_steps // 10, 100) or algorithm.name == "map"


@pytest.mark.usefixtures("x64")
def test_small_tables_are_evaluated_as_ever():
    wanted = EvaluationPlan(10, EVAL_DRAWS, EVAL_BATCH)
    assert planned(bl.VOGN(), 4, 1000, ROWS) == wanted  # all rows in every step
    assert planned(bl.VOGN(), 4, 1000, 64) == wanted  # cheap: 107 weights
    assert planned(bl.VOGN(), 4, 1000, 64, eval_every=7).every == 7
    assert planned(bl.VOGN(), 400, 1000, 64).piece == 64  # 9603 weights, minibatches
    assert planned(bl.VOGN(), 400, 1000, ROWS).piece is None


@pytest.mark.usefixtures("x64")
def test_frozen_weights_count():
    model = bl.Model(bl.networks.MLP([500]), bl.likelihoods.Categorical(3), bayesian="layers.1.*")
    target, params = model.freeze(*bound(500))
    assert tree.size(params) < 2000
    settings = {"num_steps": 100, "batch_size": 64, "is_minibatch": True, "gradients": lambda: 1}
    assert plan_evaluations(bl.IVON(), target, params, **settings).piece == 64


@pytest.mark.usefixtures("x64")
def test_a_short_run_has_one_evaluation_of_a_batch():
    plan = planned(bl.IVON(), 500, 3, 64)
    assert (plan.every, plan.rows, plan.final) == (3, 64, 1)


@pytest.mark.usefixtures("x64")
def test_pieces_and_single_draws_change_nothing_but_rounding():
    target, params = bound(500)
    rows = target.with_data(pad_to(target.data, 64))
    assert len(rows.data.y) == 640
    np.testing.assert_allclose(rows.log_joint(params), target.log_joint(params), rtol=1e-9)
    state = bl.MAP().init(jax.random.key(0), target, params)
    plan = EvaluationPlan(1, 4, 1, ROWS, 64)
    pieces = plan.bind(target, plan.rows_of(target.data))
    key, held_out = jax.random.key(1), Batch(*jax.tree.map(lambda a: a[:70], target.data))
    whole = evaluate(bl.MAP(), target, state, key, held_out)
    split = evaluate(bl.MAP(), pieces, state, key, held_out, draws=4, at_once=1)
    for name in ("log_joint", "nll", "validation", "scores"):
        np.testing.assert_allclose(split[name], whole[name], rtol=1e-5, err_msg=name)
    assert split["scores"].shape == (70,)


@pytest.mark.usefixtures("x64")
def test_single_draws_estimate_the_same_lower_bound():
    problem = problems.regression()
    target, params = problem.model.bind((problem.x, problem.y), jax.random.key(0))
    algorithm = bl.IVON(start="laplace")
    state = algorithm.init(jax.random.key(0), target, params)
    key = jax.random.key(2)
    single = evaluate(algorithm, target, state, key, target.data, draws=400, at_once=1)
    many = evaluate(algorithm, target, state, key, target.data, draws=400)
    error = float(jnp.hypot(single["error"], many["error"]))
    assert abs(float(single["elbo"] - many["elbo"])) < 4 * error
    q = algorithm.approximation(target, state)
    scores = held_out_scores(algorithm, target, q, key, target.data, draws=400, at_once=1)
    np.testing.assert_array_equal(scores.shape, (60,))


def test_large_networks_have_no_warm_start_unless_it_is_given():
    assert plan_steps(bl.VOGN(), 900, num_weights=10_000) == (600, 300)
    assert plan_steps(bl.VOGN(), 900, num_weights=10_001) == (900, 0)
    assert plan_steps(bl.VOGN(), 900, 100, num_weights=10_001) == (800, 100)
    assert plan_steps(bl.VOGN(), None, num_weights=10_001) == (5000, 0)
    assert plan_steps(bl.Laplace(), 900, num_weights=10_001) == (1, 899)
    assert plan_steps(bl.EMGVB(), 900, num_weights=10_001) == (600, 300)


def test_a_large_network_is_fitted_with_its_defaults():
    """One phase of all steps, the defaults in the result, evaluations as planned."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(256, COLUMNS)).astype(np.float32), rng.integers(0, 2, size=256)
    x[:, 0] += 2.0 * y
    model = bl.Model(bl.networks.MLP([500]), bl.likelihoods.Categorical(2))
    found = bl.fit(model, bl.IVON(), (x, y), seed=0, num_steps=60, batch_size=64)
    assert [phase.name for phase in found.phases] == ["main"]
    assert found.phases[0].num_steps == found.phases[0].num_gradients == 60
    assert found.phases[0].evaluation_cost <= 0.1 * 60
    assert found.algorithm.learning_rate == 5.0
    assert found.algorithm.num_draws == 1
    assert len(found.trace["eval_elbo"]) <= 10
    assert np.mean(found.predict(x).mean.argmax(1) == y) > 0.7
    prior = found.target.prior.broadcast(found.family.mean)[1]
    first = tree.leaf_names(prior).index("network.layers.0.weight")
    np.testing.assert_allclose(jax.tree.leaves(prior)[first], COLUMNS / 9.0, rtol=1e-5)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("hidden", [2, 500])
def test_a_long_run_is_heard_of_every_10_000_steps(hidden):
    """A callback can stop it only there."""
    plan = planned(bl.IVON(), hidden, 10**9, 64)
    assert plan.every <= 10_000
    if plan.piece is not None:
        assert cost(plan, bl.IVON(), 10**9) <= 0.1 * 10**9 * 64
