"""Tasks on real engines: a Dask cluster with worker processes, and Ray, both on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import joblib
import jobs_worker as worker
import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn import jobs
from bayeslearn.results.sbc import simulation_based_calibration

pytestmark = pytest.mark.filterwarnings("ignore")  # of the engines


@pytest.fixture(scope="module", params=["dask", "ray"])
def engine(request):
    """Two workers of the engine, found by joblib under its name."""
    with pytest.MonkeyPatch.context() as patch:
        folders = [str(Path(__file__).parent), str(Path(bl.__file__).parents[1])]
        patch.setenv("PYTHONPATH", os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")]))
        if request.param == "dask":
            distributed = pytest.importorskip("distributed")
            options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
            with (
                distributed.LocalCluster(processes=True, **options) as cluster,
                distributed.Client(cluster),
            ):
                yield "dask"
        else:
            ray = pytest.importorskip("ray")
            from ray.util.joblib import register_ray

            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
            register_ray()
            yield "ray"
            ray.shutdown()


@pytest.fixture
def backend(engine):
    if engine == "dask":  # with a single one, as after a kill, joblib runs tasks in this process
        sys.modules["distributed"].get_client().wait_for_workers(2, timeout=60)
    with joblib.parallel_config(backend=engine, n_jobs=2):
        yield engine


def test_tasks_run_in_other_processes_and_keep_their_numbers(backend):
    assert jobs.num_workers(None) == 2
    found = dict(jobs.run_tasks(worker.square, (100,), [(n,) for n in range(6)], None))
    assert {n: value for n, (value, _) in found.items()} == {n: 100 + n**2 for n in range(6)}
    assert os.getpid() not in {pid for _, pid in found.values()}


def test_results_come_as_they_are_found(backend, tmp_path):
    """The first result is here before the last task, which waits for it, comes to an end."""
    tasks = [(n,) for n in range(4)]
    results = jobs.run_tasks(worker.waits_for_a_result, (str(tmp_path),), tasks, None)
    number, value = next(results)
    (tmp_path / "seen").touch()
    assert dict(results) | {number: value} == dict.fromkeys(range(4), True)


def test_of_a_killed_worker_only_its_own_task_is_run_again(backend, tmp_path):
    tasks = [(n,) for n in range(6)]
    found = dict(jobs.run_tasks(worker.killed_once, (str(tmp_path),), tasks, None))
    assert found == {n: 10 * n for n in range(6)}
    starts = {n: len(list(tmp_path.glob(f"{n}-*"))) for n in range(6)}
    assert starts == {n: 1 + (n == 2) for n in range(6)}


def test_tasks_that_are_always_killed_end_with_a_named_error(backend):
    with pytest.raises(bl.BayesLearnError, match="lost 3 times in a row"):
        list(jobs.run_tasks(worker.always_killed, (), [(0,), (1,)], None))


def test_an_error_of_a_task_is_raised_as_it_is(backend):
    with pytest.raises(bl.ArgumentError, match="`number` must be below 2, got 2") as caught:
        list(jobs.run_tasks(worker.refused, (), [(n,) for n in range(4)], None))
    assert type(caught.value) is bl.ArgumentError


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux")
def test_workers_limit_the_threads_of_jax(backend):
    found = dict(jobs.run_tasks(worker.threads_of_jax, (), [(0,), (1,)], None))
    assert {limit for limit, _ in found.values()} == {"1"}
    assert {number for _, number in found.values()} <= {0, 1}


def test_calibration_has_the_same_ranks_as_here(backend):
    x = np.linspace(-1, 1, 12)[:, None]
    model = bl.Model(bl.networks.MLP([]), bl.likelihoods.Gaussian(noise_scale=0.5))
    options = {"num_datasets": 3, "num_bins": 3, "seed": 0, "num_samples": 19}
    there = simulation_based_calibration(model, "conjugate", (x, x[:, 0]), **options)
    with joblib.parallel_config(backend="loky", n_jobs=1):
        here = simulation_based_calibration(model, "conjugate", (x, x[:, 0]), **options)
    np.testing.assert_array_equal(here.ranks, there.ranks)
