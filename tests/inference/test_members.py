"""Ensembles and MILE: members, held-out rows, and what is made of them."""

from __future__ import annotations

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn.errors import ArgumentError, DivergenceError
from bayeslearn.families import Draws, Mixture, Point
from bayeslearn.inference import composite, members
from bayeslearn.inference.members import hold_out
from bayeslearn.precision import inside_double_precision

CHAINS = bl.MCLMC(num_warmup=40, num_samples=10, thin=2)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    return x, np.sin(x[:, 0]) + 0.1 * rng.normal(size=40)


@pytest.fixture(scope="module")
def model():
    return bl.Model(bl.networks.MLP([5]), bl.likelihoods.HeteroscedasticGaussian(1e-3))


@pytest.fixture(scope="module")
def ensemble(model, rows):
    return bl.fit(model, bl.Ensemble(num_members=3), rows, seed=0, num_steps=60)


def test_members_differ_and_the_predictive_is_their_mixture(ensemble, rows):
    x, y = rows
    members = ensemble.family.members
    assert len(members) == 3
    assert all(isinstance(member, Point) for member in members)
    densities = []
    for member in members:
        alone = bl.Posterior(**{**vars(ensemble), "family": member})
        densities.append(alone.predict(x).log_prob(y))
    assert np.std([np.mean(part) for part in densities]) > 1e-6
    mixed = jax.nn.logsumexp(jnp.asarray(densities), axis=0) - np.log(3)
    np.testing.assert_allclose(ensemble.predict(x).log_prob(y), mixed, atol=1e-6)


def break_members(monkeypatch, errors):
    """Training of some members raises an error, of the last one after the first has finished."""
    has_finished = threading.Event()

    def training(member, settings):
        run = composite_training(member, settings)

        def broken(here, params):
            number = int(here.phase.rsplit(" ", 1)[1])
            if number in errors:
                if number == 2 and 0 not in errors:
                    assert has_finished.wait(60.0)
                    time.sleep(1.0)  # until it has handed its result over
                raise errors[number]
            result = run(here, params)
            has_finished.set()
            return result

        return broken

    composite_training = composite.training
    monkeypatch.setattr(composite, "training", training)


@pytest.mark.parametrize("cores", [1, 2])
def test_members_that_fail_are_dropped_and_named(cores, ensemble, model, rows, monkeypatch):
    monkeypatch.setattr(members, "num_cores", lambda: cores)
    break_members(monkeypatch, {0: DivergenceError("It was lost."), 2: DivergenceError("So too.")})
    algorithm = bl.Ensemble(num_members=3)
    found = bl.fit(model, algorithm, rows, seed=0, num_steps=60)
    assert len(found.family.members) == 1
    same_bits(found.family.members[0], ensemble.family.members[1])
    notes = [note for note in found.notes if "dropped" in note]
    assert notes == ["Member 0 was dropped: It was lost.", "Member 2 was dropped: So too."]
    break_members(monkeypatch, {1: DivergenceError("At last.")})
    with pytest.raises(DivergenceError, match="No member of the ensemble could be trained"):
        bl.fit(model, algorithm, rows, seed=0, num_steps=60)


@pytest.mark.parametrize("cores", [1, 2])
def test_an_interrupt_keeps_the_members_that_have_finished(
    cores, ensemble, model, rows, monkeypatch
):
    monkeypatch.setattr(members, "num_cores", lambda: cores)
    break_members(monkeypatch, {2: KeyboardInterrupt()})
    found = bl.fit(model, bl.Ensemble(num_members=3), rows, seed=0, num_steps=60)
    kept = len(found.family.members)
    assert kept in ((2,) if cores == 1 else (1, 2))  # side by side, one may be on its way
    same_bits(found.family.members[0], ensemble.family.members[0])
    assert f"Interrupted: {kept} of 3 members are kept." in found.notes
    break_members(monkeypatch, {0: KeyboardInterrupt()})
    if cores == 1:
        with pytest.raises(KeyboardInterrupt):
            bl.fit(model, bl.Ensemble(num_members=3), rows, seed=0, num_steps=60)


def test_a_member_does_not_depend_on_how_many_there_are(ensemble, model, rows):
    fewer = bl.fit(model, bl.Ensemble(num_members=2), rows, seed=0, num_steps=60)
    for ours, theirs in zip(fewer.family.members, ensemble.family.members, strict=False):
        for a, b in zip(jax.tree.leaves(ours.mean), jax.tree.leaves(theirs.mean), strict=True):
            np.testing.assert_array_equal(a, b)


def test_saved_mixtures_predict_the_same(ensemble, rows, tmp_path):
    ensemble.save(tmp_path / "ensemble")
    loaded = bl.load(tmp_path / "ensemble")
    np.testing.assert_array_equal(loaded.predict(rows[0]).mean, ensemble.predict(rows[0]).mean)


def test_mile_samples_from_every_member_on_all_rows(model, rows):
    algorithm = bl.MILE(num_members=2, sampler=CHAINS)
    posterior = bl.fit(model, algorithm, rows, seed=0, num_steps=60)
    assert isinstance(posterior.family, Draws)
    assert jax.tree.leaves(posterior.draws)[0].shape[:2] == (2, 10)
    assert float(posterior.target.num_data) == 40
    assert len(posterior.state.members) == 2
    names = [phase.name for phase in posterior.phases]
    assert names == ["main/member 0", "main/member 1", "main"]
    step_sizes = np.reshape(posterior.trace["step_size"], (2, -1))[:, -1]
    assert step_sizes[0] != step_sizes[1]  # each chain adapts to its mode
    # Chains stay in modes of their own by design.
    found = posterior.diagnostics()
    assert np.max(found.rhat_predictions) > 1.05
    assert found.warning == ""


@pytest.mark.parametrize("cls", [bl.Ensemble, bl.MILE])
def test_a_run_cut_anywhere_resumes_to_the_same_bits(cls, model, rows, tmp_path):
    options = {"sampler": CHAINS} if cls is bl.MILE else {}
    algorithm = cls(num_members=2, **options)

    def fit(folder, stop=None):
        heard = []

        def callback(event):
            heard.append(event)
            if len(heard) == stop:
                raise RuntimeError("cut")

        place = bl.Checkpoint(tmp_path / folder, every=10, resume=True)
        return bl.fit(
            model, algorithm, rows, seed=0, num_steps=60, checkpoint=place, callback=callback
        ), len(heard)

    whole, number = fit("whole")
    for stop in (2, number - 1):
        with pytest.raises(RuntimeError, match="cut"):
            fit(f"cut {stop}", stop)
        again, _ = fit(f"cut {stop}")
        for a, b in zip(jax.tree.leaves(whole.family), jax.tree.leaves(again.family), strict=True):
            np.testing.assert_array_equal(a, b)


def test_held_out_rows_have_weight_zero_and_keep_rare_classes():
    labels = np.array([0] * 30 + [1] * 6)
    x = np.arange(36.0)[:, None]
    model = bl.Model(bl.networks.MLP([]), bl.likelihoods.Bernoulli())
    with inside_double_precision():
        target, _ = model.bind((x, labels), jax.random.key(0))
        kept, validation = hold_out(target, 0.34, jax.random.key(1))
    weight = np.asarray(kept.data.weight)
    assert len(validation.y) == np.sum(weight == 0) == 12
    assert float(kept.num_data) == 24
    np.testing.assert_array_equal(np.sort(np.asarray(validation.x[:, 0])), x[weight == 0, 0])
    assert np.sum(np.asarray(validation.y) == 1) == 2
    with inside_double_precision():
        assert hold_out(target, 0.0, jax.random.key(1)) == (target, None)


def test_members_train_on_weighted_gradients_of_the_true_density(x64):
    """Values are those of the likelihood; a row's gradient is multiplied by its noise scale."""
    for likelihood in (bl.likelihoods.HeteroscedasticGaussian(), bl.likelihoods.StudentT(0.01)):
        bound, _ = likelihood.bind(np.array([0.0, 4.0]))
        trains, own = bound.to_train(), bound.init()
        outputs, y = jnp.array([0.3, -0.7]), jnp.array([1.0])
        std = jnp.exp(bound.log_std(outputs))[0]

        def value(outputs, likelihood, own=own, y=y):
            return likelihood.log_prob(outputs, y, own)

        np.testing.assert_allclose(value(outputs, trains), value(outputs, bound), rtol=1e-6)
        weighted, plain = (jax.grad(value)(outputs, part) for part in (trains, bound))
        np.testing.assert_allclose(weighted, std * plain, rtol=1e-5)


def test_what_ensembles_refuse(model, rows):
    with pytest.raises(ArgumentError, match="`member` must be an algorithm of single runs"):
        bl.Ensemble(member=bl.MILE())
    with pytest.raises(ArgumentError, match="`sampler` must be a sampler"):
        bl.MILE(sampler=bl.MAP())
    with pytest.raises(ArgumentError, match="`init` must be left out"):
        bl.fit(model, "ensemble", rows, seed=0, init=model.bind(rows, jax.random.key(0))[1])


def test_a_mixture_draws_evenly_from_its_members(x64):
    members = tuple(Point({"w": jnp.full((2,), float(i))}) for i in range(3))
    mixture = Mixture(members)
    drawn = np.asarray(mixture.sample(jax.random.key(0), 7)["w"])[:, 0]
    counts = [np.sum(drawn == i) for i in range(3)]
    assert sorted(counts) == [2, 2, 3]
    np.testing.assert_allclose(mixture.mean["w"], 1.0)
    np.testing.assert_allclose(mixture.std["w"], np.std([0, 1, 2]))


def same_bits(one, other):
    for ours, theirs in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_members_trained_in_worker_processes_have_the_same_bits(ensemble, model, rows, tmp_path):
    algorithm = bl.Ensemble(num_members=3, n_jobs=2)
    found = bl.fit(model, algorithm, rows, seed=0, num_steps=60, checkpoint=tmp_path / "run")
    same_bits(found.family, ensemble.family)
    same_bits(found.state, ensemble.state)
    assert [phase.name for phase in found.phases] == [phase.name for phase in ensemble.phases]
    same_bits(bl.resume(tmp_path / "run", rows).family, ensemble.family)


def test_what_members_in_worker_processes_refuse(model, rows):
    with pytest.raises(ArgumentError, match="`n_jobs` must be left out: the members are samplers"):
        bl.fit(model, bl.Ensemble(member=CHAINS, n_jobs=2), rows, seed=0)
    with pytest.raises(ArgumentError, match="`n_jobs` must be a number of processes"):
        bl.Ensemble(n_jobs=0)
