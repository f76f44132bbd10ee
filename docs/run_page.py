"""Runs the Python of documentation pages: `python docs/run_page.py docs/index.md ...`.

The blocks of a page run in order, in one namespace and a temporary folder. A `text` block right
after one is what it printed; it is written again, and so are the figures that the page shows.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
import types
from pathlib import Path
from typing import Any, NamedTuple

DOCS = Path(__file__).parent
BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)


class Ran(NamedTuple):
    """What a block printed, and what the page says it prints (None: nothing)."""

    printed: str
    shown: str | None


def run(
    page: Path, folder: Path, setup: str = "", num_blocks: int | None = None
) -> tuple[list[Ran], dict[str, Any]]:
    """Run a page's (first) blocks inside `folder`, after `setup`; the results, the namespace."""
    module = types.ModuleType(f"page_{page.stem.replace('-', '_')}")
    sys.modules[module.__name__] = module  # dataclasses look their module up there
    text = page.read_text(encoding="utf-8")
    done = []
    with contextlib.chdir(folder):
        exec(setup, vars(module))
        for found in [*BLOCK.finditer(text)][:num_blocks]:
            line = text[: found.start()].count("\n") + 1
            code = compile("\n" * line + found[1], str(page), "exec")
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(code, vars(module))
            done.append(Ran(out.getvalue(), found[2]))
    return done, vars(module)


def rewrite(page: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        results = iter(run(page, Path(folder))[0])
        for figure in Path(folder).glob("*.png"):
            if f"figures/{figure.name}" in page.read_text(encoding="utf-8"):
                shutil.copy(figure, DOCS / "figures" / figure.name)

    def again(found: re.Match[str]) -> str:
        printed = next(results).printed
        block = f"```python\n{found[1]}```"
        return f"{block}\n\n```text\n{printed}```" if printed else block

    page.write_text(BLOCK.sub(again, page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "agg")
    sys.path.insert(0, str(DOCS.parent))
    for name in sys.argv[1:]:
        rewrite(Path(name).resolve())
        print(name, flush=True)
