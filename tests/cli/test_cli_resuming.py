"""Commands that are killed or interrupted, and resumed to the same predictions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from command_line import fit_command, run
from interruption import Killed

from bayeslearn.cli import runs
from bayeslearn.storage.checkpoints import Checkpointer


def kill_after(occasions, patch, happens=None):
    """At the `occasions`-th occasion for a checkpoint the process dies, or something happens."""
    original, count = Checkpointer.maybe_save, [0]

    def maybe_save(self, *args):
        count[0] += 1
        if count[0] == occasions and happens is not None:
            happens()
        original(self, *args)
        if count[0] == occasions and happens is None:
            raise Killed

    patch.setattr(Checkpointer, "maybe_save", maybe_save)


def test_a_run_that_was_killed_is_resumed_to_the_same_predictions(fitted, folder, tmp_path):
    expected = (fitted[0] / runs.PREDICTIONS).read_bytes()
    out, kept = tmp_path / "run", tmp_path / "run.checkpoint"
    with pytest.MonkeyPatch.context() as patch:
        kill_after(3, patch)
        with pytest.raises(Killed):
            run(*fit_command(folder, out, "--checkpoint", "--every=5"))
    assert kept.is_dir()
    assert not out.exists()
    result = run(*fit_command(folder, out, "--checkpoint"), code=2).stderr
    assert "it holds a run. Continue it with --resume" in result
    result = run(*fit_command(folder, out, "--resume", "--seed=1"), code=2).stderr
    assert "must be that of the first run" in result or "must be as in the first run" in result
    result = run(*fit_command(folder, out, "--resume", "--num-steps=30"), code=2).stderr
    assert "`options` must be as in the first run" in result
    run(*fit_command(folder, out, "--resume"))
    assert (out / runs.PREDICTIONS).read_bytes() == expected
    assert not kept.exists()


def test_resuming_needs_a_run_or_permission_to_start_one(fitted, folder, tmp_path):
    out = tmp_path / "run"
    result = run(*fit_command(folder, out, "--resume"), code=2).stderr
    assert "Start one with --checkpoint" in result
    result = run(*fit_command(folder, out, "--checkpoint", "--every=soon"), code=2).stderr
    assert "`--every` must be a number of steps, or a time" in result
    run(*fit_command(folder, out, "--resume", "--checkpoint"))
    expected = (fitted[0] / runs.PREDICTIONS).read_bytes()
    assert (out / runs.PREDICTIONS).read_bytes() == expected
    assert os.listdir(tmp_path) == ["run"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_says_how_to_continue(folder, tmp_path, number, code):
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        kill_after(2, patch, lambda: os.kill(os.getpid(), number))
        result = run(*fit_command(folder, out, "--checkpoint"), code=code)
    assert "with --resume to continue from the last checkpoint" in result.stderr
    assert not out.exists()
    run(*fit_command(folder, out, "--resume"))


@pytest.mark.slow(reason="several processes of the command line")
def test_a_process_killed_with_9_is_resumed_to_the_same_predictions(folder, tmp_path):
    def start(out, *options):
        words = fit_command(folder, tmp_path / out, "--num-steps=4000", "--quiet", *options)
        return subprocess.Popen([sys.executable, "-m", "bayeslearn", *map(str, words)])

    assert start("whole").wait() == 0
    process, kept = start("cut", "--checkpoint", "--every=50"), tmp_path / "cut.checkpoint"
    while process.poll() is None and not list(kept.glob("checkpoint-*")):
        time.sleep(0.001)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "cut").exists()
    assert start("cut", "--resume").wait() == 0
    whole, cut = (tmp_path / name / runs.PREDICTIONS for name in ("whole", "cut"))
    assert whole.read_bytes() == cut.read_bytes()
    assert not kept.exists()
