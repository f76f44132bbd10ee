"""Files broken at random: bytes, JSON, and checksums made anew so that the loader reads on."""

from __future__ import annotations

import contextlib
import hashlib
import json

from safetensors import SafetensorError
from safetensors.numpy import load as parse

from bayeslearn.storage import folders, sealed

ODDITIES = (None, True, -1, 0, 2**70, 0.5, "", "families.Point", "relu", [], {}, {"array": "x"})


def seal(manifest):
    """The bytes of a manifest with its own checksum."""
    manifest = {k: v for k, v in manifest.items() if k != "sha256"}
    return sealed.dumps(sealed.unsealed(manifest)).encode()


def break_bytes(rng, content):
    kind = rng.randrange(4)
    at = rng.randrange(len(content))
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content + rng.randbytes(8)
    if kind == 2:
        return content[:at] + rng.randbytes(4) + content[at + 4 :]
    return content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :]


def break_json(rng, manifest):
    """Another value, one too many or one too few, somewhere in the manifest."""
    places = []

    def walk(node):
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, value in list(items):
            places.append((node, key))
            if isinstance(value, dict | list):
                walk(value)

    walk(rng.choice((manifest, manifest["description"])))
    node, key = rng.choice(places)
    kind = rng.randrange(3)
    if kind == 0:
        del node[key]
    elif kind == 1:
        node[key] = rng.choice(ODDITIES)
    else:
        other, name = rng.choice(places)
        node[key] = json.loads(json.dumps(other[name]))


def with_checksums(manifest, content):
    digest = hashlib.sha256(content).hexdigest()
    manifest["files"] = {folders.ARRAYS: {"size": len(content), "sha256": digest}}
    with contextlib.suppress(SafetensorError):
        manifest["arrays"] = {
            name: folders.array_entry(array) for name, array in parse(content).items()
        }
    return manifest
