"""The page: contents in, one HTML file out, which asks nothing of any network.

Text and tables are written here, escaped; charts are drawn by `page.js` from the contents, which
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
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from bayeslearn.errors import Shown, refuse

NAMES_SHOWN = 40  # columns of the data that are listed
LONG = 60  # characters of a setting that gets a line of its own
OPEN = ("column_names", "classes", "target")  # not worth a line where unknown


class Metric(NamedTuple):
    label: str
    better: str  # "lower", "higher", or "near 90 %"
    is_share: bool
    meaning: str


METRICS = {
    "rmse": Metric("RMSE", "lower", False, "typical error of the predicted mean, in units of y"),
    "accuracy": Metric("accuracy", "higher", True, "share of rows whose class was right"),
    "log_likelihood": Metric(
        "log-likelihood",
        "higher",
        False,
        "log of the probability (density) given to what was observed, per row: it rewards being"
        " right and being honest about doubt",
    ),
    "coverage90": Metric(
        "90 % coverage", "near 90 %", True, "share of observations inside their 90 % interval"
    ),
    "ece": Metric(
        "ECE", "lower", True, "calibration error: gap between stated probability and being right"
    ),
    "crps": Metric(
        "CRPS", "lower", False, "distance of the whole predicted distribution from y, in its units"
    ),
    "brier": Metric("Brier", "lower", False, "squared distance of the class probabilities"),
    "ood_auroc": Metric(
        "OOD AUROC",
        "higher",
        False,
        "how well epistemic doubt tells foreign rows from rows like the training data: 0.5 is"
        " chance, 1 perfect",
    ),
    "seconds": Metric("seconds", "lower", False, "to fit, compiling included"),
    "memory_mb": Metric("memory (MB)", "lower", False, "arrays of the posterior and of its run"),
}


def render(contents: dict[str, Any]) -> str:
    """The page of what `from_fit` or `from_comparison` returned, as a self-contained HTML file."""
    _check(contents)
    css, js = _part("page.css"), _part("page.js")
    is_comparison = contents["kind"] == "comparison"
    title = _title(contents)
    return Template(_part("page.html")).substitute(
        title=escape(title),
        lead=escape(_lead(contents)),
        css=css,
        js=js,
        css_hash=_hash(css),
        js_hash=_hash(js),
        verdict=_verdict(contents),
        table=_table(contents) if is_comparison else _tiles(contents),
        settings=_settings(contents["settings"]),
        versions=_pairs(contents["versions"]),
        repeat=_repeat(contents["settings"]),
        contents=_embedded(contents),
        kind=escape(contents["kind"]),
    )


def write(contents: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write the page; the file appears whole or not at all."""
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


def _check(contents: Any) -> None:
    needed = {"kind", "task", "table", "settings", "versions"}
    if not isinstance(contents, dict) or contents.get("kind") not in ("fit", "comparison"):
        refuse("contents", contents, "be what from_fit or from_comparison returned")
    if missing := sorted(needed - contents.keys()):
        refuse("contents", Shown(f"none of {missing}"), "be what from_fit or from_comparison made")


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _embedded(contents: dict[str, Any]) -> str:
    """JSON that cannot end the element it stands in."""
    told = json.dumps(contents, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return told.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# The head


def _title(contents: dict[str, Any]) -> str:
    settings, table = contents["settings"], contents["table"]
    if settings.get("title"):
        return str(settings["title"])
    what = settings.get("target") or "y"
    if contents["kind"] == "comparison":
        return f"{len(table)} methods compared on {what}"
    return f"{table[0]['method']} on {what}"


def _lead(contents: dict[str, Any]) -> str:
    settings = contents["settings"]
    parts = [contents["task"].capitalize()]
    if settings.get("file"):
        parts.append(str(settings["file"]))
    counts = {"rows": "row", "columns": "column", "held_out": "", "test_rows": ""}
    for name, what in counts.items():
        if isinstance(number := settings.get(name), int):
            plural = "s" if number != 1 else ""
            parts.append(f"{number:,} {what}{plural}" if what else f"{number:,} held out")
    return " · ".join(parts)


def _verdict(contents: dict[str, Any]) -> str:
    if contents["kind"] == "comparison":
        name = contents.get("recommended")
        head = f"Use <strong>{escape(name)}</strong>" if name else "No recommendation"
        return f"<h2>{head}</h2><p>{escape(contents.get('recommendation') or '')}</p>"
    fit = (contents.get("fits") or [{}])[0]
    scores = contents["table"][0]["metrics"]
    told = []
    if "coverage90" in scores and scores["coverage90"][0] is not None:
        share = scores["coverage90"][0]
        rows = max(1, fit.get("num_rows", 1))
        luck = 1.96 * math.sqrt(0.9 * 0.1 / rows)
        if abs(share - 0.9) <= luck:
            word = "about as it should: the error bars can be believed"
        elif share < 0.9:
            word = "too few: the error bars are too short"
        else:
            word = "too many: the error bars are longer than they need be"
        told.append(
            f"Of {rows} held-out rows {100 * share:.0f} % lie inside their 90 % interval, {word}."
        )
    if "accuracy" in scores and scores["accuracy"][0] is not None:
        told.append(
            f"{100 * scores['accuracy'][0]:.1f} % of the held-out rows were put in their class."
        )
        if scores.get("ece", [None])[0] is not None:
            told.append(
                f"Stated probabilities were off by {100 * scores['ece'][0]:.1f} % on average"
                " (calibration error)."
            )
    return "<h2>In short</h2><p>" + escape(" ".join(told)) + "</p>" if told else ""


def _tiles(contents: dict[str, Any]) -> str:
    row = contents["table"][0]
    told = []
    for name, pair in [*row["metrics"].items(), ("seconds", row["seconds"])]:
        metric = _metric(name)
        better = f"{metric.better} is better" if metric.better in ("lower", "higher") else ""
        better = better or (f"best {metric.better}" if metric.better else "")
        told.append(
            f"<div><dt>{escape(metric.label)}</dt><dd>{_number(name, pair)}</dd>"
            f"<dd class=small>{escape('; '.join(p for p in (metric.meaning, better) if p))}</dd>"
            "</div>"
        )
    return f'<h2>Scores on held-out rows</h2><dl class="tiles">{"".join(told)}</dl>'


# The table of methods


def _metric(name: str) -> Metric:
    return METRICS.get(name, Metric(name.replace("_", " "), "", False, ""))


def _number(name: str, pair: Any) -> str:
    """Mean ± standard error, with as many digits as the error leaves."""
    mean, error = pair if isinstance(pair, list | tuple) else (pair, None)
    if mean is None:
        return "–"
    unit = ""
    if _metric(name).is_share:
        mean, error, unit = 100 * mean, None if error is None else 100 * error, " %"
    if error:
        places = max(0, 1 - math.floor(math.log10(error)))
    else:
        places = max(0, 2 - math.floor(math.log10(abs(mean)))) if mean else 0
    places = min(places, 1 if unit or name == "seconds" else 2 if name == "memory_mb" else 6)
    told = f"{mean:,.{places}f}".replace("-", "−")
    return told + (f" <small>± {error:.{places}f}</small>" if error else "") + unit


def _merit(name: str, row: dict[str, Any]) -> float | None:
    """What a column is sorted by: lower is better."""
    pair = row.get(name) if name in ("seconds", "memory_mb") else row["metrics"].get(name)
    mean = pair[0] if isinstance(pair, list | tuple) else pair
    if mean is None:
        return None
    better = _metric(name).better
    return -mean if better == "higher" else abs(mean - 0.9) if better == "near 90 %" else mean


def _table(contents: dict[str, Any]) -> str:
    table = contents["table"]
    columns: list[str] = []
    for row in table:
        columns += [name for name in row["metrics"] if name not in columns]
    columns += ["seconds"]
    if any(row.get("memory_mb") is not None for row in table):
        columns += ["memory_mb"]
    lead = "log_likelihood" if "log_likelihood" in columns else columns[0]
    good = [row for row in table if row["status"] == "ok"]
    merits = {name: [m for row in good if (m := _merit(name, row)) is not None] for name in columns}
    best = {name: min(m) if len(set(m)) > 1 else None for name, m in merits.items()}
    order = sorted(
        table,
        key=lambda row: (
            row["status"] != "ok",
            math.inf if (m := _merit(lead, row)) is None else m,
        ),
    )
    head = "".join(_head(name, is_sorted=name == lead) for name in columns)
    body = "".join(_row(row, columns, best, contents.get("recommended")) for row in order)
    is_single = contents["settings"].get("splits") == 1
    means = "Scores of one split" if is_single else "Means over the splits ± standard errors"
    meanings = "".join(
        f"<li><b>{escape(m.label)}</b>: {escape(m.meaning)}"
        + (f" ({escape(m.better)}" + (" is better)" if m.better in ("lower", "higher") else ")"))
        + "</li>"
        for m in map(_metric, columns)
        if m.meaning
    )
    return (
        f"<h2>All methods</h2><p>{means}, the best of each column in bold. A heading sorts the"
        " table, best first; a method's name shows it in detail below.</p>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Table of methods">'
        f'<table id="methods"><thead><tr>{_head("method")}{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
        f"<details><summary>What the columns mean</summary><ul>{meanings}"
        "<li><b>front</b>: no other method is both better and cheaper</li></ul></details>"
    )


def _head(name: str, is_sorted: bool = False) -> str:
    """A heading that says in which order its numbers are, the best or the worst coming first."""
    metric = _metric(name)
    orders = ("ascending", "descending")
    best, worst = {"higher": orders[::-1], "near 90 %": ("other", "other")}.get(
        metric.better, orders
    )
    return (
        f'<th scope="col" aria-sort="{best if is_sorted else "none"}" data-best="{best}"'
        f' data-worst="{worst}"><button type="button">{escape(metric.label)}</button></th>'
    )


def _row(
    row: dict[str, Any], columns: list[str], best: dict[str, float | None], recommended: Any
) -> str:
    name = escape(str(row["method"]))
    marks = ""
    if row["method"] == recommended:
        marks += ' <span class="badge">recommended</span>'
    elif row.get("pareto"):
        marks += ' <span class="badge front" title="No method is both better and cheaper">'
        marks += "front</span>"
    if row["status"] != "ok":
        why = escape(str(row.get("reason") or "no reason given"))
        return (
            f'<tr class="failed" data-method="{name}"><th scope="row">{name}</th>'
            f'<td colspan="{len(columns)}"><b>failed</b>: {why}</td></tr>'
        )
    cells = []
    for column in columns:
        merit = _merit(column, row)
        pair = row.get(column) if column in ("seconds", "memory_mb") else row["metrics"].get(column)
        told = _number(column, pair)
        if merit is not None and merit == best[column]:
            told = f"<b>{told}</b>"
        cells.append(f'<td data-value="{"" if merit is None else repr(float(merit))}">{told}</td>')
    return (
        f'<tr data-method="{name}"><th scope="row"><button type="button" class="pick">{name}'
        f"</button>{marks}</th>{''.join(cells)}</tr>"
    )


# The foot


def _pairs(told: dict[str, Any]) -> str:
    shown = {str(name).replace("_", " "): _value(value) for name, value in told.items()}
    return "".join(
        f"<div{' class=wide' if len(value) > LONG else ''}><dt>{escape(name)}</dt>"
        f"<dd>{value}</dd></div>"
        for name, value in shown.items()
    )


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{escape(str(name))} {_value(part)}" for name, part in value.items())
    if isinstance(value, list):
        rest = f" and {len(value) - NAMES_SHOWN:,} more" if len(value) > NAMES_SHOWN else ""
        return ", ".join(_value(part) for part in value[:NAMES_SHOWN]) + rest
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float):
        return f"{value:g}"
    return escape(f"{value:,}" if isinstance(value, int) and abs(value) > 9999 else str(value))


def _settings(settings: dict[str, Any]) -> str:
    told = {name: value for name, value in settings.items() if value not in ({}, [])}
    for name in ("title", "code", "command", *(n for n in OPEN if settings.get(n) is None)):
        told.pop(name, None)
    return _pairs(told)


def _repeat(settings: dict[str, Any]) -> str:
    told = str(settings.get("command") or settings.get("code") or "")
    warning = ""
    if "seed" in settings and settings["seed"] is None:
        warning = "<p>No seed was given: another run will differ by chance.</p>"
    return (f"<pre><code>{escape(told)}</code></pre>" if told else "") + warning
