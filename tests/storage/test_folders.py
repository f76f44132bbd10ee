"""The folder format: written whole or not at all, and checked before anything is made of it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil

import numpy as np
import pytest
from mutations import seal

import bayeslearn as bl
from bayeslearn.errors import ArgumentError, StorageError
from bayeslearn.storage import folders

ARRAYS = {"a": np.arange(6.0).reshape(2, 3), "b": np.array(True), "c": np.zeros((0, 4), np.int8)}
DESCRIPTION = {"kind": "numbers", "values": [1, None, "x"]}


@pytest.fixture
def run(tmp_path):
    folders.write_folder(tmp_path / "run", ARRAYS, DESCRIPTION)
    return tmp_path / "run"


def edit(run, change):
    manifest = json.loads((run / folders.MANIFEST).read_bytes())
    change(manifest)
    (run / folders.MANIFEST).write_bytes(seal(manifest))


def assert_is_old(run):
    arrays, description = folders.read_folder(run)
    assert description == DESCRIPTION
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)
    assert {path.name for path in run.iterdir()} == {folders.MANIFEST, folders.ARRAYS}
    assert [path.name for path in run.parent.iterdir()] == ["run"]


def test_a_folder_holds_what_was_written(run):
    assert_is_old(run)
    manifest = json.loads((run / folders.MANIFEST).read_bytes())
    content = (run / folders.ARRAYS).read_bytes()
    entry = manifest["files"][folders.ARRAYS]
    assert entry == {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert manifest["bayeslearn"] == bl.__version__
    assert manifest["arrays"]["a"]["shape"] == [2, 3]
    assert manifest["arrays"]["a"]["dtype"] == "float64"


def test_only_a_folder_of_ours_gives_way(run, tmp_path):
    with pytest.raises(StorageError, match="it exists"):
        folders.write_folder(run, {}, {})
    assert_is_old(run)
    folders.write_folder(run, {}, {"new": 1}, overwrite=True)
    assert folders.read_folder(run) == ({}, {"new": 1})
    (run / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(run)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for place in ("run", "file", "empty", "link", "dangling"):
        with pytest.raises(StorageError, match="not a folder that bayeslearn wrote"):
            folders.write_folder(tmp_path / place, {}, {}, overwrite=True)
    assert (run / "notes.txt").read_text() == (tmp_path / "file").read_text() == "mine"
    with pytest.raises(StorageError, match="there is no folder"):
        folders.write_folder(tmp_path / "no" / "run", {}, {})
    with pytest.raises(ArgumentError, match="`path` must"):
        folders.write_folder(3.5, {}, {})


@pytest.mark.parametrize("name", ["fsync", "rename"])
def test_an_error_at_any_moment_leaves_the_old_folder(name, run, monkeypatch):
    original = getattr(os, name)
    failures = 0
    for moment in range(10):
        calls = 0

        def fail(*args, moment=moment):
            nonlocal calls
            calls += 1
            if calls == moment + 1:
                raise OSError("the disk is full")
            return original(*args)

        monkeypatch.setattr(os, name, fail)
        try:
            folders.write_folder(run, {}, {"moment": moment}, overwrite=True)
        except OSError:
            failures += 1
            monkeypatch.undo()
            found = folders.read_folder(run)[1]
            # After the swap only the parent's entry may be lost: the new folder stands.
            assert found == DESCRIPTION or (name == "fsync" and found == {"moment": moment})
            if found != DESCRIPTION:
                folders.write_folder(run, ARRAYS, DESCRIPTION, overwrite=True)
            assert_is_old(run)
        else:
            monkeypatch.undo()
            break
    assert failures >= 2
    assert folders.read_folder(run)[1] == {"moment": failures}


def test_power_lost_in_the_middle_of_a_swap(run, monkeypatch):
    original, calls = os.rename, []

    def die(*args):
        calls.append(args)
        if len(calls) > 1:
            raise SystemExit  # and no way back either
        original(*args)

    monkeypatch.setattr(os, "rename", die)
    with pytest.raises(SystemExit):
        folders.write_folder(run, {}, {"new": 1}, overwrite=True)
    monkeypatch.undo()
    assert not run.exists()
    assert folders.read_folder(run)[1] == DESCRIPTION
    with pytest.raises(StorageError, match="it exists"):
        folders.write_folder(run, {}, {})
    folders.write_folder(run, ARRAYS, DESCRIPTION, overwrite=True)
    assert_is_old(run)
    # Power lost just after it: the earlier folder is still there, and out of the way.
    shutil.copytree(run, run.parent / ".run.before")
    folders.write_folder(run, ARRAYS, DESCRIPTION, overwrite=True)
    assert_is_old(run)


REFUSED = {
    "version": (lambda m: m.update(version=2), "format version 2"),
    "no version": (lambda m: m.pop("version"), "format version None"),
    "true version": (lambda m: m.update(version=True), "format version True"),
    "format": (lambda m: m.update(format="other"), "not one of bayeslearn"),
    "outside": (
        lambda m: m.update(files={"../arrays.safetensors": m["files"][folders.ARRAYS]}),
        "not laid out",
    ),
    "two files": (lambda m: m["files"].update(more={"size": 0, "sha256": ""}), "not laid out"),
    "size": (lambda m: m["files"][folders.ARRAYS].update(size=2**62), "bytes, and not"),
    "negative size": (lambda m: m["files"][folders.ARRAYS].update(size=-1), "not laid out"),
    "checksum": (lambda m: m["files"][folders.ARRAYS].update(sha256="0" * 64), "damaged"),
    "array checksum": (lambda m: m["arrays"]["a"].update(sha256="0" * 64), "array 'a' is not"),
    "shape": (lambda m: m["arrays"]["a"].update(shape=[3, 2]), "array 'a' is not"),
    "large shape": (lambda m: m["arrays"]["a"].update(shape=[2**40, 2**40]), "does not have the"),
    "negative shape": (lambda m: m["arrays"]["a"].update(shape=[-2, -3]), "not laid out"),
    "dtype": (lambda m: m["arrays"]["a"].update(dtype="int64"), "array 'a' is not"),
    "object": (lambda m: m["arrays"]["a"].update(dtype="object"), "not laid out"),
    "missing array": (lambda m: m["arrays"].pop("a"), "does not have the size"),
    "missing empty array": (lambda m: m["arrays"].pop("c"), "array 'c' is missing or one too many"),
    "extra array": (
        lambda m: m["arrays"].update(d=m["arrays"]["c"]),
        "array 'd' is missing or one too many",
    ),
    "no description": (lambda m: m.pop("description"), "not laid out"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_manifest_that_does_not_fit_is_refused(case, run):
    change, message = REFUSED[case]
    edit(run, change)
    with pytest.raises(StorageError, match=f"run cannot be loaded: .*{message}.*\\.$"):
        folders.read_folder(run)


def test_folders_of_others_links_and_pipes_are_refused(run, tmp_path):
    def check(path, message):
        with pytest.raises(StorageError, match=f"cannot be loaded: .*{message}"):
            bl.load(path)

    check(tmp_path / "nowhere", "there is no such folder")
    (tmp_path / "file").touch()
    check(tmp_path / "file", "it is not a folder")
    check(run, "'numbers' and not a posterior")
    (tmp_path / "link").symlink_to(run)
    check(tmp_path / "link", "it is a symbolic link")
    for name in (folders.ARRAYS, folders.MANIFEST):
        elsewhere = tmp_path / name
        shutil.move(run / name, elsewhere)
        check(run, "No such file")
        (run / name).symlink_to(elsewhere)
        check(run, f"{name} is a symbolic link")
        (run / name).unlink()
        os.mkfifo(run / name)
        check(run, f"{name} is not a regular file")
        (run / name).unlink()
        (run / name).mkdir()
        check(run, "directory|regular")
        (run / name).rmdir()
        shutil.move(elsewhere, run / name)
    assert_is_old_content(run)
    (run / folders.MANIFEST).write_text("[" * 100_000)
    check(run, "manifest.json is not JSON")
    with open(run / folders.MANIFEST, "wb") as file:
        file.truncate(folders.MANIFEST_LIMIT + 1)  # sparse
    check(run, "too many")


def assert_is_old_content(run):
    assert folders.read_folder(run)[1] == DESCRIPTION


def test_lengths_are_checked_before_anything_is_made(run):
    path = run / folders.ARRAYS
    content = path.read_bytes()
    header = int.from_bytes(content[:8], "little")
    named = content[8 : 8 + header].replace(b"[2,3]", b"[3,2]")
    for broken, message in (
        (content[:-1], "bytes, and not"),
        (content[:4], "cut short"),
        ((2**63).to_bytes(8, "little") + content[8:], "header is too long"),
        ((len(content) - 8).to_bytes(8, "little") + content[8:], "does not have the size"),
        (content[:8] + b"x" * header + content[8 + header :], "not in the safetensors format"),
        (content[:8] + named + content[8 + header :], "array 'a' is not the one"),
    ):
        path.write_bytes(broken)
        if message != "bytes, and not":
            digest = hashlib.sha256(broken).hexdigest()
            entry = {"size": len(broken), "sha256": digest}
            edit(run, lambda m, entry=entry: m.update(files={folders.ARRAYS: entry}))
        with pytest.raises(StorageError, match=message):
            folders.read_folder(run)
