"""Checkpoints: a run that was killed goes on from where it stood, to the same bits.

    run/fit/                 what was asked for, and fingerprints of the data
    run/part-000004/         draws and trace since the checkpoint before, or what a phase has left
    run/checkpoint-000005/   where the loop stood, and which parts belong to it

Each is a folder in the format of `storage`, written whole or not at all, and never changed. Draws
and trace are written once, so that a long run holds only the newest in memory. The last few
checkpoints are kept; one that is torn, or of another run, is passed over with a warning for the
one before. A write that fails (a full disk) is a warning too: the run goes on, keeps all in memory
and tries again at the next occasion.

A run is a row of phases (training of points, warm starts, the method itself). Those that are over
have left a part; the one under way has left a record of its loop. The structure of states is never
stored: it is that which the algorithm makes, and arrays must fit in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import secrets
import shutil
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np

from bayeslearn import distributed, storage, tree
from bayeslearn.batches import Position
from bayeslearn.errors import (
    CheckpointWarning,
    Interrupted,
    Shown,
    StorageError,
    check_whole,
    refuse,
)
from bayeslearn.tree import PyTree

FIT, PART, CHECKPOINT = "fit", "part", "checkpoint"
NAME = re.compile(rf"({PART}|{CHECKPOINT})-(\d{{6,}})")
LEFT_OVER = re.compile(rf"\.({FIT}|({PART}|{CHECKPOINT})-\d{{6,}})\.(gone|[0-9a-f]{{16}})")
EVERY, KEEP = "1m", 2
ASKED = {"model", "algorithm", "options", "params", "has_callback"}
OPTIONS = {
    *("seed", "num_steps", "batch_size", "num_chains", "num_data", "eval_every", "patience"),
    "starts",
}
NEWER = {"starts"}  # options that the first checkpoints lack
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Ref(NamedTuple):
    """A part by its name and the mark inside it, which no other part has."""

    name: str
    mark: str


class Found(NamedTuple):
    """A sound checkpoint."""

    number: int
    phase: str
    finished: dict[str, Ref]
    parts: list[Ref]
    place: Any
    position: Position | None
    elapsed: float


class Keeper:
    """Writes one run's checkpoints, and gives back what an earlier process left."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        every: Any = EVERY,
        keep: Any = KEEP,
        is_shared: bool = False,
    ):
        # Of several processes the first writes; the others keep draws and trace in memory.
        self.is_shared, self.writes = is_shared, not is_shared or distributed.is_first()
        self.every = check_every(every)
        check_whole("keep", keep, least=1)
        self.keep = int(keep)
        try:
            self.folder = Path(os.path.abspath(os.fspath(folder)))
        except (TypeError, ValueError):
            refuse("checkpoint", folder, "be the name of a folder")
        self.run = secrets.token_hex(8)
        self.asked: Any = None  # by the first process
        self.position: Position | None = None  # of a stream of batches
        self.notes: list[str] = []
        self._first: dict[str, Any] | None = None  # the first process's description
        self._finished: dict[str, Ref] = {}
        self._unwritten: dict[str, Any] = {}  # what finished phases left, while it could not be
        self._parts: list[Ref] = []
        self._left: tuple[str, Any] | None = None
        self._kept: list[tuple[str, set[str]]] = []
        self._count = 0
        self._began = time.monotonic()
        self._elapsed = 0.0
        self._last: tuple[str, float, float] = ("", 0.0, self._began)  # phase, step, time
        self._caught: int | None = None
        self._failures = 0

    # The beginning

    @classmethod
    def reopen(
        cls, folder: Any, every: Any = None, keep: Any = None, is_shared: bool = False
    ) -> Keeper:
        """The keeper of a run that an earlier process began, at its last sound checkpoint."""
        every_, keep_ = EVERY if every is None else every, KEEP if keep is None else keep
        self = cls(folder, every_, keep_, is_shared)
        if not self.folder.is_dir() or not os.path.lexists(self.folder / FIT):
            raise StorageError(
                f"{self.folder} cannot be resumed: no run has begun there. Start one with"
                " bl.fit(..., checkpoint=...)."
            )
        arrays, first = storage.read_folder(self.folder / FIT)
        self._first = first
        try:
            if first.get("kind") != FIT:
                raise StorageError(f"it holds a {first.get('kind')!r}")
            self.run = str(first["run"])
            if every is None:
                self.every = check_every(first["every"])
            if keep is None:
                check_whole("keep", first["keep"], least=1)
                self.keep = first["keep"]
            with jax.enable_x64(True):
                self.asked = storage.unpack(arrays, first["asked"])
            if self.asked.keys() != ASKED or not (
                OPTIONS - NEWER <= self.asked["options"].keys() <= OPTIONS
            ):
                raise StorageError("it does not say what was asked for")
            dict(first["fingerprints"])
            dict(first["asked"]["dict"])
        except Exception as error:
            _refuse(self.folder / FIT, f"its description makes no sense ({error})")
        before_it = first.get("versions")
        for name, now in versions().items():
            before = before_it.get(name) if isinstance(before_it, dict) else None
            if before != now:
                self.notes.append(
                    f"Resumed with {name} {now} after {before}: the last bits may differ from those"
                    " of a run that was never cut."
                )
        self._find()
        return self

    @property
    def num_weights(self) -> Any:
        """Of the model of the first process."""
        return None if self._first is None else self._first["fingerprints"].get("num_weights")

    def _find(self) -> None:
        names = sorted(self._numbers(CHECKPOINT), reverse=True)
        self._count = max([*names, *self._numbers(PART)], default=0)
        reasons = []
        found = None
        for number in names:
            try:
                found = self._read_checkpoint(number)
                break
            except StorageError as error:
                reasons.append(str(error))
        if reasons:
            if found is None:
                raise StorageError(" ".join(["No checkpoint is sound.", *reasons]))
            instead = f"{self.folder / _name(CHECKPOINT, found.number)} is used instead."
            warnings.warn(" ".join([*reasons, instead]), CheckpointWarning, stacklevel=5)
        if found is not None:
            self._finished, self._parts = found.finished, found.parts
            self._left = (found.phase, found.place)
            self.position, self._elapsed = found.position, found.elapsed
            for number in reversed(names):
                if number < found.number:
                    with contextlib.suppress(StorageError):  # one that is torn is left alone
                        self._keep(self._read_checkpoint(number))
            self._keep(found)
        self._sweep()

    def _keep(self, found: Found) -> None:
        """Count it among the last ones, of which there are at most `keep`."""
        refs = {ref.name for ref in (*found.finished.values(), *found.parts)}
        self._kept.append((_name(CHECKPOINT, found.number), refs))
        for old, _ in self._kept[: -self.keep]:
            self._remove(old)
        self._kept = self._kept[-self.keep :]

    def _numbers(self, kind: str) -> list[int]:
        matches = (NAME.fullmatch(name) for name in os.listdir(self.folder))
        return [int(match[2]) for match in matches if match and match[1] == kind]

    def _read_checkpoint(self, number: int) -> Found:
        path = self.folder / _name(CHECKPOINT, number)
        arrays, told = storage.read_folder(path)
        try:
            if told.get("kind") != CHECKPOINT or told.get("run") != self.run:
                raise StorageError("it is not of this run")
            with jax.enable_x64(True):
                place = storage.unpack(arrays, told["place"])
            position = told["position"]
            found = Found(
                number,
                str(told["phase"]),
                {str(phase): Ref(*map(str, ref)) for phase, ref in told["finished"].items()},
                [Ref(*map(str, ref)) for ref in told["parts"]],
                place,
                None if position is None else _position(*position),
                float(told["elapsed"]),
            )
        except Exception as error:
            _refuse(path, str(error))
        for ref in (*found.finished.values(), *found.parts):
            self._read_part(ref)
        return found

    def enter(self, asked: Any, fingerprints: dict[str, Any]) -> None:
        """Write down what was asked for; or, if that was done, refuse what is not the same."""
        arrays, node = storage.pack(asked, lenient=True)
        if self._first is not None:
            # As this version would have written it: options may have come since.
            first_arrays, first_node = storage.pack(self.asked, lenient=True)
            first = self._first | {"asked": first_node}
            _check_same(first, first_arrays, node, arrays, fingerprints)
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
        return distributed.any_process(*flags) if self.is_shared else flags

    def _begin(self, arrays: Any, node: Any, fingerprints: dict[str, Any]) -> None:
        if self.folder.is_dir() and (
            os.path.lexists(self.folder / FIT) or self._numbers(CHECKPOINT)
        ):
            raise StorageError(
                f"{self.folder} cannot be written: it holds a run. Go on with bl.resume, or choose"
                " another folder."
            )
        try:
            os.makedirs(self.folder, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"{self.folder} cannot be written: {error.strerror or error}."
            ) from error
        description = {
            "kind": FIT,
            "run": self.run,
            "asked": node,
            "fingerprints": fingerprints,
            "every": self.every[0],
            "keep": self.keep,
            "versions": versions(),
        }
        storage.write_folder(self.folder / FIT, arrays, description)

    # During the run

    @property
    def most_steps(self) -> int | None:
        """Steps after which a checkpoint is due, if it is due by steps."""
        return self.every[0] if isinstance(self.every[0], int) else None

    def finished(self, phase: str) -> Any:
        """What a finished phase has left, or None."""
        ref = self._finished.get(phase)
        return None if ref is None else self._read_part(ref)

    def left(self, phase: str) -> Any:
        """Where an earlier process's loop stood in this phase, or None; told once."""
        if self._left is None or self._left[0] != phase:
            return None
        place, self._left = self._left[1], None
        return place

    def look(self, phase: str, step: int, place: Any, position: Any = None) -> None:
        """An occasion for a checkpoint: written if one is due, or if a signal has come.

        `place` has `record()`, `piece()` (what is new since the last checkpoint) and `written()`.
        """
        self.position = position
        if self._last[0] != phase:
            self._last = (phase, float(step), self._last[2])
        steps, seconds = self.most_steps, self.every[1]
        is_due = steps is not None and step - self._last[1] >= steps
        is_due |= seconds is not None and time.monotonic() - self._last[2] >= seconds
        is_caught, is_due = self._any(self._caught is not None, is_due)
        if is_caught:
            self._leave(self.write(phase, step, place))
        if is_due:
            self.write(phase, step, place)

    def write(self, phase: str, step: int, place: Any) -> bool:
        """A checkpoint now; whether it could be written."""
        record = place.record()  # which all processes of a run make together
        is_written = self._write(phase, record, place.piece()) if self.writes else False
        if is_written:
            place.written()
        is_written = self._any(is_written)[0]
        self._last = (phase, float(step), time.monotonic())
        return is_written

    def finish(self, phase: str, left: Any, position: Any = None) -> None:
        """A phase is over: keep what the later ones need of it."""
        self._unwritten[phase] = left
        self.position, self._parts = position, []
        is_written = self._write("", None, None) if self.writes else False
        is_written, is_caught = self._any(is_written, self._caught is not None)
        if is_caught:
            self._leave(is_written)

    def pieces(self) -> Iterator[Any]:
        """What was written of the phase under way, in order."""
        return map(self._read_part, self._parts)

    @contextlib.contextmanager
    def kept(self, phase: str, step: int, place: Any) -> Iterator[None]:
        """Around code of the user's: what it throws leaves a checkpoint behind."""
        try:
            yield
        except BaseException:
            if not self.is_shared:  # the others are elsewhere, and cannot join in
                self.write(phase, step, place)
            raise

    def _write(self, phase: str, place: Any, piece: Any) -> bool:
        from safetensors import SafetensorError

        written: list[str] = []  # to be taken back if not all of it can be
        try:
            finished = dict(self._finished)
            for name, left in self._unwritten.items():
                finished[name] = self._write_part(left, written)
            parts = [*self._parts]
            if piece:
                parts.append(self._write_part(piece, written))
            arrays, node = storage.pack(place)
            description = {
                "kind": CHECKPOINT,
                "run": self.run,
                "phase": phase,
                "finished": {name: list(ref) for name, ref in finished.items()},
                "parts": [list(ref) for ref in parts],
                "place": node,
                "position": None if self.position is None else list(self.position),
                "elapsed": self.elapsed(),
            }
            written.append(self._next(CHECKPOINT))
            storage.write_folder(self.folder / written[-1], arrays, description)
            found = Found(self._count, phase, finished, parts, None, None, 0.0)
        except (OSError, StorageError, SafetensorError) as error:
            for name in reversed(written):
                self._remove(name)
            self._failures += 1
            if self._failures == 1:
                warnings.warn(
                    f"No checkpoint could be written to {self.folder} ({error}). The run goes on"
                    " and tries again later; earlier checkpoints are kept.",
                    CheckpointWarning,
                    stacklevel=6,
                )
            return False
        self._finished, self._parts = finished, parts
        self._unwritten.clear()
        self._keep(found)
        self._sweep()
        return True

    def _write_part(self, value: Any, written: list[str]) -> Ref:
        arrays, node = storage.pack(value)
        ref = Ref(self._next(PART), secrets.token_hex(8))
        told = {"kind": PART, "run": self.run, "mark": ref.mark, "value": node}
        written.append(ref.name)
        storage.write_folder(self.folder / ref.name, arrays, told)
        return ref

    def _read_part(self, ref: Ref) -> Any:
        if not NAME.fullmatch(ref.name):
            _refuse(self.folder, f"{ref.name!r} is not the name of a part")
        path = self.folder / ref.name
        arrays, told = storage.read_folder(path)
        given = (told.get("kind"), told.get("run"), told.get("mark"))
        if given != (PART, self.run, ref.mark):
            _refuse(path, "it is not the part that its checkpoint tells of")
        try:
            with jax.enable_x64(True):
                return storage.unpack(arrays, told.get("value"))
        except StorageError as error:
            _refuse(path, str(error))

    def _next(self, kind: str) -> str:
        self._count += 1
        return _name(kind, self._count)

    def _sweep(self) -> None:
        """Remove parts that no checkpoint tells of, and what a crash left half written."""
        if not self.writes:
            return
        told = set().union(*(refs for _, refs in self._kept))
        for name in os.listdir(self.folder):
            match = NAME.fullmatch(name)
            if match and match[1] == PART and name not in told:
                self._remove(name)
            elif LEFT_OVER.fullmatch(name):
                shutil.rmtree(self.folder / name, ignore_errors=True)

    def _remove(self, name: str) -> None:
        """First out of the way and then away, so that nothing half removed has its name."""
        if not self.writes:
            return
        gone = self.folder / f".{name}.gone"
        with contextlib.suppress(OSError):
            os.rename(self.folder / name, gone)
        shutil.rmtree(gone, ignore_errors=True)

    def elapsed(self) -> float:
        """Seconds of this process and of those before it, up to their last checkpoint."""
        return self._elapsed + time.monotonic() - self._began

    def told(self) -> list[str]:
        """What the result should say of the checkpoints."""
        if not self._failures:
            return self.notes
        return [*self.notes, f"{self._failures} checkpoint(s) could not be written."]

    # Signals

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """SIGTERM and SIGINT wait for the next occasion; a second one does not."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {}
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                before[number] = signal.signal(number, self._catch)
            yield
        finally:
            for number, handler in before.items():
                # None: it was not set from Python, and cannot be set back from there.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if self._caught is not None:  # after the last occasion
            self._leave(True)

    def _catch(self, number: int, frame: Any) -> None:
        if self._caught is not None:
            self._leave(False)
        self._caught = number

    def _leave(self, is_written: bool) -> NoReturn:
        state = "A checkpoint was written" if is_written else "No checkpoint could be written"
        told = f"{state}; go on with bl.resume({str(self.folder)!r}, ...)."
        number, self._caught = self._caught, None
        raise KeyboardInterrupt(told) if number == signal.SIGINT else Interrupted(told)


def _position(served: Any, checksum: Any, spoiled: Any = 0) -> Position:
    """The first checkpoints did not say how many were spoiled."""
    return Position(int(served), str(checksum), int(spoiled))


def check_every(every: Any) -> tuple[int | str, float | None]:
    """What was given, and its seconds where it is a time."""
    if isinstance(every, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh])", every)
        if match is None:
            refuse("every", every, 'be a number of steps, or a time such as "30s", "5m" or "1h"')
        return every, float(match[1]) * UNITS[match[2]]
    check_whole("every", every, least=1)
    return int(every), None


def versions() -> dict[str, str]:
    """What the bits depend on, beside seed and data."""
    import jaxlib

    import bayeslearn

    device = jax.devices()[0]
    return {
        "bayeslearn": bayeslearn.__version__,
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "python": platform.python_version(),
        "device": f"{device.device_kind} ({len(jax.local_devices())} x {device.platform})",
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
    }


def fingerprint(values: PyTree) -> dict[str, Any]:
    """Shape, dtype and SHA-256 of every array of a tree, by name."""
    leaves = zip(tree.leaf_names(values), jax.tree.leaves(values), strict=True)
    return {name: _told(leaf) for name, leaf in leaves if _is_data(leaf)}


def digest(values: PyTree) -> str:
    """One SHA-256 of all arrays of a tree."""
    hashed = hashlib.sha256()
    for leaf in jax.tree.leaves(values):
        if _is_data(leaf):
            hashed.update(repr(sorted(_told(leaf).items())).encode())
    return hashed.hexdigest()


def _is_data(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float)


def _told(leaf: Any) -> dict[str, Any]:
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.ascontiguousarray(leaf)
    content = array.reshape(-1).view(np.uint8).data
    return {
        "shape": list(np.shape(leaf)),
        "dtype": array.dtype.name,
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def _check_same(
    first: dict[str, Any],
    first_arrays: dict[str, np.ndarray],
    node: Any,
    arrays: dict[str, np.ndarray],
    fingerprints: dict[str, Any],
) -> None:
    before, now = dict(first["asked"]["dict"]), dict(node["dict"])
    for part in now:
        if part == "has_callback":  # one may go on without
            continue
        own = {k: v for k, v in arrays.items() if k.split(".")[0] == part}
        old = {k: v for k, v in first_arrays.items() if k.split(".")[0] == part}
        is_same = before.get(part) == now[part] and fingerprint(own) == fingerprint(old)
        if not is_same:
            refuse(
                part, Shown("another"), "be as in the first run", "Leave it out to go on as it was."
            )
    for part, found in fingerprints.items():
        told = first["fingerprints"].get(part)
        if told == found:
            continue
        if isinstance(told, dict) and isinstance(found, dict):
            shown = Shown(_difference(told, found))
        elif found is None:
            shown = Shown("none")
        else:
            shown = Shown("a model that starts elsewhere" if part == "model" else "others")
        refuse(part, shown, "be that of the first run")


def _difference(first: dict[str, Any], now: dict[str, Any]) -> str:
    for name in [*first, *now]:
        a, b = first.get(name), now.get(name)
        if not isinstance(a, dict) or b is None:
            return f"{name} {'left out' if b is None else 'added'}"
        for what in ("shape", "dtype"):
            if a.get(what) != b[what]:
                return f"{name} of {what} {b[what]} where it was {a.get(what)}"
        if a != b:
            return f"{name} with other numbers"
    return "others"


def rebuilt(like: PyTree, stored: list[Any], *, is_exact: bool = True) -> PyTree:
    """Stored leaves in the structure of `like`, whose shapes and dtypes they have if exact."""
    own, structure = jax.tree.flatten(like)
    fits = isinstance(stored, list) and len(own) == len(stored)
    if fits and is_exact:
        pairs = zip(own, stored, strict=True)
        fits = all(
            a.shape == np.shape(b) and a.dtype == getattr(b, "dtype", None) for a, b in pairs
        )
    if not fits:
        raise StorageError(
            "The checkpoint holds other arrays than this algorithm and model have: they are not"
            " those of the first run."
        )
    return jax.tree.unflatten(structure, stored)


def distinct(values: list[Any], leaves_of: Callable[[Any], Any]) -> dict[str, Any]:
    """Each object once, and which of them stands where (-1 for None)."""
    found: list[Any] = []
    which = []
    for value in values:
        places = [i for i, other in enumerate(found) if other is value]
        if value is not None and not places:
            found.append(value)
            places = [len(found) - 1]
        which.append(places[0] if value is not None else -1)
    return {"values": [leaves_of(value) for value in found], "which": which}


def placed(stored: dict[str, Any], rebuild: Callable[[Any], Any]) -> list[Any]:
    """The inverse of `distinct`."""
    values = [rebuild(value) for value in stored["values"]]
    return [None if i < 0 else values[i] for i in stored["which"]]


def _name(kind: str, number: int) -> str:
    return f"{kind}-{number:06d}"


def _refuse(path: Path, why: str) -> NoReturn:
    raise StorageError(f"{path} cannot be loaded: {why.removesuffix('.')}.")
