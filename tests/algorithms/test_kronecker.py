"""Laplace with Kronecker factors, its predictions in closed form, and mixtures of Laplaces."""

from __future__ import annotations

import jax
import numpy as np
import problems
import pytest

import bayeslearn as bl
from bayeslearn.algorithms import laplace
from bayeslearn.algorithms.linearised import standard_noise


@pytest.fixture(scope="module")
def problem():
    return problems.regression()


@pytest.fixture(scope="module")
def posterior(problem):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(laplace, "CHUNK_ROWS", 16)  # the last one is padded
        algorithm = bl.Laplace(covariance="kronecker")
        return bl.fit(problem.model, algorithm, (problem.x, problem.y), seed=0)


def test_exact_on_conjugate_regression(posterior, problem):
    """Mean, precision, evidence; and predictions exactly, though they are by draws."""
    full = bl.fit(problem.model, bl.Laplace(), (problem.x, problem.y), seed=0)
    np.testing.assert_allclose(posterior.family.mean_vector(), problem.mean, rtol=0, atol=1e-8)
    np.testing.assert_allclose(posterior.family.prec_matrix(), problem.prec, rtol=1e-8)
    evidence = [p.trace["log_evidence"][-1] for p in (posterior, full)]
    np.testing.assert_allclose(*evidence, rtol=1e-8)
    predictive = posterior.predict(problem.x[:5])
    np.testing.assert_allclose(predictive.mean, problem.x[:5] @ problem.mean, rtol=1e-7)
    variance = np.einsum("ri,ij,rj->r", problem.x[:5], problem.cov, problem.x[:5])
    np.testing.assert_allclose(predictive.epistemic, variance, rtol=1e-7)
    assert posterior.notes == ()


def test_saved_loaded_and_as_a_prior(posterior, problem, tmp_path):
    posterior.save(tmp_path / "posterior")
    loaded = bl.load(tmp_path / "posterior")
    for a, b in zip(*map(jax.tree.leaves, (posterior.family, loaded.family)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert loaded.family.layers == posterior.family.layers
    rows = problem.x[:5]
    np.testing.assert_array_equal(loaded.predict(rows).std, posterior.predict(rows).std)
    assert [row["std"].shape for row in posterior.summary()] == [(1, 4)]
    half = bl.fit(
        problem.model, bl.Laplace(covariance="kronecker"), (problem.x[:30], problem.y[:30]), seed=0
    )
    new = problem.x[30:], problem.y[30:]
    with pytest.raises(bl.ArgumentError, match="must have independent weights for the Kronecker"):
        half.update(new)
    whole = half.update(new, algorithm=bl.Laplace())
    np.testing.assert_allclose(whole.family.prec_matrix(), problem.prec, rtol=1e-7)
    np.testing.assert_allclose(whole.family.mean_vector(), problem.mean, rtol=0, atol=1e-7)


def test_a_last_layer_and_prior_scales_by_the_evidence():
    """The last layer is linear, so its factors are exact, and so is its evidence."""
    data = problems.wiggle()

    def fit(covariance):
        prior = bl.priors.Normal(scale=3.0, learn=True)
        model = bl.Model(
            bl.networks.MLP([5]),
            bl.likelihoods.Gaussian(0.2),
            prior,
            bayesian="layers.1.*",
            dtype="float64",
        )
        return bl.fit(model, bl.Laplace(covariance=covariance), data, seed=0, num_steps=500)

    kronecker, full = fit("kronecker"), fit("full")
    assert len(kronecker.family.layers) == 1
    for name in ("log_evidence", "log_joint"):
        np.testing.assert_allclose(kronecker.trace[name], full.trace[name], rtol=1e-8)
    precs = [p.family.prec_matrix() for p in (kronecker, full)]
    np.testing.assert_allclose(*precs, rtol=1e-8, atol=1e-8)
    x = np.linspace(-4.0, 4.0, 7)[:, None]
    exact = kronecker.predict(x).epistemic
    # 4,000 draws of weights: five standard errors, 1 in 100,000 for seven rows.
    drawn = full.predict(x, num_samples=4000).epistemic
    np.testing.assert_allclose(drawn, exact, rtol=5 * np.sqrt(2 / 4000))


def test_members_of_an_ensemble_predict_linearised():
    """The mixture's predictive is that of its members, each with its own network."""
    data = problems.wiggle()
    model = bl.Model(bl.networks.MLP([5]), bl.likelihoods.Gaussian(noise_scale=0.2))
    ensemble = bl.Ensemble(num_members=2, member=bl.Laplace(covariance="block"))
    mixture = bl.fit(model, ensemble, data, seed=0, num_steps=400)
    x = np.array([[0.0], [1.5], [4.0]])
    algorithm = mixture.algorithm.member
    parts = []
    for member in mixture.family.members:
        target = algorithm.predictive_target(mixture.target, member)
        draws = member.sample(jax.random.key(1), 2000)
        rows = mixture.target.batch((x, np.zeros(1))).x
        parts.append(bl.results.predictive.Predictive(target, draws, rows))
    means = np.array([part.mean for part in parts])
    epistemic = np.mean([part.epistemic for part in parts], axis=0) + np.var(means, axis=0)
    predictive = mixture.predict(x, num_samples=2000)
    error = np.sqrt(epistemic / 2000)
    # Four standard errors: of two independent means, and of a variance; once in 5,000.
    assert np.all(np.abs(predictive.mean - means.mean(axis=0)) < 4 * np.sqrt(2) * error)
    np.testing.assert_allclose(predictive.epistemic, epistemic, rtol=4 * np.sqrt(2 * 2 / 2000))
    # The network itself at these draws would be several times as unsure among the data.
    sampled = bl.Ensemble(
        num_members=2, member=bl.Laplace(covariance="block", predictive="sampled")
    )
    draws = sampled.predictive_draws(mixture.target, mixture.family, jax.random.key(2), 500, x)
    assert draws[0] is mixture.target


def test_the_noise_has_the_moments_it_claims():
    with jax.enable_x64(True):
        noise = np.asarray(standard_noise(jax.random.key(0), 64, 3))
        odd = np.asarray(standard_noise(jax.random.key(0), 7, 30))
    np.testing.assert_allclose(noise.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(np.cov(noise.T), np.eye(3), atol=1e-12)
    assert odd.shape == (7, 30)
    np.testing.assert_allclose(odd.mean(axis=0), 0.0, atol=1e-12)


def test_what_has_no_factors_is_refused():
    with pytest.raises(bl.ArgumentError, match="with Kronecker factors"):
        bl.Laplace(covariance="kronecker", curvature="hessian")
    target = bl.Target.from_log_density(lambda p: -(p[0] ** 2), np.ones(1))
    with pytest.raises(bl.ArgumentError, match="bare log-density has no layers"):
        bl.fit(target, bl.Laplace(covariance="kronecker"), seed=0)
