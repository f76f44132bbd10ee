"""Many devices, many processes: where arrays lie, and how processes meet.

All of it is JAX's own: a run is one program over a `jax.sharding.Mesh`, compiled by `jax.jit` for
all its devices, with XLA's collectives in it. Rows lie along the mesh's first axis, the posterior's
state on every device or (`shard="weights"`) leaf by leaf along its last. Batches and noise are
numbered globally, so that a result does not depend on the number of devices but for rounding.

`initialize` joins this process to the others. With several, each runs the same script; the first
(number 0) alone writes files. `python -m bayeslearn.distributed -n 4 -- COMMAND ...` starts some on
this machine, with addresses in their environment; if one is lost it says which, and ends the rest.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bayeslearn.errors import DistributedError, Shown, check_whole, refuse
from bayeslearn.tree import PyTree

DATA = "data"  # the axis of a mesh that is made here
SHARDS = ("replicate", "weights")
START_SECONDS, HEARTBEAT_SECONDS = 120, 20
LEAVE_SECONDS = 600  # for which the others wait at the end, while the first writes
GRACE_SECONDS = 5.0  # in which the launcher lets survivors say what they have to say
ADDRESS, PROCESSES, PROCESS = (
    "JAX_COORDINATOR_ADDRESS",
    "BAYESLEARN_PROCESSES",
    "BAYESLEARN_PROCESS_ID",
)
# What XLA's collectives and JAX's coordination say when a process has gone.
LOST = re.compile(
    r"gloo|nccl|connection (closed|reset|refused)|socket closed|heartbeat|coordination|unavailable"
    r"|deadline.exceeded|collective|peer",
    re.IGNORECASE,
)


# Processes


def initialize(
    address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    timeout: int = START_SECONDS,
    heartbeat: int = HEARTBEAT_SECONDS,
) -> None:
    """Join this process to the others of its run; call it before anything else of JAX.

    Args:
        address: host:port of the first process. Left out, with the two below, it is what JAX finds
            out by itself (Slurm, Kubernetes, Open MPI, TPU pods), or what the launcher of this
            module has set.
        num_processes, process_id: how many there are, and which of them this is, from 0.
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
            initialization_timeout=int(timeout),
            heartbeat_timeout_seconds=int(heartbeat),
            shutdown_timeout_seconds=LEAVE_SECONDS,
            **explicit,  # type: ignore[arg-type]
        )
    except Exception as error:
        raise DistributedError(_why_not_joined(error, address, timeout)) from error


def _why_not_joined(error: Exception, address: str | None, timeout: int) -> str:
    told = str(error)
    if "before any JAX" in told:
        return "`initialize` must be called before anything else of JAX is used."
    if "should be defined" in told or "must be defined" in told or address is None:
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

    told = process_allgather(np.asarray(flags, np.int32))
    return tuple(bool(flag) for flag in np.max(told, axis=0))


def gather(values: PyTree) -> PyTree:
    """Arrays of every process, stacked along a leading axis on each of them."""
    from jax.experimental.multihost_utils import process_allgather

    return jax.tree.map(lambda v: np.asarray(process_allgather(np.asarray(v))), values)


@contextlib.contextmanager
def translated(is_shared: bool) -> Iterator[None]:
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


# Devices


class Layout(NamedTuple):
    """How a run lies on a mesh. Hashable, so that compiled functions can be told."""

    mesh: Mesh
    shard: str

    @property
    def num_shards(self) -> int:
        """Devices among which rows are divided."""
        return self.mesh.shape[self.mesh.axis_names[0]]

    @property
    def is_shared(self) -> bool:
        """Whether several processes run it."""
        return len({device.process_index for device in self.mesh.devices.flat}) > 1

    # Inside compiled functions

    def on_rows(self, batch: PyTree) -> PyTree:
        """A batch divided among the devices; XLA pads what does not divide."""
        spec = NamedSharding(self.mesh, PartitionSpec(self.mesh.axis_names[0]))
        return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, spec), batch)

    def on_state(self, state: PyTree) -> PyTree:
        return jax.tree.map(
            lambda leaf: jax.lax.with_sharding_constraint(leaf, self._of_state(leaf)), state
        )

    def _of_state(self, leaf: Any) -> NamedSharding:
        """Whole everywhere, or along the largest axis that divides."""
        axis, shape = self.mesh.axis_names[-1], jnp.shape(leaf)
        over = self.mesh.shape[axis]
        fits = [i for i, n in enumerate(shape) if n >= over and n % over == 0]
        if self.shard == "replicate" or not fits:
            return NamedSharding(self.mesh, PartitionSpec())
        place = max(fits, key=lambda i: shape[i])
        return NamedSharding(self.mesh, PartitionSpec(*[None] * place, axis))

    # Outside

    def put(self, values: PyTree) -> PyTree:
        """The same on every device; every process must have the same values."""
        return jax.tree.map(lambda leaf: _put(leaf, self._spec()), values)

    def put_state(self, state: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: _put(leaf, self._of_state(leaf)), state)

    def put_rows(self, rows: PyTree) -> PyTree:
        """Rows that every process has whole, divided; whole everywhere if they do not divide."""

        def one(leaf: Any) -> Any:
            divides = len(leaf) % self.num_shards == 0
            return _put(leaf, self._spec(self.mesh.axis_names[0]) if divides else self._spec())

        return jax.tree.map(one, rows)

    def put_stream(self, batches: PyTree) -> PyTree:
        """Batches (number, rows, ...) of which each process has its own rows."""
        spec = self._spec(None, self.mesh.axis_names[0])
        parts = self.mesh.local_mesh.shape[self.mesh.axis_names[0]]

        def one(leaf: Any) -> Any:
            if leaf.shape[1] % parts == 0:
                return jax.make_array_from_process_local_data(spec, np.asarray(leaf))
            if self.is_shared:
                refuse(
                    "data",
                    Shown(f"batches of {leaf.shape[1]} rows"),
                    f"have rows that divide among this process's {parts} devices",
                )
            return _put(leaf, self._spec())

        return jax.tree.map(one, batches)

    def first_rows(self, rows: Any, batch_size: int | None = None) -> Any:
        """Of a stream: the first rows of all processes, by which the model is bound.

        In the order of the batches that they make together, where they are several.
        """
        if not self.is_shared:
            return rows

        def one(leaf: Any) -> np.ndarray:
            every = gather(leaf)  # (processes, batches * rows, ...)
            size = every.shape[1] if batch_size is None else batch_size
            split = every.reshape(len(every), -1, size, *every.shape[2:])
            return np.moveaxis(split, 0, 1).reshape(-1, *every.shape[2:])

        return jax.tree.map(one, tuple(rows))

    def _spec(self, *axes: str | None) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(*axes))


def layout(mesh: Mesh | None, devices: Any, shard: str = "replicate") -> Layout | None:
    """What `mesh`, `devices` and `shard` ask for; None: one device, as JAX chooses it."""
    if shard not in SHARDS:
        refuse("shard", shard, "be one of " + ", ".join(map(repr, SHARDS)))
    if mesh is not None and devices is not None:
        refuse("devices", devices, "be left out beside a mesh, which has its own")
    if mesh is None and devices is None:
        if shard != "replicate":
            refuse("shard", shard, 'be "replicate" without a mesh', 'Give mesh= or devices="all".')
        return None
    if mesh is None:
        if not (isinstance(devices, str) and devices == "all"):
            refuse("devices", devices, 'be "all"', "Give some of them as mesh=jax.sharding.Mesh.")
        mesh = Mesh(np.asarray(jax.devices()), (DATA,))
    if not isinstance(mesh, Mesh):
        refuse("mesh", mesh, 'be a jax.sharding.Mesh, or left out for devices="all"')
    inside = {device.process_index for device in mesh.devices.flat}
    if jax.process_index() not in inside or 1 < len(inside) < jax.process_count():
        refuse("mesh", mesh, "have devices of all processes, or of this one alone")
    # XLA's own propagation in all axes, whatever the mesh was made with.
    kinds = (AxisType.Auto,) * len(mesh.axis_names)
    return Layout(Mesh(mesh.devices, mesh.axis_names, axis_types=kinds), shard)


def home(values: PyTree) -> PyTree:
    """Whole arrays in the memory of this process's machine, as if there were no mesh."""
    with on_host():
        return jax.tree.map(_home, values)


def on_host() -> Any:
    """New arrays lie in the machine's memory, and not on its first accelerator."""
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # JAX was told to know of accelerators only
        return contextlib.nullcontext()


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _put(leaf: Any, sharding: NamedSharding) -> Any:
    if not _is_array(leaf):
        return leaf
    if _is_key(leaf):
        kind = jax.random.key_impl(leaf)
        return jax.random.wrap_key_data(_put(jax.random.key_data(leaf), sharding), impl=kind)
    if isinstance(leaf, jax.Array) and len(leaf.sharding.device_set) > 1:
        return jax.device_put(leaf, sharding)
    # By hand: `device_put` would compare all values between processes.
    whole = np.asarray(leaf)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


def _home(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array) or len(leaf.sharding.device_set) == 1:
        return leaf
    if _is_key(leaf):
        kind = jax.random.key_impl(leaf)
        return jax.random.wrap_key_data(_home(jax.random.key_data(leaf)), impl=kind)
    if not leaf.is_fully_replicated:
        mesh = leaf.sharding.mesh  # type: ignore[attr-defined]
        leaf = jax.device_put(leaf, NamedSharding(mesh, PartitionSpec()))
    return jnp.asarray(np.asarray(leaf))


# The launcher


def launch(command: list[str], num_processes: int, grace: float = GRACE_SECONDS) -> int:
    """Run a command as several processes on this machine; 0, or the code of the one that failed.

    Signals are passed on. Each process is told of the devices of its own number where there are
    GPUs, and where to meet the others: the command calls `initialize()`.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = {ADDRESS: f"127.0.0.1:{port}", PROCESSES: str(num_processes)}
    children: list[subprocess.Popen] = []

    def pass_on(number: int, frame: Any) -> None:
        for child in children:
            if child.poll() is None:
                child.send_signal(number)

    before = {s: signal.signal(s, pass_on) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        for process in range(num_processes):
            own = {PROCESS: str(process), "JAX_LOCAL_DEVICE_IDS": str(process)}
            children.append(subprocess.Popen(command, env={**os.environ, **told, **own}))
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
