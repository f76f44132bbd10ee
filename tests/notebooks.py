"""Notebooks executed as Jupyter would, with every picture of what they display."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).parents[1]


class Client(nbclient.NotebookClient):
    """Keeps the contents of displays that were replaced since."""

    def __init__(self, notebook: Any, folder: Path):
        super().__init__(
            notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}
        )
        self.replaced: list[dict[str, str]] = []

    def process_message(self, message: Any, *rest: Any) -> Any:
        if message["msg_type"] == "update_display_data":
            self.replaced.append(message["content"]["data"])
        return super().process_message(message, *rest)


def execute(notebook: Any, folder: Path) -> Client:
    """All cells, in a kernel of this Python that finds this checkout; an error fails."""
    client = Client(notebook, folder)
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
        patch.setenv("JUPYTER_PLATFORM_DIRS", "1")
        patch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        client.execute()
    return client


def of_cells(*sources: str) -> Any:
    """A notebook of some code."""
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])


def displays(notebook: Any, kind: str = "text/html") -> list[str]:
    """What the cells display in one format, in order."""
    found = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [output["data"][kind] for output in found if kind in output.get("data", {})]


def printed(notebook: Any) -> str:
    """What the cells print."""
    found = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "".join(output["text"] for output in found if output["output_type"] == "stream")
