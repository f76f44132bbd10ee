"""Fits on engines that people run: loky, a Dask cluster, Ray; and what a killed worker costs.

    python benchmarks/engines.py run loky dask ray
    python benchmarks/engines.py timing loky dask ray --datasets 40

`run`: a comparison of three methods and a simulation-based calibration in two worker processes of
each engine, beside the same in this process: are all bits the same? Then a worker is killed
(`kill -9`) in the middle of a task. `timing`: seconds of the calibration with one and with two
workers of one thread each, compiling excluded (workers have fitted before).

Dask and Ray: `pip install '.[engines]'`. Results: engines.md.
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
from bayeslearn import clusters, jobs
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


def timing(name: str, num_datasets: int) -> dict[str, object]:
    """Seconds with one worker of one thread, and with two; the mean load before and after."""
    os.environ["OMP_NUM_THREADS"] = "1"
    load = [os.getloadavg()[0]]
    with engine(name):
        ranks(10)  # both workers compile
        began = time.perf_counter()
        ranks(num_datasets)
        two = time.perf_counter() - began
        began = time.perf_counter()
        in_one_worker(num_datasets)
        one = time.perf_counter() - began
    load.append(os.getloadavg()[0])
    seconds = {1: round(one, 1), 2: round(two, 1)}
    found = {"engine": name, "seconds": seconds, "ratio": round(two / one, 2)}
    return found | {"datasets": num_datasets, "load": load}


def in_one_worker(num_datasets: int) -> None:
    """All data sets as one task, of a worker that has compiled."""
    cluster = clusters.cluster_of(joblib.parallel.get_active_backend()[0])
    if cluster is None:
        joblib.Parallel(n_jobs=2)([joblib.delayed(ranks)(num_datasets, 1)])
    else:
        handle = cluster.submit(ranks, num_datasets, 1)
        cluster.wait([handle])
        cluster.result(handle)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["run", "timing"])
    parser.add_argument("engines", nargs="+", choices=["loky", "dask", "ray"])
    parser.add_argument("--datasets", type=int, default=40)
    given = parser.parse_args()
    if given.what == "run":
        expected, expected_ranks = compared(), ranks()
    for name in given.engines:
        if given.what == "run":
            found = tried(name, expected, expected_ranks)
        else:
            found = timing(name, given.datasets)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
