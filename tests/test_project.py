"""Workflows, citation and templates say what the package says."""

import re
import tomllib
from pathlib import Path

import pytest

import bayeslearn as bl

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
REGISTRIES = re.compile(r"pypi\.org|pythonhosted\.org|npmjs|conda\.anaconda|googleapis\.com")


def read(name):
    return yaml.safe_load((ROOT / name).read_text("utf-8"))


def test_every_file_parses():
    files = [*WORKFLOWS, *(ROOT / ".github").rglob("*.yml"), ROOT / "CITATION.cff"]
    assert len(files) > 6
    assert all(isinstance(yaml.safe_load(path.read_text("utf-8")), dict) for path in files)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_have_few_rights_and_pinned_actions(path):
    workflow = yaml.safe_load(path.read_text("utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    actions = [step["uses"] for step in steps if "uses" in step]
    assert actions
    assert [a for a in actions if not re.search(r"@(release/)?v\d+$", a)] == []
    assert not REGISTRIES.search(path.read_text("utf-8"))


def test_tests_run_on_every_python_that_the_package_names():
    matrix = read(".github/workflows/tests.yml")["jobs"]["tests"]["strategy"]["matrix"]
    named = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if ":: Python :: 3." in c]
    assert matrix["python"] == named
    assert PROJECT["requires-python"] == f">={named[0]}"
    oldest = [row["python"] for row in matrix["include"] if row["dependencies"] == "oldest"]
    assert oldest == [named[0]]


def test_the_version_is_the_same_everywhere():
    assert PROJECT["version"] == bl.__version__
    assert read("CITATION.cff")["version"] == bl.__version__


def test_the_release_has_no_password_and_is_attested():
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")
    publish = yaml.safe_load(text)["jobs"]["publish"]
    assert publish["permissions"]["id-token"] == "write"
    assert any("attest-build-provenance" in step["uses"] for step in publish["steps"])
    assert "secrets." not in text
