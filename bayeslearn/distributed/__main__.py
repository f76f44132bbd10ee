"""Start several processes of a run on this machine.

python -m bayeslearn.distributed -n 4 -- COMMAND ...
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from bayeslearn.distributed.processes import ADDRESS, PROCESS, PROCESSES

GRACE_SECONDS = 5.0  # in which the launcher lets survivors say what they have to say


def launch(command: list[str], num_processes: int, grace: float = GRACE_SECONDS) -> int:
    """Run a command as several processes on this machine; 0, or the code of the one that failed.

    Signals are passed on. Each process sees the devices of its own number where there are
    GPUs, and where to meet the others: the command calls `initialize()`.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    addresses = {ADDRESS: f"127.0.0.1:{port}", PROCESSES: str(num_processes)}
    children: list[subprocess.Popen] = []

    def pass_on(number: int, frame: Any) -> None:
        for child in children:
            if child.poll() is None:
                child.send_signal(number)

    before = {s: signal.signal(s, pass_on) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        for process in range(num_processes):
            own = {PROCESS: str(process), "JAX_LOCAL_DEVICE_IDS": str(process)}
            children.append(subprocess.Popen(command, env={**os.environ, **addresses, **own}))
        while not (failed := _failed(children)):
            if all(child.returncode == 0 for child in children):
                return 0
            time.sleep(0.02)
        process, code = failed
        print(f"Process {process} of {num_processes} {_how(code)}.", file=sys.stderr, flush=True)
        until = time.monotonic() + grace
        while time.monotonic() < until and any(child.poll() is None for child in children):
            time.sleep(0.02)
        rest = [i for i, child in enumerate(children) if child.poll() is None]
        if rest:
            print(f"Ended: {', '.join(map(str, rest))}.", file=sys.stderr, flush=True)
        return code if code > 0 else 128 - code
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
            child.wait()
        for number, handler in before.items():
            signal.signal(number, handler)


def _failed(children: list[subprocess.Popen]) -> tuple[int, int] | None:
    """Number and code of a process that has failed; one that was killed before one that found out.

    JAX ends survivors by SIGABRT, and this library with 1.
    """
    codes = [(i, child.poll()) for i, child in enumerate(children)]
    failed = [(i, code) for i, code in codes if code]
    return min(failed, key=lambda f: f[1] in (1, -signal.SIGABRT), default=None)


def _how(code: int) -> str:
    return f"was lost: signal {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""

    import argparse

    parser = argparse.ArgumentParser(
        prog="python -m bayeslearn.distributed",
        description="Run a command as several processes on this machine.",
    )
    parser.add_argument("-n", type=int, required=True, help="how many processes")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="after --")
    given = parser.parse_args(arguments)
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if given.n < 1 or not command:
        parser.error("say -n NUMBER -- COMMAND ...")
    return launch(command, given.n)


if __name__ == "__main__":
    sys.exit(main())
