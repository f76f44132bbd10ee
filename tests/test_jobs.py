"""Tasks in worker processes of loky: real ones."""

from __future__ import annotations

import os
from pathlib import Path

import joblib
import jobs_worker as worker
import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn import jobs
from bayeslearn.results.sbc import simulation_based_calibration


def test_tasks_run_in_other_processes_and_keep_their_numbers():
    found = dict(jobs.run_tasks(worker.square, (100,), [(n,) for n in range(6)], n_jobs=2))
    assert {n: value for n, (value, _) in found.items()} == {n: 100 + n**2 for n in range(6)}
    assert os.getpid() not in {pid for _, pid in found.values()}


def test_one_job_runs_here_unless_joblib_says_otherwise():
    tasks = [(n,) for n in range(3)]
    assert {pid for _, (_, pid) in jobs.run_tasks(worker.square, (0,), tasks, None)} == {
        os.getpid()
    }
    with joblib.parallel_config(backend="loky", n_jobs=2):
        assert jobs.num_workers(None) == 2
        found = dict(jobs.run_tasks(worker.square, (0,), tasks, None))
    assert os.getpid() not in {pid for _, pid in found.values()}


def test_what_a_killed_worker_had_begun_is_run_again(tmp_path):
    tasks = [(n,) for n in range(6)]
    found = dict(jobs.run_tasks(worker.killed_once, (str(tmp_path),), tasks, n_jobs=2))
    assert found == {n: 10 * n for n in range(6)}
    starts = {n: len(list(tmp_path.glob(f"{n}-*"))) for n in range(6)}
    assert starts[2] == 2
    assert starts[0] == 1  # its result had come in
    assert sum(starts.values()) <= 6 + 2  # the killed one, and the other worker's task


def test_tasks_that_are_always_killed_end_with_a_named_error():
    with pytest.raises(bl.errors.BayesLearnError, match="lost 3 times in a row, and 2 tasks"):
        list(jobs.run_tasks(worker.always_killed, (), [(0,), (1,)], n_jobs=2))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux")
def test_workers_limit_the_threads_of_jax():
    with joblib.parallel_config(backend="loky", n_jobs=2, inner_max_num_threads=1):
        found = dict(jobs.run_tasks(worker.threads_of_jax, (), [(0,), (1,)], None))
    assert {limit for limit, _ in found.values()} == {"1"}
    assert {number for _, number in found.values()} <= {0, 1}


@pytest.mark.parametrize("n_jobs", [0, 1.5, "two", True])
def test_a_number_of_jobs_that_cannot_be(n_jobs):
    with pytest.raises(bl.ArgumentError, match="`n_jobs` must be a number of processes"):
        jobs.num_workers(n_jobs)


def test_calibration_in_workers_has_the_same_ranks_and_goes_on(tmp_path):
    x = np.linspace(-1, 1, 12)[:, None]
    model = bl.Model(bl.networks.MLP([]), bl.likelihoods.Gaussian(noise_scale=0.5))
    options = {"num_datasets": 10, "seed": 0, "num_samples": 19}
    here = simulation_based_calibration(model, "conjugate", (x, x[:, 0]), **options)
    options |= {"results": tmp_path}
    there = simulation_based_calibration(model, "conjugate", (x, x[:, 0]), n_jobs=2, **options)
    np.testing.assert_array_equal(here.ranks, there.ranks)
    (tmp_path / "dataset-000003.json").unlink()
    (tmp_path / "dataset-000004.json").write_text("[7, 7]")
    again = simulation_based_calibration(model, "conjugate", (x, x[:, 0]), **options)
    assert again.ranks[4].tolist() == [7, 7]  # was read
    np.testing.assert_array_equal(np.delete(again.ranks, 4, 0), np.delete(here.ranks, 4, 0))
    with pytest.raises(bl.ArgumentError, match="another study: seed differ"):
        simulation_based_calibration(model, "conjugate", (x, x[:, 0]), **(options | {"seed": 1}))
