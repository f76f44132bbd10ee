"""Compiled programs are kept, but not without bound."""

from __future__ import annotations

import jax
import numpy as np

import bayeslearn as bl
from bayeslearn.inference import caches


def fit(rows):
    x = np.linspace(-1.0, 1.0, rows)[:, None]
    model = bl.Model(bl.networks.MLP([2]), bl.likelihoods.Gaussian(noise_scale=0.3))
    return bl.fit(model, "map", (x, x[:, 0]), seed=0, num_steps=5).family.mean


def test_caches_are_cleared_when_they_are_full_and_nothing_else_changes(monkeypatch):
    cleared, clear = [], jax.clear_caches

    def clear_and_note():
        cleared.append(caches.count.running)
        clear()

    monkeypatch.setattr(jax, "clear_caches", clear_and_note)
    monkeypatch.setattr(caches.count, "programs", 0)
    before = fit(11)
    monkeypatch.setattr(caches, "MAX_PROGRAMS", 5)
    monkeypatch.setattr(caches.count, "programs", 0)
    fit(11)  # a shape that was seen
    assert cleared == []
    fit(13)
    assert cleared == [0]  # once, after the fit
    again = fit(11)  # compiled once more
    for ours, theirs in zip(jax.tree.leaves(before), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(ours, theirs)
