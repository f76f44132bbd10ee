"""Posteriors as arrays and a description.

A network's weights are stored by the names of its leaves; their structure is the one that the
network's own `init` makes. Training data are not stored: a posterior keeps the shape of a row,
which `predict` checks, and a sampler's outputs at some rows, for `diagnostics`.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import precision, tree
from bayeslearn.algorithms import Algorithm
from bayeslearn.data.rows import Batch
from bayeslearn.errors import StorageError
from bayeslearn.families.base import Family
from bayeslearn.models.networks.adapters import as_network
from bayeslearn.models.target import Target
from bayeslearn.storage.codec import Decoder, Encoder, structure_of
from bayeslearn.storage.folders import read_folder, write_folder
from bayeslearn.storage.registry import NotSaved
from bayeslearn.tree import PyTree

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
    "phases": list,
    "scaling": list | None,
    "calibrator": dict | None,
}


def save(
    fields: dict[str, Any],
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    owner: dict[str, Any] | None = None,
) -> None:
    """Write a posterior, given by its fields, to a folder.

    `owner` is what an object that holds the posterior adds to it: settings and arrays by name.
    """
    with precision.inside_double_precision():
        arrays, description = _encode_posterior(fields)
        if owner is not None:
            encoder = Encoder()
            encoder.structure = _structure(fields)
            description["owner"] = encoder.encode(owner, "owner", lenient=True)
            arrays |= encoder.arrays
    write_folder(path, arrays, description, overwrite=overwrite)


def load(
    path: str | os.PathLike[str], network: Any = None
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The fields of a posterior, and what its owner wrote beside it."""
    arrays, description = read_folder(path)
    network = None if network is None else as_network(network)
    try:
        with precision.inside_double_precision():
            own = [name for name in arrays if name == "owner" or name.startswith("owner.")]
            decoder = Decoder({name: arrays.pop(name) for name in own})
            fields, decoder.like = _decode_posterior(arrays, description, network)
            owner = decoder.decode(description.get("owner"))
            if decoder.arrays:
                raise StorageError(f"unexpected array {min(decoder.arrays)!r}")
            return fields, owner
    except StorageError as error:
        raise StorageError(f"{path} cannot be loaded: {str(error).removesuffix('.')}.") from error
    except Exception as error:  # whatever a description of nonsense leads to
        reason = (str(error).splitlines() or [""])[0].rstrip(".")
        raise StorageError(
            f"{path} cannot be loaded: its description does not make a posterior"
            f" ({type(error).__name__}: {reason})."
        ) from error


def _encode_posterior(
    fields: dict[str, Any],
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    target = fields["target"]
    encoder = Encoder()
    description: dict[str, Any] = {"kind": "posterior"}
    if target.is_density:
        density = NotSaved("the log-density")
        kept = dataclasses.replace(target, density=density, draw_start=None)
    else:
        encoder.structure = _structure(fields)
        shapes = jax.tree.map(lambda leaf: leaf[:0], target.data)
        kept = dataclasses.replace(target, network=None, likelihood=None, data=None)
        description |= {
            "network": _encode_network(encoder, target.network),
            "likelihood": encoder.encode(target.likelihood, "likelihood"),
            "data": encoder.encode(shapes._replace(weight=None), "data"),
        }
    parts = fields | {"target": kept, "state": None}
    description["posterior"] = {
        name: encoder.encode(value, name, lenient=name == "algorithm")
        for name, value in parts.items()
    }
    return encoder.arrays, description


def _structure(fields: dict[str, Any]) -> Any:
    """That of the network's parameters, which are stored by name; None: as any other value."""
    if fields["target"].is_density:
        return None
    mean = eqx.filter_eval_shape(lambda q: q.mean, fields["family"])
    whole = _whole(mean["network"], fields["target"])
    return None if jax.tree_util.all_leaves([whole]) else structure_of(whole)


def _whole(params: PyTree, target: Target) -> PyTree:
    """The network's parameters with those that have no posterior."""
    return params if target.frozen is None else eqx.combine(params, target.frozen)


def _encode_network(encoder: Encoder, network: Any) -> dict[str, Any]:
    """The network itself if it is all settings and arrays; else its name alone."""
    trial = Encoder()
    try:
        node = trial.encode(network, "network")
    except StorageError:
        return {"not_saved": type(network).__name__}
    encoder.arrays |= trial.arrays
    return node


def _decode_posterior(
    arrays: dict[str, np.ndarray], description: dict[str, Any], network: Any
) -> tuple[dict[str, Any], PyTree]:
    """The fields, and the network's parameters or their shapes."""
    if description.get("kind") != "posterior":
        raise StorageError(f"it holds a {description.get('kind')!r} and not a posterior")
    decoder = Decoder(arrays)
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
        raise StorageError(f"unexpected array {min(decoder.arrays)!r}")
    parts.setdefault("phases", [])  # which the first files lack
    parts.setdefault("scaling", None)
    parts.setdefault("calibrator", None)
    for name, kind in PARTS.items():
        if not isinstance(parts.get(name), kind):
            raise StorageError(f"its {name} is a {type(parts.get(name)).__name__}")
    trace = parts["trace"]
    if not all(isinstance(k, str) and isinstance(v, np.ndarray) for k, v in trace.items()):
        raise StorageError("its trace holds other things than arrays by name")
    parts["target"] = dataclasses.replace(parts["target"], **model)
    for name in ("family", "scaling", "calibrator"):
        _check_finite(name, parts[name])
    for name in ("likelihood", "prior", "frozen", "frozen_prior"):
        _check_finite(name, getattr(parts["target"], name))
    _check_fits(parts["target"], parts["family"], decoder.like)
    return parts, decoder.like


def _check_finite(name: str, part: PyTree) -> None:
    """NaN among the weights would be NaN in every prediction."""
    for leaf in jax.tree.leaves(part):
        if not tree.is_finite(np.asarray(leaf)):
            raise StorageError(f"its {name} holds numbers that are not finite")


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


def _check_fits(target: Target, family: Family, like: PyTree) -> None:
    """The weights must be the network's, and the network must take a row of the inputs."""
    # Tracing it shows whether the family's parts go together.
    params, _ = eqx.filter_eval_shape(
        lambda q, key: (q.mean, q.sample(key, 1)), family, jax.random.key(0)
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
    y = target.data.y
    row_y: Any = jax.ShapeDtypeStruct((1, *y.shape[1:]), y.dtype)
    row = Batch(rows, row_y)
    try:  # which takes the likelihood's own parameters
        jax.eval_shape(target.log_likelihood, params, row)
    except Exception as error:  # whatever a likelihood makes of what is not there
        reason = type(error).__name__
        raise StorageError(f"the likelihood's parameters are not complete ({reason})") from error
    if outputs.shape != (1, target.likelihood.num_outputs):
        raise StorageError(
            f"the network gives outputs of shape {outputs.shape[1:]} where the likelihood takes"
            f" {target.likelihood.num_outputs}"
        )
