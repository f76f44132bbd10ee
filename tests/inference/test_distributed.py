"""Many devices and many processes: real ones, on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import mesh_worker as worker
import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn.algorithms.vogn import VOGNState
from bayeslearn.distributed.__main__ import launch

MANY = pytest.mark.slow(reason="fits on many layouts, or in several processes")
TESTS = Path(__file__).parents[1]


def environment(**more: str) -> dict[str, str]:
    paths = os.pathsep.join([str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": paths, "JAX_PLATFORMS": "cpu", **more}


def run(what: str, folder: Path, num: int = 1, **more: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(TESTS / "mesh_worker.py"), what, str(folder)]
    if num > 1:
        command = [sys.executable, "-m", "bayeslearn.distributed", "-n", str(num), "--", *command]
    return subprocess.run(
        command, env=environment(**more), capture_output=True, text=True, timeout=600
    )


@pytest.fixture(scope="module")
def alone() -> bl.Posterior:
    return worker.fitted()


@pytest.mark.parametrize(
    ("what", "number"),
    [("few_devices", 4), pytest.param("more_devices", 52, marks=MANY)],
)
def test_results_do_not_depend_on_the_number_of_devices(what, number, tmp_path):
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    ended = run(what, tmp_path, XLA_FLAGS=flags)
    assert ended.returncode == 0, ended.stderr
    differences = json.loads((tmp_path / "differences.json").read_text())
    assert len(differences) == number
    for name, furthest in differences.items():
        assert furthest <= worker.BOUND[name.split()[0]], differences


def test_a_killed_process_is_named_and_the_run_goes_on_without_it(tmp_path, alone):
    ended = run("killed", tmp_path, 2)
    noticed = time.time() - float((tmp_path / "died").read_text())
    assert ended.returncode == 128 + 9, ended.stderr
    assert noticed < 30  # by far most of which is slack for a loaded machine
    assert "Process 1 of 2 was lost: signal SIGKILL." in ended.stderr
    assert "another process of the run was lost" in ended.stderr
    again = worker.resumed(tmp_path / "run")
    furthest = worker.furthest(worker.numbers(again), worker.numbers(alone))
    assert furthest <= worker.BOUND["float64"]


def found(folder: Path, what: str, num: int) -> list[dict[str, np.ndarray]]:
    """What each process has found; all the same."""
    values = [dict(np.load(folder / f"{what}-{process}.npz")) for process in range(num)]
    for other in values[1:]:
        assert worker.furthest(values[0], other) == 0.0
    return values


@MANY
@pytest.mark.filterwarnings("ignore::bayeslearn.MixingWarning")  # chains of ten draws
@pytest.mark.parametrize("num", [2, 4])
def test_processes_give_what_one_gives(num, tmp_path, alone):
    with pytest.raises(ZeroDivisionError):
        worker.fitted(
            checkpoint=bl.Checkpoint(tmp_path / "begun", every=50), eval_every=10, callback=fail
        )
    ended = run("processes", tmp_path, num)
    assert ended.returncode == 0, ended.stderr
    expected = worker.numbers(alone)
    expected["mean"] = expected["local mean"] = alone.predict(worker.rows(21)[0]).mean
    (values, *_) = found(tmp_path, "float64", num)
    assert worker.furthest(values, expected) <= worker.BOUND["float64"]
    (values, *_) = found(tmp_path, "float32", num)
    assert (
        worker.furthest(values, worker.numbers(worker.fitted("float32"))) <= worker.BOUND["float32"]
    )
    (values, *_) = found(tmp_path, "stream", num)
    assert worker.furthest(values, worker.numbers(worker.streamed(0, 1))) <= worker.BOUND["float64"]
    (values, *_) = found(tmp_path, "resumed", num)
    assert worker.furthest(values, worker.numbers(alone)) <= worker.BOUND["float64"]
    (values, *_) = found(tmp_path, "compared", num)
    assert worker.furthest(values, worker.compared()) <= 1e-4  # scores of float32 predictions
    chains = worker.chains()
    (values, *_) = found(tmp_path, "chains", num)
    expected = worker.numbers(chains) | {"acceptance": chains.trace["acceptance"]}
    assert worker.furthest(values, expected) <= worker.BOUND["float64"]
    again = worker.resumed(tmp_path / "run-chains")  # had ended, on more processes
    assert (
        worker.furthest(worker.numbers(again) | {"acceptance": values["acceptance"]}, values) == 0.0
    )


def fail(event) -> None:
    if event.step >= worker.KILLED_AT:
        raise ZeroDivisionError


@MANY
def test_the_command_line_over_processes_writes_one_run(tmp_path):
    x, y = worker.rows()
    table = np.column_stack([x, y])
    header = "a,b,c,y"
    np.savetxt(tmp_path / "data.csv", table, delimiter=",", header=header, comments="")
    options = ["--method", "vogn", "--num-steps", "30", "--hidden", "4", "--json", "--no-cache"]
    results = []
    for name, start in {
        "one": [],
        "two": ["-m", "bayeslearn.distributed", "-n", "2", "--", sys.executable],
    }.items():
        command = [sys.executable, *start, "-m", "bayeslearn", "fit", str(tmp_path / "data.csv")]
        command += ["--target", "y", "--out", str(tmp_path / name), *options]
        command += ["--distributed"] if start else []
        ended = subprocess.run(
            command, env=environment(), capture_output=True, text=True, timeout=600
        )
        assert ended.returncode == 0, ended.stderr
        assert (tmp_path / name / "report.html").exists()
        results.append(json.loads(ended.stdout[ended.stdout.index("{") :]))
    assert results[0]["metrics"].keys() == results[1]["metrics"].keys()
    for name, value in results[0]["metrics"].items():
        assert results[1]["metrics"][name] == pytest.approx(value, abs=1e-4)  # float32


def test_the_launcher_passes_on_what_became_of_its_processes(capfd):
    script = "import os, sys, time; i = int(os.environ['BAYESLEARN_PROCESS_ID']);"
    assert launch([sys.executable, "-c", script + "assert i < 3"], 3) == 0
    began = time.monotonic()
    ends = "sys.exit(7) if i == 1 else time.sleep(60)"
    assert launch([sys.executable, "-c", script + ends], 3, grace=0.1) == 7
    assert "Process 1 of 3 ended with 7." in capfd.readouterr().err
    assert time.monotonic() - began < 50  # the others slept


LISTENING = """
import os, pathlib, bayeslearn as bl
bl.distributed.initialize()
sockets = set()
for file in os.listdir("/proc/self/fd"):
    try:
        sockets.add(os.readlink(f"/proc/self/fd/{file}"))
    except OSError:  # that of the listing
        pass
for kind in ("tcp", "tcp6"):
    for line in pathlib.Path(f"/proc/self/net/{kind}").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
            print("listens", words[1].split(":")[0], flush=True)
"""


@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="needs Linux")
def test_the_launcher_is_closed_to_the_network(capfd):
    """Before a computation, when Gloo opens sockets on the interface of the host's name."""
    assert launch([sys.executable, "-c", LISTENING], 2) == 0
    found = {line.split()[1] for line in capfd.readouterr().out.splitlines() if "listens" in line}
    loopback = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")
    assert found
    assert found <= set(loopback)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": "some"}, '`devices` must be "all"'),
        ({"devices": bl.Devices(4)}, "`mesh` must be a jax.sharding.Mesh"),
        ({"devices": bl.Devices(shard="rows")}, "`shard` must be one of"),
        ({"mesh": 4}, r"`mesh` .*devices=bl\.Devices\(mesh\)"),
        ({"shard": "weights"}, r"`shard` .*devices=bl\.Devices\(mesh, shard="),
        ({"microbatch": 7}, "`microbatch` must divide the rows of a batch"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(bl.ArgumentError, match=message):
        worker.fitted(**options)


def test_joining_is_refused_in_a_sentence():
    initialize = bl.distributed.initialize
    for given, message in (
        (("here", 2, 0), "`address` must be host:port"),
        (("here:1", 2, 2), "`process_id` must be below num_processes"),
        (("here:1", 2, None), "`process_id` must be a whole number"),
    ):
        with pytest.raises(bl.ArgumentError, match=message):
            initialize(*given)
    with pytest.raises(bl.ArgumentError, match="`bind` must be host:port"):
        initialize("here:1", 2, 0, bind="here")
    worker.first_q("float32")
    with pytest.raises(bl.DistributedError, match="before anything else of JAX"):
        initialize("127.0.0.1:1", 1, 0)


def test_draws_with_rows_of_their_own_average_to_the_batch():
    """Without noise in the weights it does not matter who sees which rows; padding is none."""
    target, start = worker.model("float64").bind(worker.rows(), jax.random.key(0))
    with jax.enable_x64(True):
        weight = np.ones(32)
        weight[[3, 24, 25, 26, 27, 28, 29, 30, 31]] = 0.0  # one part is all padding
        batch = target.batch(tuple(part[:32] for part in worker.rows()), weight)
        given = jax.tree.map(jnp.asarray, start)
        ones = jax.tree.map(jnp.ones_like, given)
        zeros = jax.tree.map(jnp.zeros_like, given)
        state = VOGNState(given, ones, zeros, jnp.zeros((), jnp.int32))
        found = []
        for draw_rows in ("all", "share"):
            # As if of so many data that q is a point.
            algorithm = bl.VOGN(num_draws=4, draw_rows=draw_rows, augmentation=1e24)
            new, info = jax.jit(algorithm.step)(jax.random.key(1), target, state, batch)
            found.append(jax.tree.leaves((new.m, new.s, info.nll)))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)
    five = bl.VOGN(num_draws=5, draw_rows="share")
    with (
        jax.enable_x64(True),
        pytest.raises(bl.ArgumentError, match="`num_draws` must divide the rows"),
    ):
        jax.eval_shape(five.step, jax.random.key(1), target, state, batch)
