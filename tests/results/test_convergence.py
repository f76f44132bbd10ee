"""R-hat, effective sample sizes and E-BFMI equal ArviZ's, and need no ArviZ."""

from __future__ import annotations

import sys
import types
import warnings

import jax
import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn.results import convergence, diagnostics, sbc
from bayeslearn.results.arviz import arviz

SHAPES = [
    *((1, 4), (2, 5), (3, 6), (4, 7), (1, 10), (8, 11), (2, 21), (5, 25), (1, 41), (2, 50)),
    *((3, 99), (4, 100), (1, 101), (8, 101), (6, 250), (2, 1001), (4, 1000), (1, 2000), (8, 500)),
]
STATISTICS = {
    "rhat": (convergence.rhat, "rhat", "rank"),
    "ess_bulk": (convergence.ess_bulk, "ess", "bulk"),
    "ess_tail": (convergence.ess_tail, "ess", "tail"),
}


def autoregressive(rng, rho, shape):
    noise = rng.normal(size=shape)
    values = noise.copy()
    for t in range(1, shape[1]):
        values[:, t] = rho * values[:, t - 1] + noise[:, t]
    return values


def quantities(shape, seed=0):
    """Draws of many kinds by name."""
    rng = np.random.default_rng([seed, *shape])
    return {
        "independent": rng.normal(size=shape),
        "rho 0.3": autoregressive(rng, 0.3, shape),
        "rho 0.9": autoregressive(rng, 0.9, shape),
        "rho -0.3": autoregressive(rng, -0.3, shape),
        "rho -0.9": autoregressive(rng, -0.9, shape),
        "different means": rng.normal(size=shape) + np.arange(shape[0])[:, None],
        "cauchy": rng.standard_cauchy(size=shape),
        "integers": rng.integers(0, 5, size=shape).astype(float),
        "ties that are no integers": 1.1 * rng.poisson(3.0, size=shape),
        "two values": rng.integers(0, 2, size=shape).astype(float),
        "rare": (rng.random(shape) < 0.02).astype(float),
        "repeated": np.repeat(rng.normal(size=shape), 3, axis=1)[:, : shape[1]],
        "infinite": np.where(rng.random(shape) < 0.1, np.inf, rng.normal(size=shape)),
        "constant": np.full(shape, 3.7),
    }


def by_arviz(name, values, **options):
    """ArviZ's numbers for (chains, draws, quantities), of any of its versions."""
    pytest.importorskip("arviz")
    import xarray

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = xarray.Dataset({"q": (("chain", "draw", "quantity"), values)})
        return np.asarray(getattr(arviz(), name)(data, **options)["q"])


@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_are_those_of_arviz(name):
    az = pytest.importorskip("arviz")
    if name == "ess_tail" and not az.__version__.startswith("0."):
        pytest.skip("ArviZ 1.x takes other quantiles")
    function, theirs, method = STATISTICS[name]
    for shape in SHAPES:
        kinds = quantities(shape)
        if name == "rhat" and shape == (3, 6):  # every half of a chain is constant
            assert np.isinf(function(kinds.pop("repeated")[:, :, None]))[0]  # theirs is rounding
        values = np.stack(list(kinds.values()), axis=-1)
        np.testing.assert_allclose(
            function(values),
            by_arviz(theirs, values, method=method),
            rtol=1e-10,
            err_msg=f"{shape}, {list(kinds)}",
        )


def test_constants_have_no_rhat_and_as_many_effective_draws_as_draws():
    values = np.full((2, 10, 1), 5.0)
    assert np.isnan(convergence.rhat(values))
    assert convergence.ess_bulk(values) == convergence.ess_tail(values) == 20


def test_too_few_draws_or_chains_and_nan_give_nan():
    """Only the quantity with NaN is affected."""
    values = np.random.default_rng(0).normal(size=(4, 20, 3))
    for function in (convergence.rhat, convergence.ess_bulk, convergence.ess_tail):
        assert np.all(np.isnan(function(values[:, :3])))
        with_nan = values.copy()
        with_nan[1, 2, 1] = np.nan
        found = function(with_nan)
        assert np.isnan(found[1])
        np.testing.assert_array_equal(found[[0, 2]], function(values)[[0, 2]])
    assert np.all(np.isnan(convergence.rhat(values[:1])))
    assert np.all(np.isfinite(convergence.ess_bulk(values[:1])))


def test_blocks_of_quantities_change_nothing(monkeypatch):
    values = np.random.default_rng(0).normal(size=(3, 30, 7))
    whole = [f(values) for f, _, _ in STATISTICS.values()]
    monkeypatch.setattr(convergence, "BLOCK_SIZE", 200)
    for (function, _, _), expected in zip(STATISTICS.values(), whole, strict=True):
        np.testing.assert_array_equal(function(values), expected)


def test_single_precision_is_computed_in_double():
    values = np.random.default_rng(0).normal(size=(4, 100, 2)).astype(np.float32)
    for function, _, _ in STATISTICS.values():
        np.testing.assert_array_equal(function(values), function(values.astype(np.float64)))


def test_bfmi_is_that_of_arviz():
    az = pytest.importorskip("arviz")
    energy = np.cumsum(np.random.default_rng(0).normal(size=(4, 300)), axis=1)
    found = convergence.bfmi(energy)
    changes = np.diff(energy, axis=1)
    np.testing.assert_allclose(found, np.mean(changes**2, 1) / np.var(energy, 1, ddof=1))
    np.testing.assert_array_equal(convergence.bfmi(-energy), found)
    assert np.all(np.isnan(convergence.bfmi(energy[:, :1])))
    if int(az.__version__.partition(".")[0]) < 1:
        np.testing.assert_allclose(found, az.bfmi(energy), rtol=1e-10)


def test_convergence_needs_no_arviz(monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz", None)
    values = np.random.default_rng(0).normal(size=(4, 200, 2))
    rhat, bulk, tail = diagnostics.convergence(values)
    assert np.all(rhat < 1.05)
    assert np.all(bulk > 400)
    assert np.all(tail > 300)
    assert np.all(np.isnan(diagnostics.convergence(values, has_tail=False)[2]))


# Keys of simulation-based calibration


def test_calibration_uses_every_key_once(monkeypatch):
    """Binding, simulation, fitting and sampling are independent."""
    keys, seeds = [], []
    bind = bl.Model.bind

    def recorded_bind(self, data, key):
        keys.append(key)
        return bind(self, data, key)

    def fake_simulate(target, params, key):
        keys.append(key)
        return params, target

    def fake_fit(target, algorithm, *, seed, init):
        seeds.append(seed)

        def sample(key, num):
            keys.append(key)
            return jax.tree.map(lambda w: np.zeros((num, *w.shape), w.dtype), init)

        return types.SimpleNamespace(family=None, sample=sample)

    monkeypatch.setattr(bl.Model, "bind", recorded_bind)
    monkeypatch.setattr(sbc, "_simulate", fake_simulate)
    monkeypatch.setattr(sbc, "fit", fake_fit)
    model = bl.Model(bl.networks.MLP([], use_bias=False), bl.likelihoods.Gaussian(noise_scale=1.0))
    data = (np.ones((3, 2)), np.zeros(3))
    options = {"num_datasets": 10, "num_samples": 9, "num_bins": 2}
    found = sbc.simulation_based_calibration(model, "map", data, seed=4, **options)
    assert found.ranks.shape == (10, 2)
    used = [jax.random.key(4), *map(jax.random.key, seeds), *keys]
    assert len(used) == 1 + 10 + 1 + 2 * 10
    assert len({tuple(np.asarray(jax.random.key_data(key)).tolist()) for key in used}) == len(used)
