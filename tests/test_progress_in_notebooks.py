"""Progress in a real notebook: one bar in the cell's output, replaced as it grows."""

from __future__ import annotations

import re

from notebooks import displays, execute, of_cells, printed

STEPS = """
import time
from bayeslearn.progress import Progress

with Progress("vogn", 40, None) as bar:
    time.sleep(1.3)  # compiling
    for step in range(1, 41):
        bar.update(step, {"elbo": -3.0, "other": 1.0})
        time.sleep(0.02)
"""
WORK = """
with Progress("reading <table>", None, None):
    time.sleep(1.3)
print("after")
"""
SILENT = """
with Progress("vogn", 40, False) as bar:
    bar.update(40)
"""
PRINTED = """
from bayeslearn.tabular.compare.result import Comparison

row = {"method": "map", "status": "ok", "cut_short": None, "reason": None}
row |= {"metrics": {"rmse": [1.25, 0.1]}}
rows = [row | {"seconds": [2.0, 0.1], "compile_seconds": 1.0, "memory_mb": 1.0, "pareto": True}]
print(Comparison("regression", "map", "It is alone.", rows, {}, (), {"test_rows": 9}, {}))
"""


def test_a_bar_grows_in_its_place_and_work_without_steps_goes(tmp_path):
    client = execute(of_cells(STEPS, WORK, SILENT, PRINTED), tmp_path)
    steps, work, silent, text = client.nb.cells
    assert [len(cell.outputs) for cell in (steps, work, silent, text)] == [1, 2, 0, 1]
    (bar,) = displays(of_one(steps))
    assert '<progress max="40" value="40"' in bar
    assert re.search(r"vogn: step 40 of 40, elbo -3 \(\d s\)", bar)
    values = [int(v) for found in client.replaced for v in re.findall(r'value="(\d+)"', str(found))]
    assert values == sorted(values)
    assert len(set(values)) > 3  # it moved
    assert len(values) < 40  # and was not drawn for every step
    seen = [found["text/plain"] for found in client.replaced]
    assert "vogn: compiling (1 s)" in seen  # by the clock, before the first step
    assert displays(of_one(work)) == [""]
    assert printed(of_one(work)) == "after\n"
    assert any("reading &lt;table&gt;" in bar for bar in displays(of_one(work)) + seen_html(client))
    assert "Recommended: map" in printed(of_one(text))


def seen_html(client):
    return [found["text/html"] for found in client.replaced]


def of_one(cell):
    notebook = of_cells()
    notebook.cells = [cell]
    return notebook
