"""docs/errata.md names a test for every entry, and every such test has an entry."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = (
    "tests/algorithms/test_errata_sampling.py",
    "tests/algorithms/test_errata_updates.py",
)


def mentioned():
    text = (ROOT / "docs" / "errata.md").read_text()
    return text, set(re.findall(r"(tests/[\w/]+\.py)::(\w+)", text))


@functools.cache
def defined(path):
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_test_named_on_the_page_exists():
    _, names = mentioned()
    assert len(names) > 40
    assert not [f"{path}::{name}" for path, name in sorted(names) if name not in defined(path)]


def test_every_entry_has_a_test_and_every_test_an_entry():
    text, names = mentioned()
    wrong = {5, 11, 14, 15, 18, 21, 22, 24, 25, 26, 29, 30, 35, 36, 42, 46, 49, 58, 60, 61, 64}
    wrong |= {70, 72, 73, 74, 76, 79, 80, 81, 85, 93, 97, 98, 101, 105, 109}
    judged = {7, 23, 34, 44, 45, 59, 62, 66, 78, 84, 90, 92, 108, 110}
    entries = re.split(r"^### ", text.split("\n## Slips")[0], flags=re.MULTILINE)[1:]
    numbers = [set(map(int, re.findall(r"\d+", e.split(". ")[0]))) for e in entries]
    assert wrong | judged <= set().union(*numbers)
    assert not [entry.splitlines()[0] for entry in entries if "::test_" not in entry]
    own = {(path, name) for path in FILES for name in defined(path) if name.startswith("test_")}
    assert own - names == set()


def test_every_erratum_cited_in_the_code_is_on_the_page():
    text, _ = mentioned()
    rows = re.findall(r"^(?:### |\| )(\d[\d, ]*)", text, flags=re.MULTILINE)
    listed = {int(number) for row in rows for number in re.findall(r"\d+", row)}
    sources = (ROOT / "bayeslearn").rglob("*.py")
    cited = {int(n) for path in sources for n in re.findall(r"errata (\d+)", path.read_text())}
    assert len(cited) > 20
    assert cited <= listed
    assert listed == set(range(1, 112))  # the audit's numbers, each once or more
