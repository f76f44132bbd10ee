"""Identities of Hamiltonian Monte Carlo, in double precision."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import bayeslearn as bl
from bayeslearn.algorithms import warmup as warming
from bayeslearn.algorithms.hmc import kinetic_energy, leapfrog, metric

COV = np.array([[1.0, 0.6, 0.2], [0.6, 2.0, -0.3], [0.2, -0.3, 0.5]])
MASSES = {"identity": np.ones(3), "diagonal": np.array([0.5, 2.0, 1.3]), "dense": COV}


def log_density(w):
    """Not quadratic, so that the energy error is what it is in general."""
    return -0.5 * w @ jnp.linalg.solve(COV, w) - 0.1 * jnp.sum(w**4) + jnp.sin(w[0])


@jax.jit
def trajectory(position, momentum, step_size, num_leapfrog, inverse_mass):
    velocity, _ = metric(inverse_mass)
    value_and_grad = jax.value_and_grad(log_density)
    start = value_and_grad(position)
    return leapfrog(value_and_grad, velocity, position, momentum, *start, step_size, num_leapfrog)


@jax.jit
def energy(position, momentum, inverse_mass):
    velocity, _ = metric(inverse_mass)
    return kinetic_energy(momentum, velocity(momentum)) - log_density(position)


@jax.jit
def jacobian_of_flow(z, inverse_mass):
    def flow(z):
        position, momentum, *_ = trajectory(z[:3], z[3:], 0.2, 7, inverse_mass)
        return jnp.concatenate([position, momentum])

    return jax.jacfwd(flow)(z)


@pytest.fixture
def start(x64):
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.normal(size=3)), jnp.asarray(rng.normal(size=3))


@pytest.mark.parametrize("mass", MASSES)
def test_leapfrog_is_reversible(start, mass):
    position, momentum, *_ = trajectory(*start, 0.1, 50, MASSES[mass])
    assert np.linalg.norm(position - start[0]) > 0.5  # it went somewhere
    back, flipped, *_ = trajectory(position, -momentum, 0.1, 50, MASSES[mass])
    np.testing.assert_allclose(back, start[0], rtol=0, atol=1e-10)
    np.testing.assert_allclose(-flipped, start[1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("mass", MASSES)
def test_leapfrog_preserves_volume_and_the_symplectic_form(start, mass):
    jacobian = np.asarray(jacobian_of_flow(jnp.concatenate(start), MASSES[mass]))
    assert abs(abs(np.linalg.det(jacobian)) - 1.0) < 1e-10
    form = np.block([[np.zeros((3, 3)), np.eye(3)], [-np.eye(3), np.zeros((3, 3))]])
    np.testing.assert_allclose(jacobian.T @ form @ jacobian, form, rtol=0, atol=1e-10)
    assert np.linalg.norm(jacobian - np.eye(6)) > 0.5


@pytest.mark.parametrize("mass", MASSES)
def test_energy_error_is_of_second_order(start, mass):
    """Over the same time, half the step leaves a quarter of the error."""
    before = energy(*start, MASSES[mass])

    def error(step_size, count):
        position, momentum, *_ = trajectory(*start, step_size, count, MASSES[mass])
        return abs(float(energy(position, momentum, MASSES[mass]) - before))

    coarse, fine, finest = error(0.02, 40), error(0.01, 80), error(0.005, 160)
    assert 3.8 < coarse / fine < 4.2
    assert 3.8 < fine / finest < 4.2


def test_one_gradient_per_step_gives_value_and_gradient_of_the_end(start):
    position, _, value, gradient = trajectory(*start, 0.1, 5, MASSES["identity"])
    np.testing.assert_allclose(value, log_density(position), rtol=1e-14)
    np.testing.assert_allclose(gradient, jax.grad(log_density)(position), rtol=1e-12)


@pytest.mark.parametrize("mass", ["diagonal", "dense"])
def test_momentum_has_the_covariance_of_the_mass_matrix(x64, mass, key):
    """100,000 draws: an entry's standard error is at most sqrt(2 / 1e5) of its scale, 5 of them."""
    inverse_mass = jnp.asarray(MASSES[mass])
    _, draw = metric(inverse_mass)
    momenta = np.asarray(jax.jit(jax.vmap(draw))(jax.random.split(key, 100_000)))
    wanted = np.linalg.inv(np.diag(inverse_mass) if mass == "diagonal" else inverse_mass)
    scale = np.sqrt(np.outer(np.diag(wanted), np.diag(wanted)))
    found = momenta.T @ momenta / len(momenta)
    assert np.max(np.abs(found - wanted) / scale) < 5 * np.sqrt(2 / 100_000)


def gaussian(w):
    return -0.5 * jnp.sum(w**2)


def test_an_impossible_step_size_diverges_and_is_reported():
    """Beyond twice the standard deviation leapfrog is unstable; here fifty times."""
    target = bl.Target.from_log_density(gaussian, jnp.zeros(3))
    algorithm = bl.HMC(num_warmup=0, num_samples=50, step_size=100.0, num_leapfrog=10)
    with pytest.warns(bl.MixingWarning) as caught:
        posterior = bl.fit(target, algorithm, seed=0, num_chains=2)
    said = [str(warning.message) for warning in caught]
    assert "have not mixed" in said[0]
    assert "100 of 100 trajectories diverged" in said[1]
    assert set(said) < set(posterior.notes)
    assert {warning.filename for warning in caught} == {__file__}
    assert np.all(posterior.trace["diverging"] == 1.0)
    assert np.all(posterior.trace["acceptance"] == 0.0)
    assert posterior.diagnostics().divergences == 100
    assert np.all(np.isfinite(posterior.draws))
    assert len(np.unique(posterior.draws)) == 6  # nothing but the two starting points

    calm = bl.HMC(num_warmup=0, num_samples=50, step_size=0.1, num_leapfrog=10)
    posterior = run_quietly(target, calm)
    assert posterior.diagnostics().divergences == 0
    assert not any("diverged" in note for note in posterior.notes)
    assert len(np.unique(posterior.draws)) > 100


def run_quietly(target, algorithm, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bl.MixingWarning)
        return bl.fit(target, algorithm, seed=0, num_chains=2, **options)


def cliff(w):
    """A density that is not a number beyond w = 1; the rest of it is a Gaussian."""
    return jnp.where(w > 1.0, jnp.nan, -0.5 * w**2)


@pytest.mark.parametrize("name", ["hmc", "nuts", "metropolis-hastings"])
def test_regions_without_a_density_are_never_entered(name):
    target = bl.Target.from_log_density(cliff, jnp.asarray(-1.5))
    posterior = run_quietly(target, problems.quick(name))
    assert np.all(np.isfinite(posterior.draws))
    assert np.all(np.isfinite(posterior.trace["log_density"]))
    assert posterior.draws.max() <= 1.0
    assert len(np.unique(posterior.draws)) > 5


def test_warm_up_shortens_the_step_for_more_acceptance():
    """One compiled program: the aim is a number."""
    target = bl.Target.from_log_density(gaussian, jnp.zeros(3))
    bold, shy = (
        run_quietly(target, bl.HMC(num_warmup=200, num_samples=200, target_acceptance=aim)).trace
        for aim in (0.5, 0.95)
    )
    assert bold["step_size"].mean() > 1.2 * shy["step_size"].mean()
    assert bold["acceptance"].mean() < shy["acceptance"].mean()
    assert shy["acceptance"].mean() > 0.9
    assert np.all(np.ptp(shy["step_size"], axis=1) <= 0.4 / 0.8 * shy["step_size"].min(axis=1))


def test_chains_pool_what_warm_up_has_taught_them(x64):
    """After the last window all have one mass matrix, and each its own step size."""
    target = bl.Target.from_log_density(gaussian, jnp.zeros(3))
    algorithm = bl.HMC(num_warmup=200, num_samples=200)
    posterior = run_quietly(target, algorithm)
    warmup = posterior.state.warmup
    np.testing.assert_array_equal(warmup.inverse_mass[0], warmup.inverse_mass[1])
    assert warmup.step_size[0] != warmup.step_size[1]
    chunked = run_quietly(target, algorithm, options=bl.FitOptions(chunk_size=17))
    np.testing.assert_array_equal(chunked.draws, posterior.draws)

    apart = jax.tree.map(lambda leaf: jnp.stack([leaf[0], 4 * leaf[0]]), warmup)
    pooled = warming.pooled(apart, 6)
    # With 12 draws a covariance of 3 dimensions is shrunk by 9 / (9 + 144), with 6 by 9 / (9 + 36).
    gain = np.where(np.eye(3), 1.0, (144 / 153) / (36 / 45))
    for chain in range(2):
        mean = 2.5 * gain * warmup.inverse_mass[0]
        np.testing.assert_allclose(pooled.inverse_mass[chain], mean)
        np.testing.assert_allclose(pooled.step_size[chain], 2 * warmup.step_size[0])
    assert warming.pooling_steps(0) == ()
    assert bl.HMC(mass_matrix="identity").pooling_steps() == ()
