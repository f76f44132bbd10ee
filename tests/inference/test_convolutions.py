"""Runs of convolutional networks, whose programs are rewritten on a CPU."""

import jax
import numpy as np
import pytest
from interruption import Killed, kill_after

import bayeslearn as bl
from bayeslearn.results import predictive

rng = np.random.default_rng(0)
X = rng.normal(size=(50, 6, 6, 1)).astype(np.float32)
Y = (X.mean(axis=(1, 2, 3)) > 0).astype(int)


def model():
    return bl.Model(
        bl.networks.CNN((3,), hidden=(4,), channels="last"), bl.likelihoods.Categorical()
    )


def fit(algorithm=None, **options):
    settings = {"num_steps": 15, "batch_size": 20, "seed": 0} | options
    return bl.fit(model(), algorithm or bl.IVON(), (X, Y), **settings)


def same_bits(a, b):
    for left, right in zip(jax.tree.leaves(a.family), jax.tree.leaves(b.family), strict=True):
        np.testing.assert_array_equal(left, right)


def test_same_bits_at_any_chunk_size_and_after_a_resume(tmp_path, monkeypatch):
    whole = fit()
    same_bits(whole, fit(options=bl.FitOptions(chunk_size=4)))
    kill_after(4, monkeypatch)
    with pytest.raises(Killed):
        fit(checkpoint=bl.Checkpoint(tmp_path / "run", every=2))
    monkeypatch.undo()
    resumed = bl.resume(tmp_path / "run", (X, Y))
    same_bits(whole, resumed)


def test_a_stream():
    batches = [(X[i : i + 10], Y[i : i + 10]) for i in range(0, 50, 10)]
    options = {"num_steps": 10, "batch_size": "auto", "options": bl.FitOptions(num_data=50)}
    found = bl.fit(model(), bl.MAP(), batches, seed=0, **options)
    assert np.all(np.isfinite(found.trace["nll"]))
    assert found.trace["nll"].shape == (10,)


def test_predictions_are_the_same_however_many_rows_are_evaluated_at_once(monkeypatch):
    posterior = fit()
    expected = posterior.predict(X, num_samples=8).probs
    monkeypatch.setitem(predictive.VALUES, "cpu", 500)
    few = posterior.predict(X, num_samples=8)
    assert few._most_rows == 4
    np.testing.assert_allclose(few.probs, expected, rtol=1e-5)
    many = bl.fit(model(), "ensemble", (X, Y), seed=0, num_steps=15, batch_size=20)
    assert np.all(np.isfinite(many.predict(X).probs))
