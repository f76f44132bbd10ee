"""Many short fits in one process: does memory grow, and is anything compiled again?

    python benchmarks/soak.py --fits 2000 --out benchmarks/results/soak.json
    python benchmarks/soak.py --shapes 200            # another number of rows every time
    python benchmarks/soak.py --shapes 200 --padded   # with FitOptions(merge_rows=True)

Fits of several algorithms in turn, each with other rows and another seed, one in ten with
checkpoints, each followed by a prediction. After the first --settle fits, when all is compiled,
anonymous memory (RssAnon) is read after a garbage collection every 50 fits; its growth is the slope
of a straight line through the readings. Goal: less than 1 MB per 100 fits, and no compilation.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
from faithfulness import write_cell
from jax import monitoring

import bayeslearn as bl

EVERY = 50


def anonymous() -> float:
    """Megabytes of anonymous memory."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024 / 1e6


def names_of_compiled() -> list[str]:
    """A list that grows by the name of each program that is compiled from here on."""
    compiled: list[str] = []

    def listen(event: str, duration: float, **details) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(details.get("fun_name", "?"))

    monitoring.register_event_duration_secs_listener(listen)
    return compiled


def new_shapes(number: int, is_padded: bool) -> dict:
    """Fits of 30, 31, 32, ... rows: megabytes and compiled programs of each."""
    compiled = names_of_compiled()
    model = bl.Model(bl.networks.MLP([4]), bl.likelihoods.Gaussian(noise_scale=0.2))
    options = bl.FitOptions(merge_rows=is_padded)
    rng = np.random.default_rng(0)
    readings = []
    for rows in range(30, 30 + number):
        x = rng.normal(size=(rows, 2))
        y = np.sin(x[:, 0]) + 0.2 * rng.normal(size=rows)
        bl.fit(model, "vogn", (x, y), seed=0, num_steps=40, options=options).predict(x)
        gc.collect()
        readings.append((rows, anonymous(), len(compiled)))
    rows, megabytes, programs = np.asarray(readings).T
    late = slice(2, None)  # the first ones compile what all share
    results = {
        "padded": is_padded,
        "fits": number,
        "mb_per_fit": round(float(np.polyfit(rows[late], megabytes[late], 1)[0]), 3),
        "first_mb": megabytes[2],
        "last_mb": megabytes[-1],
        "programs_per_fit": round(float(programs[-1] - programs[2]) / (number - 3), 2),
    }
    print(json.dumps(results), flush=True)
    return results


def main(arguments: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fits", type=int, default=2000)
    parser.add_argument("--settle", type=int, default=200)
    parser.add_argument("--shapes", type=int, help="fits of changing row counts, instead")
    parser.add_argument("--padded", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    if given.shapes:
        return new_shapes(given.shapes, given.padded)
    warnings.simplefilter("ignore", bl.MixingWarning)
    compiled = names_of_compiled()
    model = bl.Model(bl.networks.MLP([4]), bl.likelihoods.Gaussian(noise_scale=0.2))
    walk = bl.MetropolisHastings(num_warmup=20, num_samples=20, thin=1)
    turns = [
        ("map", {"num_steps": 40}),
        ("mc-dropout", {"num_steps": 40}),
        ("vogn", {"num_steps": 40, "batch_size": 8}),
        ("mgvb", {"num_steps": 20}),
        (walk, {"num_chains": 2}),
    ]
    rng = np.random.default_rng(0)
    readings: list[tuple[int, float]] = []
    began, num_compiled = time.monotonic(), 0
    for number in range(given.fits):
        x = rng.normal(size=(30, 2))
        y = np.sin(x[:, 0]) + 0.2 * rng.normal(size=30)
        algorithm, options = turns[number % len(turns)]
        with tempfile.TemporaryDirectory() as folder:
            if number // len(turns) % 10 == 0:
                options = {**options, "checkpoint": bl.Checkpoint(Path(folder) / "run", every=500)}
            found = bl.fit(model, algorithm, (x, y), seed=number, **options)
        assert np.all(np.isfinite(found.predict(x, num_samples=20).mean))
        if number == given.settle - 1:
            num_compiled = len(compiled)
        if number >= given.settle and number % EVERY == 0:
            gc.collect()
            readings.append((number, anonymous()))
            print(*readings[-1], len(compiled) - num_compiled, "compiled", flush=True)
    fits, megabytes = np.asarray(readings).T
    results = {
        "fits": given.fits,
        "algorithms": [str(getattr(a, "name", a)) for a, _ in turns],
        "mb_per_100_fits": round(100 * float(np.polyfit(fits, megabytes, 1)[0]), 4),
        "first_mb": megabytes[0],
        "last_mb": megabytes[-1],
        "compiled_after_settling": compiled[num_compiled:],
        "seconds": round(time.monotonic() - began, 1),
        "readings": readings,
    }
    print(json.dumps({k: v for k, v in results.items() if k != "readings"}))
    if given.out:
        write_cell(given.out, results)
    return results


if __name__ == "__main__":
    main()
