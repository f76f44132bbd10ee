"""The folder of a run: numbered checkpoints, the parts they refer to, and a lock.

This module knows files only: which are there, which belong together, which can go. What a
checkpoint means, and when one is written, is in `checkpoints`.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax

from bayeslearn.data.streams import Position
from bayeslearn.errors import StorageError
from bayeslearn.storage import codec, folders
from bayeslearn.storage.legacy import upgrade_phase

FIT, PART, CHECKPOINT, LOCK = "fit", "part", "checkpoint", "lock"
NAME = re.compile(rf"({PART}|{CHECKPOINT})-(\d{{6,}})")
LEFT_OVER = re.compile(rf"\.({FIT}|({PART}|{CHECKPOINT})-\d{{6,}})\.(gone|[0-9a-f]{{16}})")


class Ref(NamedTuple):
    """A part by its name and the mark inside it, which no other part has."""

    name: str
    mark: str


class SavedCheckpoint(NamedTuple):
    """A sound checkpoint."""

    number: int
    phase: str
    finished: dict[str, Ref]
    parts: list[Ref]
    record: Any
    position: Position | None
    elapsed: float

    @property
    def refs(self) -> set[str]:
        """Names of the parts that belong to it."""
        return {ref.name for ref in (*self.finished.values(), *self.parts)}


class RunFolder:
    """Reads, writes and removes the checkpoints and parts of one run."""

    def __init__(self, path: Path, run: str, *, writes: bool = True):
        self.path, self.run, self.writes = path, run, writes
        self._count = 0
        self._lock: Any = None

    def has_run(self) -> bool:
        """Whether a run has begun here."""
        is_folder = self.path.is_dir()
        return is_folder and (os.path.lexists(self.path / FIT) or bool(self.numbers(CHECKPOINT)))

    def numbers(self, kind: str) -> list[int]:
        """Numbers of the checkpoints, or parts, that are there."""
        matches = (NAME.fullmatch(name) for name in os.listdir(self.path))
        found = [int(match[2]) for match in matches if match and match[1] == kind]
        self._count = max([self._count, *found])
        return found

    # The lock

    def lock(self) -> None:
        """Hold the folder until `unlock`, or until this process ends; the kernel frees it then."""
        if not self.writes or self._lock is not None:
            return
        try:
            import fcntl
        except ImportError:  # not on this system
            return
        handle = open(self.path / LOCK, "a+", encoding="utf-8")  # noqa: SIM115
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            handle.seek(0)
            owner = _owner(handle.read())
            handle.close()
            raise StorageError(
                f"{self.path} is in use by {owner}: wait for it, or choose another folder."
            ) from error
        except OSError:  # a file system without locks
            handle.close()
            return
        handle.truncate(0)
        handle.write(json.dumps({"host": platform.node(), "pid": os.getpid()}))
        handle.flush()
        self._lock = handle

    def unlock(self) -> None:
        """Let others use the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # Reading

    def read(self, number: int) -> SavedCheckpoint:
        """A checkpoint and, to see whether they are sound, its parts."""
        path = self.path / _name(CHECKPOINT, number)
        arrays, stored = folders.read_folder(path)
        try:
            if stored.get("kind") != CHECKPOINT or stored.get("run") != self.run:
                raise StorageError("it is not of this run")
            with jax.enable_x64(True):
                record = codec.unpack(arrays, stored["place"])
            position = stored["position"]
            found = SavedCheckpoint(
                number,
                upgrade_phase(str(stored["phase"])),
                {
                    upgrade_phase(str(phase)): Ref(*map(str, ref))
                    for phase, ref in stored["finished"].items()
                },
                [Ref(*map(str, ref)) for ref in stored["parts"]],
                record,
                None if position is None else _position(*position),
                float(stored["elapsed"]),
            )
        except Exception as error:
            refuse_folder(path, str(error))
        for ref in (*found.finished.values(), *found.parts):
            self.read_part(ref)
        return found

    def read_part(self, ref: Ref) -> Any:
        """What a part holds."""
        if not NAME.fullmatch(ref.name):
            refuse_folder(self.path, f"{ref.name!r} is not the name of a part")
        path = self.path / ref.name
        arrays, stored = folders.read_folder(path)
        found = (stored.get("kind"), stored.get("run"), stored.get("mark"))
        if found != (PART, self.run, ref.mark):
            refuse_folder(path, "it is not the part that its checkpoint refers to")
        try:
            with jax.enable_x64(True):
                return codec.unpack(arrays, stored.get("value"))
        except StorageError as error:
            refuse_folder(path, str(error))

    # Writing

    def write_part(self, value: Any, written: list[str]) -> Ref:
        """A new part; its name is added to `written` before anything is on disk."""
        arrays, node = codec.pack(value)
        ref = Ref(self._next(PART), secrets.token_hex(8))
        description = {"kind": PART, "run": self.run, "mark": ref.mark, "value": node}
        written.append(ref.name)
        folders.write_folder(self.path / ref.name, arrays, description)
        return ref

    def write(self, checkpoint: SavedCheckpoint, written: list[str]) -> SavedCheckpoint:
        """A new checkpoint, numbered; its name is added to `written` first."""
        arrays, node = codec.pack(checkpoint.record)
        position = checkpoint.position
        description = {
            "kind": CHECKPOINT,
            "run": self.run,
            "phase": checkpoint.phase,
            "finished": {name: list(ref) for name, ref in checkpoint.finished.items()},
            "parts": [list(ref) for ref in checkpoint.parts],
            "place": node,
            "position": None if position is None else list(position),
            "elapsed": checkpoint.elapsed,
        }
        written.append(self._next(CHECKPOINT))
        folders.write_folder(self.path / written[-1], arrays, description)
        return checkpoint._replace(number=self._count, record=None)

    def _next(self, kind: str) -> str:
        self._count += 1
        return _name(kind, self._count)

    # Removing

    def remove_checkpoint(self, number: int) -> None:
        """Remove one that is no longer among the last."""
        self.remove(_name(CHECKPOINT, number))

    def remove(self, name: str) -> None:
        """First out of the way and then away, so that nothing half removed has its name."""
        if not self.writes:
            return
        gone = self.path / f".{name}.gone"
        with contextlib.suppress(OSError):
            os.rename(self.path / name, gone)
        shutil.rmtree(gone, ignore_errors=True)

    def sweep(self, used: Iterable[str]) -> None:
        """Remove parts that no checkpoint refers to, and what a crash left half written."""
        if not self.writes:
            return
        used = set(used)
        for name in os.listdir(self.path):
            match = NAME.fullmatch(name)
            if match and match[1] == PART and name not in used:
                self.remove(name)
            elif LEFT_OVER.fullmatch(name):
                shutil.rmtree(self.path / name, ignore_errors=True)


def _owner(text: str) -> str:
    """Who holds a lock, from what they wrote into it."""
    try:
        owner = json.loads(text)
        return f"process {int(owner['pid'])} on {owner['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"


def _position(served: Any, checksum: Any, skipped: Any = 0) -> Position:
    """The first checkpoints did not say how many batches were skipped."""
    return Position(int(served), str(checksum), int(skipped))


def _name(kind: str, number: int) -> str:
    return f"{kind}-{number:06d}"


def refuse_folder(path: Path, why: str) -> NoReturn:
    """The error of a folder that cannot be loaded."""
    raise StorageError(f"{path} cannot be loaded: {why.removesuffix('.')}.")
