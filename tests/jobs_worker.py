"""What worker processes run in tests: they import it by name."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def square(offset: int, number: int) -> tuple[int, int]:
    """A result, and who found it."""
    return offset + number**2, os.getpid()


def killed_once(folder: str, number: int) -> int:
    """The third task is killed when it runs for the first time; every start leaves a file."""
    path = Path(folder)
    starts = len(list(path.glob(f"{number}-*")))
    (path / f"{number}-{starts}").touch()
    time.sleep(0.2)
    if number == 2 and starts == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return 10 * number


def always_killed(number: int) -> None:
    """No attempt comes to an end."""
    os.kill(os.getpid(), signal.SIGKILL)


def threads_of_jax(number: int) -> tuple[str | None, int]:
    """The limit that XLA reads, and how many of its threads compute."""
    import jax.numpy as jnp

    jnp.ones((400, 400)) @ jnp.ones((400, 400))
    names = [task.joinpath("comm").read_text() for task in Path("/proc/self/task").iterdir()]
    return os.environ.get("NPROC"), sum("tf_XLAEigen" in name for name in names)


def waits_for_a_result(folder: str, number: int) -> bool:
    """The last task waits until the driver has seen a result: False if that takes too long."""
    deadline = time.monotonic() + 20.0
    while number == 3 and not Path(folder, "seen").exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def refused(number: int) -> int:
    """The third task is refused."""
    from bayeslearn.errors import refuse

    if number == 2:
        refuse("number", number, "be below 2")
    return number
