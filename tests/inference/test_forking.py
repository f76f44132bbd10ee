"""A forked child of a process that has used JAX is refused; it would hang."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable

import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn.errors import BayesLearnError
from bayeslearn.forking import ForkError

SECONDS = 30  # after which a child that hangs is killed

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")

X = np.linspace(-1, 1, 12)[:, None]
Y = 2 * X[:, 0]


def in_a_fork(call: Callable[[], object]) -> str:
    """What a forked child meets: the error's class and message, "returned", or "hung"."""
    reads, writes = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX and Python warn of the fork that is tested here
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        try:
            call()
            text = "returned"
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writes, text.encode()[:4096])
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(child, 0)
    return text or "hung"


@pytest.fixture(scope="module")
def posterior():
    model = bl.Model(bl.networks.MLP([]), bl.likelihoods.Gaussian(noise_scale=0.5))
    return bl.fit(model, "conjugate", (X, Y), seed=0)


@pytest.fixture(scope="module")
def estimator():
    return bl.BayesianNNRegressor(method="conjugate", hidden=(), noise=0.5).fit(X, Y)


CALLS = {
    "fit": lambda p, e: bl.fit(
        bl.Model(bl.networks.MLP([]), bl.likelihoods.Gaussian(noise_scale=0.5)),
        "conjugate",
        (X, Y),
        seed=0,
    ),
    "predict": lambda p, e: p.predict(X).mean,
    "sample": lambda p, e: p.sample(0, 3),
    "update": lambda p, e: p.update((X, Y)),
    "summary": lambda p, e: p.summary(),
    "estimator.fit": lambda p, e: bl.BayesianNNRegressor(method="map").fit(X, Y),
    "estimator.predict": lambda p, e: e.predict(X),
}


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_computed_in_a_forked_child(posterior, estimator, name):
    text = in_a_fork(lambda: CALLS[name](posterior, estimator))
    assert text.startswith("ForkError: This process was forked after JAX had started"), text
    assert '"spawn"' in text
    assert '"loky"' in text
    assert text.count(".") == 2  # one sentence, and the dot of multiprocessing.get_context


def test_a_predictive_made_before_the_fork_is_refused_too():
    model = bl.Model(bl.networks.MLP([]), bl.likelihoods.Gaussian(noise_scale=0.5))
    predictive = bl.fit(model, "map", (X, Y), seed=0, num_steps=5).predict(X)
    assert in_a_fork(lambda: predictive.mean).startswith("ForkError")
    assert in_a_fork(lambda: predictive.sample(0)).startswith("ForkError")


def test_the_error_is_one_of_ours():
    assert issubclass(ForkError, BayesLearnError)


def test_a_fork_before_jax_has_started_computes():
    """The parent imports the library, forks, and both fit."""
    code = """
import os, signal
import bayeslearn as bl
model = bl.Model(bl.networks.MLP([]), bl.likelihoods.Gaussian(noise_scale=0.5))
child = os.fork()
signal.alarm(120)
bl.fit(model, "conjugate", ([[0.0], [1.0]], [0.0, 1.0]), seed=0)
if child == 0:
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
