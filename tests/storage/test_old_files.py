"""Files of every format version stay loadable: those kept here were written by the code of then."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn.storage import folders

KEPT = Path(__file__).parent / "data"
VERSIONS = [1]


@pytest.fixture(params=VERSIONS)
def kept(request):
    """The files of a version, and what they held."""
    folder = KEPT / f"format-{request.param}"
    return folder, json.loads((folder / "expected.json").read_text())


def spread(posterior):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(posterior.family.std)])


def test_every_version_is_kept():
    assert list(range(1, folders.VERSION + 1)) == VERSIONS
    for version in VERSIONS:
        manifests = (KEPT / f"format-{version}").rglob("manifest.json")
        assert {json.loads(path.read_text())["version"] for path in manifests} == {version}


def test_a_posterior_has_the_values_it_had(kept):
    folder, expected = kept
    posterior = bl.load(folder / "posterior")
    np.testing.assert_array_equal(posterior.family.mean_vector(), expected["mean"])
    np.testing.assert_array_equal(spread(posterior), expected["std"])
    assert posterior.elbo == expected["elbo"]
    assert posterior.stopped == expected["stopped"]
    predictive = posterior.predict(np.asarray(expected["x"]), num_samples=16, seed=0)
    np.testing.assert_allclose(predictive.mean, expected["predicted"], rtol=1e-5)


def test_a_checkpoint_goes_on_to_the_same_posterior(kept, tmp_path):
    """Cut at step 20 of 40; another machine may round the last steps otherwise."""
    folder, expected = kept
    run = shutil.copytree(folder / "run", tmp_path / "run")
    data = np.asarray(expected["x"]), np.asarray(expected["y"])
    like, structure = jax.tree.flatten(bl.load(folder / "posterior").family.mean)
    leaves = [np.asarray(leaf, np.float32) for leaf in expected["start"]]
    assert [leaf.shape for leaf in leaves] == [leaf.shape for leaf in like]
    start = jax.tree.unflatten(structure, leaves)
    posterior = bl.resume(run, data, init=start, callback=False)
    np.testing.assert_allclose(posterior.family.mean_vector(), expected["mean"], rtol=1e-4)
    np.testing.assert_allclose(spread(posterior), expected["std"], rtol=1e-4)
    assert posterior.elbo == pytest.approx(expected["elbo"], rel=1e-4)
    assert posterior.trace["eval_step"].tolist() == [10, 20, 30, 40]
