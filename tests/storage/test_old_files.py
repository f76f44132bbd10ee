"""Files of every format version stay loadable: those kept here were written by the code of then."""

from __future__ import annotations

import json
import shutil
import tarfile
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest
from fixtures import CASES, data_of, new_rows, numbers_of

import bayeslearn as bl
from bayeslearn.inference import run as run_module
from bayeslearn.storage import folders

STORED = Path(__file__).parents[1] / "data"
VERSIONS = [1]
RESUMED = [name for name, case in CASES.items() if case.is_resumed]
# Runs whose files and loops are those of another case: only their algorithm is compiled anew.
LIKE_OTHERS = {
    *(f"algorithm {n}" for n in ("natural-gradient", "ng-bbvi", "ngvi", "von", "qbvi", "mgvb")),
    *(f"algorithm {n}" for n in ("vadam", "nuts", "metropolis-hastings")),
    *(f"classes {n}" for n in ("vogn", "hmc", "bayes-by-backprop")),
}
LONG = pytest.mark.slow(reason="compiles another algorithm and its warm starts")
# Last bits decide which path a chain takes: on another machine its draws are other ones.
CHAOTIC = {name for name, case in CASES.items() if case.algorithm().capabilities.is_sampler}
# Runs that resume, but not to the numbers of the version that began them.
CHANGED = {
    "validation": "held-out scores are now compared row by row, which picks another iterate",
    "starts": "the names of phases seed their keys, and those of several starts are new",
    "algorithm von": "noise and curvature have keys of their own, which draws other noise",
}


@pytest.fixture(params=VERSIONS)
def stored(request):
    """The files of a version, and what they held."""
    folder = STORED / f"format-{request.param}"
    return folder, json.loads((folder / "expected.json").read_text())


@pytest.fixture(scope="module")
def fixtures(tmp_path_factory):
    """Saved posteriors of every kind, runs killed in their middle, and what they came to."""
    folder = tmp_path_factory.mktemp("fixtures")
    with tarfile.open(STORED / "format-1" / "fixtures.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder, json.loads((folder / "expected.json").read_text())


def stds(posterior):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(posterior.family.std)])


def test_every_version_is_kept():
    assert list(range(1, folders.VERSION + 1)) == VERSIONS
    for version in VERSIONS:
        manifests = (STORED / f"format-{version}").rglob("manifest.json")
        assert {json.loads(path.read_text())["version"] for path in manifests} == {version}


def test_every_case_is_kept(fixtures):
    folder, expected = fixtures
    assert set(expected) == {*CASES, "regressor", "classifier"}
    assert {path.name for path in folder.iterdir() if path.is_dir()} == set(expected)
    assert {path.parent.name for path in folder.glob("*/run")} == set(RESUMED)
    manifests = folder.rglob("manifest.json")
    assert {json.loads(path.read_text())["version"] for path in manifests} == {1}


def test_a_posterior_has_the_values_it_had(stored):
    folder, expected = stored
    posterior = bl.load(folder / "posterior")
    np.testing.assert_array_equal(posterior.family.mean_vector(), expected["mean"])
    np.testing.assert_array_equal(stds(posterior), expected["std"])
    assert posterior.elbo == expected["elbo"]
    assert posterior.stopped == expected["stopped"]
    predictive = posterior.predict(np.asarray(expected["x"]), num_samples=16, seed=0)
    np.testing.assert_allclose(predictive.mean, expected["predicted"], rtol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_a_saved_posterior_of_every_kind(name, fixtures):
    """The mean to the bit; predictions are computed anew, in the precision of the model."""
    folder, expected = fixtures
    posterior = bl.load(folder / name / "posterior")
    found = numbers_of(posterior, CASES[name])
    np.testing.assert_array_equal(found["mean"], expected[name]["mean"])
    for part in ("predicted", "total"):
        wanted = np.asarray(expected[name][part])
        np.testing.assert_allclose(
            found[part], wanted, rtol=1e-5, atol=1e-6 * np.max(np.abs(wanted))
        )


@pytest.mark.parametrize("kind", ["regressor", "classifier"])
def test_a_saved_estimator(kind, fixtures):
    folder, expected = fixtures
    estimator = bl.tabular.load(folder / kind)
    predict = estimator.predict if kind == "regressor" else estimator.predict_proba
    found = np.asarray(predict(new_rows(30))).ravel()
    np.testing.assert_allclose(found, expected[kind]["predicted"], rtol=1e-5, atol=1e-6)


def test_a_checkpoint_goes_on_to_the_same_posterior(stored, tmp_path):
    """Killed at step 20 of 40; another machine may round the last steps otherwise."""
    folder, expected = stored
    run = shutil.copytree(folder / "run", tmp_path / "run")
    data = np.asarray(expected["x"]), np.asarray(expected["y"])
    like, structure = jax.tree.flatten(bl.load(folder / "posterior").family.mean)
    leaves = [np.asarray(leaf, np.float32) for leaf in expected["start"]]
    assert [leaf.shape for leaf in leaves] == [leaf.shape for leaf in like]
    start = jax.tree.unflatten(structure, leaves)
    posterior = bl.resume(run, data, init=start, callback=False)
    np.testing.assert_allclose(posterior.family.mean_vector(), expected["mean"], rtol=1e-4)
    np.testing.assert_allclose(stds(posterior), expected["std"], rtol=1e-4)
    assert posterior.elbo == pytest.approx(expected["elbo"], rel=1e-4)
    assert posterior.trace["eval_step"].tolist() == [10, 20, 30, 40]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[LONG] * (n in LIKE_OTHERS)) for n in RESUMED]
)
def test_a_killed_run_of_every_kind_goes_on(name, fixtures, monkeypatch):
    """The last bits of a network's first weights depend on the machine and on XLA's optimisation
    level; the run does not use them again, but their digest would refuse it."""
    folder, expected = fixtures
    case = CASES[name]
    manifest = json.loads((folder / name / "run" / "fit" / "manifest.json").read_text())
    digest = manifest["description"]["fingerprints"]["model"]
    monkeypatch.setattr(run_module, "digest", lambda values: digest)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bl.MixingWarning)
        posterior = bl.resume(
            folder / name / "run", data_of(case), validation=case.options.get("validation")
        )
    assert posterior.stopped
    assert posterior.phases[-1].name == "main"
    found = numbers_of(posterior, case)
    for part, wanted in expected[name].items():
        values, wanted = np.asarray(found[part]), np.asarray(wanted)
        assert values.shape == wanted.shape
        assert np.all(np.isfinite(values))
        if name not in CHAOTIC and name not in CHANGED:
            scale = np.max(np.abs(wanted))
            np.testing.assert_allclose(values, wanted, rtol=1e-4, atol=1e-4 * scale, err_msg=part)
