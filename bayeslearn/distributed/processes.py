"""Processes of one run: joining, gathering, losing one."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import sys
from collections.abc import Iterator

import jax
import numpy as np

from bayeslearn.errors import DistributedError, check_whole, refuse
from bayeslearn.tree import PyTree

START_SECONDS, HEARTBEAT_SECONDS = 120, 20
LEAVE_SECONDS = 600  # for which the others wait at the end, while the first writes
ADDRESS, PROCESSES, PROCESS = (
    "JAX_COORDINATOR_ADDRESS",
    "BAYESLEARN_PROCESSES",
    "BAYESLEARN_PROCESS_ID",
)
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
# What XLA's collectives and JAX's coordination say when a process has gone.
LOST = re.compile(
    r"gloo|nccl|connection (closed|reset|refused)|socket closed|heartbeat|coordination|unavailable"
    r"|deadline.exceeded|collective|peer",
    re.IGNORECASE,
)


def initialize(
    address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    bind: str | None = None,
    timeout: int = START_SECONDS,
    heartbeat: int = HEARTBEAT_SECONDS,
) -> None:
    """Join this process to the others of its run; call it before anything else of JAX.

    Args:
        address: host:port of the first process. Left out, with the two below, it is what JAX finds
            out by itself (Slurm, Kubernetes, Open MPI, TPU pods), or what the launcher of this
            module has set.
        num_processes, process_id: how many there are, and which of them this is, from 0.
        bind: host:port on which the first process listens. Default: `address`, where that is this
            machine's own (127.0.0.1, localhost, ::1); else the environment's
            JAX_COORDINATOR_BIND_ADDRESS, or all interfaces. Whoever reaches it can join the run.
        timeout: seconds to wait for the others.
        heartbeat: seconds of silence after which a process counts as lost.
    """
    check_whole("timeout", timeout, least=1)
    check_whole("heartbeat", heartbeat, least=1)
    if num_processes is None and PROCESSES in os.environ:
        num_processes, process_id = int(os.environ[PROCESSES]), int(os.environ[PROCESS])
        address = address or os.environ[ADDRESS]
    if num_processes is not None:
        check_whole("num_processes", num_processes, least=1)
        check_whole("process_id", process_id, least=0)
        if process_id >= num_processes:  # type: ignore[operator]
            refuse("process_id", process_id, f"be below num_processes ({num_processes})")
        if address is None or not re.fullmatch(r"\S+:\d+", address):
            refuse("address", address, "be host:port of the first process")
    if bind is not None and not re.fullmatch(r"\S+:\d+", bind):
        refuse("bind", bind, "be host:port of this machine")
    if bind is None and address is not None and address.rsplit(":", 1)[0] in LOOPBACK:
        bind = address
    if jax.distributed.is_initialized():
        raise DistributedError("This process has joined a run already: call `initialize` once.")
    # Without it several processes on CPUs cannot speak to each other at all.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    explicit = {"cluster_detection_method": "deactivate"} if num_processes is not None else {}
    try:
        jax.distributed.initialize(
            address,
            num_processes,
            process_id,
            coordinator_bind_address=bind,
            initialization_timeout=int(timeout),
            heartbeat_timeout_seconds=int(heartbeat),
            shutdown_timeout_seconds=LEAVE_SECONDS,
            **explicit,  # type: ignore[arg-type]
        )
    except Exception as error:
        raise DistributedError(_why_not_joined(error, address, timeout)) from error


def _why_not_joined(error: Exception, address: str | None, timeout: int) -> str:
    message = str(error)
    if "before any JAX" in message:
        return "`initialize` must be called before anything else of JAX is used."
    if "should be defined" in message or "must be defined" in message or address is None:
        return (
            "JAX found no cluster around this process (Slurm, Kubernetes, Open MPI): give `address`"
            f", `num_processes` and `process_id`. ({_first_line(error)})"
        )
    return (
        f"This process could not join the others at {address} within {timeout} s: are all of them"
        f" started, and is the port open and free? ({_first_line(error)})"
    )


def is_first() -> bool:
    """Whether this process writes what is written once."""
    return jax.process_index() == 0


def any_process(*flags: bool) -> tuple[bool, ...]:
    """Of each flag, whether it is set on any process; all must ask."""
    from jax.experimental.multihost_utils import process_allgather

    gathered = process_allgather(np.asarray(flags, np.int32))
    return tuple(bool(flag) for flag in np.max(gathered, axis=0))


def gather(values: PyTree) -> PyTree:
    """Arrays of every process, stacked along a leading axis on each of them."""
    from jax.experimental.multihost_utils import process_allgather

    return jax.tree.map(lambda v: np.asarray(process_allgather(np.asarray(v))), values)


@contextlib.contextmanager
def map_collective_errors(is_shared: bool) -> Iterator[None]:
    """A collective that failed because a process has gone is a `DistributedError`."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        is_runtime = type(error) is ValueError or isinstance(error, jax.errors.JaxRuntimeError)
        if not (is_shared and is_runtime and LOST.search(str(error))):
            raise
        # The others cannot be met at the end any more, where JAX would wait for them.
        atexit.register(_leave)
        raise DistributedError(
            f"Process {jax.process_index()} of {jax.process_count()} stops: another process of the"
            " run was lost. Go on from the last checkpoint, on any number of processes."
            f" ({_first_line(error)})"
        ) from error


def _leave() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
