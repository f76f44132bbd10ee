"""Models with known posteriors: densities in JAX, data from fixed seeds, moments in a file.

`benchmarks/gold_reference.py` computes the moments from densities of its own, by closed forms,
quadrature and importance sampling where that is possible, else with BlackJAX.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import beta, cauchy, gamma, norm, poisson

import bayeslearn as bl
from bayeslearn.results.convergence import ess_bulk

MOMENTS = Path(__file__).parent / "data" / "gold.json"
NETWORK_AT = np.array([-1.5, -0.5, 0.5, 1.5, 3.0])[:, None]
MAX_MEAN, MAX_STD = 0.1, 0.05  # of a posterior sd, and relative, beyond three Monte-Carlo errors
ERRORS = 3.0


class Gold(NamedTuple):
    """A log-density with the initial values, or the model of a network with its rows."""

    log_density: Callable | None
    params: dict[str, Any] | None = None
    constraints: dict[str, Any] | None = None
    init: Callable | None = None
    model: bl.Model | None = None
    data: tuple | None = None

    def fit(self, algorithm: bl.Algorithm, seed: int = 0, **options) -> bl.Posterior:
        if self.model is not None:
            return bl.fit(self.model, algorithm, self.data, seed=seed, **options)
        return bl.fit(self.target(), algorithm, seed=seed, **options)

    def target(self) -> bl.Target:
        return bl.Target.from_log_density(
            self.log_density, self.params, init=self.init, constraints=self.constraints
        )

    def at_start(self) -> float:
        """The log-density of the initial values; of a network, the sum of its data."""
        if self.model is not None:
            return float(sum(part.astype(np.float64).sum() for part in self.data))
        with jax.enable_x64(True):
            target = self.target()
            return float(target.density(target.start))

    def quantities(self, posterior: bl.Posterior) -> np.ndarray:
        """(chains, draws, quantities): the parameters, or predictions of the network."""
        draws = posterior.draws
        if self.model is not None:
            network = self.model.network
            rows = NETWORK_AT.astype(np.float32)
            outputs = jax.vmap(lambda w: jax.vmap(network.apply, (None, 0))(w, rows)[:, 0])
            return np.asarray(jax.jit(jax.vmap(outputs))(draws["network"]), np.float64)
        leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(draws)]
        return np.concatenate([leaf.reshape(*leaf.shape[:2], -1) for leaf in leaves], axis=-1)


class Errors(NamedTuple):
    """How far draws are from the reference, and whether that is within the rule."""

    mean: float  # largest |error| of a mean, in posterior sds
    std: float  # largest relative error of an sd
    is_within: bool
    ess: float  # the smallest, of values and squares


def errors(values: np.ndarray, reference: dict[str, Any]) -> Errors:
    """Compare (chains, draws, quantities) with the reference moments."""
    mean, std = values.mean(axis=(0, 1)), values.std(axis=(0, 1))
    squares = (values - mean) ** 2
    ess, ess_squares = ess_bulk(values), ess_bulk(squares)
    true_mean, true_std = np.array(reference["mean"]), np.array(reference["std"])
    mean_error, std_error = np.abs(mean - true_mean) / true_std, np.abs(std / true_std - 1.0)
    own = std / np.sqrt(ess) / true_std
    own_std = squares.std(axis=(0, 1)) / np.sqrt(ess_squares) / (2.0 * std * true_std)
    mcse = np.hypot(own, np.array(reference["mean_error"]) / true_std)
    mcse_std = np.hypot(own_std, np.array(reference["std_error"]) / true_std)
    is_within = np.all(mean_error <= MAX_MEAN + ERRORS * mcse)
    is_within &= np.all(std_error <= MAX_STD + ERRORS * mcse_std)
    smallest = float(min(ess.min(), ess_squares.min()))
    return Errors(float(mean_error.max()), float(std_error.max()), bool(is_within), smallest)


def references() -> dict[str, dict[str, Any]]:
    return json.loads(MOMENTS.read_text())["models"]


def warned(posterior: bl.Posterior) -> bool:
    """Whether the run says that its draws are not to be trusted."""
    return bool(posterior.diagnostics().warning)


def half(log_density: Callable, value, scale: float):
    """The density of |x|, x ~ (normal or Cauchy)(0, scale)."""
    return jnp.log(2.0) + log_density(value, 0.0, scale)


# Data


def linear_data(is_collinear: bool) -> tuple[np.ndarray, np.ndarray]:
    """100 x 5; collinear: 200 x 10, columns with a correlation of 0.9999."""
    rng = np.random.default_rng(1 + is_collinear)
    x = rng.normal(size=(200, 10) if is_collinear else (100, 5))
    if is_collinear:
        x = rng.normal(size=(200, 1)) + 0.01 * x
    return x, x @ rng.normal(size=x.shape[1]) + 0.5 * rng.normal(size=len(x))


def logistic_data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(200, 5)) @ (np.eye(5) + 0.5 * rng.normal(size=(5, 5)))
    return x, (rng.uniform(size=200) < 1 / (1 + np.exp(-x @ rng.normal(size=5)))).astype(float)


def gp_data() -> tuple[np.ndarray, np.ndarray]:
    x = np.linspace(-10.0, 10.0, 11)
    rng = np.random.default_rng(4)
    return x, rng.poisson(np.exp(1.0 + 1.5 * np.sin(x / 3.0))).astype(float)


def ar_data() -> np.ndarray:
    rng = np.random.default_rng(5)
    y = list(rng.normal(size=5))
    for _ in range(195):
        y.append(0.3 + np.dot([0.4, -0.2, 0.2, 0.1, -0.1], y[:-6:-1]) + 0.8 * rng.normal())
    return np.array(y)


def garch_data() -> np.ndarray:
    rng = np.random.default_rng(6)
    y, scale = [], 1.0
    for _ in range(200):
        y.append(0.5 + scale * rng.normal())
        scale = np.sqrt(0.3 + 0.4 * (y[-1] - 0.5) ** 2 + 0.4 * scale**2)
    return np.array(y)


def mixture_data() -> np.ndarray:
    rng = np.random.default_rng(7)
    is_first = rng.uniform(size=300) < 0.4
    return np.where(is_first, rng.normal(-1.5, 0.8, size=300), rng.normal(1.5, 1.0, size=300))


SCHOOLS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SCHOOLS_STD = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def group_data() -> np.ndarray:
    """50 groups of 8."""
    rng = np.random.default_rng(8)
    return 1.0 + 0.7 * rng.normal(size=(50, 1)) + 0.9 * rng.normal(size=(50, 8))


def network_data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(9)
    x = rng.uniform(-2.0, 2.0, size=(40, 1)).astype(np.float32)
    return x, (np.sin(2.0 * x[:, 0]) + 0.2 * rng.normal(size=40)).astype(np.float32)


# Densities


def _linear(is_collinear: bool) -> Gold:
    x, y = linear_data(is_collinear)

    def log_density(w):
        return jnp.sum(norm.logpdf(y, x @ w, 0.5)) + jnp.sum(norm.logpdf(w))

    return Gold(log_density, np.zeros(x.shape[1]))


def _logistic() -> Gold:
    x, y = logistic_data()

    def log_density(w):
        return -jnp.sum(jnp.logaddexp(0.0, (1 - 2 * y) * (x @ w))) + jnp.sum(
            norm.logpdf(w, 0.0, 2.5)
        )

    return Gold(log_density, np.zeros(5))


def _poisson_gp() -> Gold:
    x, y = gp_data()
    squares = (x[:, None] - x) ** 2

    def log_density(p):
        cov = p["alpha"] ** 2 * jnp.exp(-0.5 * squares / p["rho"] ** 2) + 1e-8 * jnp.eye(len(x))
        f = jnp.linalg.cholesky(cov) @ p["z"]
        prior = gamma.logpdf(p["rho"], 25.0, scale=0.25) + half(norm.logpdf, p["alpha"], 2.0)
        return jnp.sum(poisson.logpmf(y, jnp.exp(f))) + prior + jnp.sum(norm.logpdf(p["z"]))

    params = {"alpha": 1.0, "rho": 6.0, "z": np.zeros(11)}
    return Gold(log_density, params, {"alpha": "positive", "rho": "positive"})


def _ar5() -> Gold:
    y = ar_data()
    lags = np.stack([y[5 - lag : len(y) - lag] for lag in range(1, 6)], axis=1)

    def log_density(p):
        mean = p["alpha"] + lags @ p["beta"]
        prior = norm.logpdf(p["alpha"], 0.0, 10.0) + jnp.sum(norm.logpdf(p["beta"], 0.0, 10.0))
        prior += half(cauchy.logpdf, p["sigma"], 2.5)
        return jnp.sum(norm.logpdf(y[5:], mean, p["sigma"])) + prior

    params = {"alpha": 0.0, "beta": np.zeros(5), "sigma": 1.0}
    return Gold(log_density, params, {"sigma": "positive"})


def _garch() -> Gold:
    """Variance a0 + a1 e^2 + (1 - a1) share * variance, flat on a1 + b1 < 1."""
    y = garch_data()

    def log_density(p):
        b1 = (1 - p["a1"]) * p["share"]

        def step(variance, now):
            new = p["a0"] + p["a1"] * (now - p["mu"]) ** 2 + b1 * variance
            return new, variance

        _, variances = jax.lax.scan(step, jnp.ones(()), y)
        prior = norm.logpdf(p["mu"], 0.0, 10.0) + half(cauchy.logpdf, p["a0"], 2.5)
        return jnp.sum(norm.logpdf(y, p["mu"], jnp.sqrt(variances))) + prior + jnp.log1p(-p["a1"])

    constraints = {"a0": "positive", "a1": ("interval", 0.0, 1.0), "share": ("interval", 0.0, 1.0)}
    return Gold(log_density, {"mu": 0.0, "a0": 0.5, "a1": 0.3, "share": 0.5}, constraints)


def _mixture() -> Gold:
    y = mixture_data()

    def log_density(p):
        first = jnp.log(p["theta"]) + norm.logpdf(y, p["mu"][0], p["sigma"][0])
        second = jnp.log1p(-p["theta"]) + norm.logpdf(y, p["mu"][1], p["sigma"][1])
        prior = jnp.sum(norm.logpdf(p["mu"], 0.0, 2.0)) + beta.logpdf(p["theta"], 5.0, 5.0)
        prior += jnp.sum(half(norm.logpdf, p["sigma"], 2.0))
        return jnp.sum(jnp.logaddexp(first, second)) + prior

    params = {"mu": np.array([-1.0, 1.0]), "sigma": np.ones(2), "theta": 0.5}
    constraints = {"mu": "ordered", "sigma": "positive", "theta": ("interval", 0.0, 1.0)}
    return Gold(log_density, params, constraints)


def _schools(is_centred: bool) -> Gold:
    def log_density(p):
        theta = p["theta"] if is_centred else p["mu"] + p["tau"] * p["theta"]
        scale = (p["mu"], p["tau"]) if is_centred else (0.0, 1.0)
        prior = norm.logpdf(p["mu"], 0.0, 5.0) + half(cauchy.logpdf, p["tau"], 5.0)
        prior += jnp.sum(norm.logpdf(p["theta"], *scale))
        return prior + jnp.sum(norm.logpdf(SCHOOLS, theta, SCHOOLS_STD))

    params = {"mu": 0.0, "tau": 5.0, "theta": np.zeros(8)}
    return Gold(log_density, params, {"tau": "positive"})


def _hierarchical() -> Gold:
    y = group_data()

    def log_density(p):
        prior = norm.logpdf(p["mu"], 0.0, 5.0) + half(norm.logpdf, p["tau"], 1.0)
        prior += half(norm.logpdf, p["sigma"], 1.0)
        prior += jnp.sum(norm.logpdf(p["group"], p["mu"], p["tau"]))
        return prior + jnp.sum(norm.logpdf(y, p["group"][:, None], p["sigma"]))

    params = {"group": np.zeros(50), "mu": 0.0, "sigma": 1.0, "tau": 1.0}
    return Gold(log_density, params, {"sigma": "positive", "tau": "positive"})


def _network() -> Gold:
    network = bl.networks.MLP([10], activation="tanh")
    model = bl.Model(network, bl.likelihoods.Gaussian(noise_scale=0.2), bl.priors.Normal(1.0))
    return Gold(None, model=model, data=network_data())


def _two_modes() -> Gold:
    """0.7 N(0, I) + 0.3 N((10, 0), I), with starts drawn widely."""

    def log_density(w):
        away = w - jnp.array([10.0, 0.0])
        return jnp.logaddexp(
            jnp.log(0.7) - 0.5 * jnp.sum(w**2), jnp.log(0.3) - 0.5 * jnp.sum(away**2)
        )

    def init(key):
        return jnp.array([5.0, 0.0]) + 8.0 * jax.random.normal(key, (2,))

    return Gold(log_density, np.zeros(2), init=init)


MODELS: dict[str, Callable[[], Gold]] = {
    "linear": lambda: _linear(False),
    "collinear": lambda: _linear(True),
    "logistic": _logistic,
    "poisson_gp": _poisson_gp,
    "ar5": _ar5,
    "garch": _garch,
    "mixture": _mixture,
    "schools_centred": lambda: _schools(True),
    "schools": lambda: _schools(False),
    "hierarchical": _hierarchical,
    "network": _network,
    "two_modes": _two_modes,
}
