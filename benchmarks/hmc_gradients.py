"""HMC's gradients per second, as a share of a bare loop of the same gradients.

    python benchmarks/hmc_gradients.py [--repeats 20] [--chains 1]

The problem: a 13-50-1 tanh network with learned noise, 455 synthetic rows, one chain, 32 leapfrog
steps. `bl.fit` calls back after every chunk of 50 draws; what is timed is the wall time of such a
chunk after warm-up, with all that `fit` does around the compiled call, and without compiling. In
the callback the bare loop runs: as many `value_and_grad` of the same log-joint, at float64
positions that move a little each time, in one vector as in HMC (faster than leaf by leaf). So the
two alternate within one run and share the machine's moods. The ratio is the median of the pairs.
With `--chains 4` the gradients of all chains count, beside the same single bare loop.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time

import jax
import numpy as np
from peers import problems

import bayeslearn as bl
from bayeslearn import tree
from bayeslearn.algorithms.hmc import in_one_vector

LEAPFROG, DRAWS, WARMUP = 32, 50, 200


def make_target() -> tuple[bl.Target, dict]:
    model = bl.Model(
        bl.networks.MLP([problems.HIDDEN]),
        bl.likelihoods.Gaussian(),
        bl.priors.Normal(scale=problems.WEIGHT_SCALE),
    )
    return model.bind(problems.regression_rows(), jax.random.key(0))


@jax.jit
def bare_loop(target: bl.Target, params: dict, count: int) -> tuple[jax.Array, jax.Array]:
    """`count` gradients in one vector; each moves the position, so that none can be left out."""
    value_and_grad = jax.value_and_grad(in_one_vector(target, params)[1])

    def one(_: int, carry: tuple) -> tuple:
        vector, _ = carry
        log_joint, gradient = value_and_grad(vector)
        return vector + 1e-9 * gradient, log_joint

    start = (tree.ravel(params), jax.numpy.zeros((), "float64"))
    return jax.lax.fori_loop(0, count, one, start)


def measure(repeats: int, chains: int) -> dict:
    target, params = make_target()
    with jax.enable_x64(True):
        position = tree.double(params)
        jax.block_until_ready(bare_loop(target, position, 1))

    count = DRAWS * LEAPFROG
    chunk_seconds: list[float] = []
    bare_seconds: list[float] = []
    resumed = 0.0

    def between_chunks(event) -> None:
        nonlocal resumed
        now = time.perf_counter()
        if event.algorithm == "hmc" and event.step > WARMUP:
            chunk_seconds.append(now - resumed)
            with jax.enable_x64(True):
                began = time.perf_counter()
                jax.block_until_ready(bare_loop(target, position, count))
                bare_seconds.append(time.perf_counter() - began)
        resumed = time.perf_counter()

    algorithm = bl.HMC(
        num_leapfrog=LEAPFROG, jitter=0.05, num_warmup=WARMUP, num_samples=DRAWS * repeats
    )
    posterior = bl.fit(
        target,
        algorithm,
        seed=0,
        init=params,
        num_chains=chains,
        progress=False,
        callback=between_chunks,
        options=bl.FitOptions(chunk_size=DRAWS),
    )
    per_draw = posterior.trace["num_gradients"].sum(axis=0)
    gradients = per_draw.reshape(repeats, DRAWS).sum(axis=1)
    hmc = [n / s for n, s in zip(gradients, chunk_seconds, strict=True)]
    bare = [count / s for s in bare_seconds]
    ratios = [h / b for h, b in zip(hmc, bare, strict=True)]
    quartiles = statistics.quantiles(ratios, n=4)
    return {
        "benchmark": "hmc_gradients",
        "ratio": round(statistics.median(ratios), 4),
        "ratio_quartiles": [round(quartiles[0], 4), round(quartiles[2], 4)],
        "hmc_gradients_per_second": round(statistics.median(hmc)),
        "bare_gradients_per_second": round(statistics.median(bare)),
        "acceptance": round(float(posterior.trace["acceptance"].mean()), 3),
        "chains": chains,
        "repeats": repeats,
        "gradients_per_repeat": count,
    }


def environment() -> dict:
    device = jax.devices()[0]
    return {
        "bayeslearn": bl.__version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": f"{device.platform} {device.device_kind}",
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20, help="pairs of chunks (default 20)")
    parser.add_argument("--chains", type=int, default=1, help="chains (default 1)")
    arguments = parser.parse_args()
    if arguments.repeats < 2:
        parser.error("--repeats must be at least 2")
    before = environment()
    result = measure(arguments.repeats, arguments.chains)
    goal = "at least 0.95" if arguments.chains == 1 else "4 chains on 2 cores 1.8 of one chain's"
    print(
        f"HMC does {result['hmc_gradients_per_second']} gradients/s, a bare loop"
        f" {result['bare_gradients_per_second']}: ratio {result['ratio']:.3f} (goal: {goal})"
    )
    print(json.dumps(result | before))


if __name__ == "__main__":
    main()
