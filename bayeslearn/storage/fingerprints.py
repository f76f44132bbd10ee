"""What tells data, models and software versions apart."""

from __future__ import annotations

import hashlib
import os
import platform
from typing import Any

import jax
import numpy as np

from bayeslearn import tree
from bayeslearn.errors import Shown, refuse
from bayeslearn.tree import PyTree


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
    return {name: array_entry(leaf) for name, leaf in leaves if _is_data(leaf)}


def digest(values: PyTree) -> str:
    """One SHA-256 of all arrays of a tree."""
    hashed = hashlib.sha256()
    for leaf in jax.tree.leaves(values):
        if _is_data(leaf):
            hashed.update(repr(sorted(array_entry(leaf).items())).encode())
    return hashed.hexdigest()


def _is_data(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float)


def array_entry(leaf: Any) -> dict[str, Any]:
    """Shape, dtype and SHA-256 of an array or a number."""
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.ascontiguousarray(leaf)
    content = array.reshape(-1).view(np.uint8).data
    return {
        "shape": list(np.shape(leaf)),
        "dtype": array.dtype.name,
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def _in_order(node: Any) -> Any:
    """A stored value with its mappings sorted by name, so that their order does not matter.

    Of what could not be stored only the type is compared: its path may have had another name.
    """
    if isinstance(node, list):
        return [_in_order(part) for part in node]
    if not isinstance(node, dict):
        return node
    if "not_saved" in node:
        return {"not_saved": str(node["not_saved"]).rpartition("`, ")[2]}
    if isinstance(node.get("dict"), list):
        return {
            "dict": sorted(([k, _in_order(v)] for k, v in node["dict"]), key=lambda p: str(p[0]))
        }
    return {name: _in_order(part) for name, part in node.items()}


def check_same(
    first: dict[str, Any],
    first_arrays: dict[str, np.ndarray],
    node: Any,
    arrays: dict[str, np.ndarray],
    fingerprints: dict[str, Any],
) -> None:
    """Refuse to resume a run with another request, model or data."""
    before, now = dict(first["asked"]["dict"]), dict(node["dict"])
    for part in now:
        if part == "has_callback":  # one may go on without
            continue
        own = {k: v for k, v in arrays.items() if k.split(".")[0] == part}
        old = {k: v for k, v in first_arrays.items() if k.split(".")[0] == part}
        is_same = _in_order(before.get(part)) == _in_order(now[part])
        is_same = is_same and fingerprint(own) == fingerprint(old)
        if not is_same:
            refuse(
                part, Shown("another"), "be as in the first run", "Leave it out to go on as it was."
            )
    for part, found in fingerprints.items():
        stored = first["fingerprints"].get(part)
        if stored == found:
            continue
        if isinstance(stored, dict) and isinstance(found, dict):
            shown = Shown(_difference(stored, found))
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
