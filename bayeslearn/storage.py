"""The one file format: a folder of arrays, and a manifest that says what they are.

    run/manifest.json         the description, and size, shape, dtype and SHA-256 of all the rest
    run/arrays.safetensors    the numbers

`write_folder` and `read_folder` know of arrays and JSON alone; `save` and `load` turn a posterior
into them and back. What is read is never run: a description names classes of this library (or
ones a user has put on the list with `register`), their settings as JSON and their arrays, and
every size is compared with the file before anything is allocated.

A network's weights are stored by the names of its leaves, and their structure is that which the
network's own `init` makes. Training data are not stored: of them a posterior keeps the shape of a
row, which `predict` checks, and a sampler's outputs at some rows, which `diagnostics` looks at.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import math
import os
import pkgutil
import secrets
import shutil
import stat
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

import bayeslearn
from bayeslearn import precision, tree
from bayeslearn.algorithms import Algorithm
from bayeslearn.errors import StorageError, refuse
from bayeslearn.model import Target
from bayeslearn.networks.adapters import as_network
from bayeslearn.posterior import Posterior
from bayeslearn.tree import PyTree

FORMAT, VERSION = "bayeslearn", 1
MANIFEST, ARRAYS = "manifest.json", "arrays.safetensors"
MANIFEST_LIMIT = 2**26  # bytes
HEADER_LIMIT = 10**8  # bytes, that of the safetensors library
DTYPES = (
    *("bool", "float16", "float32", "float64"),
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
)
# Modules whose classes may be named in a description.
ROOMS = (
    "algorithms",
    "families",
    "geometry",
    "likelihoods",
    "model",
    "networks",
    "posterior",
    "priors",
)
PARTS = {
    "target": Target,
    "algorithm": Algorithm,
    "family": eqx.Module,
    "trace": dict,
    "elbo": float | None,
    "stopped": str,
    "notes": tuple,
    "seed": int,
    "wall_time": float,
    "compile_time": float,
    "row_outputs": np.ndarray | None,
}
KEY_KINDS = ("threefry2x32", "rbg", "unsafe_rbg")

Class = TypeVar("Class", bound=type)


# The folder


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
            "arrays": {name: _told(array) for name, array in arrays.items()},
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
        (told,) = manifest["files"].values()
        content = _read_file(found / ARRAYS, told["size"])
    except OSError as error:
        _refuse_folder(path, f"{error.strerror or error} ({error.filename or path})")
    if hashlib.sha256(content).hexdigest() != told["sha256"]:
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
        if _told(array) != manifest["arrays"][name]:
            _refuse_folder(path, f"the array {name!r} is not the one the manifest tells of")
    return arrays, manifest["description"]


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
            f"{path} cannot be written: what stands there is not a sound folder of bayeslearn and"
            " nothing else, so it is left alone. Choose another name."
        )
    if not overwrite:
        raise StorageError(f"{path} cannot be written: it exists. Write overwrite=True, or rename.")


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


def _told(array: np.ndarray) -> dict[str, Any]:
    """What the manifest says of an array."""
    digest = hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest()
    return {"shape": list(array.shape), "dtype": array.dtype.name, "sha256": digest}


def _manifest_bytes(manifest: dict[str, Any]) -> bytes:
    try:
        sealed = {**manifest, "sha256": _seal(manifest)}
        content = json.dumps(sealed, indent=1, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise StorageError(f"The description cannot be saved as JSON: {error}.") from error
    if len(content) > MANIFEST_LIMIT:
        raise StorageError(
            f"The description cannot be saved: it has {len(content)} bytes, more than"
            f" {MANIFEST_LIMIT}."
        )
    return content


def _seal(manifest: dict[str, Any]) -> str:
    """Checksum of the manifest's content, however it is laid out."""
    content = json.dumps(manifest, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()


def _read_manifest(path: Path) -> dict[str, Any]:
    if path.is_symlink():
        _refuse_folder(path, "it is a symbolic link")
    content = _read_file(path / MANIFEST)
    try:
        manifest = json.loads(content)
        is_ours = isinstance(manifest, dict) and manifest.get("format") == FORMAT
        seal = _seal({k: v for k, v in manifest.items() if k != "sha256"}) if is_ours else ""
    except (ValueError, RecursionError):
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

    def is_array(told: Any) -> bool:
        return (
            isinstance(told, dict)
            and told.keys() == {"shape", "dtype", "sha256"}
            and isinstance(told["shape"], list)
            and all(map(is_size, told["shape"]))
            and told["dtype"] in DTYPES
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


def _check_sizes(path: Path, content: bytes, told: dict[str, Any]) -> None:
    """The arrays the manifest tells of must fill the file, before any is made."""
    header = int.from_bytes(content[:8], "little")
    if len(content) < 8 or header > min(len(content) - 8, HEADER_LIMIT):
        _refuse_folder(path, f"{ARRAYS} is cut short or its header is too long")
    sizes = [math.prod(a["shape"]) * np.dtype(a["dtype"]).itemsize for a in told.values()]
    if 8 + header + sum(sizes) != len(content):
        _refuse_folder(path, f"{ARRAYS} does not have the size of the arrays in the manifest")


def _refuse_folder(path: Path, why: str) -> NoReturn:
    raise StorageError(f"{path} cannot be loaded: {why}.")


# What may be named


def register(cls: Class) -> Class:
    """Let a class of your own be saved, and be loaded where it is registered too.

    It is an `eqx.Module` or a dataclass whose fields are arrays, or settings that JSON can hold.
    """
    if not (dataclasses.is_dataclass(cls) or _is_named_tuple(cls)):
        refuse("cls", cls, "be an eqx.Module, a dataclass or a NamedTuple")
    _classes()[f"{cls.__module__}.{cls.__qualname__}"] = cls
    return cls


@cache
def _classes() -> dict[str, type]:
    """The classes that a description may name; the only ones that are ever made."""
    found: dict[str, type] = {}
    for room in ROOMS:
        package = importlib.import_module(f"bayeslearn.{room}")
        modules = [package]
        for info in pkgutil.iter_modules(getattr(package, "__path__", [])):
            modules.append(importlib.import_module(f"bayeslearn.{room}.{info.name}"))
        for module in modules:
            for name, cls in vars(module).items():
                is_own = isinstance(cls, type) and cls.__module__ == module.__name__
                is_data = is_own and (dataclasses.is_dataclass(cls) or _is_named_tuple(cls))
                if is_data and not name.startswith("_"):
                    if f"{room}.{name}" in found:
                        raise RuntimeError(f"Two classes in bayeslearn.{room} are called {name}.")
                    found[f"{room}.{name}"] = cls
    return found


def _is_named_tuple(cls: type) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


def _fields(cls: Any) -> list[str]:
    return list(cls._fields) if _is_named_tuple(cls) else [f.name for f in dataclasses.fields(cls)]


class NotSaved:
    """Stands for a function, which cannot be saved as data."""

    def __init__(self, what: str):
        self.what = what

    def __repr__(self) -> str:
        return f"<{self.what}, not saved>"

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise StorageError(f"{self.what} was not saved with this posterior: give it again.")


# Objects as arrays and JSON


class _Encoder:
    """Objects as JSON, and their arrays under dotted names.

    `structure` is that of a network's parameters: trees of that structure, or of a part of it with
    None for the rest, are written leaf by leaf. Where `lenient`, a function leaves a mark. With
    `keeps_weak` JAX's weakly typed numbers come back as such, so that a step is the same program.
    """

    def __init__(self, structure: Any = None, *, keeps_weak: bool = False):
        self.arrays: dict[str, np.ndarray] = {}
        self.structure = structure
        self.keeps_weak = keeps_weak

    def encode(self, value: Any, path: str, lenient: bool = False) -> Any:
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if isinstance(value, jax.Array | np.ndarray | np.generic):
            return self._array(value, path)
        if isinstance(value, NotSaved):
            return {"not_saved": value.what}

        def inside(pairs: Any) -> list[list[Any]]:
            return [[k, self.encode(v, f"{path}.{k}", lenient)] for k, v in pairs]

        if self.structure is not None and _structure(value) == self.structure:
            leaves = jax.tree.leaves(value, is_leaf=_is_none)
            return {"network": inside(zip(_names(value), leaves, strict=True))}
        if type(value) in (list, tuple):
            return {type(value).__name__: [node for _, node in inside(enumerate(value))]}
        if type(value) is dict and all(isinstance(k, str | int) for k in value):
            return {"dict": inside(value.items())}
        names = {cls: name for name, cls in _classes().items()}
        if type(value) in names:
            fields = [(name, getattr(value, name)) for name in _fields(type(value))]
            return {"type": names[type(value)], "fields": dict(inside(fields))}
        if lenient:
            return {"not_saved": f"`{path}`, a {type(value).__name__}"}
        raise StorageError(
            f"`{path.removeprefix('.')}` cannot be saved: a {type(value).__name__} is neither an"
            " array, a number, a name, nor a class that is known. Write it as one of those, or put"
            " its class on the list with bayeslearn.storage.register."
        )

    def _array(self, value: Any, path: str) -> dict[str, Any]:
        node: dict[str, Any] = {}
        if isinstance(value, jax.Array):
            node["jax"] = True
            if self.keeps_weak and value.weak_type:
                node["weak"] = True
            if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
                node["key"] = str(jax.random.key_impl(value))
                value = jax.random.key_data(value)
        elif isinstance(value, np.generic):
            node["scalar"] = True
        array = np.asarray(value)
        if array.dtype == ml_dtypes.bfloat16:  # which NumPy does not know by itself
            node["bfloat16"], array = True, array.view(np.uint16)
        name = path.removeprefix(".")
        while name in self.arrays:  # a dot in a name of the user's
            name += "_"
        self.arrays[name] = array
        return {"array": name, **node}


class _Decoder:
    """The inverse of `_Encoder`; every array must be asked for once."""

    def __init__(self, arrays: dict[str, np.ndarray]):
        self.arrays = dict(arrays)
        self.like: PyTree = None  # a network's parameters, or their shapes

    def decode(self, node: Any) -> Any:
        if not isinstance(node, dict):
            if isinstance(node, list):
                raise StorageError("a list stands where a value should")
            return node
        tag = next(iter(node), None)
        if tag == "float":
            return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[node["float"]]
        if tag == "array":
            return self._array(**node)
        if tag == "not_saved":
            return NotSaved(str(node["not_saved"]))
        if tag in ("list", "tuple"):
            items = [self.decode(item) for item in node[tag]]
            return items if tag == "list" else tuple(items)
        if tag == "dict":
            if not all(type(key) in (str, int) for key, _ in node["dict"]):
                raise StorageError("it holds a mapping whose keys are neither names nor numbers")
            return {key: self.decode(value) for key, value in node["dict"]}
        if tag == "network":
            return self._network(node["network"])
        if tag == "type":
            return self._object(node["type"], node["fields"])
        raise StorageError(f"it holds a value of the unknown kind {tag!r}")

    def _array(
        self,
        array: str,
        jax: bool = False,
        key: str | None = None,
        scalar: bool = False,
        bfloat16: bool = False,
        weak: bool = False,
    ) -> Any:
        if array not in self.arrays:
            raise StorageError(f"the array {array!r} is missing, or is used twice")
        value: Any = self.arrays.pop(array)
        value = value.view(ml_dtypes.bfloat16) if bfloat16 else value
        if key is not None:
            return _as_key(value, key)
        if weak:
            return _weak(value)
        if jax:
            return jnp.asarray(value)
        return value[()] if scalar else value

    def _network(self, pairs: list[Any]) -> PyTree:
        names = [name for name, _ in pairs]
        own = _names(self.like)
        if names != own:
            raise StorageError(f"its weights are called {names} and the network's {own}")
        leaves = [self.decode(node) for _, node in pairs]
        return jax.tree.unflatten(_structure(self.like), leaves)

    def _object(self, name: str, given: dict[str, Any]) -> Any:
        if name not in _classes():
            raise StorageError(f"it holds a {name!r}, a class that is not known here")
        cls: Any = _classes()[name]
        values = {key: self.decode(node) for key, node in given.items()}
        if _is_named_tuple(cls):
            return cls(**values)
        for field in dataclasses.fields(cls):  # one that came with a later version
            if field.default is not dataclasses.MISSING:
                values.setdefault(field.name, field.default)
        odd = sorted(values.keys() ^ set(_fields(cls)))
        if odd:
            raise StorageError(f"it holds a {name} with {odd[0]!r} missing or one too many")
        made = object.__new__(cls)
        for key, value in values.items():
            object.__setattr__(made, key, value)
        if not any(isinstance(value, NotSaved) for value in values.values()):
            for base in cls.__mro__:
                if "__check_init__" in vars(base):
                    base.__check_init__(made)
        return made


def _is_none(leaf: Any) -> bool:
    return leaf is None


def _structure(params: PyTree) -> Any:
    """With a place for each None, so that a part of a tree has the structure of the whole."""
    return jax.tree.structure(params, is_leaf=_is_none)


def _names(params: PyTree) -> list[str]:
    return tree.leaf_names(jax.tree.map(lambda _: 0, params, is_leaf=_is_none))


def _weak(value: np.ndarray) -> Any:
    """A weakly typed array: only a bare Python number makes one, so it is spread and filled."""
    with jax.enable_x64(value.dtype.itemsize == 8):
        zero = jnp.asarray(value.dtype.type(0).item())
        made = jnp.broadcast_to(zero, value.shape).at[...].set(value)
    if made.dtype != value.dtype or not made.weak_type:
        raise StorageError(f"it holds a weakly typed {value.dtype}, which JAX does not have")
    return made


def _as_key(data: np.ndarray, kind: str) -> Any:
    if kind not in KEY_KINDS:
        raise StorageError(f"it holds a random key of the unknown kind {kind!r}")
    return jax.random.wrap_key_data(jnp.asarray(data), impl=kind)


def pack(value: Any, *, lenient: bool = False) -> tuple[dict[str, np.ndarray], Any]:
    """Arrays and JSON of a value made of containers, numbers, arrays and known classes."""
    encoder = _Encoder(keeps_weak=True)
    node = encoder.encode(value, "", lenient)
    return encoder.arrays, node


def unpack(arrays: dict[str, np.ndarray], node: Any) -> Any:
    """The inverse of `pack`; whatever is odd about it is a `StorageError`."""
    decoder = _Decoder(arrays)
    try:
        value = decoder.decode(node)
    except StorageError:
        raise
    except Exception as error:  # whatever nonsense leads to
        raise StorageError(f"its description makes no sense ({type(error).__name__})") from error
    if decoder.arrays:
        raise StorageError(f"the array {min(decoder.arrays)!r} is one too many")
    return value


def describe_model(model: Any) -> Any:
    """A model as what `pack` takes, its network by name alone if it holds functions."""
    fields = {name: getattr(model, name) for name in _fields(type(model))}
    try:
        _Encoder().encode(fields["network"], "network")
    except StorageError:
        fields["network"] = NotSaved(f"the network, a {type(fields['network']).__name__}")
    return fields


# Posteriors


def save(
    posterior: Posterior,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    owner: dict[str, Any] | None = None,
) -> None:
    """Write a posterior to a folder; see `Posterior.save`.

    `owner` is what an object that holds the posterior adds to it: settings and arrays by name.
    """
    with precision.inside_double_precision():
        arrays, description = _encode_posterior(posterior)
        if owner is not None:
            encoder = _Encoder()
            description["owner"] = encoder.encode(owner, "owner", lenient=True)
            arrays |= encoder.arrays
    write_folder(path, arrays, description, overwrite=overwrite)


def load(path: str | os.PathLike[str], network: Any = None) -> Posterior:
    """The posterior that `Posterior.save` wrote to a folder.

    It predicts, samples and sums itself up as before, to the bit; what needs the training rows is
    refused. `network` is required where the network is not one of `bl.networks`: the one that was
    fitted, or another with weights of the same names and shapes.
    """
    return load_owned(path, network)[0]


def load_owned(
    path: str | os.PathLike[str], network: Any = None
) -> tuple[Posterior, dict[str, Any] | None]:
    """A posterior, and what its owner wrote beside it."""
    arrays, description = read_folder(path)
    network = None if network is None else as_network(network)
    try:
        with precision.inside_double_precision():
            own = [name for name in arrays if name == "owner" or name.startswith("owner.")]
            decoder = _Decoder({name: arrays.pop(name) for name in own})
            owner = decoder.decode(description.get("owner"))
            if decoder.arrays:
                raise StorageError(f"the array {min(decoder.arrays)!r} is one too many")
            return _decode_posterior(arrays, description, network), owner
    except StorageError as error:
        raise StorageError(f"{path} cannot be loaded: {str(error).removesuffix('.')}.") from error
    except Exception as error:  # whatever a description of nonsense leads to
        reason = (str(error).splitlines() or [""])[0].rstrip(".")
        raise StorageError(
            f"{path} cannot be loaded: its description does not make a posterior"
            f" ({type(error).__name__}: {reason})."
        ) from error


def _encode_posterior(posterior: Posterior) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    target = posterior.target
    mean = eqx.filter_eval_shape(lambda q: q.mean, posterior.family)
    encoder = _Encoder()
    description: dict[str, Any] = {"kind": "posterior"}
    if target.is_density:
        kept = dataclasses.replace(target, density=NotSaved("the log-density"))
    else:
        whole = _whole(mean["network"], target)
        if not jax.tree_util.all_leaves([whole]):  # a single array is like any other
            encoder.structure = _structure(whole)
        shapes = jax.tree.map(lambda leaf: leaf[:0], target.data)
        kept = dataclasses.replace(target, network=None, likelihood=None, data=None)
        description |= {
            "network": _encode_network(encoder, target.network),
            "likelihood": encoder.encode(target.likelihood, "likelihood"),
            "data": encoder.encode(shapes._replace(weight=None), "data"),
        }
    parts = {field.name: getattr(posterior, field.name) for field in dataclasses.fields(posterior)}
    parts |= {"target": kept, "state": None, "row_outputs": _row_outputs(posterior)}
    description["posterior"] = {
        name: encoder.encode(value, name, lenient=name == "algorithm")
        for name, value in parts.items()
    }
    return encoder.arrays, description


def _whole(params: PyTree, target: Target) -> PyTree:
    """The network's parameters with those that have no posterior."""
    return params if target.held is None else eqx.combine(params, target.held)


def _encode_network(encoder: _Encoder, network: Any) -> dict[str, Any]:
    """The network itself if it is all settings and arrays; else its name alone."""
    trial = _Encoder()
    try:
        node = trial.encode(network, "network")
    except StorageError:
        return {"not_saved": type(network).__name__}
    encoder.arrays |= trial.arrays
    return node


def _row_outputs(posterior: Posterior) -> np.ndarray | None:
    """What `diagnostics` needs of the rows, for chains."""
    from bayeslearn.diagnostics import outputs_at_rows

    if posterior.target.is_density or posterior.draws is None:
        return None
    if "log_density" not in posterior.trace or posterior.row_outputs is not None:
        return posterior.row_outputs
    return outputs_at_rows(posterior.target, posterior.draws)


def _decode_posterior(
    arrays: dict[str, np.ndarray], description: dict[str, Any], network: Any
) -> Posterior:
    if description.get("kind") != "posterior":
        raise StorageError(f"it holds a {description.get('kind')!r} and not a posterior")
    decoder = _Decoder(arrays)
    model = {}
    if "network" in description:
        own = decoder.decode(description["network"])
        likelihood, data = map(decoder.decode, (description["likelihood"], description["data"]))
        if network is None and isinstance(own, NotSaved):
            raise StorageError(
                f"its network ({own.what}) holds functions or classes that cannot be saved; pass it"
                " with network="
            )
        example = jax.tree.map(_example, data.x)
        decoder.like = _init(own, network, example, likelihood.num_outputs)
        model = {
            "network": own if network is None else network,
            "likelihood": likelihood,
            "data": data,
        }
    parts = {name: decoder.decode(node) for name, node in description["posterior"].items()}
    if decoder.arrays:
        raise StorageError(f"the array {min(decoder.arrays)!r} is one too many")
    for name, kind in PARTS.items():
        if not isinstance(parts.get(name), kind):
            raise StorageError(f"its {name} is a {type(parts.get(name)).__name__}")
    trace = parts["trace"]
    if not all(isinstance(k, str) and isinstance(v, np.ndarray) for k, v in trace.items()):
        raise StorageError("its trace holds other things than arrays by name")
    posterior = Posterior(**{**parts, "target": dataclasses.replace(parts["target"], **model)})
    _check_fits(posterior, decoder.like)
    return posterior


def _example(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)


def _init(own: Any, network: Any, example: PyTree, num_outputs: int) -> PyTree:
    """Parameters as the network makes them; of ours the shapes alone, which cost nothing."""
    key = jax.random.key(0)
    if network is None:
        return jax.eval_shape(lambda k, x: own.init(k, x, num_outputs), key, example)
    # A view of a single zero, for a file can claim any shape.
    zeros = jax.tree.map(lambda s: np.broadcast_to(np.zeros((), s.dtype), s.shape), example)
    with precision.user_precision():
        return network.init(key, zeros, num_outputs)


def _check_fits(posterior: Posterior, like: PyTree) -> None:
    """The weights must be the network's, and the network must take a row of the inputs."""
    target: Target = posterior.target
    # Tracing it shows whether the family's parts go together.
    params, _ = eqx.filter_eval_shape(
        lambda q, key: (q.mean, q.sample(key, 1)), posterior.family, jax.random.key(0)
    )
    if target.is_density:
        return
    assert target.data is not None
    own, stored = map(jax.tree.leaves, (like, _whole(params["network"], target)))
    for name, a, b in zip(tree.leaf_names(like), own, stored, strict=True):
        a, b = jnp.shape(a), jnp.shape(b)
        if a != b:
            raise StorageError(f"{name} has shape {b} where the network has {a}")
    rows = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype), target.data.x
    )
    outputs = jax.eval_shape(target.outputs, params, rows)
    if outputs.shape != (1, target.likelihood.num_outputs):
        raise StorageError(
            f"the network gives outputs of shape {outputs.shape[1:]} where the likelihood takes"
            f" {target.likelihood.num_outputs}"
        )
