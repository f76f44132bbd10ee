"""Pareto-smoothed importance sampling and LOO equal ArviZ's."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy import stats

from bayeslearn.errors import ArgumentError
from bayeslearn.results.arviz import arviz
from bayeslearn.results.psis import fit_generalized_pareto, max_pareto_k, psis, psis_loo


def log_weights(kind, num):
    rng = np.random.default_rng([num, *kind.encode()])
    return {
        "normal": rng.normal(size=num),
        "heavy": 5.0 * rng.normal(size=num),
        "light": -rng.exponential(size=num),
        "exponential": 0.7 * rng.exponential(size=num),
        "cauchy": 3.0 * rng.standard_cauchy(size=num),
        "one dominates": np.append(rng.normal(size=num - 1), 900.0),
        "zeros among them": np.where(rng.random(num) < 0.3, -np.inf, rng.normal(size=num)),
        "equal": np.full(num, -3.0),
    }[kind]


KINDS = (
    *("normal", "heavy", "light", "exponential", "cauchy", "one dominates"),
    *("zeros among them", "equal"),
)


def by_arviz(values, relative_efficiency):
    az = pytest.importorskip("arviz")
    if not hasattr(az, "psislw"):
        pytest.skip("ArviZ 1.x has no psislw for arrays")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        smoothed, k = arviz().psislw(values.copy(), reff=relative_efficiency)
    return np.asarray(smoothed), float(k)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_those_of_arviz(kind):
    for num in (2, 4, 10, 25, 26, 99, 100, 1000, 4001):
        for relative_efficiency in (1.0, 0.3, 0.01):
            values = log_weights(kind, num)
            smoothed, k = psis(values, relative_efficiency)
            expected, expected_k = by_arviz(values, relative_efficiency)
            np.testing.assert_allclose(k, expected_k, rtol=1e-10, atol=1e-10)
            np.testing.assert_allclose(smoothed, expected, rtol=1e-10, atol=1e-10)
            assert np.sum(np.exp(smoothed)) == pytest.approx(1.0)


def test_ties_are_smoothed_like_arvizs_up_to_their_order():
    values = np.random.default_rng(0).integers(0, 6, size=400).astype(float)
    smoothed, k = psis(values)
    expected, expected_k = by_arviz(values, 1.0)
    assert k == pytest.approx(expected_k, rel=1e-10)
    np.testing.assert_allclose(np.sort(smoothed), np.sort(expected), rtol=1e-10)


def test_rows_are_smoothed_one_by_one():
    values = np.random.default_rng(0).normal(size=(2, 3, 50))
    smoothed, k = psis(values)
    assert k.shape == (2, 3)
    one, k_one = psis(values[1, 2])
    np.testing.assert_array_equal(smoothed[1, 2], one)
    assert k[1, 2] == k_one
    assert isinstance(k_one, float)


def test_generalized_pareto_is_recovered():
    """The prior, worth ten observations, is negligible against 50,000."""
    for k in (-0.3, 0.2, 0.9):
        sample = stats.genpareto(k, scale=2.0).rvs(50_000, random_state=0)
        shape, scale = fit_generalized_pareto(np.sort(sample))
        assert shape == pytest.approx(k, abs=0.02)
        assert scale == pytest.approx(2.0, rel=0.03)


def test_arguments_are_checked():
    with pytest.raises(ArgumentError, match="`relative_efficiency` must be positive"):
        psis(np.zeros(10), 0.0)
    with pytest.raises(ArgumentError, match="`log_weights` must hold one number per draw"):
        psis(np.zeros(()))
    with pytest.raises(ArgumentError, match="`log_likelihood` must have 3 axes"):
        psis_loo(np.zeros((10, 3)))


# LOO


@pytest.mark.parametrize(
    ("shape", "efficiency"), [((4, 250), 1.0), ((1, 900), 0.4), ((8, 11), 0.2)]
)
def test_loo_is_that_of_arviz(shape, efficiency):
    az = pytest.importorskip("arviz")
    if not az.__version__.startswith("0."):
        pytest.skip("ArviZ 1.x fits other tails, and divides by n - 1 in the standard error")
    rng = np.random.default_rng(0)
    terms = rng.normal(size=(*shape, 30)) * rng.uniform(0.1, 2.0, size=30) - 1.0
    found = psis_loo(terms, efficiency)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = az.from_dict(posterior={"a": terms[..., 0]}, log_likelihood={"y": terms})
        expected = az.loo(data, pointwise=True, reff=efficiency)
    for name in ("elpd_loo", "se", "p_loo", "pareto_k"):
        values = np.asarray(getattr(expected, name))
        np.testing.assert_allclose(getattr(found, name), values, rtol=1e-8, err_msg=name)
    np.testing.assert_allclose(found.elpd_i, np.asarray(expected.loo_i), rtol=1e-8)
    assert found.num_samples == shape[0] * shape[1]
    assert max_pareto_k(found.num_samples) == pytest.approx(expected.good_k)
    assert bool(found.warning) == expected.warning


def test_loo_warns_and_reads_well():
    rng = np.random.default_rng(0)
    good = psis_loo(0.1 * rng.normal(size=(4, 250, 5)))
    assert good.warning == ""
    assert repr(good).startswith("PSIS-LOO of 5 rows from 1000 draws\n  elpd_loo")
    assert "0 rows above 0.67" in repr(good)
    bad = psis_loo(np.concatenate([5.0 * rng.normal(size=(4, 250, 1)), np.zeros((4, 250, 1))], 2))
    assert "Pareto k is above 0.67 for 2 of 2 rows" in bad.warning
    assert bad.warning in repr(bad)
    assert psis_loo(np.zeros((1, 1, 2))).warning  # a single draw


def test_counts_repeat_rows():
    terms = np.random.default_rng(0).normal(size=(2, 50, 4))
    counts = np.array([1, 3, 0, 2])
    found, expected = psis_loo(terms, 0.5, counts), psis_loo(np.repeat(terms, counts, axis=2), 0.5)
    for one, two in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, two)
