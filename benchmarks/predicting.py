"""Predictions beside the bare products: an MLP of one size, rows and draws.

    python benchmarks/predicting.py [--units 100] [--rows 10000] [--draws 256] [--streamed]

`bare` is a compiled loop over draws that were made before: three products with tanh between, sums
and sums of squares of the outputs. `ours` is `posterior.predict(x)` with its mean and variances,
draws included. Seconds of wall-clock and of all CPUs, the second of two runs; on a machine that is
busy compare the latter. `--streamed` makes draws inside the loop also where they are small.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import resource
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import bayeslearn as bl
from bayeslearn.families import streamed

COLUMNS = 20


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """Wall-clock and CPU seconds of the second run."""
    run()
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


def peak() -> float:
    """GB of this process at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--units", type=int, default=100)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--draws", type=int, default=256)
    parser.add_argument("--streamed", action="store_true")
    arguments = parser.parse_args()
    if arguments.streamed:
        streamed.MAX_BYTES = 0
    num, units, draws = arguments.rows, arguments.units, arguments.draws
    x = np.random.default_rng(0).normal(size=(num, COLUMNS)).astype(np.float32)
    network = bl.networks.MLP([units, units])
    model = bl.Model(network, bl.likelihoods.Gaussian(0.3))
    posterior = bl.fit(model, bl.MAP(), (x[:50], x[:50, 0]), seed=0, num_steps=1)
    mean = posterior.family.mean
    q = bl.families.DiagonalGaussian(mean, jax.tree.map(lambda w: 0.01 + 0 * w, mean))
    posterior = dataclasses.replace(posterior, family=q)
    before = peak()
    ours = timed(lambda: posterior.predict(x, num_samples=draws).mean)
    grown = peak() - before
    sizes = (COLUMNS, units, units, 1)
    weights = [
        jax.random.normal(jax.random.key(i), (draws if units <= 300 else 1, a, b)) / np.sqrt(a)
        for i, (a, b) in enumerate(itertools.pairwise(sizes))
    ]

    @jax.jit
    def bare(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        def one(i: jax.Array, sums: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            first, second, last = (w[i % len(w)] for w in weights)
            values = jnp.tanh(jnp.tanh(x @ first) @ second) @ last
            return sums[0] + values, sums[1] + values**2

        zeros = jnp.zeros((len(x), 1))
        return jax.lax.fori_loop(0, draws, one, (zeros, zeros))

    rows = jnp.asarray(x)
    bare_seconds = timed(lambda: jax.block_until_ready(bare(rows)))
    device = jax.devices()[0].device_kind
    print(f"{bl.tree.size(mean):,} weights, {num:,} rows, {draws} draws, {device}")
    print("| | s | CPU s |\n|---|---|---|")
    for name, (wall, cpu) in {"bare": bare_seconds, "ours": ours}.items():
        print(f"| {name} | {wall:.2f} | {cpu:.2f} |")
    print(f"ratio {ours[0] / bare_seconds[0]:.2f}, of CPU seconds {ours[1] / bare_seconds[1]:.2f}")
    print(f"memory grown by {grown:.2f} GB")


if __name__ == "__main__":
    main()
