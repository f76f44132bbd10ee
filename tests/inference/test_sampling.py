"""Samplers are right, or say so: separated modes, collinear weights, truncated densities."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import bayeslearn as bl
from bayeslearn.algorithms import mclmc
from bayeslearn.algorithms import warmup as warming
from bayeslearn.errors import ArgumentError
from bayeslearn.results import convergence, diagnostics

QUICK = {"num_warmup": 200, "num_samples": 200}
ONE_START = "Several modes were not looked for"


def separated(t):
    """0.7 N(0, I) + 0.3 N((10, 0, 0), I)."""
    ends = jnp.log(0.7) - 0.5 * t[0] ** 2, jnp.log(0.3) - 0.5 * (t[0] - 10.0) ** 2
    return jnp.logaddexp(*ends) - 0.5 * jnp.sum(t[1:] ** 2)


def wide(key):
    return 5.0 + 10.0 * jax.random.normal(key, (3,))


def quietly(*args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bl.MixingWarning)
        return bl.fit(*args, **options)


@pytest.mark.parametrize("algorithm", [bl.NUTS(**QUICK), bl.HMC(**QUICK)], ids=["nuts", "hmc"])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("start", [0.0, 10.0])
def test_separated_modes_are_found_or_said_not_to_be_looked_for(algorithm, seed, start):
    """Each of eight chains falls to the nearer mode: all to the same in one run of 128."""
    params = jnp.full(3, start)
    alone = quietly(bl.Target.from_log_density(separated, params), algorithm, seed=seed)
    assert ONE_START in " ".join(alone.notes)
    target = bl.Target.from_log_density(separated, params, init=wide)
    with pytest.warns(bl.MixingWarning, match="R-hat of the parameters") as caught:
        posterior = bl.fit(target, algorithm, seed=seed, num_chains=8)
    modes = posterior.draws[..., 0].mean(axis=1)
    assert np.ptp(modes) > 9.0
    assert np.all(np.minimum(np.abs(modes), np.abs(modes - 10.0)) < 1.0)
    said = [str(w.message) for w in caught]
    assert said == [note for note in posterior.notes if note in said]
    assert ONE_START not in " ".join(posterior.notes)
    assert {w.filename for w in caught} == {__file__}
    if algorithm.name == "nuts":
        assert not any("use nuts" in text for text in said)


def test_chains_of_a_network_start_from_initialisations_of_their_own():
    x, y = problems.wiggle(20)
    algorithm = bl.HMC(num_warmup=0, num_samples=4, num_leapfrog=1)
    options = {"options": bl.FitOptions(warm_start=50)}
    posterior = quietly(problems.small_model(), algorithm, (x, y), seed=0, **options)
    names = [phase.name for phase in posterior.phases]
    others = [f"main/chain {c}/warm start" for c in (1, 2, 3)]
    assert names == ["main/warm start", *others, "main"]
    outputs = diagnostics.outputs_at_rows(posterior.target, posterior.draws)
    between = np.std(outputs.mean(axis=1), axis=0)
    assert np.median(between) > 0.01
    assert ONE_START not in " ".join(posterior.notes)
    start = jax.tree.map(lambda w: w[0, -1], posterior.draws)
    again = quietly(problems.small_model(), algorithm, (x, y), seed=0, init=start, **options)
    assert ONE_START in " ".join(again.notes)
    assert len(again.phases) == 2


def collinear(num_weights=26):
    """The exact posterior of a regression on four columns, each repeated with noise of 0.03."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=(500, 4))
    columns = [base[:, i % 4] + 0.03 * rng.normal(size=500) for i in range(num_weights)]
    x = np.stack(columns, axis=1)
    y = x @ rng.normal(size=num_weights) + rng.normal(size=500)
    prec = x.T @ x + np.eye(num_weights)
    return prec, np.linalg.solve(prec, x.T @ y)


PREC, MEAN = collinear()


def collinear_density(w):
    return -0.5 * (w - MEAN) @ PREC @ (w - MEAN)


@pytest.mark.parametrize("algorithm", [bl.NUTS(), bl.HMC(), bl.MAMS()], ids=["nuts", "hmc", "mams"])
def test_collinear_weights_are_drawn_right_by_the_defaults(algorithm):
    """Condition number of the correlations 2,900. 5 standard errors on each of 26 means and sds.

    Fails by chance once in 20,000 runs.
    """
    target = bl.Target.from_log_density(collinear_density, jnp.zeros(26))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior = bl.fit(target, algorithm, seed=0)
    draws = np.asarray(posterior.draws)
    std = np.sqrt(np.diag(np.linalg.inv(PREC)))
    scaled = (draws - MEAN) / std
    ess = convergence.ess_bulk(scaled)
    assert np.all(ess > 500)
    assert np.all(np.abs(scaled.mean(axis=(0, 1))) < 5 / np.sqrt(ess))
    ess = convergence.ess_bulk(scaled**2)
    assert np.all(np.abs((scaled**2).mean(axis=(0, 1)) - 1.0) < 5 * np.sqrt(2.0 / ess))
    assert posterior.trace["num_gradients"].mean() < 32  # 250 and 92 with the diagonal alone
    # Of 800 independent draws the condition number would be about 2.1 (Marchenko and Pastur).
    whitened = np.linalg.eigvals(PREC @ np.asarray(posterior.state.warmup.inverse_mass[0])).real
    assert whitened.max() / whitened.min() < 10.0


def test_saturation_is_named_with_its_remedy():
    target = bl.Target.from_log_density(collinear_density, jnp.zeros(26))
    algorithm = bl.NUTS(mass_matrix="diagonal", max_doublings=4, **QUICK)
    with pytest.warns(bl.MixingWarning, match="") as caught:
        posterior = bl.fit(target, algorithm, seed=0)
    (said,) = (str(w.message) for w in caught if "saturated" in str(w.message))
    assert "of the trajectories of nuts were saturated: cut at 15 gradients" in said
    assert 'write mass_matrix="dense", raise `max_doublings`' in said
    assert said in posterior.notes
    assert said in posterior.diagnostics().warning


def test_saturation_on_a_network_names_a_sampler_that_costs_less():
    """Longer trajectories would cost more: see "Saturation" in docs/algorithms/nuts.md."""
    algorithm = bl.NUTS(max_doublings=2, num_warmup=20, num_samples=20)
    posterior = quietly(problems.small_model(), algorithm, problems.wiggle(30), seed=0)
    (said,) = (note for note in posterior.notes if "saturated" in note)
    assert "use bl.MCLMC(num_samples=1000, thin=100)" in said


def test_a_dense_covariance_is_shrunk_by_the_number_of_its_draws():
    sizes = [float(warming.window_size(500, jnp.asarray(end))) for end in (100, 150, 250, 450)]
    assert sizes == [25, 50, 100, 200]
    assert float(warming.diagonal_weight(5, jnp.asarray(5000.0))) == pytest.approx(1e-6, rel=1e-5)
    assert float(warming.diagonal_weight(5, jnp.asarray(5.0))) == 0.5


def truncated(t):
    """A Gamma(1) in each coordinate: highest at its limit."""
    return jnp.sum(jnp.where(t < 0, -jnp.inf, -t))


@pytest.mark.parametrize("name", ["nuts", "hmc", "metropolis-hastings"])
def test_truncated_densities_start_from_the_point_given(name):
    target = bl.Target.from_log_density(truncated, jnp.ones(2))
    algorithm = bl.ALGORITHMS[name](num_warmup=400, num_samples=400)
    posterior = quietly(target, algorithm, seed=0)
    assert "start without a warm start" in " ".join(posterior.notes)
    draws = np.asarray(posterior.draws)
    assert draws.min() > 0
    ess = convergence.ess_bulk(draws)
    # 5 standard errors of the mean of an exponential, and 0.05 for warm-up at a limit
    assert np.all(np.abs(draws.mean(axis=(0, 1)) - 1.0) < 5 / np.sqrt(ess) + 0.05)
    if name != "metropolis-hastings":
        assert any("trajectories diverged" in note for note in posterior.notes)


def test_draws_beyond_memory_are_refused_with_their_size():
    target = bl.Target.from_log_density(truncated, jnp.ones(2))
    with pytest.raises(
        ArgumentError, match=r"draws of so many chains take about 8,000 GB, .*, got 1000000000"
    ):
        bl.fit(target, bl.NUTS(), seed=0, num_chains=10**9)


def test_mams_accepts_at_its_target():
    """A Gaussian of 20 scales; 0.9 within the noise of 50 last steps of warm-up."""
    scales = jnp.asarray(np.exp(np.random.default_rng(0).normal(size=20)))
    target = bl.Target.from_log_density(lambda w: -0.5 * jnp.sum((w / scales) ** 2), jnp.zeros(20))
    posterior = bl.fit(target, bl.MAMS(num_samples=300), seed=0)
    assert 0.8 < posterior.trace["acceptance"].mean() < 0.96
    assert posterior.trace["num_gradients"].mean() < 16


def test_flat_tails_do_not_disperse_chains(x64):
    """Two scales in logarithms: one whose mode is zero, as Adam leaves it, and one of width one."""
    target = bl.Target.from_log_density(
        lambda t: -0.5 * jnp.exp(2 * t[0]) - 0.5 * t[1] ** 2, jnp.array([-8.0, 0.0])
    )
    position, warmup = warming.start(
        jax.random.key(0), target, target.start, mass_matrix="diagonal", step_size=0.1
    )
    np.testing.assert_allclose(warmup.inverse_mass, 1.0)
    assert abs(float(position[0]) + 8.0) < 5.0


def test_chains_of_mams_draw_with_the_median_step_size(x64):
    algorithm, target = bl.MAMS(), bl.Target.from_log_density(separated, jnp.zeros(3))
    state = algorithm.init(jax.random.key(0), target, jnp.zeros(3))
    states = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), state)
    states = states._replace(count=jnp.full(3, algorithm.num_warmup))
    steps = jnp.array([1e-6, 0.5, 0.6])  # the first chain is stuck
    states = states._replace(warmup=states.warmup._replace(step_size=steps))
    assert algorithm.pooling_steps()[-1] == algorithm.num_warmup
    pooled = jax.jit(algorithm.pool)(states).warmup
    np.testing.assert_allclose(pooled.step_size, 0.5)
    assert np.array_equal(pooled.inverse_mass, states.warmup.inverse_mass)


def test_chains_of_mclmc_draw_with_the_step_size_of_their_mean_error(x64):
    """Errors of one chain are large and rare: the others' would promise too much."""
    algorithm = bl.MCLMC(energy_error=1e-3)
    target = bl.Target.from_log_density(separated, jnp.zeros(3))
    state = algorithm.init(jax.random.key(0), target, jnp.zeros(3))
    states = jax.tree.map(lambda leaf: jnp.stack([leaf] * 4), state)
    rates = {"error_rate": jnp.array([0.1, 0.1, 0.1, 12.5]), "error_weight": jnp.full(4, 0.8)}
    pooled = jax.jit(algorithm.pool)(states._replace(**rates)).step_size
    np.testing.assert_allclose(pooled, (1e-3 * 0.8 / 3.2) ** (1 / 6))
    limits = jnp.array([jnp.inf, 0.1, jnp.inf, jnp.inf])
    pooled = jax.jit(algorithm.pool)(states._replace(step_limit=limits, **rates)).step_size
    np.testing.assert_allclose(pooled, 0.1)


def test_mclmc_names_energy_errors_above_their_target():
    """Warm-up of 10 steps ends with the first target, 0.1."""
    target = bl.Target.from_log_density(lambda w: -0.5 * jnp.sum(w**2), jnp.zeros(3))
    for num_warmup, is_named in ((1000, False), (10, True)):
        posterior = quietly(target, bl.MCLMC(num_warmup=num_warmup, num_samples=100), seed=0)
        assert any("energy error" in note for note in posterior.notes) == is_named
        assert (posterior.trace["energy_error"].mean() > 3e-3) == is_named


def test_mclmc_averages_all_errors_of_the_end_of_warm_up(x64):
    """After the third quarter the rate is the mean of all errors since then, and the 100 before."""
    algorithm = bl.MCLMC(num_warmup=4000)
    state = algorithm.init(
        jax.random.key(0), bl.Target.from_log_density(separated, jnp.zeros(3)), jnp.zeros(3)
    )
    errors = np.random.default_rng(0).exponential(size=1000) ** 3

    def one(state, error):
        state = state._replace(count=state.count + 1)
        square = error * state.step_size**6
        return algorithm._adapt(state, state.position, square, jnp.asarray(True)), None

    begin = state._replace(count=jnp.asarray(3000, jnp.int32))
    end, _ = jax.jit(lambda s, e: jax.lax.scan(one, s, e))(begin, jnp.asarray(errors))
    rate = float(end.error_rate / end.error_weight)
    assert rate == pytest.approx(errors.mean(), rel=0.02)
    memory = mclmc.MEMORY / (mclmc.MEMORY + 1000)
    assert float(end.error_weight) == pytest.approx(1 - memory, rel=0.02)


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (bl.HMC, {"num_leapfrog": 10**9}),
        (bl.HMC, {"max_leapfrog": 10**9}),
        (bl.MAMS, {"max_steps": 10**9}),
        (bl.MCLMC, {"thin": 10**9}),
        (bl.NUTS, {"thin": 10**9}),
    ],
)
def test_what_a_compiled_call_could_not_end_is_refused(cls, options):
    (name,) = options
    with pytest.raises(ArgumentError, match=f"`{name}` must be at most"):
        cls(**options)


def test_more_leapfrog_steps_than_are_allowed_are_refused_not_cut():
    target = bl.Target.from_log_density(lambda t: -0.5 * jnp.sum(t**2), jnp.zeros(2))
    with pytest.raises(
        ArgumentError, match=r"`num_leapfrog` must be at most 128.*max_leapfrog=200"
    ):
        bl.fit(target, bl.HMC(num_leapfrog=200), seed=0)


def test_a_callback_stops_a_sampler_in_its_warm_up(tmp_path):
    """There are no draws to return; with checkpoints the run goes on from there."""
    target = bl.Target.from_log_density(lambda t: -0.5 * jnp.sum(t**2), jnp.zeros(2))
    algorithm = bl.MetropolisHastings(num_warmup=1200, num_samples=20, thin=1)
    heard = []

    def stop(event):
        heard.append(event.step)
        return event.phase == "main"

    where = tmp_path / "run"
    with pytest.raises(bl.StoppedError, match=r"step \d+ of its 1200 warm-up steps.*bl.resume"):
        bl.fit(target, algorithm, seed=0, callback=stop, checkpoint=where)
    assert heard[-1] < 1200
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bl.MixingWarning)  # of 20 draws
        resumed = bl.resume(where, model=target, callback=False)
    whole = quietly(target, algorithm, seed=0)
    np.testing.assert_array_equal(resumed.draws, whole.draws)
