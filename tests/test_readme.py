"""The README says what is true: its code runs, its table is the registry, its links lead on."""

import re
from pathlib import Path

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


def test_quick_start_runs(capsys):
    (code,) = blocks("python")
    scope = {}
    exec(compile(code, "README.md", "exec"), scope)
    printed = capsys.readouterr().out
    assert "elbo" in printed
    # Held-out rows: 89. A right 90 % interval covers 70 of them or fewer once in 900 runs.
    assert bl.metrics.coverage(scope["predictive"], scope["y_new"], level=0.9) > 70 / 89
    assert bl.metrics.rmse(scope["predictive"], scope["y_new"]) < 1.0  # better than the mean


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


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)", README)
    assert links
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


def test_version_in_citation():
    assert f"version = {{{bl.__version__}}}" in README


def test_is_short():
    assert len(README.splitlines()) < 150
