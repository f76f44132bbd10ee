"""The page: contents in, one HTML file out, which asks nothing of any network.

Text and tables are written here, escaped; charts are drawn by a script from the contents, which
travel along as JSON. A content security policy names the one style and the one script by their
hashes: were anything else to find its way into the page, a browser would not run it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TypedDict, cast

from bayeslearn.errors import Shown, refuse
from bayeslearn.report.methods_table import methods_table, number
from bayeslearn.tabular.json_values import JSON
from bayeslearn.tabular.score_table import Row, metric

SCRIPTS = ("elements.js", "charts.js", "checks.js", "page.js")  # parts of one function
MAX_NAMES = 40  # columns of the data that are listed
LONG = 60  # characters of a setting that gets a line of its own
OPTIONAL = ("column_names", "classes", "target")  # settings that are not listed where unknown


class PageContents(TypedDict, total=False):
    """What a page is made of; see `bayeslearn.report.contents`."""

    kind: str  # "fit" or "comparison"
    task: str
    table: list[Row]
    settings: dict[str, JSON]
    versions: dict[str, JSON]
    fits: list[dict[str, JSON]]
    recommended: str | None
    recommendation: str


def render(contents: Mapping[str, JSON]) -> str:
    """The page of what `from_fit` or `from_comparison` returned, as a self-contained HTML file."""
    page = _checked(contents)
    css = _part("page.css")
    js = '"use strict";\n(() => {\n' + "\n".join(map(_part, SCRIPTS)) + "})();\n"
    is_comparison = page["kind"] == "comparison"
    if is_comparison:
        is_single = page["settings"].get("splits") == 1
        table = methods_table(page["table"], page.get("recommended"), is_single)
    else:
        table = _tiles(page["table"][0], _baseline(page))
    return Template(_part("page.html")).substitute(
        title=escape(_title(page)),
        lead=escape(_lead(page)),
        css=css,
        js=js,
        css_hash=_hash(css),
        js_hash=_hash(js),
        verdict=_recommendation(page) if is_comparison else _verdict(page),
        table=table,
        settings=_settings(page["settings"]),
        versions=_pairs(page["versions"]),
        repeat=_repeat(page["settings"]),
        contents=_embedded(contents),
        kind=escape(page["kind"]),
    )


def write(contents: Mapping[str, JSON], path: str | os.PathLike[str]) -> None:
    """Write the page atomically."""
    page = render(contents)
    path = Path(path)
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as file:
        file.write(page)
    try:
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(file.name, 0o666 & ~mask)  # a temporary file is its owner's alone
        os.replace(file.name, path)
    except OSError:
        os.unlink(file.name)
        raise


def _checked(contents: Mapping[str, JSON]) -> PageContents:
    needed = {"kind", "task", "table", "settings", "versions"}
    if not isinstance(contents, dict) or contents.get("kind") not in ("fit", "comparison"):
        refuse("contents", contents, "be what from_fit or from_comparison returned")
    if missing := sorted(needed - contents.keys()):
        must = "be what from_fit or from_comparison returned"
        refuse("contents", Shown(f"contents without {', '.join(missing)}"), must)
    return cast(PageContents, contents)


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _embedded(contents: Mapping[str, JSON]) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(contents, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# The head


def _title(page: PageContents) -> str:
    settings, table = page["settings"], page["table"]
    if settings.get("title"):
        return str(settings["title"])
    target = settings.get("target") or "y"
    if page["kind"] == "comparison":
        return f"{len(table)} methods compared on {target}"
    return f"{table[0]['method']} on {target}"


def _lead(page: PageContents) -> str:
    settings = page["settings"]
    parts = [page["task"].capitalize()]
    if settings.get("file"):
        parts.append(str(settings["file"]))
    for name, noun in (("rows", "row"), ("columns", "column"), ("held_out", ""), ("test_rows", "")):
        count = settings.get(name)
        if isinstance(count, int):
            plural = "s" if count != 1 else ""
            parts.append(f"{count:,} {noun}{plural}" if noun else f"{count:,} held out")
    return " · ".join(parts)


def _recommendation(page: PageContents) -> str:
    name = page.get("recommended")
    head = f"Use <strong>{escape(name)}</strong>" if name else "No recommendation"
    return f"<h2>{head}</h2><p>{escape(page.get('recommendation') or '')}</p>"


def _verdict(page: PageContents) -> str:
    """How good the predictions of a fit are, in sentences."""
    num_rows = (page.get("fits") or [{}])[0].get("num_rows")
    scores = {name: pair[0] for name, pair in page["table"][0]["metrics"].items()}
    sentences = []
    coverage, accuracy, ece = (scores.get(name) for name in ("coverage90", "accuracy", "ece"))
    if coverage is not None:
        rows = max(1, num_rows if isinstance(num_rows, int) else 1)
        chance = 1.96 * math.sqrt(0.9 * 0.1 / rows)
        if abs(coverage - 0.9) <= chance:
            least, most = 90 - 100 * chance, min(100.0, 90 + 100 * chance)
            word = f"no sign of miscalibration ({least:.0f} to {most:.0f} % is within chance)"
        elif coverage < 0.9:
            word = "the intervals are too narrow"
        else:
            word = "the intervals are too wide"
        sentences.append(
            f"{100 * coverage:.0f} % of {rows:,} held-out rows lie inside their 90 % intervals:"
            f" {word}."
        )
    other = cast(dict[str, float], _baseline(page).get("metrics") or {})
    rmse, r2 = scores.get("rmse"), scores.get("r2")
    if rmse is not None and "rmse" in other:
        explained = "" if r2 is None else f" (R² {r2:.2f})".replace("-", "−")
        sentences.append(
            f"The RMSE is {number('rmse', rmse)}{explained}; predicting the mean would give"
            f" {number('rmse', other['rmse'])}."
        )
        if rmse >= other["rmse"]:
            sentences.append("The columns do not predict the target better than its mean does.")
    if accuracy is not None:
        beside = ""
        if "accuracy" in other:
            frequent = f"{100 * other['accuracy']:.1f} %"
            beside = f"; predicting the most frequent class would give {frequent}"
        sentences.append(
            f"{100 * accuracy:.1f} % of the held-out rows are classified correctly{beside}."
        )
        if ece is not None:
            sentences.append(f"The expected calibration error is {100 * ece:.1f} %.")
    return "<h2>Summary</h2><p>" + escape(" ".join(sentences)) + "</p>" if sentences else ""


def _baseline(page: PageContents) -> dict[str, JSON]:
    """What a prediction without columns scores; empty in pages that do not have it."""
    fit = (page.get("fits") or [{}])[0]
    return cast(dict[str, JSON], fit.get("baseline") or {})


def _tiles(row: Row, baseline: dict[str, JSON]) -> str:
    other = cast(dict[str, float], baseline.get("metrics") or {})
    tiles = []
    for name, (mean, error) in [*row["metrics"].items(), ("seconds", row["seconds"])]:
        known = metric(name)
        better = f"{known.better} is better" if known.better in ("lower", "higher") else ""
        better = better or (f"best {known.better}" if known.better else "")
        text = "; ".join(part for part in (known.meaning, better) if part)
        beside = ""
        if name in other:
            beside = f"<dd class=beside>baseline {number(name, other[name])}</dd>"
        tiles.append(
            f"<div><dt>{escape(known.label)}</dt><dd>{number(name, mean, error)}</dd>"
            f"{beside}<dd class=small>{escape(text)}</dd></div>"
        )
    note = f"<p>Baseline: {escape(str(baseline['label']))}.</p>" if other else ""
    return f'<h2>Scores on held-out rows</h2>{note}<dl class="tiles">{"".join(tiles)}</dl>'


# The foot


def _pairs(values: dict[str, JSON]) -> str:
    shown = {str(name).replace("_", " "): _value(value) for name, value in values.items()}
    return "".join(
        f"<div{' class=wide' if len(value) > LONG else ''}><dt>{escape(name)}</dt>"
        f"<dd>{value}</dd></div>"
        for name, value in shown.items()
    )


def _value(value: JSON) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{escape(str(name))} {_value(part)}" for name, part in value.items())
    if isinstance(value, list):
        rest = f" and {len(value) - MAX_NAMES:,} more" if len(value) > MAX_NAMES else ""
        return ", ".join(_value(part) for part in value[:MAX_NAMES]) + rest
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float):
        return f"{value:g}"
    return escape(f"{value:,}" if isinstance(value, int) and abs(value) > 9999 else str(value))


def _settings(settings: dict[str, JSON]) -> str:
    unknown = [name for name in OPTIONAL if settings.get(name) is None]
    hidden = {"title", "code", "command", *unknown}
    return _pairs({k: v for k, v in settings.items() if v not in ({}, []) and k not in hidden})


def _repeat(settings: dict[str, JSON]) -> str:
    text = str(settings.get("command") or settings.get("code") or "")
    warning = ""
    if "seed" in settings and settings["seed"] is None:
        warning = "<p>No seed was given: another run will differ by chance.</p>"
    return (f"<pre><code>{escape(text)}</code></pre>" if text else "") + warning
