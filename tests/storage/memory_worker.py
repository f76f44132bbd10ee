"""A run that loses its memory in one phase, resumes, and ends as if it never had.

    python memory_worker.py PHASE FOLDER

The callback lowers the limit of the address space to what is in use and a little more; the next
step of the phase cannot make the activations of a wide layer. It limits the whole process.
"""

from __future__ import annotations

import resource
import sys
import warnings
from pathlib import Path

import jax
import numpy as np

import bayeslearn as bl

ROWS, WIDTH = 100_000, 256  # activations of 100 MB
HEADROOM = 32 * 2**20  # bytes that are left, for what is small
PHASES = {
    "warm start": ("main/warm start", bl.VOGN(), {"num_steps": 30}),
    "optimisation": ("main", bl.MAP(), {"num_steps": 20}),
    "sampling": ("main", bl.MetropolisHastings(num_warmup=4, num_samples=8, thin=1), {}),
    "ensemble": ("main/member", bl.Ensemble(num_members=2, member=bl.MAP()), {"num_steps": 20}),
}


def in_use() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def limit(num_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (num_bytes, resource.RLIM_INFINITY))


def main(name: str, folder: str) -> None:
    phase, algorithm, options = PHASES[name]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 1)).astype(np.float32)
    model = bl.Model(bl.networks.MLP([WIDTH]), bl.likelihoods.Gaussian(), bl.priors.Normal())
    data = (x, np.sin(x[:, 0]))
    if algorithm.capabilities.is_sampler:
        options = options | {"num_chains": 2}

    def lose(event):
        if event.phase.startswith(phase) and event.step >= min(2, event.num_steps):
            limit(in_use() + HEADROOM)

    settings = bl.FitOptions(eval_every=2)
    if algorithm.capabilities.is_sampler:
        settings = bl.FitOptions(chunk_size=2, warm_start=4)
    else:
        options = options | {"batch_size": ROWS}
    options = options | {"seed": 0, "options": settings}
    checkpoint = bl.Checkpoint(folder, every=2)
    try:
        bl.fit(model, algorithm, data, callback=lose, checkpoint=checkpoint, **options)
    except bl.OutOfMemoryError as error:
        limit(resource.RLIM_INFINITY)
        is_named = "can be resumed from its last checkpoint" in str(error)
        print("named" if is_named else error, flush=True)
    resumed = bl.resume(folder, data, callback=False)
    whole = bl.fit(model, algorithm, data, **options)
    for a, b in zip(*(jax.tree.leaves(p.family) for p in (resumed, whole)), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    print("same", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
