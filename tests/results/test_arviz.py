"""What ArviZ is given, and LOO and predictive checks of posteriors whose rows have weights.

ArviZ 0.x and 1.x are both supported.
"""

from __future__ import annotations

import dataclasses
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from scipy import stats

import bayeslearn as bl
from bayeslearn.data.scaling import Scaling, TableScaling
from bayeslearn.errors import ArgumentError
from bayeslearn.families import Draws, FullGaussian, Mixture, Point
from bayeslearn.results import metrics
from bayeslearn.results.arviz import arviz
from bayeslearn.results.convergence import ess_bulk
from bayeslearn.results.posterior import Posterior
from bayeslearn.results.psis import LOO, psis_loo

NAME = "network.layers.0.weight"


@pytest.fixture(scope="module")
def problem():
    return problems.regression()


@pytest.fixture(scope="module")
def gaussian(problem):
    """The exact posterior, without a run."""
    target, params = problem.model.bind((problem.x, problem.y), jax.random.key(0))
    with jax.enable_x64(True):
        family = FullGaussian.from_cov(
            jax.tree.map(lambda w: jnp.asarray(problem.mean).reshape(w.shape), params),
            jnp.asarray(problem.cov),
        )
    return exact(target, family)


def exact(target, family):
    return Posterior(
        target=target,
        algorithm=bl.Laplace(),
        family=family,
        state=None,
        trace={},
        elbo=None,
        stopped="Nothing was run.",
        notes=(),
        seed=0,
        wall_time=0.0,
        compile_time=0.0,
    )


def with_rows(posterior, x, y, weight=None, num_data=None):
    """The posterior as if it had been fitted to other rows."""
    if num_data is None:
        num_data = float(len(y) if weight is None else np.sum(weight))
    with jax.enable_x64(True):
        target = posterior.target.with_data(posterior.target.batch((x, y), weight))
        target = dataclasses.replace(target, num_data=jnp.asarray(num_data))
    return dataclasses.replace(posterior, target=target)


def of_sampler(posterior, chains=2, seed=0):
    """The same posterior as 200 draws of chains."""
    with jax.enable_x64(True):
        draws = posterior.family.sample(jax.random.key(seed), chains * 200)
        family = Draws(jax.tree.map(lambda w: w.reshape(chains, -1, *w.shape[1:]), draws))
    trace = {"log_density": np.zeros((chains, 200))}
    return dataclasses.replace(posterior, family=family, trace=trace)


# ArviZ


def is_old():
    """ArviZ 0.x has an InferenceData of its own."""
    pytest.importorskip("arviz")
    return int(arviz().__version__.partition(".")[0]) < 1


groups = problems.arviz_groups


def log_likelihood(draws, problem, rows=slice(None)):
    means = np.einsum("cdoi,ri->cdr", draws, problem.x[rows])
    return stats.norm.logpdf(problem.y[rows], means, 0.7)


def test_a_samplers_draws_keep_their_order_by_chain(problem, gaussian):
    is_old()
    sampler = of_sampler(gaussian, chains=3)
    lp = np.arange(600.0).reshape(3, 200)
    trace = {"log_density": lp, "diverging": lp > 500, "warmup_step_size": np.ones((3, 9))}
    data = dataclasses.replace(sampler, trace=trace).to_arviz()
    (draws,) = jax.tree.leaves(sampler.draws)
    assert list(data.posterior.data_vars) == [NAME]
    np.testing.assert_array_equal(data.posterior[NAME], draws)
    terms = data.log_likelihood["y"]
    np.testing.assert_allclose(terms, log_likelihood(draws, problem), rtol=1e-9)
    np.testing.assert_allclose(data.observed_data["y"], problem.y)
    assert set(data.sample_stats.data_vars) == {"lp", "diverging"}
    np.testing.assert_array_equal(data.sample_stats["lp"], lp)
    assert data.sample_stats["diverging"].dtype == bool
    assert data.attrs == {"algorithm": "laplace", "stopped": "Nothing was run."}


def test_groups_dims_and_coordinates(gaussian):
    data = of_sampler(gaussian).to_arviz()
    assert type(data).__name__ == ("InferenceData" if is_old() else "DataTree")
    assert groups(data) == {"posterior", "log_likelihood", "observed_data", "sample_stats"}
    sizes = {"chain": 2, "draw": 200}
    own = {f"{NAME}_dim_0": 1, f"{NAME}_dim_1": 4}
    for group, expected in (
        (data.posterior, sizes | own),
        (data.log_likelihood, sizes | {"row": 60}),
        (data.observed_data, {"row": 60}),
        (data.sample_stats, sizes),
    ):
        assert dict(group.sizes) == expected
        for axis, size in expected.items():
            np.testing.assert_array_equal(group[axis], np.arange(size))
    if is_old():  # as ArviZ names them itself
        draws = {NAME: np.asarray(data.posterior[NAME])}
        assert data.posterior.equals(arviz().dict_to_dataset(draws))


@pytest.mark.parametrize("is_of_points", [False, True])
def test_members_of_an_ensemble_are_chains_of_equal_weight(problem, gaussian, is_of_points):
    is_old()
    with jax.enable_x64(True):
        shifts = (-5.0, 0.0, 5.0)
        means = [jax.tree.map(lambda w, s=s: w + s, gaussian.family.mean) for s in shifts]
        if is_of_points:
            members = [Point(mean) for mean in means]
        else:
            members = [FullGaussian.from_cov(mean, jnp.asarray(problem.cov)) for mean in means]
    mixture = dataclasses.replace(
        gaussian, family=Mixture(tuple(members)), algorithm=bl.Ensemble(member=bl.MAP())
    )
    data = mixture.to_arviz(num_samples=100, seed=4)
    weights = np.asarray(data.posterior[NAME])
    assert weights.shape == (3, 1 if is_of_points else 33, 1, 4)
    found = weights.mean(axis=(1, 2)) - problem.mean  # members are many standard errors apart
    np.testing.assert_array_equal(found.mean(axis=1).round(), shifts)
    np.testing.assert_allclose(data.log_likelihood["y"], log_likelihood(weights, problem))
    assert data.attrs["chains"] == "members of an ensemble"


def test_a_q_gives_one_chain_and_its_lower_bound_by_step(problem, gaussian):
    is_old()
    trace = {"eval_step": np.array([5, 9]), "eval_elbo": np.array([-3.0, -2.0]), "loss": np.ones(9)}
    data = dataclasses.replace(gaussian, trace=trace).to_arviz(num_samples=40, seed=3)
    weights = np.asarray(data.posterior[NAME])
    assert weights.shape == (1, 40, 1, 4)
    np.testing.assert_allclose(data.log_likelihood["y"], log_likelihood(weights, problem))
    assert data.sample_stats["elbo"].dims == ("step",)
    np.testing.assert_array_equal(data.sample_stats["elbo"], [-3.0, -2.0])
    np.testing.assert_array_equal(data.sample_stats["step"], [5, 9])
    assert set(data.sample_stats.data_vars) == {"elbo"}


def test_a_point_is_one_draw_and_a_density_has_no_rows(gaussian):
    is_old()
    point = dataclasses.replace(gaussian, family=Point(gaussian.family.mean)).to_arviz()
    assert point.posterior[NAME].shape == (1, 1, 1, 4)
    assert point.log_likelihood["y"].shape == (1, 1, 60)
    assert groups(point) == {"posterior", "log_likelihood", "observed_data"}
    target = bl.Target.from_log_density(lambda w: -jnp.sum(w["a"] ** 2), {"a": jnp.zeros(3)})
    density = dataclasses.replace(gaussian, target=target, family=Point({"a": jnp.zeros(3)}))
    assert groups(density.to_arviz()) == {"posterior"}


def test_without_all_rows_there_is_no_log_likelihood(problem, gaussian):
    """After loading, and after a fit to an iterable, of which a part is kept."""
    for rows, num_data in ((0, 60.0), (30, 60.0)):
        posterior = with_rows(gaussian, problem.x[:rows], problem.y[:rows], num_data=num_data)
        assert groups(posterior.to_arviz(num_samples=5)) == {"posterior"}
    with pytest.raises(ArgumentError, match="needs all 60 rows"):
        metrics.loo(posterior)


def test_several_columns_are_named(problem):
    is_old()
    table = np.stack([problem.y, -problem.y], axis=1)
    target, params = problem.model.bind((problem.x, table), jax.random.key(0))
    data = exact(target, Point(params)).to_arviz()
    assert data.observed_data["y"].dims == ("row", "column")
    assert data.log_likelihood["y"].dims == ("chain", "draw", "row")
    np.testing.assert_allclose(data.observed_data["y"], table)


@pytest.mark.parametrize("weight", [[2.0, 0.0, 1.0], [0.5, 0.0, 3.0]])
def test_rows_with_weights(problem, gaussian, weight):
    """Whole weights repeat rows, others multiply their log-likelihood."""
    is_old()
    posterior = with_rows(gaussian, problem.x[:3], problem.y[:3], np.array(weight))
    data = posterior.to_arviz(num_samples=20)
    is_whole = weight[0] == 2.0
    rows = [0, 0, 2] if is_whole else [0, 2]
    factor = 1.0 if is_whole else np.array([0.5, 3.0])
    np.testing.assert_allclose(data.observed_data["y"], problem.y[rows])
    expected = factor * log_likelihood(np.asarray(data.posterior[NAME]), problem, rows)
    np.testing.assert_allclose(data.log_likelihood["y"], expected, rtol=1e-6)


def test_scaled_columns_come_in_the_units_of_the_data(problem, gaussian):
    is_old()
    scaling = TableScaling(
        Scaling(np.arange(4.0), np.full(4, 2.0)), Scaling(np.asarray(10.0), np.asarray(3.0))
    )
    data = dataclasses.replace(gaussian, scaling=scaling).to_arviz(num_samples=20)
    plain = gaussian.to_arviz(num_samples=20)
    np.testing.assert_allclose(data.observed_data["y"], 10.0 + 3.0 * problem.y)
    expected = np.asarray(plain.log_likelihood["y"]) - np.log(3.0)
    np.testing.assert_allclose(data.log_likelihood["y"], expected, rtol=1e-6, atol=1e-9)


def test_arviz_reads_it(problem, gaussian):
    """Its LOO of the exported data is ours; its summary has a row for each weight."""
    sampler = of_sampler(gaussian)
    data, ours = sampler.to_arviz(), metrics.loo(sampler)
    terms = np.asarray(data.log_likelihood["y"])
    bulk = ess_bulk(terms[:, :, np.linspace(0, 59, 20).astype(int)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        efficiency = min(1.0, float(np.mean(bulk)) / 400)
        theirs = arviz().loo(data, pointwise=True, var_name="y", reff=efficiency)
        assert len(arviz().summary(data, var_names=[NAME])) == 4
    if is_old():
        np.testing.assert_allclose(ours.elpd_loo, theirs.elpd_loo, rtol=1e-8)
        np.testing.assert_allclose(ours.pareto_k, np.asarray(theirs.pareto_k), rtol=1e-8)
    else:  # 1.x fits other tails
        np.testing.assert_allclose(ours.elpd_loo, theirs.elpd, rtol=1e-3)


# Metrics


@pytest.mark.parametrize("kind", ["q", "sampler"])
def test_whole_weights_are_repeated_rows(problem, gaussian, kind):
    posterior = gaussian if kind == "q" else of_sampler(gaussian)
    x, y, weight = problem.x[:6], problem.y[:6], np.array([1.0, 2.0, 0.0, 1.0, 3.0, 0.0])
    counts = weight.astype(int)
    found = metrics.loo(with_rows(posterior, x, y, weight))
    repeated = with_rows(posterior, np.repeat(x, counts, 0), np.repeat(y, counts))
    expected = metrics.loo(repeated)
    assert isinstance(found, LOO)
    assert found.elpd_i.shape == (7,)
    for one, two in zip(found[:-1], expected[:-1], strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-9)
    assert found.num_samples == (1000 if kind == "q" else 400)


def test_other_weights_multiply_the_log_likelihood(problem, gaussian):
    x, y, weight = problem.x[:3], problem.y[:3], np.array([0.5, 0.0, 2.0])
    found = metrics.loo(with_rows(gaussian, x, y, weight), seed=2)
    terms = gaussian.predict(x[[0, 2]], num_samples=1000, seed=2).log_prob_by_draw(y[[0, 2]])
    expected = psis_loo((terms * weight[[0, 2]])[None])
    np.testing.assert_allclose(found.elpd_i, expected.elpd_i, rtol=1e-12)


def test_loo_needs_no_arviz(gaussian, monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz", None)
    assert np.isfinite(metrics.loo(gaussian).elpd_loo)


def test_predictive_checks_repeat_rows_of_whole_weights(problem, gaussian):
    x, y = problem.x[:3], problem.y[:3]
    posterior = with_rows(gaussian, x, y, np.array([2.0, 0.0, 3.0]))
    seen = []

    def statistic(values):
        seen.append(values)
        return values.max()

    metrics.posterior_predictive_check(posterior, statistic, num_samples=3)
    np.testing.assert_allclose(seen[0], y[[0, 0, 2, 2, 2]])
    assert seen[1].shape == (5,)
    assert seen[1][0] != seen[1][1]  # each with noise of its own
    with pytest.raises(ArgumentError, match="`weight` must hold whole numbers"):
        metrics.posterior_predictive_check(with_rows(gaussian, x, y, np.array([0.5, 1.0, 1.0])))


def test_prior_predictive_checks_repeat_rows_too(problem):
    seen = []

    def statistic(values):
        seen.append(values)
        return values.max()

    weighted = (problem.x[:3], problem.y[:3], np.array([1.0, 0.0, 2.0]))
    metrics.prior_predictive_check(problem.model, weighted, statistic, num_samples=2)
    np.testing.assert_allclose(seen[0], problem.y[[0, 2, 2]])
    assert seen[1].shape == (3,)
