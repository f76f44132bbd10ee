"""Imports point one way, and importing the package is cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import bayeslearn as bl

PACKAGE = Path(bl.__file__).parent

# The corridor, front to back: a file may import from its own room and the rooms before it.
ROOMS = [
    {"errors", "precision"},
    {"tree"},
    {"distributed"},
    {"noise"},
    {"priors", "likelihoods", "networks"},
    {"model"},
    {"geometry"},
    {"families"},
    {"gradients"},
    {"algorithms"},
    {"predictive"},
    {"posterior"},
    {"storage"},
    {"batches", "chains", "checkpoints", "progress", "sources"},
    {"courses"},
    {"fitting"},
    {"diagnostics", "metrics"},
    {"plots", "sequential"},
    {"estimators", "tables"},
    {"comparison"},
    {"report"},
    {"demo", "flags", "runs"},
    {"cli"},
    {"__main__"},
]
# Imported ahead when called, so that a posterior can update, diagnose and save itself.
AHEAD = {
    ("posterior", "diagnostics"),
    ("posterior", "sequential"),
    ("posterior", "storage"),
    ("storage", "diagnostics"),
}


def room_of(module: str) -> int:
    for index, room in enumerate(ROOMS):
        if module in room:
            return index
    raise AssertionError(f"{module} has no room: add it to ROOMS")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.startswith("bayeslearn")
        ):
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("bayeslearn.")}
    return found


def test_imports_point_one_way():
    files = [p for p in PACKAGE.rglob("*.py") if p.parent != PACKAGE or p.name != "__init__.py"]
    assert files
    for path in files:
        here = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for there in imports(path):
            allowed = room_of(there) <= room_of(here) or (here, there) in AHEAD
            assert allowed, f"{path.relative_to(PACKAGE)} imports {there}, which comes after it"


def test_importing_the_package_imports_nothing_heavy():
    code = (
        "import sys, bayeslearn; print([m for m in"
        " ('jax', 'equinox', 'optax', 'blackjax', 'arviz', 'sklearn', 'matplotlib', 'rich')"
        " if m in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def test_fitting_does_not_import_the_optional_libraries():
    code = (
        "import sys, numpy as np, bayeslearn as bl;"
        "m = bl.Model(bl.networks.MLP([]), bl.likelihoods.Gaussian());"
        "bl.fit(m, 'map', (np.ones((4, 1)), np.arange(4.0)), seed=0, num_steps=1);"
        "print([m for m in ('blackjax', 'arviz', 'sklearn', 'matplotlib', 'pandas')"
        " if m in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


@pytest.mark.parametrize("name", bl.__all__)
def test_every_public_name_exists(name):
    assert getattr(bl, name) is not None


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="nonsense"):
        bl.nonsense


def test_no_private_jax_and_no_pickle():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        assert "jax._src" not in text, path
        assert "import pickle" not in text, path
