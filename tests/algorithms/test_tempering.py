"""The weight of the complexity cost: tempered posteriors in closed form, and warm-ups."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import bayeslearn as bl
from bayeslearn.algorithms.tempering import kl_weight
from bayeslearn.inference.evaluate import lower_bound

T = 4.0
# Full covariances whose gradients have no noise at the optimum, and diagonal ones.
FULL = ("ngvi", "von", "mgvb", "emgvb", "qbvi")
DIAGONAL = {
    "natural-gradient": {"gradient": "reparam"},
    "bbvi": {},
    "ng-bbvi": {},
    "ngvi": {"covariance": "diagonal"},
}


def tempered():
    """The conjugate problem, and mean and precision at temperature T."""
    problem = problems.regression()
    data = problem.x.T @ problem.x / 0.49 / T
    prec = 0.5 * np.eye(4) + data
    return problem, np.linalg.solve(prec, problem.x.T @ problem.y / 0.49 / T), prec


def fit(problem, algorithm, **options):
    return bl.fit(problem.model, algorithm, (problem.x, problem.y), seed=0, **options)


@pytest.mark.parametrize("name", FULL)
def test_full_gaussians_are_the_tempered_posterior(name):
    problem, mean, prec = tempered()
    found = fit(problem, bl.ALGORITHMS[name](temperature=T), num_steps=2000)
    std = np.sqrt(np.diag(np.linalg.inv(prec)))
    # Their noise decays with the distance to the optimum, and the step size to zero.
    np.testing.assert_allclose(found.family.mean_vector() / std, mean / std, atol=0.02)
    ratio = np.linalg.eigvals(np.linalg.solve(prec, found.family.prec_matrix())).real
    np.testing.assert_allclose(ratio, 1.0, atol=0.05)


@pytest.mark.parametrize("name", DIAGONAL)
def test_diagonal_gaussians_have_its_precisions(name):
    problem, mean, prec = tempered()
    algorithm = bl.ALGORITHMS[name](temperature=T, **DIAGONAL[name])
    found = fit(problem, algorithm, num_steps=2000)
    std = 1.0 / np.sqrt(np.diag(prec))
    # Monte-Carlo noise of the gradients, at a step size that decays to zero.
    np.testing.assert_allclose(ravel(found.family.mean) / std, mean / std, atol=0.1)
    np.testing.assert_allclose(ravel(found.family.std) / std, 1.0, atol=0.1)


def ravel(params):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])


def test_the_objective_is_tempered_and_the_bound_is_not(x64):
    problem = problems.regression()
    target, params = problem.model.bind((problem.x, problem.y), jax.random.key(0))
    q = bl.families.DiagonalGaussian(params, jax.tree.map(lambda w: 0.1 + 0 * w, params))
    bound = lower_bound(target, q, jax.random.key(1), 64)
    at_t = lower_bound(target, q, jax.random.key(1), 64, 16, T)
    assert bound["objective"] == bound["elbo"] == at_t["elbo"]
    exact = -bound["nll"] - T * q.kl(target.prior)
    error = at_t["error"] + bound["error"]
    assert abs(at_t["objective"] - exact) < 5 * error  # fails once in a million seeds


WARM = [name for name, cls in bl.ALGORITHMS.items() if "kl_warmup" in cls.__dataclass_fields__]


def test_every_variational_method_has_a_warm_up_and_a_temperature():
    variational = {
        name
        for name, cls in bl.ALGORITHMS.items()
        if cls.capabilities.has_lower_bound
        and cls.auto_steps > 1
        and not cls.capabilities.is_sampler
        and not cls.capabilities.is_composite
    } - {"sghmc"}
    assert variational == set(WARM)
    assert all("temperature" in bl.ALGORITHMS[n].__dataclass_fields__ for n in variational)


@pytest.mark.parametrize("name", ["ivon", "bayes-by-backprop", "ngvi"])
def test_a_warm_up_changes_its_steps_and_not_those_after_it(name, x64):
    """While it lasts q is narrower; a target of a step after it has the bits of one without.

    The q that IVON reports is that of the weight at the end.
    """
    problem = problems.regression()
    target, _ = problem.model.bind((problem.x, problem.y), jax.random.key(0))
    warm, plain = (bl.ALGORITHMS[name](kl_warmup=n) for n in (10, 0))
    late = jnp.asarray(10)
    assert warm.training_target(target, late).num_data == target.num_data
    assert warm.training_target(target, None).num_data == target.num_data
    assert plain.training_target(target, late).num_data == target.num_data
    assert float(kl_weight(jnp.asarray(0), 10)) == 0.01
    if name == "ivon":
        early = warm.training_target(target, jnp.asarray(0)).num_data
        np.testing.assert_allclose(early, 100 * target.num_data)
        return
    short = fit(problem, bl.ALGORITHMS[name](kl_warmup=10_000), num_steps=200)
    usual = fit(problem, plain, num_steps=200)
    assert np.all(ravel(short.family.std) < 0.7 * ravel(usual.family.std))


def test_a_density_has_no_other_temperature():
    target = bl.Target.from_log_density(lambda w: -0.5 * w @ w, jnp.zeros(2))
    for options in ({"temperature": 0.5}, {"kl_warmup": 3}):
        for method in (bl.NGVI, bl.BBVI):
            with pytest.raises(bl.ArgumentError, match="for a density"):
                bl.fit(target, method(**options), seed=0)
