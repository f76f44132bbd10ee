"""Fits on engines that people run: loky, a Dask cluster, Ray; and what a killed worker costs.

    python benchmarks/engines.py loky dask ray
    python benchmarks/engines.py timing --datasets 40

The first line: a comparison of three methods and a simulation-based calibration in two worker
processes of each engine, beside the same in this process: are all bits the same? On loky and Dask a
worker is then killed (`kill -9`) in the middle of a task. `timing`: seconds of the calibration with
one and with two loky workers of one thread each, compiling excluded (workers have fitted before).

Dask needs `dask[distributed]`, Ray `ray`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import joblib
import numpy as np

import bayeslearn as bl
from bayeslearn import jobs
from bayeslearn.results.sbc import simulation_based_calibration

OPTIONS = {
    **{"methods": ["laplace", "vogn"], "hidden": (4,), "num_samples": 32, "num_steps": 300},
    **{"splits": 1, "seed": 3, "progress": False},
}


def table() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    return x, 3.0 * x[:, 0] + np.sin(2.0 * x[:, 1]) + 0.3 * rng.normal(size=80)


@contextlib.contextmanager
def engine(name: str, threads: int = 1) -> Iterator[None]:
    """Two workers of an engine as joblib's backend."""
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parent), str(Path(bl.__file__).parents[1])]
    )
    if name == "dask":
        from distributed import Client, LocalCluster

        with (
            LocalCluster(n_workers=2, threads_per_worker=1, processes=True) as cluster,
            Client(cluster),
            joblib.parallel_config(backend="dask", n_jobs=2),
        ):
            yield
    elif name == "ray":
        import ray
        from ray.util.joblib import register_ray

        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        register_ray()
        try:
            with joblib.parallel_config(backend="ray", n_jobs=2):
                yield
        finally:
            ray.shutdown()
    else:
        with joblib.parallel_config(backend=name, n_jobs=2, inner_max_num_threads=threads):
            yield


def compared() -> tuple[object, dict[str, bytes]]:
    """What a comparison found: the table without seconds, and predictions to the bit."""
    x, y = table()
    found = bl.compare(x, y, **OPTIONS)
    rows = found.to_dict()["table"]
    for row in rows:
        del row["seconds"], row["compile_seconds"], row["pareto"]
    return rows, {name: fit.predict(x).tobytes() for name, fit in found.fitted.items()}


def ranks(num_datasets: int = 10, n_jobs: int | None = None) -> np.ndarray:
    x = np.linspace(-1, 1, 20)[:, None]
    model = bl.Model(bl.networks.MLP([4]), bl.likelihoods.Gaussian(noise_scale=0.5))
    sampler = bl.HMC(num_warmup=300, num_samples=99, thin=5)
    return simulation_based_calibration(
        model, sampler, (x, x[:, 0]), num_datasets=num_datasets, seed=0, num_chains=1, n_jobs=n_jobs
    ).ranks


def killed_once(folder: str, number: int) -> int:
    """The second task is killed when it runs for the first time; every start leaves a file."""
    starts = len(list(Path(folder).glob(f"{number}-*")))
    Path(folder, f"{number}-{starts}").touch()
    time.sleep(0.5)
    if number == 1 and starts == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def killed() -> dict[str, object]:
    """A worker killed in the middle of a task: the results, and how often tasks were begun."""
    with tempfile.TemporaryDirectory() as folder:
        found = dict(jobs.run_tasks(killed_once, (folder,), [(n,) for n in range(6)], None))
        starts = [len(list(Path(folder).glob(f"{n}-*"))) for n in range(6)]
    return {"all_done": found == {n: n for n in range(6)}, "starts": starts}


def tried(name: str, expected: tuple, expected_ranks: np.ndarray) -> dict[str, object]:
    with engine(name):
        began = time.perf_counter()
        same = compared() == expected
        same_ranks = bool(np.array_equal(ranks(), expected_ranks))
        seconds = round(time.perf_counter() - began, 1)
        result = {"engine": name, "same_comparison": same, "same_ranks": same_ranks}
        result["seconds"] = seconds
        result["killed"] = killed()
    return result


def timing(num_datasets: int) -> dict[str, object]:
    """Seconds with one worker of one thread, and with two."""
    found = {}
    for workers in (1, 2):
        os.environ["OMP_NUM_THREADS"] = "1"
        with joblib.parallel_config(backend="loky", n_jobs=2, inner_max_num_threads=1):
            ranks(10)  # both workers compile
            began = time.perf_counter()
            if workers == 2:
                ranks(num_datasets)
            else:
                one = joblib.delayed(ranks)(num_datasets, 1)
                joblib.Parallel(n_jobs=2)([one])
            found[workers] = time.perf_counter() - began
    return {"seconds": found, "ratio": round(found[2] / found[1], 2), "datasets": num_datasets}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="+", choices=["loky", "dask", "ray", "timing"])
    parser.add_argument("--datasets", type=int, default=40)
    given = parser.parse_args()
    engines = [name for name in given.what if name != "timing"]
    if engines:
        expected, expected_ranks = compared(), ranks()
        for name in engines:
            print(json.dumps(tried(name, expected, expected_ranks)), flush=True)
    if "timing" in given.what:
        print(json.dumps(timing(given.datasets)), flush=True)


if __name__ == "__main__":
    main()
