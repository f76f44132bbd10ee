"""The examples in docstrings run, and the API reference shows them."""

from __future__ import annotations

import doctest
import inspect
import re
import warnings
from pathlib import Path

import pytest
from docs_tools import load

import bayeslearn as bl

DOCS = Path(__file__).parents[1] / "docs"
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
MUST_HAVE = {
    *("bl.fit", "bl.Model", "bl.Target.from_log_density", "bl.compare"),
    *(f"bl.Posterior.{name}" for name in ("predict", "sample", "calibrate", "update", "save")),
    *("bl.BayesianNNRegressor", "bl.BayesianNNClassifier", "bl.networks.MLP", "bl.priors.Normal"),
    *("bl.MAP", "bl.Ensemble", "bl.MILE", "bl.HMC", "bl.IVON", "bl.Laplace", "bl.Conjugate"),
    *("bl.likelihoods.Gaussian", "bl.likelihoods.Categorical", "bl.likelihoods.Custom"),
    *("bl.metrics.coverage", "bl.metrics.crps", "bl.metrics.log_likelihood", "bl.metrics.loo"),
    "bl.callbacks.CSVLogger",
}


hooks, run_page = load("hooks"), load("run_page")


def documented():
    """Every public object and public method whose docstring has an example, by its main name."""
    found = {}
    for name in ("bl", *(f"bl.{short}" for short in bl._MODULES)):
        module = bl if name == "bl" else getattr(bl, name.removeprefix("bl."))
        for key in hooks.public_names(module):
            value = getattr(module, key)
            parts = {f"{name}.{key}": value}
            if inspect.isclass(value):
                own = {k: getattr(v, "__func__", v) for k, v in vars(value).items()}
                own = {k: v for k, v in own.items() if inspect.isfunction(v)}
                parts |= {f"{name}.{key}.{k}": v for k, v in own.items() if not k.startswith("_")}
            for label, one in parts.items():
                is_ours = (getattr(one, "__module__", None) or "").startswith("bayeslearn")
                if is_ours and ">>>" in (one.__doc__ or ""):
                    found.setdefault(id(one), (label, one))
    return dict(found.values())


EXAMPLES = documented()


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """What the first block of the API reference defines, and all examples use."""
    _, found = run_page.run(DOCS / "api.md", tmp_path_factory.mktemp("api"), num_blocks=1)
    return {key: value for key, value in found.items() if not key.startswith("__")}


@pytest.mark.filterwarnings("ignore::bayeslearn.MixingWarning")  # short chains keep examples quick
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_and_prints_what_it_says(name, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = inspect.getdoc(EXAMPLES[name])
    test = doctest.DocTestParser().get_doctest(text, dict(names), name, None, 0)
    lines: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", bl.MixingWarning)
        result = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=lines.append)
    assert result.failed == 0, "".join(lines)
    assert result.attempted > 0


def test_main_names_have_an_example():
    assert sorted(MUST_HAVE - EXAMPLES.keys()) == []


def test_the_api_reference_shows_them():
    page = hooks.fill((DOCS / "api.md").read_text("utf-8"))
    entries = dict(re.findall(r"^### `(\S+)` (.*?)(?=^###? |\Z)", page, re.DOTALL | re.MULTILINE))
    for name, value in EXAMPLES.items():
        section = entries[name] if name in entries else entries[name.rpartition(".")[0]]
        first = next(line for line in inspect.getdoc(value).splitlines() if ">>>" in line)
        assert f"\n{first}\n" in section, name
    assert page.count("```pycon") >= len(EXAMPLES)
    outside = "".join(page.split("```")[::2])
    assert ">>>" not in outside
