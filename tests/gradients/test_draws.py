"""Draws at once and one after the other are the same average."""

from __future__ import annotations

import jax
import numpy as np
import problems
import pytest

import bayeslearn as bl
from bayeslearn.gradients import draws


@pytest.fixture(scope="module")
def bound():
    problem = problems.regression()
    return problem.model.bind((problem.x, problem.y), jax.random.key(0))


@pytest.mark.parametrize(
    "algorithm",
    [bl.VOGN(num_draws=3), bl.Vadam(num_draws=3), bl.BayesByBackprop(num_draws=3)],
    ids=lambda algorithm: algorithm.name,
)
def test_a_step_does_not_depend_on_how_its_draws_are_taken(bound, algorithm, monkeypatch, x64):
    target, params = bound
    key = jax.random.key(1)
    state = jax.jit(algorithm.init)(key, target, params)
    found = []
    for limit in (0.0, np.inf):
        monkeypatch.setitem(draws.MAX_BATCHED, jax.default_backend(), limit)
        found.append(jax.jit(lambda s: algorithm.step(key, target, s, target.data))(state))
    looped, at_once = map(jax.tree.leaves, found)
    for a, b in zip(looped, at_once, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


def test_small_work_is_batched_and_large_work_looped(monkeypatch):
    monkeypatch.setattr(draws, "MAX_BATCHED", {jax.default_backend(): 1000.0})
    assert draws.is_batched(10, 100)
    assert not draws.is_batched(11, 100)
