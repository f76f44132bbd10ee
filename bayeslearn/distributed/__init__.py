"""Many devices, many processes: where arrays lie, and how processes meet.

All of it is JAX's own: a run is one program over a `jax.sharding.Mesh`, compiled by `jax.jit` for
all its devices, with XLA's collectives in it. Rows lie along the mesh's first axis, the posterior's
state on every device or (`shard="weights"`) leaf by leaf along its last. Batches and noise are
numbered globally, so that a result does not depend on the number of devices but for rounding.

`initialize` joins this process to the others. With several, each runs the same script; the first
(number 0) alone writes files. `python -m bayeslearn.distributed -n 4 -- COMMAND ...` starts some on
this machine, with addresses in their environment; if one is lost it says which, and ends the rest.
"""

from bayeslearn.distributed.processes import initialize, is_first

__all__ = ["initialize", "is_first"]
