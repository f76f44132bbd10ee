"""Machines that fail: memory that ends in any phase, and runs that go on elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import problems
import pytest
from mutations import seal

import bayeslearn as bl
from bayeslearn.inference.run import _named_memory_errors
from bayeslearn.storage import folders

WORKER = Path(__file__).with_name("memory_worker.py")
SLOW = pytest.mark.slow(reason="processes of their own that fit 100,000 rows")


@pytest.mark.parametrize(
    "phases",
    [["optimisation"], pytest.param(["warm start", "sampling", "ensemble"], marks=SLOW)],
    ids=["optimisation", "other phases"],
)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the address space there")
def test_memory_that_ends_in_a_phase_is_named_and_the_run_resumes(tmp_path, phases):
    """To the bits of a run that had enough."""
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    for phase in phases:
        done = subprocess.run(
            [sys.executable, WORKER, phase, tmp_path / phase],
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert done.stdout.split() == ["named", "same"]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 100 bytes."),
        RuntimeError("can't start new thread"),
        SystemError("error return without exception set"),
    ],
    ids=str,
)
def test_every_way_in_which_memory_ends_has_one_name(error):
    must = pytest.raises(bl.OutOfMemoryError, match="needs more memory than there is")
    with must, _named_memory_errors(None):
        raise error


def test_other_errors_keep_theirs():
    with pytest.raises(RuntimeError, match="shapes differ") as caught, _named_memory_errors(None):
        raise RuntimeError("shapes differ")
    assert not isinstance(caught.value, MemoryError)


def test_a_run_resumed_on_another_number_of_processes_says_so(tmp_path):
    """Its sums over rows were made in other parts."""
    x, y = problems.wiggle(20)
    options = {"num_steps": 4, "seed": 0}
    place = tmp_path / "run"
    bl.fit(problems.small_model(), bl.MAP(), (x, y), checkpoint=place, **options)
    path = place / "fit" / folders.MANIFEST
    manifest = json.loads(path.read_text())
    assert manifest["description"]["processes"] == 1
    manifest["description"]["processes"] = 4
    path.write_bytes(seal(manifest))
    resumed = bl.resume(place, (x, y))
    notes = [note for note in resumed.notes if note.startswith("Resumed on 1 process(es) after 4")]
    assert len(notes) == 1
    assert "differ by rounding" in notes[0]
    whole = bl.fit(problems.small_model(), bl.MAP(), (x, y), **options)
    assert not [note for note in whole.notes if "process(es)" in note]
    np.testing.assert_array_equal(resumed.predict(x).mean, whole.predict(x).mean)


def test_padded_rows_of_many_counts_share_programs(compiles):
    """What is compiled stays in memory: 42 MB for each new shape of a small VOGN fit."""

    def fit(rows):
        x, y = problems.wiggle(rows)
        options = bl.FitOptions(merge_rows=True)
        bl.fit(problems.small_model(), "map", (x, y), seed=0, num_steps=4, options=options)

    fit(48)
    with compiles() as seen:
        for rows in (33, 41, 47):
            fit(rows)
    assert not [name for name in seen if "steps" in name or "evaluate" in name], seen
