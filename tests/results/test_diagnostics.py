"""Do chains that have not mixed get caught, and are mixed ones left in peace."""

from __future__ import annotations

import warnings

import jax.numpy as jnp
import numpy as np
import problems
import pytest

import bayeslearn as bl
from bayeslearn.errors import ArgumentError
from bayeslearn.results import diagnostics

CHAINS, KEPT = 4, 1000


def chains(shift=0.0):
    noise = np.random.default_rng(0).normal(size=(CHAINS, KEPT, 2))
    return noise + np.asarray(shift, float).reshape(-1, 1, 1)


def warning_of(values):
    stats = diagnostics.convergence(values)
    return diagnostics._not_mixed("hmc", "predictions", stats, *np.shape(values)[:2])


def test_independent_draws_are_worth_themselves():
    """The std of ArviZ's bulk ESS of 4,000 independent draws is a few per cent."""
    rhat, bulk, tail = diagnostics.convergence(chains())
    assert np.all(rhat < 1.01)
    assert np.all(np.abs(bulk / (CHAINS * KEPT) - 1) < 0.2)
    assert np.all(tail > 0.5 * CHAINS * KEPT)
    assert warning_of(chains()) == ""


def test_correlated_draws_are_worth_less():
    """An AR(1) chain with correlation 0.9 is worth (1 - 0.9) / (1 + 0.9) = 1/19 of its length."""
    noise = np.random.default_rng(0).normal(size=(CHAINS, 5000, 1))
    values = np.zeros_like(noise)
    for t in range(1, noise.shape[1]):
        values[:, t] = 0.9 * values[:, t - 1] + noise[:, t]
    _, bulk, _ = diagnostics.convergence(values)
    assert 0.8 < bulk[0] / (CHAINS * 5000 / 19) < 1.25


def test_chains_in_two_places_are_caught():
    warning = warning_of(chains([-3, -3, 3, 3]))
    assert "have not mixed" in warning
    assert "R-hat of the predictions is up to" in warning
    assert "run longer" in warning


def test_chains_that_never_move_are_caught():
    stuck = np.broadcast_to(np.array([1.0, 2.0]).reshape(2, 1, 1), (2, 50, 1))
    assert "have not mixed" in warning_of(stuck)


def test_few_effective_draws_are_reported():
    slow = np.cumsum(np.random.default_rng(1).normal(size=(CHAINS, 10, 1)), axis=1)
    values = np.repeat(slow - slow.mean(axis=1, keepdims=True), 20, axis=1)
    assert "have not mixed" in warning_of(values) or "worth only" in warning_of(values)
    mild = chains()[:, :30]
    assert "worth only" in warning_of(mild)
    assert "120 draws" in warning_of(mild)


@pytest.mark.parametrize("shape", [(1, 50, 2), (4, 3, 2), (9, 6, 1)])
def test_too_little_to_tell_is_no_noise(shape, caplog):
    """One chain, or three draws: no R-hat, no warning, no log line (warnings are errors)."""
    rhat, _, _ = diagnostics.convergence(np.random.default_rng(0).normal(size=shape))
    assert np.all(np.isnan(rhat)) or shape == (9, 6, 1)
    assert not caplog.records


def two_modes(w):
    """Modes at -6 and 6 behind a barrier of 18 nats, which no chain of this length crosses."""
    return -jnp.sum((w**2 - 36.0) ** 2) / 72.0


def test_a_sampler_stuck_in_two_modes_warns_in_plain_language():
    """From w = 0, where the gradient vanishes, each of eight chains falls to its own side."""
    target = bl.Target.from_log_density(two_modes, jnp.zeros(1))
    algorithm = bl.HMC(num_warmup=100, num_samples=100)
    with pytest.warns(bl.MixingWarning) as caught:
        posterior = bl.fit(target, algorithm, seed=0, num_chains=8)
    means = posterior.draws.mean(axis=(1, 2))
    np.testing.assert_allclose(np.abs(means), 6.0, atol=0.5)
    assert len(np.unique(np.sign(means))) == 2
    (warning,) = (w for w in caught if w.category is bl.MixingWarning)
    said = str(warning.message)
    assert "The chains of hmc have not mixed: R-hat of the parameters is up to" in said
    assert "Do not trust standard deviations" in said
    found = posterior.diagnostics()
    assert found.warning == said
    assert found.rhat_weights[0] > 1.5
    assert found.ess_bulk_weights[0] < 40


def test_a_mixed_run_is_described_and_does_not_warn():
    problem = problems.regression()
    algorithm = bl.HMC(num_warmup=300, num_samples=250)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior = bl.fit(problem.model, algorithm, (problem.x, problem.y), seed=0)
    found = posterior.diagnostics()
    assert found.warning == ""
    assert found.rhat_weights.shape == (4,)
    assert found.rhat_predictions.shape == (20,)
    assert np.all(found.rhat_predictions < diagnostics.MAX_RHAT)
    assert np.all(found.ess_tail_predictions > diagnostics.MIN_ESS_PER_CHAIN)
    assert found.rhat_log_density < diagnostics.MAX_RHAT
    assert found.divergences == 0
    assert found.bfmi.shape == (4,)
    assert np.all(found.bfmi > 0.5)
    # The energy minus that of the position is the new momentum's, half a chi-square of 4 weights.
    kinetic = posterior.trace["energy"][:, 1:] + posterior.trace["log_density"][:, :-1]
    assert np.all(kinetic > 0)
    np.testing.assert_allclose(kinetic.mean(), 2.0, rtol=0.2)


def test_only_samplers_are_diagnosed():
    problem = problems.regression()
    posterior = bl.fit(problem.model, "map", (problem.x, problem.y), seed=0, num_steps=20)
    with pytest.raises(ArgumentError, match=r"map is not a sampler: look at posterior\.trace"):
        posterior.diagnostics()


def thinned_hmc(num_samples, thin):
    """Trajectories of which many are called divergent, of one chain whatever `thin` is."""
    target = bl.Target.from_log_density(lambda w: -0.5 * jnp.sum(w**2), jnp.ones(2))
    sizes = {"num_warmup": 20, "num_samples": num_samples, "thin": thin}
    algorithm = bl.HMC(**sizes, num_leapfrog=3, max_energy_error=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bl.MixingWarning)
        return bl.fit(target, algorithm, seed=0, num_chains=2)


def test_divergences_of_thinned_steps_are_counted_and_not_averaged():
    whole, thinned = thinned_hmc(24, 1), thinned_hmc(6, 4)
    wanted = whole.trace["diverging"].reshape(2, 6, 4).sum(axis=-1)
    assert 0 < wanted.sum() < wanted.size * 4
    np.testing.assert_array_equal(thinned.trace["diverging"], wanted)
    assert thinned.diagnostics().divergences == whole.diagnostics().divergences == wanted.sum()
    said = f"{wanted.sum():.0f} of 48 trajectories diverged"
    for posterior in whole, thinned:
        assert any(said in note and "raise `target_acc" in note for note in posterior.notes)
    # What is no count stays a mean.
    np.testing.assert_allclose(
        thinned.trace["acceptance"],
        whole.trace["acceptance"].reshape(2, 6, 4).mean(axis=-1),
        rtol=1e-12,
    )


def test_chains_after_an_ensemble_are_diagnosed_as_those_of_their_sampler():
    sampler = bl.MCLMC(num_warmup=10, num_samples=3, thin=4, max_energy_error=1e-9)
    problem = problems.regression()
    posterior = bl.fit(
        problem.model,
        bl.MILE(num_members=2, sampler=sampler, validation_fraction=0.0),
        (problem.x, problem.y),
        seed=0,
        num_steps=20,
    )
    (said,) = (note for note in posterior.notes if "diverged" in note)
    assert f"{posterior.diagnostics().divergences} of 24 trajectories" in said
    assert "lower `energy_error`" in said
