"""What does not change during a run, and where a phase reports to."""

from __future__ import annotations

import contextlib
import dataclasses
import zlib
from collections.abc import Callable, Iterable, Iterator

import jax

from bayeslearn.data.rows import Batch
from bayeslearn.data.streams import Position, Stream
from bayeslearn.distributed.mesh import Layout, gather_to_host
from bayeslearn.distributed.processes import any_process
from bayeslearn.inference.options import FitEvent, Phase
from bayeslearn.models.target import Target
from bayeslearn.precision import user_precision
from bayeslearn.storage.checkpoints import Checkpointer
from bayeslearn.storage.records import RunState
from bayeslearn.tree import Array, PyTree

MAIN = "main"  # the phase of the method itself; those before it are "main/..."
Callback = Callable[[FitEvent], object]


def named_key(key: Array, name: str) -> Array:
    """A key of its own for each purpose."""
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


@dataclasses.dataclass(frozen=True)
class RunContext:
    """What does not change during a phase."""

    target: Target
    stream: Stream | None
    validation: Batch | None
    batch_size: int
    key: Array
    progress: bool | None
    callback: Callback | None
    chunk_size: int | None
    checkpointer: Checkpointer | None = None
    layout: Layout | None = None
    host_rows: Batch | None = None  # of the target, before they were divided among devices
    phase: str = MAIN
    phases: list[Phase] = dataclasses.field(default_factory=list)  # finished, of the whole run

    def subphase(self, name: str, *, key: Array | None = None) -> RunContext:
        """The context of a phase before this one, with randomness of its own."""
        key = named_key(self.key, name) if key is None else key
        return dataclasses.replace(self, key=key, phase=f"{self.phase}/{name}", validation=None)

    def chunk_limit(self, length: int) -> int:
        """Steps per compiled call, at most `length`."""
        limit = min(self.chunk_size or length, length)
        steps = None if self.checkpointer is None else self.checkpointer.chunk_limit
        return limit if steps is None else min(limit, steps)

    @property
    def is_shared(self) -> bool:
        """Whether several processes run it."""
        return self.layout is not None and self.layout.is_shared

    @property
    def position(self) -> Position | None:
        """How far the stream of batches was used."""
        return None if self.stream is None else self.stream.position

    def maybe_save(self, state: RunState) -> None:
        """An occasion for a checkpoint."""
        if self.checkpointer is not None:
            self.checkpointer.maybe_save(self.phase, state, self.position)

    def save_on_error(self, state: RunState) -> contextlib.AbstractContextManager[None]:
        """Around the user's own code, which may throw."""
        return contextlib.nullcontext() if self.checkpointer is None else self._saving(state)

    @contextlib.contextmanager
    def _saving(self, state: RunState) -> Iterator[None]:
        assert self.checkpointer is not None
        with self.checkpointer.save_on_error(self.phase, state):
            try:
                yield
            except BaseException:  # batches were used since the last occasion for a checkpoint
                self.checkpointer.position = self.position
                raise

    def gather_to_host(self, values: PyTree) -> PyTree:
        """Whole arrays, as if there were no mesh."""
        return values if self.layout is None else gather_to_host(values)

    def target_on_host(self, target: Target) -> Target:
        """The target with its rows as they were before they were divided."""
        if self.layout is None:
            return target
        return self.gather_to_host(target.with_data(None)).with_data(self.host_rows)

    def notify(
        self, state: RunState, algorithm: str, num_steps: int, metrics: dict[str, float]
    ) -> bool:
        """Call the callback; whether it, on any process, asks to stop."""
        if self.callback is None:
            return False
        event = FitEvent(algorithm, state.now, num_steps, metrics, self.phase)
        with self.save_on_error(state), user_precision():
            stops = bool(self.callback(event))
        return any_process(stops)[0] if self.is_shared else stops

    def keep_order(self, contexts: Iterable[RunContext]) -> None:
        """The phases of contexts that ran side by side, in the order of the contexts."""
        prefixes = [context.phase for context in contexts]

        def place(phase: Phase) -> int:
            own = [i for i, name in enumerate(prefixes) if _is_within(phase.name, name)]
            return own[0] + 1 if own else 0

        self.phases.sort(key=place)

    def set_bound(self, bound: float) -> None:
        """The lower bound that the phase which has just finished came to."""
        self.phases[-1] = self.phases[-1]._replace(elbo=bound)

    def choose(self, names: Iterable[str]) -> None:
        """Of the subphases of the same kinds as these, only these lead to the result."""
        chosen = {f"{self.phase}/{name}" for name in names}
        kinds = {name.rsplit(" ", 1)[0] + " " for name in chosen}
        for i, phase in enumerate(self.phases):
            own = phase.name.removeprefix(self.phase + "/").split("/")[0].split(".")[0]
            name = f"{self.phase}/{own}"
            if name.rsplit(" ", 1)[0] + " " in kinds:
                self.phases[i] = phase._replace(is_chosen=name in chosen)


def _is_within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith((prefix + "/", prefix + "."))
