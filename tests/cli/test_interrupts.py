"""Ctrl-C: the program ends at once, with exit code 130, also while JAX compiles."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest
from command_line import homes

# The program with a line of progress every tenth of a second. Ctrl-C reaches it also where the
# tests run in the background of a shell, which ignores SIGINT there.
PROGRAM = """
import signal
from bayeslearn import __main__, progress
signal.signal(signal.SIGINT, signal.default_int_handler)
progress.HEARTBEAT = 0.1
"""
# Ctrl-C a moment after XLA has begun to compile the steps of the second method.
WHILE_COMPILING = """
import os, threading
import jax
seen = []

def listen(event, duration, **details):
    if event.endswith("jaxpr_to_mlir_module_duration") and "_steps" in details["fun_name"]:
        seen.append(event)
        if len(seen) == 2:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

jax.monitoring.register_event_duration_secs_listener(listen)
"""
RUN = "__main__.main()"


@pytest.fixture
def start(tmp_path):
    """Starts `bayeslearn` with some arguments on a small table."""
    homes().to_csv(tmp_path / "homes.csv", index=False)
    processes = []

    def start(*args, preparation=""):
        command = [sys.executable, "-c", PROGRAM + preparation + RUN, *args, "--no-cache"]
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def interrupt_at(process, text):
    """Send SIGINT when a line of progress contains the text; the rest of standard error."""
    timer = threading.Timer(120, process.kill)
    timer.start()
    for line in process.stderr:
        if text in line:
            process.send_signal(signal.SIGINT)
            break
    rest = process.stderr.read()
    timer.cancel()
    process.wait(timeout=30)
    return rest


def test_an_interrupt_while_a_variational_method_is_compiled(start, tmp_path):
    """JAX's compiler still runs then, and would crash if the interpreter cleaned up under it."""
    process = start(
        *("compare", "homes.csv", "--target", "price", "--out", "out", "--splits", "1"),
        *("--methods", "bayes-by-backprop", "--hidden", "8", "--num-steps", "300"),
        preparation=WHILE_COMPILING,
    )
    _, errors = process.communicate(timeout=180)
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == "Error: Interrupted; nothing was written."
    assert [path.name for path in tmp_path.iterdir()] == ["homes.csv"]


def test_an_interrupted_fit_with_checkpoints_can_be_resumed(start, tmp_path):
    args = (
        *("fit", "homes.csv", "--target", "price", "--out", "run", "--method", "map"),
        *("--hidden", "8", "--num-steps", "3000000", "--checkpoint"),
    )
    process = start(*args)
    rest = interrupt_at(process, "map: step")
    assert process.returncode == 130, rest
    assert "with --resume to continue from the last checkpoint" in rest
    assert (tmp_path / "run.checkpoint").is_dir()
    assert not (tmp_path / "run").exists()
