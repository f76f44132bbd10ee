"""Yesterday's posterior as today's prior: exact where it can be, honest where it cannot."""

from __future__ import annotations

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import bayeslearn as bl
from bayeslearn.errors import ArgumentError
from bayeslearn.families import BlockGaussian, DiagonalGaussian, Draws, make_groups
from bayeslearn.models.priors import correlated, gaussian, specs
from bayeslearn.precision import to_host
from bayeslearn.results import sequential

EXACT = {"gradient": "hessian", "learning_rate": 1.0, "power": 0.0, "guards": False}


def pieces(x, y, num):
    return list(zip(np.split(x, num), np.split(y, num), strict=True))


def first_q(model, data):
    """A Gaussian to begin at, which saves the warm start."""
    with jax.enable_x64(True):
        _, params = model.bind(data, jax.random.key(0))
        return DiagonalGaussian(params, jax.tree.map(lambda w: 0.1 + 0.0 * w, params))


def in_pieces(model, algorithm, x, y, num, start=None, **options):
    first, *rest = pieces(x, y, num)
    found = [bl.fit(model, algorithm, first, seed=0, init=start, **options)]
    for piece in rest:
        found.append(found[-1].update(piece, **options))
    return found


# Exact updates


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        (bl.Conjugate(), {}),
        (bl.NGVI(num_draws=2, **EXACT), {"num_steps": 2, "options": bl.FitOptions(eval_every=2)}),
        (bl.VON(num_draws=2, **EXACT), {"num_steps": 2, "options": bl.FitOptions(eval_every=2)}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_twelve_updates_are_one_batch(algorithm, options):
    problem = problems.regression()
    start = first_q(problem.model, (problem.x, problem.y))
    found = in_pieces(problem.model, algorithm, problem.x, problem.y, 12, start, **options)
    family = found[-1].family
    np.testing.assert_allclose(family.mean_vector(), problem.mean, atol=1e-8)
    np.testing.assert_allclose(family.prec_matrix(), problem.prec, rtol=1e-8)
    # Each piece's evidence is given the pieces before it: they add up to that of all.
    cov = 0.49 * np.eye(60) + problem.x @ problem.x.T / 0.5
    _, log_det = np.linalg.slogdet(2 * np.pi * cov)
    evidence = -0.5 * (log_det + problem.y @ np.linalg.solve(cov, problem.y))
    np.testing.assert_allclose(sum(p.elbo for p in found), evidence, rtol=1e-8)
    assert float(found[-1].target.num_data) == 5
    assert found[-1].seed == 11
    assert f"the q that {algorithm.name} left" in found[-1].notes[0]


@pytest.mark.parametrize("columns", [2])
def test_conjugate_with_unknown_noise_is_exact_in_pieces(columns):
    problem = problems.regression()
    rng = np.random.default_rng(0)
    y = np.column_stack([problem.y, rng.normal(size=60)])[:, :columns]
    model = bl.Model(bl.networks.MLP([]), bl.likelihoods.Gaussian(), dtype="float64")
    algorithm = bl.Conjugate(noise_scale=0.5)
    found = in_pieces(model, algorithm, problem.x, y, 12)
    batch = bl.fit(model, algorithm, (problem.x, y), seed=0)
    for name in ("location", "prec", "scale", "dof"):
        left, right = getattr(found[-1].family.exact, name), getattr(batch.family.exact, name)
        np.testing.assert_allclose(left, right, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(sum(p.elbo for p in found), batch.elbo, rtol=1e-8)
    assert found[-1].notes == ("Updated exactly, in closed form.",)


def test_mean_field_has_the_batch_variance_and_a_mean_that_drifts():
    """algorithms.md 19: variances add up to those of one batch; the mean does not."""
    problem = problems.regression()
    algorithm = bl.NGVI(num_draws=2, covariance="diagonal", **EXACT)
    start = first_q(problem.model, (problem.x, problem.y))
    found = in_pieces(problem.model, algorithm, problem.x, problem.y, 4, start, num_steps=200)
    family = found[-1].family
    np.testing.assert_allclose(family.prec_matrix(), np.diag(np.diag(problem.prec)), rtol=1e-8)
    away = np.abs(family.mean_vector() - problem.mean) * np.sqrt(np.diag(problem.prec))
    assert away.max() > 0.05
    assert isinstance(found[-1].target.prior, gaussian.GaussianPrior)


# What is carried over


@pytest.fixture(scope="module")
def short_fits():
    """Posteriors of every kind, with a learned noise scale, for the price of two short fits."""
    data, model = problems.wiggle(), problems.small_model()
    q = first_q(model, data)
    vogn = bl.fit(model, bl.VOGN(), data, seed=0, num_steps=3, init=q)
    with jax.enable_x64(True):
        groups = make_groups(q.mean, "layer")
        factors = BlockGaussian.from_std(q.mean, q.std, groups).factors
        block = BlockGaussian(
            vogn.family.mean, tuple(c + 0.01 * jnp.tril(jnp.ones_like(c)) for c in factors), groups
        )
    algorithm = bl.EMGVB(covariance="block", learning_rate=1e-12)
    return {
        "vogn": vogn,
        "block": dataclasses.replace(vogn, family=to_host(block), algorithm=algorithm),
        "map": bl.fit(model, bl.MAP(), data, seed=0, num_steps=3),
    }


def test_the_prior_is_the_old_q_and_the_start_is_there(short_fits):
    x, y = problems.wiggle(rows=20, seed=1)
    for name, kind in (("vogn", gaussian.GaussianPrior), ("block", correlated.BlockPrior)):
        old = short_fits[name]
        new = old.update((x, 100.0 + 10.0 * y), num_steps=1, seed=5)
        assert isinstance(new.target.prior, kind)
        assert float(new.target.num_data) == 20
        assert new.seed == 5
        # The noise's prior centre, which the first y gave, stays as it was.
        np.testing.assert_array_equal(new.target.likelihood.center, old.target.likelihood.center)
        with jax.enable_x64(True):
            draws = old.family.sample(jax.random.key(0), 3)
            found = jax.vmap(new.target.prior.log_prob)(draws)
            wanted = jax.vmap(old.family.log_prob)(draws)
            np.testing.assert_allclose(found, wanted, rtol=1e-5)  # float32 weights
    # It began at the old q, without a warm start, and went nowhere (learning rate 1e-12).
    np.testing.assert_allclose(new.family.mean_vector(), old.family.mean_vector(), atol=1e-6)
    np.testing.assert_allclose(new.family.cov_matrix(), old.family.cov_matrix(), atol=1e-9)


def test_any_family_with_moments_goes_on_without_correlations(short_fits, x64):
    class Masks:  # a q of another kind, with moments alone
        def __init__(self, q):
            self.mean, self.std = q.mean, q.std

    vogn = short_fits["vogn"]
    old = dataclasses.replace(vogn, family=Masks(vogn.family))
    prior, note = sequential._as_prior(old, bl.VOGN())
    assert "without correlations" in note
    for left, right in zip(
        jax.tree.leaves((prior.mean, prior.prec)),
        jax.tree.leaves((vogn.family.mean, vogn.family.prec)),
        strict=True,
    ):
        np.testing.assert_allclose(left, right, rtol=1e-6)


def test_dropout_goes_on_from_its_moments():
    """Biases and the noise scale do not vary under masks, and keep the std of the prior."""
    x, y = problems.wiggle(rows=20)
    model = bl.Model(bl.networks.MLP([3]), bl.likelihoods.Gaussian(), specs.Normal(scale=0.5))
    old = bl.fit(model, bl.MCDropout(), (x, y), seed=0, num_steps=5)
    new = old.update((x, y), num_steps=5)
    layer, before = new.target.prior.prec["network"]["layers"][1], old.family
    np.testing.assert_allclose(layer.bias, 4.0)
    std = before.std["network"]["layers"][1].weight
    np.testing.assert_allclose(layer.weight, 1.0 / np.square(std), rtol=1e-5)
    assert "without correlations" in new.notes[0]
    assert np.all(np.isfinite(new.predict(x).log_prob(y)))


def test_refusals(short_fits):
    x, y = problems.wiggle(rows=10)
    with pytest.raises(ArgumentError, match=r"have uncertainty.*bl.Laplace\(\) or bl.VOGN\(\)"):
        short_fits["map"].update((x, y))
    vogn = short_fits["vogn"]
    with pytest.raises(ArgumentError, match="`checkpoint` must be left out: an update cannot be"):
        vogn.update((x, y), checkpoint="run")
    with pytest.raises(ArgumentError, match=r"`eval_every` has moved: write options=bl.FitOptions"):
        vogn.update((x, y), eval_every=5)
    with pytest.raises(ArgumentError, match="`x` must have rows of shape"):
        vogn.update((np.ones((10, 2)), y))
    with pytest.raises(ArgumentError, match="`y` must have 1 column"):
        vogn.update((x, np.ones((10, 2))))
    with pytest.raises(ArgumentError, match=r"`new_data` must be \(x, y\)"):
        vogn.update([(x, y)] * 4)
    with pytest.raises(ArgumentError, match="`history` must be left out: vogn left no draws"):
        vogn.update((x, y), history=(x, y))
    with pytest.raises(ArgumentError, match="`algorithm` must be another one after vogn"):
        vogn.update((x, y), algorithm="conjugate")
    density = bl.Target.from_log_density(lambda p: -jnp.sum(p["a"] ** 2), {"a": jnp.ones(2)})
    with pytest.raises(ArgumentError, match="bare log-density"):
        dataclasses.replace(vogn, target=density).update((x, y))


def test_new_classes_are_refused():
    x, y = problems.two_classes()
    model = bl.Model(bl.networks.MLP([]), bl.likelihoods.Categorical())
    fitted = bl.fit(model, bl.MAP(), (x, y), seed=0, num_steps=1)
    posterior = dataclasses.replace(fitted, family=first_q(model, (x, y)))
    with jax.enable_x64(True):
        batch = sequential._rows(fitted.target, (x[:9], 0 * y[:9]), "new_data")
    assert batch.y.shape == (9,)
    with pytest.raises(ArgumentError, match="got the label 2"):
        posterior.update((x[:9], np.full(9, 2)))


# Draws


@pytest.fixture(scope="module")
def sampled():
    """HMC on the first 50 rows of the reference problem, whose answer after all 60 is known."""
    problem = problems.regression()
    old = bl.fit(
        problem.model,
        bl.HMC(num_warmup=200, num_samples=600, mass_matrix="dense"),
        (problem.x[:50], problem.y[:50]),
        seed=0,
        num_chains=2,
    )
    return problem, old


def test_weights_and_reruns_agree_with_the_exact_posterior(sampled, monkeypatch):
    """Means within 5 standard errors at an effective size of 300; failure rate below 1e-4."""
    problem, old = sampled
    new = problem.x[50:], problem.y[50:]
    found = {"weights": old.update(new)}
    assert "importance weights" in found["weights"].notes[0]
    assert float(found["weights"].target.num_data) == 60
    assert len(found["weights"].target.data.y) == 60
    monkeypatch.setattr(sequential, "MAX_KHAT", -np.inf)
    found["history"] = old.update(new, history=(problem.x[:50], problem.y[:50]))
    assert "rerun on all data" in found["history"].notes[0]
    assert float(found["history"].target.num_data) == 60
    found["gaussian"] = old.update(new)
    assert "a full Gaussian of the old draws" in found["gaussian"].notes[0]
    assert float(found["gaussian"].target.num_data) == 10
    for name, posterior in found.items():
        away = (posterior.family.mean_vector() - problem.mean) / problem.std
        assert np.abs(away).max() < 5 / np.sqrt(300), name
        ratio = np.sqrt(np.diag(posterior.family.cov_matrix())) / problem.std
        assert np.abs(ratio - 1.0).max() < 5 / np.sqrt(2 * 300), name
    with pytest.raises(ArgumentError, match="reweighted"):
        found["weights"].diagnostics()
    with pytest.raises(ArgumentError, match="`history` must be the 50 rows"):
        old.update(new, history=(problem.x[:20], problem.y[:20]))


def test_new_rows_count_by_their_weights(sampled):
    """Of draws and of a Gaussian q: a weight of n is the row n times, also in `num_data`."""
    problem, old = sampled
    counts = np.array([2, 1, 3])
    new = 0.2 * problem.x[50:53], 0.2 * problem.y[50:53]
    repeated = tuple(np.repeat(part, counts, axis=0) for part in new)
    exact = bl.fit(problem.model, "conjugate", (problem.x[:50], problem.y[:50]), seed=0)
    for posterior in old, exact:
        weighted, twice = posterior.update((*new, counts)), posterior.update(repeated)
        np.testing.assert_allclose(
            weighted.family.mean_vector(), twice.family.mean_vector(), rtol=1e-9
        )
        assert float(weighted.target.num_data) == float(twice.target.num_data)
        assert weighted.notes == twice.notes
    assert "importance weights" in old.update((*new, counts)).notes[0]
    assert float(old.update((*new, counts)).target.num_data) == 50 + counts.sum()
    rerun = exact.update((*new, counts)).update((problem.x[53:], problem.y[53:]))
    assert float(rerun.target.num_data) == 7  # the older rows are in the prior


def test_surprising_data_are_not_left_to_weights(sampled):
    problem, old = sampled
    quick = bl.HMC(num_warmup=50, num_samples=50)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bl.MixingWarning)
        new = old.update((problem.x[50:], problem.y[50:] + 30.0), algorithm=quick, num_chains=2)
    assert "k-hat was" in new.notes[0]
    assert isinstance(new.target.prior, correlated.BlockPrior)


def test_repeats_are_counted_in_khat(sampled):
    """Draws resampled before are fewer than they look: the effective number tells."""
    _, old = sampled
    with jax.enable_x64(True):
        flat = old.family.flat()
        few = jax.tree.map(
            lambda w: np.repeat(w[:20], 100, axis=0).reshape(2, -1, *w.shape[1:]), flat
        )
        batch = old.target.batch((old.target.data.x[:1], old.target.data.y[:1]))
        _, _, effective = sequential.reweighed(Draws(few), old.target, batch, 0)
    assert effective <= 20.5


def test_rejected_proposals_do_not_count_in_khat(sampled):
    """Rows that say next to nothing leave nearly equal weights, whose k-hat is below 0."""
    problem, old = sampled
    assert len(np.unique(old.family.matrix(), axis=0)) < old.family.num_draws
    found = old.update((0.2 * problem.x[50:53], 0.2 * problem.y[50:53]))
    assert "importance weights: Pareto k-hat -" in found.notes[0]


def test_vi_goes_on_from_draws(sampled):
    problem, old = sampled
    new = old.update(
        (problem.x[50:], problem.y[50:]),
        algorithm=bl.NGVI(num_draws=2, **EXACT),
        num_steps=2,
        options=bl.FitOptions(eval_every=2),
    )
    assert "It is not a sampler" in new.notes[0]
    away = (new.family.mean_vector() - problem.mean) / problem.std
    assert np.abs(away).max() < 5 / np.sqrt(300)


def test_gaussian_of_draws(x64, monkeypatch):
    rng = np.random.default_rng(0)
    root = rng.normal(size=(6, 6)) + 2 * np.eye(6)
    draws = Draws({"w": jnp.asarray(rng.normal(size=(2, 4000, 6)) @ root.T)})
    cov = np.asarray(draws.cov_matrix())
    found = sequential.gaussian_of(draws).cov_matrix()
    np.testing.assert_allclose(np.diag(found), np.diag(cov), rtol=1e-10)  # variances are kept
    np.testing.assert_allclose(found, cov, atol=0.01 * np.diag(cov).max())  # hardly shrunken
    monkeypatch.setattr(sequential, "FULL_LIMIT", 5)
    monkeypatch.setattr(sequential, "RANK", 2)
    low = sequential.gaussian_of(draws)
    assert isinstance(low, correlated.LowRankPrior)
    found = np.linalg.inv(low.prec_blocks(draws.mean, ((0,),))[0])
    np.testing.assert_allclose(np.diag(found), np.diag(cov), rtol=1e-10)
    # With few draws of independent weights nearly all of the chance correlation goes.
    noise = rng.normal(size=(30, 40))
    z = (noise - noise.mean(0)) / noise.std(0, ddof=1)
    off = ~np.eye(40, dtype=bool)
    assert np.abs(sequential.shrunken(z)[off]).mean() < 0.2 * np.abs(np.corrcoef(z.T)[off]).mean()


# On a network


@pytest.mark.slow(reason="six fits of a network to convergence")
@pytest.mark.parametrize("covariance", ["full", "block"])
def test_five_updates_of_a_network_keep_most_of_what_a_batch_learns(covariance):
    """At least 90 % of one batch's gain in test log-likelihood over the prior predictive.

    Pieces have 100 rows: from 40 a variational q may take all for noise, and stays with that.
    """
    x, y = problems.wiggle(rows=500)
    test = problems.wiggle(rows=400, seed=9)
    model = bl.Model(bl.networks.MLP([10]), bl.likelihoods.Gaussian())
    algorithm = bl.EMGVB(covariance=covariance)
    options = {"num_steps": 1500}
    batch = bl.fit(model, algorithm, (x, y), seed=0, **options)
    sequence = in_pieces(model, algorithm, x, y, 5, **options)[-1]
    scores = {
        name: posterior.predict(test[0]).log_prob(test[1]).mean()
        for name, posterior in {"batch": batch, "sequence": sequence}.items()
    }
    target = batch.target
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(0), 1000)
        draws = jax.vmap(lambda k: target.prior.sample(k, batch.family.mean))(keys)
    before = dataclasses.replace(batch, family=Draws(jax.tree.map(lambda w: w[None], draws)))
    scores["prior"] = before.predict(test[0]).log_prob(test[1]).mean()
    gain = scores["batch"] - scores["prior"]
    assert scores["sequence"] - scores["prior"] > 0.9 * gain, scores


def linear_rows(rows=40):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(rows, 2))
    return x, x @ np.array([1.0, -0.5]) + 0.3 * rng.normal(size=rows)


def test_members_of_a_mixture_are_updated_one_by_one():
    """Members of a conjugate ensemble are exact: each is then the posterior of all rows."""
    model = bl.Model(bl.networks.MLP([]), bl.likelihoods.Gaussian(noise_scale=0.3))
    x, y = linear_rows()
    first = bl.fit(
        model, bl.Ensemble(num_members=2, member=bl.Conjugate()), (x[:15], y[:15]), seed=0
    )
    updated = first.update((x[15:], y[15:]))
    exact = bl.fit(model, "conjugate", (x, y), seed=0).family
    assert updated.family.num_members == 2
    for member in updated.family.members:
        np.testing.assert_allclose(member.mean_vector(), exact.mean_vector(), atol=1e-6)
        np.testing.assert_allclose(member.cov_matrix(), exact.cov_matrix(), atol=1e-6)
    assert updated.notes[0].startswith("Updated member by member")
    assert [phase.name for phase in updated.phases] == ["main/member 0", "main/member 1"]
    # and again, from what was updated
    again = first.update((x[15:25], y[15:25])).update((x[25:], y[25:]))
    for member in again.family.members:
        np.testing.assert_allclose(member.mean_vector(), exact.mean_vector(), atol=1e-6)


def test_a_mixture_of_points_has_nothing_to_update():
    model = bl.Model(bl.networks.MLP([]), bl.likelihoods.Gaussian(noise_scale=0.3))
    posterior = bl.fit(model, bl.Ensemble(num_members=2), linear_rows(), seed=0, num_steps=20)
    with pytest.raises(ArgumentError, match=r"members with uncertainty.*got 2 points by ensemble"):
        posterior.update(linear_rows())


def test_an_ensemble_does_not_update_a_single_q():
    model = bl.Model(bl.networks.MLP([]), bl.likelihoods.Gaussian(noise_scale=0.3))
    posterior = bl.fit(model, "conjugate", linear_rows(), seed=0)
    with pytest.raises(ArgumentError, match="`algorithm` must be of one run"):
        posterior.update(linear_rows(), algorithm=bl.Ensemble(num_members=2))
