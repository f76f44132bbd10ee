"""Weights of rows, epochs, and inputs that are pytrees, as `fit` takes them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import bayeslearn as bl
from bayeslearn.data.rows import merge_rows
from bayeslearn.errors import ArgumentError
from bayeslearn.results import metrics

COUNTS = np.arange(20) % 3 + 1  # of each row


@pytest.fixture(scope="module")
def problem():
    found = problems.regression()
    return found.model, found.x[:20], found.y[:20]


def fit(model, data, algorithm="map", **options):
    return bl.fit(model, algorithm, data, seed=0, **({"num_steps": 12} | options))


def repeated(*arrays):
    return tuple(np.repeat(values, COUNTS, axis=0) for values in arrays)


def equal(first, second, **tolerance):
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(a, b, **({"rtol": 0, "atol": 0} | tolerance))


@pytest.mark.parametrize(
    ("algorithm", "options"), [("map", {}), ("conjugate", {"num_steps": "auto"})]
)
def test_a_weight_of_two_is_the_row_twice(problem, algorithm, options):
    """In double precision, up to the order of sums."""
    model, x, y = problem
    weighted = fit(model, (x, y, COUNTS), algorithm, **options)
    twice = fit(model, repeated(x, y), algorithm, **options)
    once = fit(model, (x, y), algorithm, **options)
    assert float(weighted.target.num_data) == float(twice.target.num_data) == COUNTS.sum()
    equal(weighted.family.mean, twice.family.mean, rtol=1e-7)
    moved = np.abs(weighted.family.mean_vector() - once.family.mean_vector())
    assert moved.max() > 1e-3


def test_merged_rows_give_the_same_bits_and_leave_the_rows_as_they_were(problem):
    model, x, y = problem
    merged = {"options": bl.FitOptions(merge_rows=True)}
    order = np.random.default_rng(3).permutation(COUNTS.sum())
    shuffled = tuple(values[order] for values in repeated(x, y))
    weighted, twice = fit(model, (x, y, COUNTS), **merged), fit(model, shuffled, **merged)
    equal((weighted.family, weighted.state), (twice.family, twice.state))
    assert weighted.trace["log_joint"].tolist() == twice.trace["log_joint"].tolist()
    equal(twice.training_data()[:2], shuffled)
    equal(weighted.training_data(), (x, y, COUNTS))
    assert metrics.loo(
        fit(model, shuffled, "conjugate", num_steps="auto", **merged)
    ).elpd_i.shape == (COUNTS.sum(),)


def test_merged_rows_of_shared_inputs_can_be_held_out_in_part():
    """Of a table of few values every y at an x is held out in part, not all that was seen of it."""
    x = np.repeat([[0.0], [1.0]], 20, axis=0)
    y = np.concatenate([np.arange(20) % 4 == 0, np.ones(20, bool)]).astype(int)
    rows = merge_rows((x, y), 0)
    both = rows.x[:, 0] == 0
    assert rows.weight.sum() == 40
    assert sorted(rows.weight[both & (rows.y == 1)]) == [1.0] * 5
    assert sorted(rows.weight[both & (rows.y == 0)]) == [1.0] * 1 + [2.0] * 7
    assert rows.weight[~both].tolist() == [20.0]  # a single y: one row
    weighted = merge_rows((x[[0, 1, 20]], y[[0, 1, 20]], [5.0, 15.0, 20.0]), 0)
    again = merge_rows((rows.x, rows.y, rows.weight), 0)
    for same in (weighted, again):
        for one, other in zip(rows, same, strict=True):
            np.testing.assert_array_equal(one, other)
    light = merge_rows((x, y, np.full(40, 0.1)), 0)
    assert len(light.y) == 3
    np.testing.assert_allclose(sorted(light.weight), [0.5, 1.5, 2.0])


def test_weights_of_held_out_rows_count(problem):
    """The score that stops a run is the mean over observations, not over rows."""
    model, x, y = problem
    train, held_out = (x[:10], y[:10]), (x[10:], y[10:] + np.arange(10))
    counts = COUNTS[10:]
    scores = {
        name: fit(model, train, validation=rows).trace["eval_validation"]
        for name, rows in {
            "weighted": (*held_out, counts),
            "twice": tuple(np.repeat(values, counts, axis=0) for values in held_out),
            "once": held_out,
        }.items()
    }
    np.testing.assert_allclose(scores["weighted"], scores["twice"], rtol=1e-9)
    assert np.abs(scores["weighted"] - scores["once"]).max() > 0.01


@pytest.mark.parametrize(("size", "steps"), [(6, 12), (20, 3), (7, 9)])
def test_epochs_are_passes_over_the_rows(problem, size, steps):
    model, x, y = problem
    posterior = fit(model, (x, y), num_steps="auto", num_epochs=3, batch_size=size)
    assert posterior.stopped == f"All {steps} steps were done."
    same = fit(model, (x, y), num_steps=steps, batch_size=size)
    equal(posterior.family, same.family)


def test_epochs_are_refused_where_they_mean_nothing(problem):
    model, x, y = problem
    with pytest.raises(ArgumentError, match="`num_epochs` must be left out where `num_steps` is"):
        fit(model, (x, y), num_epochs=3)
    with pytest.raises(ArgumentError, match="`num_epochs` must be left out for the sampler hmc"):
        fit(model, (x, y), "hmc", num_steps="auto", num_epochs=3)
    with pytest.raises(ArgumentError, match="`num_epochs` must be a whole number"):
        fit(model, (x, y), num_steps="auto", num_epochs=0)


def linear(params, x):
    """Of inputs in two arrays, as a tuple or by name."""
    first, second = (x["a"], x["b"]) if isinstance(x, dict) else x
    return (first @ params["a"] + second * params["b"])[None]


def test_inputs_may_be_a_tuple_of_arrays(problem):
    """The tuple is neither stacked nor refused: it gives what a dictionary of its arrays gives."""
    _, x, y = problem
    start = {"a": np.full(3, 0.1, np.float32), "b": np.float32(0.2)}
    model = bl.Model((start, linear), bl.likelihoods.Gaussian(noise_scale=0.5))
    arrays, named = (x[:, :3], x[:, 3]), {"a": x[:, :3], "b": x[:, 3]}
    ours, theirs = fit(model, (arrays, y)), fit(model, (named, y))
    equal(ours.family, theirs.family)
    assert jax.tree.structure(ours.training_data()[0]) == jax.tree.structure((0, 0))
    np.testing.assert_array_equal(ours.predict(arrays).mean, theirs.predict(named).mean)
    by_hand = jax.vmap(lambda a, b: linear(ours.family.mean["network"], (a, b)))(*arrays)
    np.testing.assert_allclose(ours.predict(arrays).mean, by_hand[:, 0], rtol=1e-5)
    # Rows of a table may still be written as tuples.
    table = bl.Model(bl.networks.MLP([]), bl.likelihoods.Gaussian())
    equal(
        fit(table, (((1.0, 2.0), (3.0, 4.0)), (0.0, 1.0)), num_steps=2).training_data()[0],
        np.array([[1.0, 2.0], [3.0, 4.0]]),
    )


@pytest.mark.parametrize("is_double", [False, True])
def test_a_callback_runs_in_the_precision_of_its_user(problem, is_double):
    model, x, y = problem
    seen = []
    with jax.enable_x64(is_double):
        fit(model, (x, y), callback=lambda event: seen.append(jnp.ones(1).dtype.name) and False)
        assert jnp.ones(1).dtype == ("float64" if is_double else "float32")
    assert set(seen) == {"float64" if is_double else "float32"}


@pytest.mark.parametrize("name", ["every", "keep"])
def test_what_belongs_to_a_checkpoint_is_not_ignored_without_one(problem, name):
    model, x, y = problem
    with pytest.raises(
        ArgumentError, match=rf"`{name}` has moved.*bl\.Checkpoint\(folder, {name}=\.\.\.\)"
    ):
        fit(model, (x, y), **{name: 5})


def test_a_regression_has_no_probs_and_hasattr_says_so(problem):
    model, x, y = problem
    predictive = fit(model, (x, y)).predict(x)
    assert hasattr(predictive, "mean")
    assert not hasattr(predictive, "probs")
    with pytest.raises(ArgumentError, match="probs"):
        predictive.probs
    labels = (y > 0).astype(int)
    classes = bl.Model(bl.networks.MLP([]), bl.likelihoods.Bernoulli())
    assert hasattr(fit(classes, (x, labels), num_steps=2).predict(x), "probs")
