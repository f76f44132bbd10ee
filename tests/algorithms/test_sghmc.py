"""SGHMC: its update by hand, the exact posterior of a Gaussian, its noise, cycles and draws."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import bayeslearn as bl
from bayeslearn.algorithms.sghmc import SGHMC, Numbers, sghmc_update
from bayeslearn.errors import ArgumentError

ROWS = 400


def uncorrelated():
    """A linear regression whose columns, and so the noise of batches, are uncorrelated."""
    rng = np.random.default_rng(0)
    x = 20 * np.linalg.qr(rng.normal(size=(ROWS, 4)))[0] * [1.0, 0.7, 0.5, 0.3]
    y = x @ rng.normal(size=4) + 0.7 * rng.normal(size=ROWS)
    prec = 0.5 * np.eye(4) + x.T @ x / 0.49
    model = problems.regression().model
    return model, x, y, np.linalg.solve(prec, x.T @ y / 0.49), np.diag(prec) ** -0.5


def test_one_step_by_the_formulas(x64):
    rng = np.random.default_rng(0)
    position, momentum, gradient, eps = rng.normal(size=(4, 6))
    square, variance = rng.uniform(0.1, 2.0, size=(2, 6))
    rate, a, temperature, num_data, rows = 0.2, 0.3, 0.8, 50.0, 4.0
    scale = rate * a / num_data / (np.sqrt(square) + 1e-8)
    b = scale * num_data**2 / rows * variance / 2
    assert (a * temperature > b).any()
    assert (a * temperature < b).any()
    drawn = np.sqrt(2 * np.maximum(a * temperature - b, 0) * scale) * eps
    wanted = (1 - a) * momentum - scale * num_data * gradient + drawn
    found = sghmc_update(
        *map(jnp.asarray, (position, momentum, gradient, square, variance, eps)),
        numbers=Numbers(rate, a, temperature, num_data, 1 / rows),
    )
    for left, right in zip(found, (position + wanted, wanted, a * temperature - b), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("batch_size", [ROWS, 20])
def test_draws_have_the_posterior_of_a_gaussian(batch_size):
    """Autocorrelation times of about 100 steps leave 600 independent draws of 60,000 steps.

    Standard errors are 3 % of a standard deviation and 4 % of a mean: the bounds are five of them.
    """
    model, x, y, mean, std = uncorrelated()
    algorithm = SGHMC(
        num_cycles=1, sampling=0.95, num_samples=2000, learning_rate=0.01, sampling_rate=0.01
    )
    options = {"num_steps": 60_000, "batch_size": batch_size}
    posterior = bl.fit(model, algorithm, (x, y), seed=0, **options)
    draws = np.asarray(posterior.family.matrix())
    np.testing.assert_allclose(draws.std(axis=0) / std, 1.0, atol=0.15)
    np.testing.assert_allclose((draws.mean(axis=0) - mean) / std, 0.0, atol=0.2)
    assert posterior.family.num_chains == 1


def test_the_noise_of_batches_is_estimated_from_the_gradients_of_rows(x64):
    model, x, y, _, _ = uncorrelated()
    target, params = model.bind((x, y), jax.random.key(0))
    algorithm = SGHMC(num_samples=4, num_cycles=1, length=100.0)
    state = algorithm.init(jax.random.key(0), target, params)
    batch = target.batch((x[:20], y[:20]))
    new, _ = algorithm.step(jax.random.key(1), target, state, batch)
    w = np.asarray(jax.tree.leaves(params["network"])[0])[0]
    gradients = (x[:20] @ w - y[:20])[:, None] * x[:20] / 0.49  # of each row
    found = np.asarray(jax.tree.leaves(new.variance["network"])[0])[0]
    np.testing.assert_allclose(found, gradients.var(axis=0, ddof=1), rtol=1e-9)


def test_cycles_keep_the_same_number_of_draws_and_freeze_the_preconditioner(x64):
    model, x, y, _, _ = uncorrelated()
    target, params = model.bind((x, y), jax.random.key(0))
    algorithm = SGHMC(num_samples=6, num_cycles=2, sampling=0.4, length=40.0)
    step = jax.jit(algorithm.step)
    state = algorithm.init(jax.random.key(0), target, params)
    kept, frozen = [], []
    for t in range(40):
        before = state
        state, _ = step(jax.random.key(t), target, state, target.data)
        kept.append(int(state.num_kept))
        same = jax.tree.map(lambda a, b: bool((a == b).all()), before.square, state.square)
        frozen.append(all(jax.tree.leaves(same)))
    # Cycles of 20 steps, the last 8 of each in three slots.
    assert [kept[t] for t in (11, 12, 14, 15, 19, 31, 32, 39)] == [0, 1, 1, 2, 3, 3, 4, 6]
    assert [t for t in range(40) if frozen[t]] == [*range(12, 20), *range(32, 40)]
    last = jax.tree.map(lambda d: d[-1], state.draws)
    for a, b in zip(jax.tree.leaves(last), jax.tree.leaves(state.position), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_short_run_is_refused_and_one_that_is_stopped_has_what_it_kept():
    model, x, y, _, _ = uncorrelated()
    with pytest.raises(ArgumentError, match="`num_steps` must be at least 400"):
        bl.fit(model, SGHMC(), (x, y), seed=0, num_steps=50)
    algorithm = SGHMC(num_samples=8, num_cycles=2)
    options = {"num_steps": 80, "batch_size": 100, "callback": lambda event: event.step >= 40}
    posterior = bl.fit(model, algorithm, (x, y), seed=0, **options)
    draws = np.asarray(posterior.family.matrix())
    assert "callback" in posterior.stopped
    assert len(np.unique(draws, axis=0)) == 4
    np.testing.assert_array_equal(draws[:4], draws[4:])


def test_members_of_an_ensemble_are_chains():
    model, x, y, mean, std = uncorrelated()
    member = SGHMC(num_samples=50, num_cycles=1)
    posterior = bl.fit(
        model, bl.Ensemble(num_members=2, member=member), (x, y), seed=0, num_steps=2000
    )
    assert posterior.family.num_chains == 2
    assert posterior.family.num_draws == 100
    away = np.asarray(posterior.family.matrix()) - mean
    assert np.abs(away / std).max() < 8
    assert np.isfinite(posterior.predict(x[:3]).std).all()
