"""Constrained parameters of a log-density."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import bayeslearn as bl
from bayeslearn import tree
from bayeslearn.errors import ArgumentError
from bayeslearn.models.constraints import constrain, log_jacobian, unconstrain
from bayeslearn.results.convergence import ess_bulk

KINDS = (("positive",), ("interval", -2.0, 3.0), ("ordered",), ("simplex",), ("real",))
SHAPE, RATE, A, B = 3.0, 2.0, 2.0, 3.0
CONCENTRATION = np.array([2.0, 3.0, 4.0])
CONSTRAINTS = {
    "rate": "positive",
    "fraction": ("interval", 0.0, 1.0),
    "cuts": "ordered",
    "weights": "simplex",
}
PARAMS = {
    "rate": 1.0,
    "fraction": 0.5,
    "cuts": np.array([-1.0, 0.0, 1.0]),
    "weights": np.full(3, 1.0 / 3.0),
    "free": np.zeros(2),
}


def log_density(p):
    """Gamma, beta, order statistics of three normals, Dirichlet, normal."""
    return (
        (SHAPE - 1) * jnp.log(p["rate"])
        - RATE * p["rate"]
        + (A - 1) * jnp.log(p["fraction"])
        + (B - 1) * jnp.log1p(-p["fraction"])
        - 0.5 * jnp.sum(p["cuts"] ** 2)
        + jnp.sum((CONCENTRATION - 1) * jnp.log(p["weights"]))
        - 0.5 * jnp.sum(p["free"] ** 2)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_jacobian_is_that_of_the_transformation_and_the_inverse_undoes_it(kind, x64):
    z = jnp.asarray(np.random.default_rng(0).normal(size=4))
    x = constrain((kind,), z)
    free = x[:-1] if kind == ("simplex",) else x  # the last entry of a simplex follows
    matrix = jax.jacfwd(lambda z: constrain((kind,), z)[: len(free)])(z)
    np.testing.assert_allclose(
        log_jacobian((kind,), z), np.linalg.slogdet(matrix).logabsdet, rtol=1e-10, atol=1e-12
    )
    np.testing.assert_allclose(unconstrain((kind,), x), z, rtol=1e-9)
    many = constrain((kind,), jnp.stack([z, 2 * z])[None])
    np.testing.assert_allclose(many[0, 0], x, rtol=1e-12)
    if kind == ("simplex",):
        np.testing.assert_allclose(many.sum(axis=-1), 1.0)
        np.testing.assert_allclose(constrain((kind,), jnp.zeros(4)), 0.2)


@pytest.fixture(scope="module")
def posterior():
    target = bl.Target.from_log_density(log_density, PARAMS, constraints=CONSTRAINTS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bl.MixingWarning)
        sampler = bl.NUTS(num_warmup=400, num_samples=1000)
        return bl.fit(target, sampler, seed=0, num_chains=2)


def test_draws_have_the_known_moments(posterior):
    """Means within 5 Monte-Carlo errors: fails once in 100,000 seeds."""
    draws = {name: np.asarray(leaf) for name, leaf in posterior.draws.items()}
    largest = 1.5 / np.sqrt(np.pi)  # the mean of the largest of three normal numbers
    dirichlet = CONCENTRATION / CONCENTRATION.sum()
    wanted = {
        "rate": SHAPE / RATE,
        "fraction": A / (A + B),
        "cuts": np.array([-largest, 0.0, largest]),
        "weights": dirichlet,
        "free": np.zeros(2),
    }
    for name, mean in wanted.items():
        values = draws[name].reshape(2, 1000, -1)
        error = values.std(axis=(0, 1)) / np.sqrt(ess_bulk(values))
        away = np.abs(values.mean(axis=(0, 1)) - mean)
        assert np.all(away < 5 * error), name
    assert np.all(np.diff(draws["cuts"], axis=-1) > 0)


def test_everything_shown_is_constrained(posterior, tmp_path):
    rows = {row["name"]: row for row in posterior.summary()}
    assert 0 < rows["rate"]["lower"] < rows["rate"]["mean"] < rows["rate"]["upper"]
    assert rows["weights"]["shape"] == (3,)
    np.testing.assert_allclose(rows["weights"]["mean"].sum(), 1.0)
    drawn = posterior.sample(0, 5)
    assert np.all((drawn["fraction"] > 0) & (drawn["fraction"] < 1))
    data = posterior.to_arviz()
    np.testing.assert_allclose(np.asarray(data["posterior"]["weights"]).sum(axis=-1), 1.0)
    posterior.save(tmp_path / "run")
    loaded = bl.load(tmp_path / "run").draws
    for name, leaf in posterior.draws.items():
        np.testing.assert_array_equal(loaded[name], leaf)


def test_a_gaussian_is_summarised_by_draws():
    target = bl.Target.from_log_density(
        lambda p: 3.0 * jnp.log(p["rate"]) - p["rate"], {"rate": 2.0}, constraints={"*": "positive"}
    )
    posterior = bl.fit(target, bl.Laplace(), seed=0)
    (row,) = posterior.summary()
    log_normal = stats.lognorm(0.5, scale=4.0)  # at the mode of the log-rate
    np.testing.assert_allclose(row["mean"], log_normal.mean(), rtol=5 * 0.54 / np.sqrt(4000))
    assert row["lower"] > 0
    np.testing.assert_allclose(tree.ravel(posterior.family.mean), np.log(4.0), rtol=1e-6)


def test_chains_start_at_draws_of_init_and_at_a_start_that_is_given(x64):
    target = bl.Target.from_log_density(
        lambda p: -p["rate"],
        {"rate": 1.0},
        init=lambda key: {"rate": jnp.exp(jax.random.normal(key))},
        constraints={"rate": "positive"},
    )
    start = target.draw_start(jax.random.key(0))
    np.testing.assert_allclose(start["rate"], jax.random.normal(jax.random.key(0)), rtol=1e-5)
    plain = bl.Target.from_log_density(
        lambda p: jnp.log(p["rate"]) - p["rate"], {"rate": 1.0}, constraints={"rate": "positive"}
    )
    posterior = bl.fit(plain, bl.MAP(learning_rate=1e-6), init={"rate": 7.0}, seed=0, num_steps=1)
    np.testing.assert_allclose(posterior.sample(0)["rate"], 7.0, rtol=1e-5)


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ({"rate": "negative"}, r'must be "positive", "ordered", "simplex" or'),
        ({"rate": ("interval", 3.0, 1.0)}, r"`constraints\['rate'\]` must be"),
        ({"tau": "positive"}, "must name parameters, which are"),
        ({"cuts": ("interval", 0.0, 1.0)}, r"`params\['cuts'\]` must meet its constraint"),
        ({"rate": "simplex"}, "be a vector for simplex"),
        ("positive", "map names of parameters, as"),
    ],
)
def test_refusals(constraints, message):
    with pytest.raises(ArgumentError, match=message):
        bl.Target.from_log_density(log_density, PARAMS, constraints=constraints)
