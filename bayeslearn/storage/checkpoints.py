"""Checkpoints: a run that was killed resumes where it stood, to the same bits.

    run/fit/                 the request, and fingerprints of the data
    run/part-000004/         draws and trace since the last checkpoint, or the result of a phase
    run/checkpoint-000005/   the state of the loop, and which parts belong to it
    run/lock                 held by the process that runs it

Each folder is in the format of `folders`, written whole or not at all, and never changed. Draws and
trace are written once, so that a long run holds only the newest in memory. The last few checkpoints
are kept; one that is torn, or of another run, is skipped with a warning for the one before. A write
that fails (a full disk) is a warning too: the run goes on, keeps everything in memory and tries
again at the next occasion.

A run is a sequence of phases (training of frozen leaves, warm starts, the method itself). Finished
phases have left a part; the current one a record of its loop. The structure of states is never
stored: it is the one that the algorithm makes, and arrays must fit it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bayeslearn.data.streams import Position
from bayeslearn.distributed.processes import any_process, is_first
from bayeslearn.duration import parse_duration
from bayeslearn.errors import CheckpointWarning, StorageError, check_whole, refuse, warn
from bayeslearn.storage import codec, folders
from bayeslearn.storage.fingerprints import check_same, versions
from bayeslearn.storage.legacy import upgrade_request
from bayeslearn.storage.records import Record, RunState
from bayeslearn.storage.run_folder import CHECKPOINT as NUMBERED
from bayeslearn.storage.run_folder import FIT, Ref, RunFolder, SavedCheckpoint, refuse_folder
from bayeslearn.storage.signals import SignalListener

EVERY, KEEP = "1m", 2
REQUEST = {"model", "algorithm", "options", "init", "has_callback"}


class Checkpointer(SignalListener):
    """Writes one run's checkpoints, and returns what an earlier process saved."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        every: int | str = EVERY,
        keep: int = KEEP,
        is_shared: bool = False,
    ):
        # Of several processes the first writes; the others keep draws and trace in memory.
        self.is_shared, self.writes = is_shared, not is_shared or is_first()
        self.every = check_every(every)
        check_whole("keep", keep, least=1)
        self.keep = int(keep)
        try:
            self.folder = Path(os.path.abspath(os.fspath(folder)))
        except (TypeError, ValueError):
            refuse("checkpoint", folder, "be the name of a folder")
        self.files = RunFolder(self.folder, secrets.token_hex(8), writes=self.writes)
        self.request: dict[str, Any] | None = None  # of the first process
        self.position: Position | None = None  # of a stream of batches
        self._notes: list[str] = []
        self._first: dict[str, Any] | None = None  # the first process's description
        self._finished: dict[str, Ref] = {}
        self._unwritten: dict[str, Record] = {}  # results of phases that could not be written yet
        self._parts: list[Ref] = []
        self._parts_phase = ""  # whose trace the parts hold
        self._saved: tuple[str, Record] | None = None
        self._last: list[SavedCheckpoint] = []
        self._began = time.monotonic()
        self._elapsed = 0.0
        self._previous: tuple[str, float, float] = ("", 0.0, self._began)  # phase, step, time
        super().__init__()
        self._failures = 0

    # The beginning

    @classmethod
    def reopen(
        cls,
        folder: str | os.PathLike[str],
        every: int | str | None = None,
        keep: int | None = None,
        is_shared: bool = False,
    ) -> Checkpointer:
        """The run that an earlier process began, at its last sound checkpoint."""
        default = (EVERY if every is None else every, KEEP if keep is None else keep)
        self = cls(folder, *default, is_shared=is_shared)
        if not self.folder.is_dir() or not os.path.lexists(self.folder / FIT):
            raise StorageError(
                f"{self.folder} cannot be resumed: no run has begun there. Start one with"
                " bl.fit(..., checkpoint=...)."
            )
        self.files.lock()
        try:
            self._reopen(every, keep)
        except BaseException:
            self.files.unlock()
            raise
        return self

    def _reopen(self, every: int | str | None, keep: int | None) -> None:
        """Read what the first process has written."""
        arrays, first = folders.read_folder(self.folder / FIT)
        self._first = first
        try:
            if first.get("kind") != FIT:
                raise StorageError(f"it holds a {first.get('kind')!r}")
            self.files.run = str(first["run"])
            if every is None:
                self.every = check_every(first["every"])
            if keep is None:
                check_whole("keep", first["keep"], least=1)
                self.keep = first["keep"]
            with jax.enable_x64(True):
                self.request = upgrade_request(codec.unpack(arrays, first["asked"]))
            if self.request.keys() != REQUEST or not isinstance(self.request["options"], dict):
                raise StorageError("the run description is incomplete")
            dict(first["fingerprints"])
        except Exception as error:
            refuse_folder(self.folder / FIT, f"its description is invalid ({error})")
        self._note_versions(first.get("versions"), first.get("processes"))
        self._find()

    def _note_versions(self, stored: Any, processes: Any) -> None:
        now = jax.process_count() if self.is_shared else 1
        if processes not in (None, now):
            self._notes.append(
                f"Resumed on {now} process(es) after {processes}: sums over rows differ by rounding"
                " from those of a run that was never interrupted."
            )
        for name, version in versions().items():
            before = stored.get(name) if isinstance(stored, dict) else None
            if before != version:
                self._notes.append(
                    f"Resumed with {name} {version} after {before}: the last bits may differ from"
                    " those of a run that was never interrupted."
                )

    @property
    def num_weights(self) -> int | None:
        """Of the model of the first process."""
        return None if self._first is None else self._first["fingerprints"].get("num_weights")

    def _find(self) -> None:
        numbers = sorted(self.files.numbers(NUMBERED), reverse=True)
        self.files.numbers("part")
        reasons = []
        found = None
        for number in numbers:
            try:
                found = self.files.read(number)
                break
            except StorageError as error:
                reasons.append(str(error))
        if reasons:
            if found is None:
                raise StorageError(" ".join(["No checkpoint is sound.", *reasons]))
            instead = f"Checkpoint {found.number} in {self.folder} is used instead."
            warn(" ".join([*reasons, instead]), CheckpointWarning)
        if found is not None:
            self._finished, self._parts = found.finished, found.parts
            self._parts_phase = found.phase
            self._saved = (found.phase, found.record)
            self.position, self._elapsed = found.position, found.elapsed
            for number in reversed(numbers):
                if number < found.number:
                    with contextlib.suppress(StorageError):  # one that is torn is ignored
                        self._keep(self.files.read(number))
            self._keep(found)
        self._sweep()

    def _keep(self, found: SavedCheckpoint) -> None:
        """Count it among the last ones, of which there are at most `keep`."""
        self._last.append(found._replace(record=None))
        for old in self._last[: -self.keep]:
            self.files.remove_checkpoint(old.number)
        self._last = self._last[-self.keep :]

    def _sweep(self) -> None:
        self.files.sweep(name for saved in self._last for name in saved.refs)

    def enter(self, request: dict[str, Any], fingerprints: dict[str, Any]) -> None:
        """Write the request down; or, if that was done, refuse one that is not the same."""
        arrays, node = codec.pack(request, lenient=True)
        if self._first is not None:
            first_arrays, first_node = codec.pack(self.request, lenient=True)
            first = self._first | {"asked": first_node}
            check_same(first, first_arrays, node, arrays, fingerprints)
            return
        failed = None
        try:
            if self.writes:
                self._begin(arrays, node, fingerprints)
        except StorageError as error:
            failed = error
        if self._any(failed is not None)[0]:
            raise failed or StorageError(f"{self.folder} cannot be written by the first process.")

    def _any(self, *flags: bool) -> tuple[bool, ...]:
        """Of each flag, whether it is set on any process of the run."""
        return any_process(*flags) if self.is_shared else flags

    def _begin(
        self, arrays: dict[str, np.ndarray], node: Record, fingerprints: dict[str, Any]
    ) -> None:
        try:
            os.makedirs(self.folder, exist_ok=True)
            self.files.lock()
            has_run = self.files.has_run()
        except OSError as error:
            raise StorageError(
                f"{self.folder} cannot be written: {error.strerror or error}."
            ) from error
        if has_run:
            raise StorageError(
                f"{self.folder} cannot be written: it holds a run. Continue it with bl.resume, or"
                " choose another folder."
            )
        description = {
            "kind": FIT,
            "run": self.files.run,
            "asked": node,
            "fingerprints": fingerprints,
            "every": self.every[0],
            "keep": self.keep,
            "versions": versions(),
            "processes": jax.process_count() if self.is_shared else 1,
        }
        folders.write_folder(self.folder / FIT, arrays, description)

    # During the run

    @property
    def chunk_limit(self) -> int | None:
        """Steps after which a checkpoint is due, if it is due by steps."""
        return self.every[0] if isinstance(self.every[0], int) else None

    def completed_phase(self, phase: str) -> Record | None:
        """The result of a finished phase, or None."""
        ref = self._finished.get(phase)
        return None if ref is None else self.files.read_part(ref)

    def saved_state(self, phase: str) -> Record | None:
        """Where an earlier process's loop stood in this phase, or None; given once."""
        if self._saved is None or self._saved[0] != phase:
            return None
        record, self._saved = self._saved[1], None
        return record

    def maybe_save(self, phase: str, state: RunState, position: Position | None = None) -> None:
        """An occasion for a checkpoint: written if one is due, or if a signal has come."""
        self.position = position
        step = state.now
        if self._previous[0] != phase:
            self._previous = (phase, float(step), self._previous[2])
        steps, seconds = self.chunk_limit, self.every[1]
        is_due = steps is not None and step - self._previous[1] >= steps
        is_due |= seconds is not None and time.monotonic() - self._previous[2] >= seconds
        is_signalled, is_due = self._any(self.is_signalled, is_due)
        if is_signalled:
            self.leave(self.save(phase, state))
        if is_due:
            self.save(phase, state)

    def save(self, phase: str, state: RunState) -> bool:
        """A checkpoint now; whether it could be written."""
        record = state.record()  # which all processes of a run make together
        is_written = self._write(phase, record, state.segment()) if self.writes else False
        if is_written:
            state.mark_saved()
        is_written = self._any(is_written)[0]
        self._previous = (phase, float(state.now), time.monotonic())
        return is_written

    def finish_phase(self, phase: str, result: Record, position: Position | None = None) -> None:
        """A phase is over: save what the later ones need of it."""
        self._unwritten[phase] = result
        self.position, self._parts = position, []
        is_written = self._write("", None, None) if self.writes else False
        is_written, is_signalled = self._any(is_written, self.is_signalled)
        if is_signalled:
            self.leave(is_written)

    def segments(self, phase: str) -> Iterator[dict[str, np.ndarray]]:
        """What was written of a phase's trace, in order."""
        return map(self.files.read_part, self._parts_of(phase))

    def _parts_of(self, phase: str) -> list[Ref]:
        """Parts that hold the trace of this phase, and not of one before it that failed."""
        return self._parts if self._parts_phase == phase else []

    @contextlib.contextmanager
    def save_on_error(self, phase: str, state: RunState) -> Iterator[None]:
        """Around the user's code: what it throws leaves a checkpoint behind."""
        try:
            yield
        except BaseException:
            if not self.is_shared:  # the others are elsewhere, and cannot join in
                self.save(phase, state)
            raise

    def _write(
        self, phase: str, record: Record | None, segment: dict[str, np.ndarray] | None
    ) -> bool:
        from safetensors import SafetensorError

        written: list[str] = []  # to be taken back if not all of it can be
        try:
            finished = dict(self._finished)
            for name, result in self._unwritten.items():
                finished[name] = self.files.write_part(result, written)
            parts = [*self._parts_of(phase)]
            if segment:
                parts.append(self.files.write_part(segment, written))
            new = SavedCheckpoint(0, phase, finished, parts, record, self.position, self.elapsed())
            new = self.files.write(new, written)
        except (OSError, StorageError, SafetensorError) as error:
            for name in reversed(written):
                self.files.remove(name)
            self._failures += 1
            if self._failures == 1:
                warn(
                    f"No checkpoint could be written to {self.folder} ({error}). The run goes on"
                    " and tries again later; earlier checkpoints are kept.",
                    CheckpointWarning,
                )
            return False
        self._finished, self._parts, self._parts_phase = finished, parts, phase
        self._unwritten.clear()
        self._keep(new)
        self._sweep()
        return True

    def close(self) -> None:
        """Let others use the folder."""
        self.files.unlock()

    def resume_hint(self) -> str:
        """How to go on after an interruption."""
        return f"resume with bl.resume({str(self.folder)!r}, ...)"

    def elapsed(self) -> float:
        """Seconds of this process and of those before it, up to their last checkpoint."""
        return self._elapsed + time.monotonic() - self._began

    def notes(self) -> list[str]:
        """What the result should say of the checkpoints."""
        if not self._failures:
            return self._notes
        return [*self._notes, f"{self._failures} checkpoint(s) could not be written."]


def check_every(every: int | str) -> tuple[int | str, float | None]:
    """The value, and its seconds where it is a time."""
    if isinstance(every, str):
        seconds = parse_duration(every, needs_unit=True)
        if seconds is None:
            refuse("every", every, 'be a number of steps, or a time such as "30s", "5m" or "1h"')
        return every, seconds
    check_whole("every", every, least=1)
    return int(every), None
