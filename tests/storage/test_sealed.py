"""Files that would deceive: changed tables, weights that are not finite, missing parts."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest
from mutations import seal, with_checksums
from safetensors.numpy import load_file, save

import bayeslearn as bl
from bayeslearn.cli import runs
from bayeslearn.errors import ArgumentError, StorageError
from bayeslearn.storage import folders, sealed
from bayeslearn.tabular.schema import Column, Schema


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    place = tmp_path_factory.mktemp("saved") / "run"
    x = np.linspace(-1, 1, 20)[:, None]
    model = bl.Model(bl.networks.MLP([2]), bl.likelihoods.Gaussian(), bl.priors.Normal())
    bl.fit(model, bl.MAP(), (x, x[:, 0]), num_steps=5, seed=0).save(place)
    return place


def written(folder, arrays, manifest):
    """The run with other content, whose checksums are right."""
    folder.mkdir()
    content = save(arrays)
    (folder / folders.ARRAYS).write_bytes(content)
    entries = {name: folders.array_entry(array) for name, array in arrays.items()}
    manifest = with_checksums(manifest | {"arrays": entries}, content)
    (folder / folders.MANIFEST).write_bytes(seal(manifest))
    return folder


def parts(saved):
    return load_file(saved / folders.ARRAYS), json.loads((saved / folders.MANIFEST).read_text())


def test_unchanged_parts_load(saved, tmp_path):
    arrays, manifest = parts(saved)
    loaded, before = bl.load(written(tmp_path / "run", arrays, manifest)), bl.load(saved)
    for a, b in zip(*(jax.tree.leaves(p.family) for p in (loaded, before)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(saved, tmp_path, value):
    arrays, manifest = parts(saved)
    name = next(name for name in arrays if name.startswith("family") and arrays[name].size > 1)
    arrays[name] = np.full_like(arrays[name], value)
    with pytest.raises(StorageError, match="its family holds numbers that are not finite"):
        bl.load(written(tmp_path / "run", arrays, manifest))


@pytest.mark.parametrize("part", ["prior", "likelihood"])
def test_priors_and_likelihoods_that_are_not_finite_are_refused(saved, tmp_path, part):
    arrays, manifest = parts(saved)
    folder = {"prior": "target.prior", "likelihood": "likelihood"}[part]
    name = next(n for n in arrays if n.startswith(folder) and arrays[n].dtype.kind == "f")
    for i, value in enumerate((np.nan, np.inf)):
        arrays[name] = np.full_like(arrays[name], value)
        with pytest.raises(StorageError, match=f"its {part} holds numbers that are not finite"):
            bl.load(written(tmp_path / f"run{i}", arrays, manifest))


def without_likelihood(node, found):
    """The description without the likelihood's own parameters; `found` gets their arrays."""
    if isinstance(node, dict) and "dict" in node:
        keep = []
        for key, value in node["dict"]:
            if key == "likelihood":
                found += [part["array"] for part in flattened(value) if "array" in part]
                keep.append([key, {"dict": []}])
            else:
                keep.append([key, without_likelihood(value, found)])
        return {"dict": keep}
    if isinstance(node, dict):
        return {key: without_likelihood(value, found) for key, value in node.items()}
    return node


def flattened(node):
    inside = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    own = [node] if isinstance(node, dict) else []
    return own + [part for value in inside for part in flattened(value)]


def test_missing_parameters_are_refused_when_loading(saved, tmp_path):
    arrays, manifest = parts(saved)
    removed: list[str] = []
    stored = manifest["description"]["posterior"]
    stored["family"] = without_likelihood(stored["family"], removed)
    assert removed
    for name in removed:
        arrays.pop(name)
    with pytest.raises(StorageError, match="likelihood's parameters are not complete"):
        bl.load(written(tmp_path / "run", arrays, manifest))


@pytest.mark.parametrize("levels", [sealed.MAX_DEPTH + 1, 10**6])
def test_deep_descriptions_are_refused(saved, tmp_path, levels):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / folders.MANIFEST).write_text('{"a":' * levels + "1" + "}" * levels)
    with pytest.raises(StorageError, match=r"nested more than 200 levels|not JSON"):
        bl.load(tmp_path / "run")
    (tmp_path / runs.TABLE).write_text("[" * levels + "]" * levels)
    with pytest.raises(ArgumentError, match=r"nested more than 200 levels|not JSON"):
        runs.read_schema(str(tmp_path))


def test_a_changed_table_is_refused(tmp_path):
    """Categories in another order would be other numbers."""
    schema = Schema("y", "regression", (Column("a", ("low", "high")),), "ordinal")
    path = tmp_path / runs.TABLE
    path.write_text(sealed.dumps(schema.to_dict()))
    assert runs.read_schema(str(tmp_path)) == schema
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(stored.items()))))  # laid out differently
    assert runs.read_schema(str(tmp_path)) == schema
    stored["columns"][0]["categories"].reverse()
    path.write_text(json.dumps(stored))
    with pytest.raises(ArgumentError, match=r"table.json: it is damaged.*checksum"):
        runs.read_schema(str(tmp_path))


@pytest.mark.parametrize(
    ("version", "is_sound"), [("0.1.0", True), ("0.1", True), ("0.2.0", False), ("0.10.0", False)]
)
def test_only_a_table_of_version_0_1_may_lack_its_checksum(saved, tmp_path, version, is_sound):
    """The model's manifest knows the version, and has a checksum itself."""
    schema = Schema("y", "regression", (Column("a", ("low", "high")),), "ordinal")
    arrays, manifest = parts(saved)
    written(tmp_path / runs.MODEL, arrays, manifest | {"bayeslearn": version})
    path = tmp_path / runs.TABLE
    old = {"target", "task", "columns", "encoding", "impute"}
    path.write_text(json.dumps({k: v for k, v in schema.to_dict().items() if k in old}))
    if is_sound:
        assert runs.read_schema(str(tmp_path)) == schema
        return
    with pytest.raises(ArgumentError, match=r"table.json: it is damaged: it has no checksum"):
        runs.read_schema(str(tmp_path))


def test_a_table_without_a_model_needs_its_checksum(tmp_path):
    schema = Schema("y", "regression", (Column("a"),))
    (tmp_path / runs.TABLE).write_text(json.dumps(schema.to_dict()))
    with pytest.raises(ArgumentError, match="it has no checksum"):
        runs.read_schema(str(tmp_path))
