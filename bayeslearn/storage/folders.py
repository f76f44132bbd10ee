"""The one file format: a folder of arrays, and a manifest that describes them.

    run/manifest.json         the description, and size, shape, dtype and SHA-256 of all arrays
    run/arrays.safetensors    the numbers

This module knows arrays and JSON alone, not what they mean. Every size is compared with the file
before anything is allocated, and a folder is written whole or not at all.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import shutil
import stat
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

import bayeslearn
from bayeslearn.errors import StorageError, refuse
from bayeslearn.storage import sealed

FORMAT, VERSION = "bayeslearn", 1
MANIFEST, ARRAYS = "manifest.json", "arrays.safetensors"
MANIFEST_LIMIT = 2**26  # bytes
HEADER_LIMIT = 10**8  # bytes, that of the safetensors library
DTYPES = (
    *("bool", "float16", "float32", "float64"),
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
)


def write_folder(
    path: str | os.PathLike[str],
    arrays: dict[str, np.ndarray],
    description: dict[str, Any],
    *,
    overwrite: bool = False,
) -> None:
    """Write a folder so that at every moment it is the old one, or the new one, whole.

    `description` is JSON. An earlier folder of ours gives way with `overwrite`; nothing else does.
    """
    from safetensors.numpy import save_file

    path, before = _place(path), _before(_place(path))
    if not path.parent.is_dir():
        raise StorageError(f"{path} cannot be written: there is no folder {path.parent}.")
    for place in (path, before):
        if os.path.lexists(place):
            _check_gives_way(place, overwrite)
    arrays = {name: _plain(name, array) for name, array in arrays.items()}
    new = path.parent / f".{path.name}.{secrets.token_hex(8)}"
    os.mkdir(new)
    try:
        save_file(arrays, new / ARRAYS)
        with open(new / ARRAYS, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "bayeslearn": bayeslearn.__version__,
            "files": {ARRAYS: {"size": os.path.getsize(new / ARRAYS), "sha256": digest}},
            "arrays": {name: array_entry(array) for name, array in arrays.items()},
            "description": description,
        }
        with open(new / MANIFEST, "wb") as file:
            file.write(_manifest_bytes(manifest))
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(new)
        swap(new, path)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def read_folder(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the description of a folder, after all checks."""
    from safetensors.numpy import load as parse

    path = _place(path)
    # A crash in the middle of a replacement leaves the earlier folder beside the place.
    found = path if os.path.lexists(path) else _before(path)
    try:
        manifest = _read_manifest(found)
        (entry,) = manifest["files"].values()
        content = _read_file(found / ARRAYS, entry["size"])
    except OSError as error:
        _refuse_folder(path, _reason(path, error))
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        _refuse_folder(path, f"{ARRAYS} is damaged: its checksum is not that of the manifest")
    _check_sizes(path, content, manifest["arrays"])
    try:
        arrays = parse(content)
    except Exception as error:  # the library has errors of its own
        _refuse_folder(path, f"{ARRAYS} is not in the safetensors format ({error})")
    if arrays.keys() != manifest["arrays"].keys():
        odd = sorted(arrays.keys() ^ manifest["arrays"].keys())
        _refuse_folder(path, f"the array {odd[0]!r} is missing or one too many")
    for name, array in arrays.items():
        if array_entry(array) != manifest["arrays"][name]:
            _refuse_folder(path, f"the array {name!r} is not the one the manifest tells of")
    return arrays, manifest["description"]


def written_by(path: str | os.PathLike[str]) -> str:
    """The version of bayeslearn that wrote a folder; its arrays are not read."""
    try:
        return str(_read_manifest(_place(path)).get("bayeslearn"))
    except OSError as error:
        _refuse_folder(_place(path), _reason(_place(path), error))


def _reason(path: Path, error: OSError) -> str:
    """Why a folder could not be read."""
    if not os.path.lexists(path):
        return "there is no such folder"
    if not path.is_dir():
        return "it is not a folder"
    return f"{error.strerror or error} ({error.filename or path})"


def _place(path: str | os.PathLike[str]) -> Path:
    try:
        return Path(os.path.abspath(os.fspath(path)))
    except (TypeError, ValueError):
        refuse("path", path, "be the name of a folder")


def _before(path: Path) -> Path:
    """Where the folder that is being replaced stands meanwhile."""
    return path.parent / f".{path.name}.before"


def _check_gives_way(path: Path, overwrite: bool) -> None:
    try:
        _read_manifest(path)
        is_ours = {entry.name for entry in path.iterdir()} == {MANIFEST, ARRAYS}
    except (StorageError, OSError):
        is_ours = False
    if not is_ours:
        raise StorageError(
            f"{path} cannot be written: it exists, and is not a folder that bayeslearn wrote, or"
            " holds other files too. Choose another name."
        )
    if not overwrite:
        raise StorageError(f"{path} cannot be written: it exists. Replace it with overwrite=True.")


def swap(new: Path, path: Path) -> None:
    """Put a new folder in its place; readers look at `_before(path)` while there is none."""
    before = _before(path)
    if os.path.lexists(path):
        if os.path.lexists(before):  # left over from a crash after its replacement
            shutil.rmtree(before)
        os.rename(path, before)
        try:
            os.rename(new, path)
        except BaseException:
            os.rename(before, path)
            raise
    else:
        os.rename(new, path)
    _sync_folder(path.parent)
    shutil.rmtree(before, ignore_errors=True)


def _sync_folder(path: Path) -> None:
    if os.name != "posix":  # elsewhere folders cannot be opened
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _plain(name: str, array: Any) -> np.ndarray:
    """A little-endian array in C order."""
    array = np.asarray(array, order="C")
    if array.dtype.name not in DTYPES:
        raise StorageError(f"The array {name!r} cannot be saved: its dtype is {array.dtype}.")
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def array_entry(array: np.ndarray) -> dict[str, Any]:
    """What the manifest says of an array."""
    digest = hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest()
    return {"shape": list(array.shape), "dtype": array.dtype.name, "sha256": digest}


def _manifest_bytes(manifest: dict[str, Any]) -> bytes:
    try:
        content = sealed.dumps(manifest).encode()
    except (TypeError, ValueError) as error:
        raise StorageError(f"The description cannot be saved as JSON: {error}.") from error
    if len(content) > MANIFEST_LIMIT:
        raise StorageError(
            f"The description cannot be saved: it has {len(content)} bytes, more than"
            f" {MANIFEST_LIMIT}."
        )
    return content


def _read_manifest(path: Path) -> dict[str, Any]:
    if path.is_symlink():
        _refuse_folder(path, "it is a symbolic link")
    content = _read_file(path / MANIFEST)
    try:
        manifest = sealed.parse(content)
        is_ours = isinstance(manifest, dict) and manifest.get("format") == FORMAT
        seal = sealed.seal(sealed.unsealed(manifest)) if is_ours else ""
    except StorageError as error:
        _refuse_folder(path, f"{MANIFEST} {str(error).removeprefix('it ')}")
    except ValueError:
        _refuse_folder(path, f"{MANIFEST} is not JSON")
    if not is_ours:
        _refuse_folder(path, f"{MANIFEST} is not one of bayeslearn")
    version = manifest.get("version")
    if type(version) is not int or version != VERSION:
        _refuse_folder(
            path,
            f"it has format version {version!r}, and this bayeslearn ({bayeslearn.__version__})"
            f" reads version {VERSION}",
        )
    if manifest.get("sha256") != seal:
        _refuse_folder(path, f"{MANIFEST} is damaged: its content does not have its checksum")
    if not _is_manifest(manifest):
        _refuse_folder(path, f"{MANIFEST} is not laid out as format version {VERSION} says")
    return manifest


def _is_manifest(manifest: dict[str, Any]) -> bool:
    def is_size(value: Any) -> bool:
        return type(value) is int and 0 <= value < 2**63

    def is_array(entry: Any) -> bool:
        return (
            isinstance(entry, dict)
            and entry.keys() == {"shape", "dtype", "sha256"}
            and isinstance(entry["shape"], list)
            and all(map(is_size, entry["shape"]))
            and entry["dtype"] in DTYPES
        )

    parts = {name: manifest.get(name) for name in ("files", "arrays", "description")}
    if not all(isinstance(part, dict) for part in parts.values()):
        return False
    # The only name there is, so that none can lead elsewhere.
    files: dict[str, Any] = manifest["files"]
    return (
        files.keys() == {ARRAYS}
        and isinstance(files[ARRAYS], dict)
        and files[ARRAYS].keys() == {"size", "sha256"}
        and is_size(files[ARRAYS]["size"])
        and all(map(is_array, manifest["arrays"].values()))
    )


def _read_file(path: Path, size: int | None = None) -> bytes:
    """A regular file's content, of `size` bytes; no link is followed and no pipe waited for."""
    if path.is_symlink():
        _refuse_folder(path.parent, f"{path.name} is a symbolic link")
    handle = os.open(path, os.O_RDONLY | _flag("O_NOFOLLOW") | _flag("O_NONBLOCK"))
    with open(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            _refuse_folder(path.parent, f"{path.name} is not a regular file")
        if size is None and found.st_size > MANIFEST_LIMIT:
            _refuse_folder(path.parent, f"{path.name} has {found.st_size} bytes, too many")
        if size is not None and found.st_size != size:
            _refuse_folder(
                path.parent, f"{path.name} has {found.st_size} bytes, and not {size} as written"
            )
        content = file.read(found.st_size)
        if len(content) != found.st_size:
            _refuse_folder(path.parent, f"{path.name} changed while it was read")
    return content


def _flag(name: str) -> int:
    return getattr(os, name, 0)  # not every system has it


def _check_sizes(path: Path, content: bytes, entries: dict[str, Any]) -> None:
    """The arrays the manifest tells of must fill the file, before any is made."""
    header = int.from_bytes(content[:8], "little")
    if len(content) < 8 or header > min(len(content) - 8, HEADER_LIMIT):
        _refuse_folder(path, f"{ARRAYS} is cut short or its header is too long")
    sizes = [math.prod(a["shape"]) * np.dtype(a["dtype"]).itemsize for a in entries.values()]
    if 8 + header + sum(sizes) != len(content):
        _refuse_folder(path, f"{ARRAYS} does not have the size of the arrays in the manifest")


def _refuse_folder(path: Path, why: str) -> NoReturn:
    raise StorageError(f"{path} cannot be loaded: {why}.")
