"""Problems with known answers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import bayeslearn as bl


class Regression(NamedTuple):
    """Conjugate linear regression: the posterior N(mean, prec^-1) is exact."""

    x: np.ndarray
    y: np.ndarray
    mean: np.ndarray
    prec: np.ndarray
    model: bl.Model

    @property
    def cov(self) -> np.ndarray:
        return np.linalg.inv(self.prec)

    @property
    def std(self) -> np.ndarray:
        return np.sqrt(np.diag(self.cov))


def regression(seed: int = 0, dtype: str | None = "float64") -> Regression:
    """The reference problem: 60 x 4, noise 0.7, prior precision 0.5."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(60, 4)) @ (np.eye(4) + 0.4 * rng.normal(size=(4, 4)))
    y = x @ rng.normal(size=4) + 0.7 * rng.normal(size=60)
    prec = 0.5 * np.eye(4) + x.T @ x / 0.7**2
    mean = np.linalg.solve(prec, x.T @ y / 0.7**2)
    model = bl.Model(
        bl.networks.MLP([], use_bias=False),
        bl.likelihoods.Gaussian(noise_scale=0.7),
        bl.priors.Normal(scale=0.5**-0.5),
        dtype=dtype,
    )
    return Regression(x, y, mean, prec, model)


def wiggle(rows: int = 80, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A smooth curve with noise 0.2."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2.0, 2.0, size=(rows, 1))
    return x, np.sin(2 * x[:, 0]) + 0.2 * rng.normal(size=rows)


def two_classes(rows: int = 120, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, size=rows)
    return rng.normal(size=(rows, 2)) + 1.5 * y[:, None], y


def small_model(likelihood: bl.likelihoods.Likelihood | None = None) -> bl.Model:
    return bl.Model(bl.networks.MLP([5]), likelihood or bl.likelihoods.Gaussian())


# Composites are made of runs of other algorithms, and have no step of their own.
STEPPING = [name for name, cls in bl.ALGORITHMS.items() if not cls.capabilities.is_composite]

# Cheap settings for tests of structure and not of statistics.
QUICK = {
    "metropolis-hastings": {"num_warmup": 60, "num_samples": 20, "thin": 2},
    "hmc": {"num_warmup": 30, "num_samples": 20, "max_leapfrog": 8},
    "nuts": {"num_warmup": 30, "num_samples": 20, "max_doublings": 3},
    "mclmc": {"num_warmup": 30, "num_samples": 20, "thin": 2},
    "sghmc": {"num_samples": 10, "num_cycles": 2},
    "swag": {"num_iterates": 8, "rank": 4},
    "mams": {"num_warmup": 30, "num_samples": 20, "max_steps": 8},
}


def quick(name: str) -> bl.Algorithm:
    return bl.ALGORITHMS[name](**QUICK.get(name, {}))


def quick_options(name: str) -> dict:
    """`fit` options to go with `quick`."""
    return {"num_chains": 2} if bl.ALGORITHMS[name].capabilities.is_sampler else {"num_steps": 40}


def arviz_groups(data):
    """Names of the groups of an InferenceData (ArviZ 0.x) or a DataTree (1.x)."""
    return set(data.groups() if callable(data.groups) else data.children)
