"""Where arrays lie on the devices of a mesh."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bayeslearn.distributed.processes import gather
from bayeslearn.errors import Shown, refuse
from bayeslearn.tree import PyTree

DATA = "data"  # the axis of a mesh that is made here
SHARDS = ("replicate", "weights")


class Layout(NamedTuple):
    """How a run lies on a mesh; hashable, as a static argument of compiled functions must be."""

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
        """A state replicated, or divided by weights, as `shard` says."""
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
        """A state on the devices, replicated or divided by weights."""
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


def gather_to_host(values: PyTree) -> PyTree:
    """Whole arrays in the memory of this process's machine, as if there were no mesh."""
    with on_host():
        return jax.tree.map(_whole_on_host, values)


def on_host() -> Any:
    """New arrays lie in the machine's memory, and not on its first accelerator."""
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # JAX was configured for accelerators only
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


def _whole_on_host(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array) or len(leaf.sharding.device_set) == 1:
        return leaf
    if _is_key(leaf):
        kind = jax.random.key_impl(leaf)
        return jax.random.wrap_key_data(_whole_on_host(jax.random.key_data(leaf)), impl=kind)
    if not leaf.is_fully_replicated:
        mesh = leaf.sharding.mesh  # type: ignore[attr-defined]
        leaf = jax.device_put(leaf, NamedSharding(mesh, PartitionSpec()))
    return jnp.asarray(np.asarray(leaf))
