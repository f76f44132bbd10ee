"""One process at a time runs a folder; another one is refused by name and changes nothing."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import warnings

import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn.errors import ArgumentError, StorageError

DATA = np.linspace(-1.0, 1.0, 12)[:, None], np.linspace(-1.0, 1.0, 12)
# A run that says when it is under way, and then waits in its callback.
WAITING = """
import sys, time
import numpy as np
import bayeslearn as bl

def wait(event):
    print("under way", flush=True)
    time.sleep(600)

x = np.linspace(-1.0, 1.0, 12)
model = bl.Model(bl.networks.MLP([2]), bl.likelihoods.Gaussian())
checkpoint = bl.Checkpoint(sys.argv[1], every=1)
bl.fit(
    model, "map", (x[:, None], x), seed=0, num_steps=20, callback=wait, checkpoint=checkpoint
)
"""


def stop(event):
    raise RuntimeError("enough")


def begun(folder, callback=stop):
    """A run that its callback has ended by an error."""
    model = bl.Model(bl.networks.MLP([2]), bl.likelihoods.Gaussian())
    checkpoint = bl.Checkpoint(folder, every=1)
    with pytest.raises(RuntimeError, match="enough") as error:
        bl.fit(model, "map", DATA, seed=0, num_steps=20, callback=callback, checkpoint=checkpoint)
    return error


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def other(tmp_path):
    """Another process that runs the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "under way\n"
    yield process
    process.kill()
    process.communicate()


def test_a_folder_in_use_is_refused_until_its_process_dies(other, tmp_path):
    run = tmp_path / "run"
    before = files(run)
    in_use = f"is in use by process {other.pid} on {platform.node()}: wait for it"
    with pytest.raises(StorageError, match=in_use):
        bl.resume(run, DATA, callback=False)
    with pytest.raises(StorageError, match=in_use):
        bl.fit(
            bl.Model(bl.networks.MLP([2]), bl.likelihoods.Gaussian()),
            "map",
            DATA,
            seed=0,
            num_steps=20,
            checkpoint=run,
        )
    assert files(run) == before
    other.kill()
    other.wait(timeout=30)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bl.resume(run, DATA, callback=False).stopped == "All 20 steps were done."


def test_a_refused_resume_leaves_the_folder_free(tmp_path):
    """Also while the error is alive, as it is in a notebook."""
    run, kept = tmp_path / "run", [begun(tmp_path / "run")]
    for wrong, options in (
        ("callback", {}),
        ("network", {"callback": False, "model": "nonsense", "network": "nonsense"}),
        ("data", {"callback": False, "data": (DATA[0], DATA[1] + 1.0)}),
    ):
        with pytest.raises(ArgumentError, match=f"`{wrong}` must") as error:
            bl.resume(run, **({"data": DATA} | options))
        kept.append(error)
    assert bl.resume(run, DATA, callback=False).stopped == "All 20 steps were done."


def test_the_lock_names_the_process_that_runs(tmp_path):
    seen = []

    def read(event):
        seen.append((tmp_path / "run" / "lock").read_text())
        raise RuntimeError("enough")

    begun(tmp_path / "run", read)
    (text,) = seen
    assert str(os.getpid()) in text
    assert platform.node() in text


def test_a_lock_that_nobody_holds_is_taken_over(tmp_path):
    begun(tmp_path / "run")
    (tmp_path / "run" / "lock").write_text('{"host": "elsewhere", "pid": 1}')
    assert bl.resume(tmp_path / "run", DATA, callback=False).stopped == "All 20 steps were done."
