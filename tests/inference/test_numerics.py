"""Data that make numbers awkward: each case is handled, warned of, or refused by name."""

from __future__ import annotations

import jax
import numpy as np
import problems
import pytest

import bayeslearn as bl
from bayeslearn.errors import ArgumentError, DataWarning

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
Y = X @ np.array([1.0, -2.0, 0.5]) + 0.1 * RNG.normal(size=40)


def finite(posterior):
    return all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(posterior.family))


def linear(**options):
    return bl.Model(bl.networks.MLP([]), bl.likelihoods.Gaussian(noise_scale=0.1), **options)


def regressor():
    return bl.BayesianNNRegressor(hidden=(4,), method="map", random_state=0)


def test_estimators_do_not_see_the_scale_of_columns():
    """Powers of two change no bit of a column that is scaled; 1e-8 and 1e8 are near such ones."""
    scales = np.array([2.0**-27, 1.0, 2.0**27])
    plain, scaled = regressor().fit(X, Y), regressor().fit(X * scales, Y * 2.0**27)
    np.testing.assert_allclose(
        scaled.predict(X * scales), plain.predict(X) * 2.0**27, rtol=1e-5, atol=1e3
    )


def test_fit_warns_of_scales_and_of_a_single_row():
    scales = np.array([1e-8, 1.0, 1e8])
    message = r"2 column\(s\) of x are as large as .*e\+08 or as small as .*e-08.*unit variance"
    with pytest.warns(DataWarning, match=message):
        found = bl.fit(linear(), "map", (X * scales, Y), seed=0, num_steps=20)
    assert finite(found)
    with pytest.warns(DataWarning, match="There is a single row"):
        found = bl.fit(linear(), "map", (X[:1], Y[:1]), seed=0, num_steps=20)
    assert finite(found)


def test_constant_duplicated_and_collinear_columns_are_handled():
    table = np.column_stack([X, np.full(40, 7.0), X[:, 0], X[:, 0] + X[:, 1]])
    found = regressor().fit(table, Y)
    assert np.all(np.isfinite(found.predict(table)))
    exact = bl.fit(linear(dtype="float64"), "conjugate", (table, Y), seed=0)
    assert finite(exact)
    np.testing.assert_allclose(exact.predict(table).mean.ravel(), Y, atol=0.5)


def test_a_condition_number_of_1e12_in_double_precision():
    """The exact posterior against its normal equations solved by QR of the stacked system."""
    u, _ = np.linalg.qr(RNG.normal(size=(40, 3)))
    v, _ = np.linalg.qr(RNG.normal(size=(3, 3)))
    x = u @ np.diag([1e3, 1.0, 1e-3]) @ v  # x^T x has the square: 1e12
    y = x @ np.ones(3)
    model = bl.Model(
        bl.networks.MLP([], use_bias=False),
        bl.likelihoods.Gaussian(noise_scale=1.0),
        bl.priors.Normal(scale=1e4),
        dtype="float64",
    )
    found = bl.fit(model, "conjugate", (x, y), seed=0)
    stacked = np.vstack([x, 1e-4 * np.eye(3)])
    exact = np.linalg.lstsq(stacked, np.concatenate([y, np.zeros(3)]), rcond=None)[0]
    # eps times the condition number is 2e-4 at worst
    np.testing.assert_allclose(found.family.mean_vector(), exact, rtol=1e-3)
    assert np.linalg.eigvalsh(np.asarray(found.family.cov_matrix())).min() > 0


def test_one_class_is_refused():
    with pytest.raises((ArgumentError, ValueError), match="class"):
        bl.BayesianNNClassifier(method="map", random_state=0).fit(X, np.zeros(40, int))


def test_many_classes_are_for_diagonal_methods():
    x, y = X[:, :1], np.arange(40) * 2500
    model = bl.Model(bl.networks.MLP([]), bl.likelihoods.Categorical(num_classes=100_000))
    assert finite(bl.fit(model, "map", (x, y), seed=0, num_steps=2))
    with pytest.raises(ArgumentError, match=r"200000 x 200000 matrix takes 320\.0 GB"):
        bl.fit(model, bl.EMGVB(covariance="full"), (x, y), seed=0, num_steps=2)


def test_separable_data_are_bounded_by_the_prior():
    """The mode of a logistic regression without a prior is at infinity."""
    x = np.linspace(-1.0, 1.0, 20)[:, None]
    model = bl.Model(
        bl.networks.MLP([], use_bias=False), bl.likelihoods.Bernoulli(), bl.priors.Normal(scale=3.0)
    )
    found = bl.fit(model, "laplace", (x, (x[:, 0] > 0).astype(int)), seed=0)
    weight = float(np.asarray(found.family.mean_vector())[0])
    assert 3.0 < weight < 15.0
    assert 0.1 < float(np.asarray(found.family.cov_matrix())[0, 0]) ** 0.5 < 3.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_small_floats_have_a_float32_state(dtype):
    x, y = problems.wiggle(30)
    model = bl.Model(bl.networks.MLP([4]), bl.likelihoods.Gaussian(), dtype=dtype)
    found = bl.fit(model, "vogn", (x, y), seed=0, num_steps=40)
    assert finite(found)
    network = jax.tree.leaves(found.family.mean["network"])
    assert {leaf.dtype.name for leaf in network} == {"float32"}
    assert np.all(np.isfinite(found.predict(x).mean))
