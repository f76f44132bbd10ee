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
    time.sleep(0.1)
print("after")
"""
SILENT = """
with Progress("vogn", 40, False) as bar:
    bar.update(40)
"""


def test_a_bar_grows_in_its_place_and_work_without_steps_goes(tmp_path):
    client = execute(of_cells(STEPS, WORK, SILENT), tmp_path)
    steps, work, silent = client.nb.cells
    assert [len(cell.outputs) for cell in (steps, work, silent)] == [1, 2, 0]
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
    assert printed(client.nb) == "after\n"


def test_names_are_escaped(tmp_path):
    client = execute(of_cells(STEPS.replace("vogn", "<b>").replace("1.3", "0")), tmp_path)
    assert "&lt;b&gt;: step 40" in displays(client.nb)[0]


def of_one(cell):
    notebook = of_cells()
    notebook.cells = [cell]
    return notebook
