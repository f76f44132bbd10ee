"""Many devices and many processes: real ones, on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import mesh_worker as worker
import pytest

import bayeslearn as bl

HERE = Path(__file__).parent


def environment(**more: str) -> dict[str, str]:
    paths = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": paths, "JAX_PLATFORMS": "cpu", **more}


def run(what: str, folder: Path, num: int = 1, **more: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(HERE / "mesh_worker.py"), what, str(folder)]
    if num > 1:
        command = [sys.executable, "-m", "bayeslearn.distributed", "-n", str(num), "--", *command]
    return subprocess.run(
        command, env=environment(**more), capture_output=True, text=True, timeout=600
    )


@pytest.fixture(scope="module")
def alone() -> bl.Posterior:
    return worker.fitted()


def test_results_do_not_depend_on_the_number_of_devices(tmp_path):
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    ended = run("virtual_devices", tmp_path, XLA_FLAGS=flags)
    assert ended.returncode == 0, ended.stderr
    told = json.loads((tmp_path / "told.json").read_text())
    assert told.pop("is whole") == 1.0
    assert len(told) == 10
    for what, furthest in told.items():
        assert furthest <= worker.BOUND[what.split()[0]], told


def test_a_killed_process_is_named_and_the_run_goes_on_without_it(tmp_path, alone):
    began = time.monotonic()
    ended = run("killed", tmp_path, 2)
    assert ended.returncode == 128 + 9, ended.stderr
    assert "Process 1 of 2 was lost: signal SIGKILL." in ended.stderr
    assert "another process of the run was lost" in ended.stderr
    assert time.monotonic() - began < 300
    again = bl.resume(tmp_path / "run", worker.rows(), callback=False)
    furthest = worker.furthest(worker.numbers(again), worker.numbers(alone))
    assert furthest <= worker.BOUND["float64"]
