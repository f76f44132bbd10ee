"""Objects as arrays and JSON, and back.

What is read is never run: a description names registered classes (see `registry`), their settings
as JSON and their arrays. This module does not know files, posteriors or checkpoints.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from bayeslearn import tree
from bayeslearn.errors import StorageError
from bayeslearn.storage.legacy import upgrade_fields
from bayeslearn.storage.registry import NotSaved, classes, field_names, is_named_tuple
from bayeslearn.tree import PyTree

KEY_KINDS = ("threefry2x32", "rbg", "unsafe_rbg")


class Encoder:
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
        """A value as JSON; its arrays go to `arrays` under names that begin with `path`."""
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

        if self.structure is not None and structure_of(value) == self.structure:
            leaves = jax.tree.leaves(value, is_leaf=_is_none)
            return {"network": inside(zip(network_leaf_names(value), leaves, strict=True))}
        if type(value) in (list, tuple):
            return {type(value).__name__: [node for _, node in inside(enumerate(value))]}
        if type(value) is dict and all(isinstance(k, str | int) for k in value):
            return {"dict": inside(value.items())}
        names = {cls: name for name, cls in classes().items()}
        if type(value) in names:
            fields = [(name, getattr(value, name)) for name in field_names(type(value))]
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


class Decoder:
    """The inverse of `Encoder`; every array must be asked for once."""

    def __init__(self, arrays: dict[str, np.ndarray]):
        self.arrays = dict(arrays)
        self.like: PyTree = None  # a network's parameters, or their shapes

    def decode(self, node: Any) -> Any:
        """The value that a node describes."""
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
        own = network_leaf_names(self.like)
        if names != own:
            raise StorageError(f"its weights are called {names} and the network's {own}")
        leaves = [self.decode(node) for _, node in pairs]
        return jax.tree.unflatten(structure_of(self.like), leaves)

    def _object(self, name: str, given: dict[str, Any]) -> Any:
        if name not in classes():
            raise StorageError(f"it holds a {name!r}, a class that is not known here")
        cls: Any = classes()[name]
        given = upgrade_fields(name, given)
        values = {key: self.decode(node) for key, node in given.items()}
        if is_named_tuple(cls):
            return cls(**values)
        for field in dataclasses.fields(cls):  # one that came with a later version
            if field.default is not dataclasses.MISSING:
                values.setdefault(field.name, field.default)
        odd = sorted(values.keys() ^ set(field_names(cls)))
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


def structure_of(params: PyTree) -> Any:
    """With a place for each None, so that a part of a tree has the structure of the whole."""
    return jax.tree.structure(params, is_leaf=_is_none)


def network_leaf_names(params: PyTree) -> list[str]:
    """Names of the leaves, None included."""
    return tree.leaf_names(jax.tree.map(lambda _: 0, params, is_leaf=_is_none))


def _weak(value: np.ndarray) -> Any:
    """A weakly typed array: only a bare Python number makes one, so it is broadcast and filled."""
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
    encoder = Encoder(keeps_weak=True)
    node = encoder.encode(value, "", lenient)
    return encoder.arrays, node


def unpack(arrays: dict[str, np.ndarray], node: Any) -> Any:
    """The inverse of `pack`; whatever is odd about it is a `StorageError`."""
    decoder = Decoder(arrays)
    try:
        value = decoder.decode(node)
    except StorageError:
        raise
    except Exception as error:  # whatever nonsense leads to
        raise StorageError(f"its description makes no sense ({type(error).__name__})") from error
    if decoder.arrays:
        raise StorageError(f"unexpected array {min(decoder.arrays)!r}")
    return value


def describe_model(model: Any) -> Any:
    """A model as what `pack` takes, its network by name alone if it holds functions."""
    fields = {name: getattr(model, name) for name in field_names(type(model))}
    try:
        Encoder().encode(fields["network"], "network")
    except StorageError:
        fields["network"] = NotSaved(f"the network, a {type(fields['network']).__name__}")
    return fields
