"""The README says what is true: its code runs, its table is the registry, its links lead on."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bayeslearn as bl

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)


def section(title):
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", README, flags=re.DOTALL | re.MULTILINE)
    assert found, f"README has no section {title!r}"
    return found.group(1)


def table(title):
    """The rows of a section's table as mappings from column to cell."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    header, rule, *rows = cells
    assert all(set(cell) <= set("-:") for cell in rule)
    assert all(len(row) == len(header) for row in rows), "a row has too many or too few cells"
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_the_quick_start_with_a_table_runs(capsys):
    scope = {}
    exec(compile(blocks("python")[0], "README.md", "exec"), scope)
    assert "90 % intervals contain" in capsys.readouterr().out
    # Held-out rows: 89. A right 90 % interval covers 70 of them or fewer once in 900 runs.
    assert (
        np.mean((scope["lower"] <= scope["y_new"]) & (scope["y_new"] <= scope["upper"])) > 70 / 89
    )
    error = np.sqrt(np.mean((scope["mean"] - scope["y_new"]) ** 2))
    assert error < np.std(scope["y_new"])  # better than the mean


def test_the_quick_start_with_a_network_runs(capsys):
    scope = {}
    exec(compile(blocks("python")[1], "README.md", "exec"), scope)
    assert capsys.readouterr().out
    predictive = scope["predictive"]
    assert abs(predictive.mean[0]) < 0.3  # sin(0), with about 25 rows nearby
    assert predictive.epistemic[1] > predictive.epistemic[0]  # far from the data, and among them


def test_the_quick_start_in_a_shell_runs(tmp_path):
    (script,) = blocks("sh")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    python = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PATH": path, "PYTHONPATH": python}
    command = ["bash", "-euc", script]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "report.html").exists()
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 443


def test_table_lists_every_algorithm():
    rows = table("Algorithms")
    listed = {row["name"].strip("`"): row["class"].strip("`") for row in rows}
    assert len(listed) == len(rows), "a name is listed twice"
    assert listed == {name: f"bl.{cls.__name__}" for name, cls in bl.ALGORITHMS.items()}


@pytest.mark.parametrize("column", ["posterior", "needs", "cost per step", "paper"])
def test_table_is_filled_in(column):
    assert [row["name"] for row in table("Algorithms") if not row[column]] == []


def test_table_says_who_needs_all_rows():
    for row in table("Algorithms"):
        algorithm = bl.ALGORITHMS[row["name"].strip("`")]
        assert ("all rows" in row["needs"]) == (not algorithm.capabilities.takes_minibatches), row[
            "name"
        ]


def anchors(page):
    """Those that GitHub and the site give to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.strip().replace(" ", "-") for heading in plain}


PAGES = [ROOT / "README.md", *sorted((ROOT / "benchmarks").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = [link for link in re.findall(r"\]\(([^)]+)\)", page.read_text("utf-8"))]
    for link in links:
        path, _, anchor = link.partition("#")
        if "://" not in path:
            assert (page.parent / path).exists(), link
            assert not anchor or anchor in anchors(page.parent / path), link


def test_every_benchmark_has_a_page_that_the_first_one_links():
    first = (ROOT / "benchmarks" / "README.md").read_text("utf-8")
    pages = [page.name for page in (ROOT / "benchmarks").glob("*.md") if page.stem != "README"]
    assert pages
    for page in pages:
        assert f"({page}" in first
        assert (ROOT / "benchmarks" / page).with_suffix(".py").exists()
    assert len(first.splitlines()) < 120  # read in three minutes


def test_version_in_citation():
    assert f"version = {{{bl.__version__}}}" in README


def test_is_short():
    assert len(README.splitlines()) < 150
