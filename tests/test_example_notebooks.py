"""The notebooks of `examples/` run from top to bottom, and are stored without outputs."""

from __future__ import annotations

import json
import re

import pytest
from notebooks import ROOT, displays, execute, nbformat, printed

EXAMPLES = ROOT / "examples"
# What a reader must see, beside bars of progress.
EXPECTED = {
    "tables": ("90 % intervals hold", "R² on test rows"),
    "own_network": ("emgvb: epistemic std", "after 40 rows there"),
    "images": ("accuracy 9", "the most certain 90 %"),
    "calibration": ("by side: ", "noise by input: log-likelihood"),
    "new_algorithm": ("means within 0.1 std: True", "stds within 5 %: True", "below 1.02: True"),
}


def test_notebooks_are_stored_without_outputs():
    found = {path.stem: json.loads(path.read_text("utf-8")) for path in EXAMPLES.glob("*.ipynb")}
    assert found.keys() == EXPECTED.keys()
    for name, notebook in found.items():
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert not [cell for cell in code if cell["outputs"] or cell["execution_count"]], name


@pytest.mark.slow(reason="five notebooks of fits, each in a kernel of its own")
def test_notebooks_run(tmp_path):
    for name, wanted in EXPECTED.items():
        notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
        client = execute(notebook, tmp_path)
        text = printed(client.nb)
        assert [words for words in wanted if words not in text] == [], name
        bars = [html for html in displays(client.nb) if "<progress" in html]
        assert bars, name
        ends = [re.search(r'max="(\d+)" value="(\d+)"', bar) for bar in bars]
        assert all(end and 0 < int(end[2]) <= int(end[1]) for end in ends), name
