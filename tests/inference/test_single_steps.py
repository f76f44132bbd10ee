"""Steps of convolutional networks on a CPU, each a compiled call of its own."""

import jax
import numpy as np
import pytest
from interruption import Killed, kill_after

import bayeslearn as bl
from bayeslearn.inference import kernels, optimize

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


def test_the_rule_is_one_of_network_and_device():
    def slow(network, x):
        target, params = bl.Model(network, bl.likelihoods.Categorical()).bind(
            (x, Y), jax.random.key(0)
        )
        return kernels.has_slow_loops(target, params, None)

    is_cpu = jax.default_backend() == "cpu"
    assert slow(bl.networks.CNN((3,), hidden=(4,), channels="last"), X) == is_cpu
    assert not slow(bl.networks.MLP([4]), X.reshape(50, -1))


def test_they_are_the_steps_of_the_loop(monkeypatch):
    """To the rounding error of single precision, over steps of batches and epochs."""
    alone = fit()
    monkeypatch.setattr(optimize, "has_slow_loops", lambda *arguments: False)
    looped = fit()
    for left, right in zip(
        jax.tree.leaves(alone.family.mean), jax.tree.leaves(looped.family.mean), strict=True
    ):
        np.testing.assert_allclose(left, right, rtol=2e-3, atol=2e-4)
    np.testing.assert_allclose(alone.trace["nll"], looped.trace["nll"], rtol=1e-3)
    assert alone.trace["nll"].shape == looped.trace["nll"].shape == (10,)  # after a warm start


def test_same_bits_at_any_chunk_size_and_after_a_resume(tmp_path, monkeypatch):
    whole = fit()
    same_bits(whole, fit(options=bl.FitOptions(chunk_size=4)))
    kill_after(4, monkeypatch)
    with pytest.raises(Killed):
        fit(checkpoint=bl.Checkpoint(tmp_path / "run", every=2))
    monkeypatch.undo()
    resumed = bl.resume(tmp_path / "run", (X, Y))
    same_bits(whole, resumed)


def test_a_stream_goes_through_them_too():
    batches = [(X[i : i + 10], Y[i : i + 10]) for i in range(0, 50, 10)]
    options = {"num_steps": 10, "batch_size": "auto", "options": bl.FitOptions(num_data=50)}
    found = bl.fit(model(), bl.MAP(), batches, seed=0, **options)
    assert np.all(np.isfinite(found.trace["nll"]))
    assert found.trace["nll"].shape == (10,)
