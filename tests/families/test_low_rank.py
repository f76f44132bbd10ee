"""The Gaussian with a diagonal and a low-rank part, against SciPy and dense matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import bayeslearn as bl
from bayeslearn.families import DiagonalGaussian, FullGaussian, LowRankGaussian
from bayeslearn.models.priors.gaussian import GaussianPrior

K, RANK = 6, 3


def like(vector):
    return {"a": vector[..., :2], "b": vector[..., 2:].reshape(*vector.shape[:-1], 2, 2)}


def made(seed=0):
    rng = np.random.default_rng(seed)
    own = np.exp(0.3 * rng.normal(size=K))
    factor = rng.normal(size=(RANK, K))
    mean = rng.normal(size=K)
    q = LowRankGaussian(*map(like, (mean, own, factor)))
    return q, mean, np.diag(own**2) + factor.T @ factor


def test_density_entropy_and_matrices():
    q, mean, cov = made()
    exact = scipy.stats.multivariate_normal(mean, cov)
    w = np.random.default_rng(1).normal(size=K)
    np.testing.assert_allclose(q.log_prob(like(w)), exact.logpdf(w), rtol=1e-10)
    np.testing.assert_allclose(q.entropy(), exact.entropy(), rtol=1e-10)
    np.testing.assert_allclose(q.cov_matrix(), cov, rtol=1e-10)
    np.testing.assert_allclose(q.prec_matrix(), np.linalg.inv(cov), rtol=1e-9, atol=1e-12)
    std = np.concatenate([np.ravel(s) for s in jax.tree.leaves(q.std)])
    np.testing.assert_allclose(std, np.sqrt(np.diag(cov)), rtol=1e-10)


def test_divergences_are_those_of_the_dense_gaussian():
    q, _, _ = made()
    rng = np.random.default_rng(2)
    std = np.exp(rng.normal(size=K))
    diagonal = DiagonalGaussian(like(rng.normal(size=K)), like(std))
    other, _, _ = made(3)
    prior = GaussianPrior(like(np.zeros(K)), like(1 / std**2))
    for p in (diagonal, other, other.to_prior(), prior, other.to_full()):
        np.testing.assert_allclose(q.kl(p), q.to_full().kl(_known(p)), rtol=1e-9)
    np.testing.assert_allclose(q.kl(q), 0.0, atol=1e-9)


def _known(p):
    """As a family that a dense Gaussian knows."""
    return p.to_full() if isinstance(p, LowRankGaussian) else p


def test_draws_and_the_square_root_have_its_covariance(x64):
    """4,000 draws: a covariance within 12 % of the largest variance, four standard errors."""
    q, mean, cov = made()
    draws = np.asarray(
        jax.vmap(lambda t: jnp.concatenate([t["a"], t["b"].ravel()]))(
            q.sample(jax.random.key(0), 4000)
        )
    )
    np.testing.assert_allclose(np.cov(draws.T), cov, atol=0.12 * np.diag(cov).max())
    np.testing.assert_allclose(draws.mean(axis=0), mean, atol=4 * np.sqrt(cov.max() / 4000))
    flat = lambda t: jnp.concatenate([t["a"], t["b"].ravel()])  # noqa: E731
    root = jax.jacobian(lambda e: flat(q.transform(like(e))))(jnp.zeros(K))
    np.testing.assert_allclose(root @ root.T, cov, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rank", [RANK])
def test_it_is_saved_in_whole(tmp_path, rank):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 2))
    model = bl.Model(bl.networks.MLP([]), bl.likelihoods.Gaussian(noise_scale=0.5))
    algorithm = bl.SWAG(num_iterates=8, rank=rank + 1)
    posterior = bl.fit(model, algorithm, (x, x[:, 0]), seed=0, num_steps=60)
    posterior.save(tmp_path / "run")
    loaded = bl.load(tmp_path / "run")
    assert loaded.family.rank == rank + 1
    for a, b in zip(jax.tree.leaves(posterior.family), jax.tree.leaves(loaded.family), strict=True):
        np.testing.assert_array_equal(a, b)
    assert isinstance(loaded.family.to_full(), FullGaussian)
