"""MAP: any optimiser by name, the noise scale fixed or learned, a point without variance."""

from __future__ import annotations

import jax
import numpy as np
import problems
import pytest

import bayeslearn as bl


@pytest.fixture(scope="module")
def problem():
    return problems.regression()


# RMSprop moves each weight by about its step size however close the mode is.
LAST_STEP = 0.01 / (1 + 5000 / 500) ** 0.5


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({"optimizer": "sgd", "learning_rate": 0.1}, 1e-6),
        ({"optimizer": "rmsprop", "learning_rate": 0.01}, LAST_STEP),
        ({"optimizer": "adamw", "optimizer_options": {"weight_decay": 0.0}}, 1e-6),
    ],
    ids=["sgd", "rmsprop", "adamw"],
)
def test_any_optimiser_finds_the_mode(problem, options, tolerance):
    algorithm = bl.MAP(**options)
    posterior = bl.fit(problem.model, algorithm, (problem.x, problem.y), seed=0, num_steps=5000)
    np.testing.assert_allclose(posterior.family.mean_vector(), problem.mean, rtol=0, atol=tolerance)


def test_the_optimisers_options_count(problem):
    decayed = bl.MAP(optimizer="adamw", optimizer_options={"weight_decay": 10.0})
    posterior = bl.fit(problem.model, decayed, (problem.x, problem.y), seed=0, num_steps=500)
    assert np.max(np.abs(posterior.family.mean_vector() - problem.mean) / problem.std) > 1.0


def test_a_point_predicts_with_its_noise_alone(problem):
    posterior = bl.fit(problem.model, "map", (problem.x, problem.y), seed=0, num_steps=300)
    predictive = posterior.predict(problem.x[:5])
    assert predictive.num_samples == 1
    np.testing.assert_array_equal(predictive.epistemic, 0.0)
    np.testing.assert_allclose(predictive.std, 0.7, rtol=1e-12)
    assert posterior.elbo is None
    assert posterior.draws is None
    assert all(np.all(row["std"] == 0.0) for row in posterior.summary())


def test_the_noise_can_be_held(problem):
    model = bl.Model(bl.networks.MLP([]), bl.likelihoods.Gaussian())
    data = (problem.x, problem.y)
    fixed, learned = (
        bl.fit(model, bl.MAP(learn_noise=learn), data, seed=0, num_steps=200)
        for learn in (False, True)
    )
    start = np.log(problem.y.std())

    def noise(posterior):
        return float(posterior.family.mean["likelihood"]["log_noise_scale"][0])

    np.testing.assert_allclose(noise(fixed), start, rtol=1e-6)
    assert abs(noise(learned) - start) > 0.1
    moved = jax.tree.leaves(fixed.family.mean["network"])
    assert all(np.all(np.isfinite(leaf)) for leaf in moved)
    assert fixed.trace["log_joint"][-1] > fixed.trace["log_joint"][0]
