"""Imports make no cycle, no module reaches into another, and importing the package is cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import bayeslearn as bl

PACKAGE = Path(bl.__file__).parent
# What NamedTuples document under names with an underscore, so that they cannot clash with fields.
NAMEDTUPLE = {"_replace", "_asdict", "_fields", "_field_defaults", "_make"}
STANDARD_LIBRARY = {"os._exit"}  # documented, with an underscore


def name_of(path: Path) -> str:
    """The dotted name of a module; that of a package for its __init__."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in PACKAGE.rglob("*.py")}


def run_time_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes, those inside functions included, but not what type checkers alone see."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for branch in child.orelse:
                yield branch
                yield from run_time_nodes(branch)
            continue
        yield child
        yield from run_time_nodes(child)


def imports(module: str, source: str) -> set[str]:
    """Modules that are executed when this one, or a function in it, imports.

    An import of `a.b.c` also executes `a/__init__` and `a.b/__init__`, but for the packages that
    hold the importing module itself: they are under way already.
    """
    found = set()
    for node in run_time_nodes(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            submodules = names & MODULES.keys()
            found |= submodules
            if names - submodules:
                found.add(node.module)
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith("import_module")
            and isinstance(node.args[0], ast.Constant)
        ):
            found.add(node.args[0].value)
    explicit = found & MODULES.keys()
    parents = {name.rpartition(".")[0] for name in explicit} & MODULES.keys()
    while grand := {name.rpartition(".")[0] for name in parents} & MODULES.keys() - parents:
        parents |= grand
    around = {module} | {module.rsplit(".", n)[0] for n in range(1, module.count(".") + 1)}
    return (explicit | parents - around) - {module}


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, directly or not (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1 or node in graph.get(node, ()):
                found.append(sorted(group))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def test_cycles_are_found():
    assert cycles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert cycles({"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": set()}) == [["a", "b", "c"]]
    assert cycles({"a": {"a"}}) == [["a"]]


def test_imports_are_read():
    source = (
        "import jax\nfrom bayeslearn.models import priors\n"
        "if TYPE_CHECKING:\n    from bayeslearn.cli import app\n"
        "def late():\n    from bayeslearn.storage.codec import pack\n"
    )
    assert imports("bayeslearn.errors", source) == {
        "bayeslearn.models",
        "bayeslearn.models.priors",
        "bayeslearn.storage",
        "bayeslearn.storage.codec",
    }
    assert imports("bayeslearn.models.model", source) >= {"bayeslearn.models.priors"}
    assert "bayeslearn.models" not in imports("bayeslearn.models.model", source)
    itself = "from bayeslearn.models import Model"
    assert imports("bayeslearn.models.model", itself) == {"bayeslearn.models"}


def test_imports_make_no_cycle():
    graph = {
        name: imports(name, path.read_text(encoding="utf-8"))
        for name, path in MODULES.items()
        if name != "bayeslearn"  # names that are imported when they are first used
    }
    assert cycles(graph) == []


def private_uses(path: Path) -> list[str]:
    """Names with an underscore that belong to another module, class or object."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bayeslearn"):
            names = [alias.name for alias in node.names if alias.name.startswith("_")]
        elif isinstance(node, ast.Attribute):
            is_own = ast.unparse(node.value) in ("self", "cls", "super()")
            is_public = is_own or ast.unparse(node) in STANDARD_LIBRARY
            is_private = node.attr.startswith("_") and not node.attr.endswith("__")
            names = [node.attr] if is_private and not is_public else []
        else:
            continue
        found += [
            f"{path.relative_to(PACKAGE)}:{node.lineno} {name}"
            for name in names
            if name not in NAMEDTUPLE and name != "__version__"
        ]
    return found


def test_no_module_uses_what_is_private_to_another():
    assert [use for path in MODULES.values() for use in private_uses(path)] == []


def test_importing_the_package_imports_nothing_heavy():
    code = (
        "import sys, bayeslearn; print([m for m in"
        " ('jax', 'equinox', 'optax', 'blackjax', 'arviz', 'sklearn', 'matplotlib', 'rich')"
        " if m in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_fitting_does_not_import_the_optional_libraries():
    code = (
        "import sys, numpy as np, bayeslearn as bl;"
        "m = bl.Model(bl.networks.MLP([]), bl.likelihoods.Gaussian());"
        "bl.fit(m, 'map', (np.ones((4, 1)), np.arange(4.0)), seed=0, num_steps=1);"
        "print([m for m in ('blackjax', 'arviz', 'sklearn', 'matplotlib', 'pandas')"
        " if m in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


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
