"""The skeleton that newcomers copy is a working algorithm."""

import importlib.util
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import bayeslearn as bl

PATH = Path(__file__).parents[2] / "docs" / "skeleton.py"
NOISE, PRIOR = 0.5, 2.0


@pytest.fixture(scope="module")
def skeleton():
    spec = importlib.util.spec_from_file_location("skeleton", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["skeleton"] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    yield module
    del sys.modules["skeleton"]


@pytest.fixture(scope="module")
def regression():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4))
    y = x @ np.array([1.0, -2.0, 0.5, 0.0]) + NOISE * rng.normal(size=60)
    model = bl.Model(
        bl.networks.MLP([], use_bias=False),
        bl.likelihoods.Gaussian(noise_scale=NOISE),
        bl.priors.Normal(scale=PRIOR),
        dtype="float64",
    )
    return model, x, y


def ridge(x, y):
    """The exact mode of a linear model with known noise and a Gaussian prior."""
    penalty = NOISE**2 / PRIOR**2 * np.eye(x.shape[1])
    return np.linalg.solve(x.T @ x + penalty, x.T @ y)


def test_update_on_numbers(skeleton):
    moved = skeleton.ascend({"w": jnp.array([1.0, 2.0])}, {"w": jnp.array([10.0, -10.0])}, 0.1)
    np.testing.assert_allclose(moved["w"], [2.0, 1.0], rtol=1e-6)


def test_reaches_the_ridge_solution(skeleton, regression):
    model, x, y = regression
    posterior = bl.fit(model, skeleton.SkeletonMAP(), (x, y), seed=0, num_steps=500)
    np.testing.assert_allclose(posterior.family.mean_vector(), ridge(x, y), rtol=0, atol=1e-9)
    climb = posterior.trace["log_joint"]
    assert climb.shape == (500,)
    assert np.all(np.diff(climb) > -1e-9 * np.abs(climb[1:]))


def test_predicts_like_the_ridge_solution(skeleton, regression):
    model, x, y = regression
    posterior = bl.fit(model, skeleton.SkeletonMAP(), (x, y), seed=0, num_steps=500)
    predictive = posterior.predict(x)
    np.testing.assert_allclose(predictive.mean, x @ ridge(x, y), rtol=0, atol=1e-8)
    np.testing.assert_allclose(predictive.std, NOISE, rtol=1e-12)


def test_refuses_a_rate_of_zero(skeleton):
    with pytest.raises(bl.ArgumentError, match="learning_rate"):
        skeleton.SkeletonMAP(learning_rate=0.0)
