"""A table larger than memory allows: what reading it costs beside rows that are resident.

    python benchmarks/stream.py --folder /tmp/stream [--gigabytes 10] [--device cpu | gpu]
                                [--parts epoch turns] [--out benchmarks/results/stream.json]

A memory map of random rows (float32, 1,000 columns) and their y is written to the folder in blocks,
and removed at the end unless --keep is said. Two parts:

epoch   `bl.fit` with VOGN on `bl.sources.arrays`, through every row once. Anonymous resident memory
        (RssAnon of /proc/self/status, which leaves out the pages of mapped files) is read on a
        thread all the while; what is reported is its peak, and how much of it was there before.
turns   steps on the stream and steps on the same rows resident (100,000 of them; the same compiled
        loop, which then picks its minibatches itself) take turns within one run. A turn of the
        stream ends when what it has read ahead is read again, so that none lives on the time of the
        other. What is reported is the median over turns of the ratio of wall times, the ratio of
        the fastest turns, and the same with seconds of CPU.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import threading
import time
from pathlib import Path

import jax
import numpy as np
from hmc_gradients import environment

import bayeslearn as bl
from bayeslearn.data import streams
from bayeslearn.inference import kernels
from bayeslearn.inference.evaluation_plan import EVAL_ROWS
from bayeslearn.inference.optimize import CHUNK

COLUMNS, BATCH, HIDDEN, RESIDENT = 1000, 4096, 64, 100_000
BLOCK = 16_384  # rows written at a time
SEED = 0


def written(folder: Path, gigabytes: float) -> tuple[np.ndarray, np.ndarray]:
    """Memory maps of x and y; those that are there are used again."""
    rows = int(gigabytes * 1e9 / (4 * COLUMNS))
    folder.mkdir(parents=True, exist_ok=True)
    names = [folder / f"{name}-{rows}.npy" for name in "xy"]
    if not all(name.exists() for name in names):
        weights = np.random.default_rng(SEED).normal(size=COLUMNS) / COLUMNS**0.5
        shapes = ((rows, COLUMNS), (rows,))
        maps = [
            np.lib.format.open_memmap(name.with_suffix(".part"), "w+", np.float32, shape)
            for name, shape in zip(names, shapes, strict=True)
        ]
        for start in range(0, rows, BLOCK):
            rng = np.random.default_rng([SEED, start])
            stop = min(rows, start + BLOCK)
            x = rng.standard_normal((stop - start, COLUMNS), np.float32)
            maps[0][start:stop] = x
            maps[1][start:stop] = np.tanh(x @ weights) + 0.1 * rng.standard_normal(stop - start)
        for name, values in zip(names, maps, strict=True):
            values.flush()
            name.with_suffix(".part").rename(name)
    x, y = (np.load(name, mmap_mode="r") for name in names)
    return x, y


class Memory:
    """The most anonymous memory that was resident, in bytes."""

    def __init__(self) -> None:
        self.first = self.most = self.now()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @staticmethod
    def now() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            self.most = max(self.most, self.now())

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()


def model() -> bl.Model:
    return bl.Model(bl.networks.MLP([HIDDEN]), bl.likelihoods.Gaussian(noise_scale=0.1))


def epoch(x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    source = bl.sources.arrays(x, y, BATCH, SEED)
    steps = len(source)
    with Memory() as memory:
        began = time.perf_counter()
        posterior = bl.fit(
            model(),
            bl.VOGN(),
            source,
            seed=SEED,
            num_steps=steps,
            options=bl.FitOptions(eval_every=steps // 2),
        )
        seconds = time.perf_counter() - began
    assert posterior.trace["eval_step"][-1] == steps
    return {
        "rows": source.num_data,
        "bytes": x.nbytes + y.nbytes,
        "steps": steps,
        "seconds": seconds,
        "compile_seconds": posterior.compile_time,
        "milliseconds_per_step": 1e3 * seconds / steps,
        "anonymous_bytes_before": memory.first,
        "anonymous_bytes_most": memory.most,
    }


class Turns:
    """The loop of `fit`, some steps at a time, on rows that are resident or on a stream."""

    def __init__(self, chosen, bound, stream: streams.Stream | None, steps: int):
        self.algorithm, (self.target, params) = chosen, bound
        self.stream, self.steps, self.at = stream, steps, 0
        with jax.enable_x64(True):
            key = jax.random.key(SEED + 1)
            self.state = kernels.init_state(chosen, key, self.target, params)
        self.length = CHUNK if stream is None else stream.length(self.target)

    def __call__(self) -> None:
        goal = self.at + self.steps
        with jax.enable_x64(True):
            while self.at < goal:
                counts = streams.planned_counts(self.at, goal, 10**9, self.steps, self.length)
                batch, count = None, counts[0]
                if self.stream is not None:
                    batch, count = self.stream.chunk(self.target, counts, self.length)
                self.state, _, bad, finite = kernels.run_steps(
                    self.algorithm,
                    target=self.target,
                    state=self.state,
                    key_step=jax.random.key(SEED + 2),
                    key_data=jax.random.key(SEED + 3),
                    begin=self.at,
                    count=count,
                    length=self.length,
                    batch_size=BATCH if self.stream is None else None,
                    stream=batch,
                )
                assert bool(finite)
                assert not int(bad)
                self.at += count
            for _, future in [] if self.stream is None else self.stream._requested:
                future.result()


def turns(x: np.ndarray, y: np.ndarray, repeats: int, steps: int) -> dict[str, object]:
    found: dict[str, object] = {"batch_size": BATCH, "steps_in_a_turn": steps}
    for name in ("vogn", "map"):
        chosen = bl.ALGORITHMS[name]()
        resident = model().bind((np.array(x[:RESIDENT]), y[:RESIDENT]), jax.random.key(SEED))
        stream = streams.Stream(bl.sources.arrays(x, y, BATCH, SEED))
        sample = model().bind(
            stream.first(EVAL_ROWS), jax.random.key(SEED), num_data=stream.num_data()
        )
        contenders = {
            "resident": Turns(chosen, resident, None, steps),
            "stream": Turns(chosen, sample, stream, steps),
        }
        wall: dict[str, list[float]] = {key: [] for key in contenders}
        cpu: dict[str, list[float]] = {key: [] for key in contenders}
        for repeat in range(-1, repeats):  # the first one compiles
            order = list(contenders) if repeat % 2 else list(contenders)[::-1]
            for key in order:
                began = time.perf_counter(), time.process_time()
                contenders[key]()
                if repeat >= 0:
                    wall[key].append((time.perf_counter() - began[0]) / steps)
                    cpu[key].append((time.process_time() - began[1]) / steps)
        stream.close()
        pairs = [list(zip(t["stream"], t["resident"], strict=True)) for t in (wall, cpu)]
        found[name] = {
            "milliseconds_per_step": {k: 1e3 * statistics.median(v) for k, v in wall.items()},
            "cpu_milliseconds_per_step": {k: 1e3 * statistics.median(v) for k, v in cpu.items()},
            "ratio": statistics.median(a / b for a, b in pairs[0]),
            "ratio_of_the_fastest": min(wall["stream"]) / min(wall["resident"]),
            "cpu_ratio": statistics.median(a / b for a, b in pairs[1]),
            "ratios": [a / b for a, b in pairs[0]],
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument(
        "--parts", nargs="*", choices=("epoch", "turns"), default=["epoch", "turns"]
    )
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    jax.config.update("jax_platforms", "cpu" if given.device == "cpu" else "cuda")
    x, y = written(given.folder, given.gigabytes)
    results: dict[str, object] = {"environment": environment(), "seed": SEED}
    try:
        # Memory first, while nothing else was there.
        if "epoch" in given.parts:
            results["epoch"] = epoch(x, y)
            print(json.dumps(results["epoch"], indent=2), flush=True)
        if "turns" in given.parts:
            results["turns"] = turns(x, y, given.repeats, given.steps)
            print(json.dumps(results["turns"], indent=2), flush=True)
    finally:
        if not given.keep:
            shutil.rmtree(given.folder)
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
