"""The site: equations are typeset without a network, pictures belong to algorithms."""

import json
import re
from html import escape
from pathlib import Path

import pytest
from browser import browse, in_a_browser
from docs_tools import load

import bayeslearn as bl

DOCS = Path(__file__).parents[1] / "docs"
ASSETS = DOCS / "assets"
EQUATION = re.compile(r"^\$\$\n(.*?)\n\$\$$", re.DOTALL | re.MULTILINE)


hooks = load("hooks")


def equations():
    return {
        page.stem: found
        for page in sorted((DOCS / "algorithms").glob("*.md"))
        if (found := EQUATION.findall(page.read_text("utf-8")))
    }


@in_a_browser
def test_every_equation_is_typeset_by_the_script_of_the_site(tmp_path):
    """In Chromium, from files; an equation with an error would be shown in red."""
    texts = equations()
    assert len(texts) >= 20
    body = "".join(
        f'<div class="arithmatex">\\[{escape(text)}\\]</div>'
        for found in texts.values()
        for text in found
    )
    files = (ASSETS / "katex" / "katex.min.js", ASSETS / "math.js")
    scripts = "".join(f'<script src="{file.as_uri()}"></script>' for file in files)
    document, said = browse(f"<!doctype html><body>{body}{scripts}", tmp_path)
    assert "CONSOLE" not in said
    assert document.count('class="katex-display"') == sum(map(len, texts.values()))
    assert "katex-error" not in document
    assert "<math" in document  # for screen readers


def test_vendored_files_are_whole_and_ask_no_network():
    assert "MIT License" in (ASSETS / "katex" / "LICENSE").read_text("utf-8")
    css = (ASSETS / "katex" / "katex.min.css").read_text("utf-8")
    fonts = {path.name for path in (ASSETS / "katex" / "fonts").iterdir()}
    assert fonts <= set(re.findall(r"fonts/([\w-]+\.woff2)", css))
    assert "://" not in css
    size = sum(path.stat().st_size for path in ASSETS.rglob("*") if path.is_file())
    assert size < 600_000


def test_text_of_the_source_is_folded_below_typeset_equations():
    page = hooks.fill((DOCS / "algorithms" / "vogn.md").read_text("utf-8"))
    assert '??? note "Symbols and details' in page
    assert "    h is the mean of per-EXAMPLE squares" in page
    assert "??? note" not in hooks.fill("<!-- equations vogn -->")


def test_pictures_are_of_algorithms_and_on_their_pages():
    stored = json.loads((DOCS / "gallery" / "seconds.json").read_text("utf-8"))["seconds"]
    pictures = {path.stem for path in (DOCS / "gallery").glob("*.png")}
    assert pictures == set(stored)
    assert pictures <= set(bl.ALGORITHMS)
    gallery = hooks.fill("<!-- gallery -->")
    for name in pictures:
        assert f"gallery/{name}.png" in gallery
        page = hooks.fill((DOCS / "algorithms" / f"{name}.md").read_text("utf-8"))
        assert f"(../gallery/{name}.png)" in page


def test_times_of_the_gallery_are_read(tmp_path, monkeypatch):
    (tmp_path / "map.png").touch()
    row = {"map": {"wave": 1.5, "moons": None}}
    (tmp_path / "seconds.json").write_text(json.dumps({"seconds": row}))
    monkeypatch.setattr(hooks, "GALLERY", tmp_path)
    assert "1.5 s and does not apply" in hooks.gallery()
    assert hooks.gallery().count("<figure") == 1  # others have no picture yet


@pytest.mark.parametrize("task", ["table", "network", "compare", "scale"])
def test_every_task_has_its_page_on_the_start_page(task):
    assert f"](tasks/{task}.md)" in (DOCS / "index.md").read_text("utf-8")


def test_arguments_are_tables_with_types_and_defaults():
    page = hooks.entry("bl.fit", bl.fit)
    assert "| argument | type | default | meaning |" in page
    assert "| `num_steps` | `int or str` | `'auto'` | optimisation steps" in page
    page = hooks.entry("bl.Posterior", bl.Posterior)
    assert "| attribute | type |  |" in page
    assert "| `elbo` | `float or None` | lower bound" in page
