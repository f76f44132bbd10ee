"""A held-out task for each network: a posterior predicts as well as the plain network, or better.

Each method's log-likelihood of 1000 held-out rows is at most 0.02 nats per row below MAP's. The
rows are the same for both, so that chance in them all but cancels.
"""

from __future__ import annotations

import functools
import itertools
import warnings

import jax
import numpy as np
import pytest
import tasks

import bayeslearn as bl

ALGORITHMS = {
    "vogn": bl.VOGN(),
    "bayes-by-backprop": bl.BayesByBackprop(),
    # Short: symmetric networks have many modes, and predictions settle long before weights do.
    "hmc": bl.HMC(num_warmup=200, num_samples=200, max_leapfrog=32),
    "mc-dropout": bl.MCDropout(),
}
KEEPS = (0.95, 0.99, 0.999)  # of MC dropout, chosen on held-out folds of the training rows
ALLOWED = 0.02


def fitted(name: str, algorithm: str, rows: int = 300, seed: int = 0):
    """The posterior, and the held-out rows."""
    network, likelihood, train, test = tasks.task(name, rows, seed)
    chosen = ALGORITHMS.get(algorithm, bl.MAP())
    if algorithm == "mc-dropout":
        chosen = best_keep(network, likelihood, train, seed)
    options = {"num_chains": 2} if chosen.capabilities.is_sampler else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bl.MixingWarning)
        posterior = bl.fit(
            bl.Model(network, likelihood), chosen, train, seed=seed, progress=False, **options
        )
    return posterior, test


@functools.cache
def score(name: str, algorithm: str) -> float:
    """Mean log-likelihood of the held-out rows."""
    posterior, (x, y) = fitted(name, algorithm, ROWS.get(name, 300))
    return bl.metrics.log_likelihood(posterior.predict(x), y)


def best_keep(network, likelihood, train, seed):
    """MC dropout with the keep that predicts held-out training rows best, over three folds."""
    folds = np.array_split(np.random.default_rng(seed).permutation(len(train[1])), 3)
    scores = dict.fromkeys(KEEPS, 0.0)
    for keep in KEEPS:
        for fold in folds:
            held_out = jax.tree.map(lambda a, fold=fold: a[fold], train)
            rest = jax.tree.map(lambda a, fold=fold: np.delete(a, fold, axis=0), train)
            model, method = bl.Model(network, likelihood), bl.MCDropout(keep=keep)
            posterior = bl.fit(model, method, rest, seed=seed, progress=False)
            log_prob = posterior.predict(held_out[0]).log_prob(held_out[1])
            scores[keep] += float(np.sum(log_prob))
    return bl.MCDropout(keep=max(scores, key=scores.get))


def test_every_network_has_a_task():
    classes = {n for n in bl.networks.__all__ if isinstance(getattr(bl.networks, n), type)}
    ours = {n for n in classes if not n.endswith("Network")}
    assert set(tasks.TASKS) == ours - {"MLP"}


# A factorised Gaussian gives up part of a signal that few noisy rows carry: with 300 rows of bars
# VOGN and Bayes by Backprop stay 0.04 and 0.03 nats below the point, where HMC does not; with 1000
# they are above it (benchmarks/network_tasks.py).
ROWS = {"CNN": 1000}


@pytest.mark.slow(reason="fits of a network to convergence; benchmarks/network_tasks.py runs all")
@pytest.mark.parametrize("method", ALGORITHMS)
def test_a_posterior_predicts_as_well_as_the_plain_network(method):
    """Every network, and every method with two or three of them."""
    pairs = zip(tasks.TASKS, itertools.cycle(ALGORITHMS), strict=False)
    names = [name for name, algorithm in pairs if algorithm == method]
    short = {name: score(name, method) - score(name, "map") for name in names}
    assert short
    assert not {name: gain for name, gain in short.items() if gain < -ALLOWED}
