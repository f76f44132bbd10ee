"""The documentation is true: its code runs and prints what it says, its names are all there."""

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from docs_tools import load

import bayeslearn as bl

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:e-?\d+)?")
LONG_PAGE = pytest.mark.slow(reason="the page fits for minutes")
# Pages that speak of the reader's own data.
TABLE = """
import bayeslearn as bl
from sklearn.datasets import load_diabetes
X, y = (part[:60] for part in load_diabetes(return_X_y=True))
"""
FITTED = """
X_train, X_test, y_train, y_test = X[:40], X[40:], y[:40], y[40:]
settings = {"hidden": (5,), "method": "bayes-by-backprop", "num_steps": 100}
estimator = bl.BayesianNNRegressor(**settings, random_state=0).fit(X_train, y_train)
"""
LONG = {"comparing.md", "report.md", "sequential.md", "uncertainty.md"}  # as are the examples
SETUP = {"comparing.md": TABLE, "report.md": TABLE + FITTED}


hooks, run_page = load("hooks"), load("run_page")


def pages():
    found = sorted(p for p in DOCS.rglob("*.md") if run_page.BLOCK.search(p.read_text("utf-8")))
    for page in found:
        name = page.relative_to(DOCS).as_posix()
        is_long = name.startswith("examples/") or name in LONG
        yield pytest.param(page, id=name, marks=[LONG_PAGE] if is_long else [])


def same(printed, shown):
    """The same words around as many numbers.

    The numbers are those of the machine that wrote the page: last bits decide in which optimum
    a network's fit ends, and which path a sampler takes.
    """
    left, right = ("".join(NUMBER.sub("#", text).split()) for text in (printed, shown))
    return left == right


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    few = functools.partial(bl.compare, methods=["map", "hmc"], splits=2, hidden=(5,))
    monkeypatch.setattr(bl, "compare", few)  # unless a page says which, and how many

    def go(page, num_blocks=None):
        module_names = set(sys.modules)
        try:
            return run_page.run(page, tmp_path, SETUP.get(page.name, ""), num_blocks)
        finally:
            for name in set(sys.modules) - module_names:
                if name.startswith("page_"):
                    del sys.modules[name]

    return go


@pytest.mark.filterwarnings("ignore::bayeslearn.MixingWarning")  # short chains keep pages quick
@pytest.mark.parametrize("page", pages())
def test_code_runs_and_prints_what_the_page_says(page, run):
    results, _ = run(page)
    for ran in results:
        shown = f"printed:\n{ran.printed}\nshown:\n{ran.shown}"
        assert ran.shown is None or same(ran.printed, ran.shown), shown


def test_words_are_compared():
    assert same("mean [ 0.50] of 10", "mean [-0.52] of 11")
    assert not same("mean 0.50", "median 0.50")
    assert not same("mean 0.5", "mean 0.5 1.5")


@pytest.mark.parametrize("name", bl.ALGORITHMS)
def test_every_algorithm_has_its_page(name):
    text = (DOCS / "algorithms" / f"{name}.md").read_text("utf-8")
    headings = ["Example", "Equations", "Options", "When it fails", "Cost"]
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == headings
    filled = hooks.fill(text)
    for option, metadata in bl.algorithms.hyper_parameters(bl.ALGORITHMS[name]).items():
        row = next(line for line in filled.splitlines() if line.startswith(f"| `{option}` |"))
        assert repr(metadata["default"]) in row
        assert metadata["doc"].partition("|")[0] in row
    assert "<!--" not in filled
    assert f"algorithms/{name}.md" in (ROOT / "mkdocs.yml").read_text()


def test_api_reference_has_every_public_name():
    page = hooks.fill((DOCS / "api.md").read_text("utf-8"))
    entries = set(re.findall(r"^### `(\S+)` ", page, re.MULTILINE))
    wanted = {f"bl.{name}" for name in bl.__all__}
    modules = {short: getattr(bl, short) for short in bl._MODULES}
    modules |= {f"geometry.{name}": getattr(bl.geometry, name) for name in bl.geometry.__all__}
    for short, module in modules.items():
        wanted |= {f"bl.{short}.{name}" for name in hooks.public_names(module)}
    assert wanted == entries
    assert "bl.metrics.crps" in entries
    assert "| `data` | `Data or Batches or None` | `None` | (x, y) or (x, y, weight)" in page


def test_only_helpers_are_left_out_of_the_api_reference():
    for short, names in hooks.INTERNAL.items():
        assert [name for name in names if not hasattr(getattr(bl, short), name)] == []


def test_the_page_on_writing_algorithms_keeps_the_contract(run, x64, monkeypatch):
    import problems
    from algorithms import test_contract

    _, names = run(DOCS / "own_algorithm.md", num_blocks=1)
    monkeypatch.setitem(bl.ALGORITHMS, "langevin", names["Langevin"])
    quick = {"num_warmup": 30, "num_samples": 20, "thin": 2}
    monkeypatch.setitem(problems.QUICK, "langevin", quick)
    test_contract.test_argument_names("langevin")
    test_contract.test_hyper_parameters_are_documented_checked_and_leaves("langevin")
    test_contract.test_numbers_are_dynamic_and_the_rest_is_static("langevin")
    test_contract.test_step_keeps_structure_types_and_is_pure("langevin", None)


def test_every_figure_is_shown():
    text = "".join(page.read_text("utf-8") for page in DOCS.rglob("*.md"))
    figures = [figure.name for figure in (DOCS / "figures").iterdir()]
    assert figures
    assert [name for name in figures if f"figures/{name})" not in text] == []


def test_site_builds_strictly_and_asks_nothing_of_a_network(tmp_path):
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "algorithms" / "vogn.html").read_text("utf-8")
    assert bl.algorithms.hyper_parameters(bl.VOGN)["beta1"]["doc"] in page
    fetched = re.compile(r"<(?:script|link|img)[^>]+(?:src|href)=\"?https?://")
    assert [p.name for p in tmp_path.rglob("*.html") if fetched.search(p.read_text("utf-8"))] == []
