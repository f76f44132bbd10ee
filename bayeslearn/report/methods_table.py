"""The table of methods on the page."""

from __future__ import annotations

import math
from html import escape

from bayeslearn.tabular.score_table import OK, Row, metric, write_score

OF_ROW = ("seconds", "memory_mb")  # columns that are no scores


def number(name: str, mean: float | None, error: float | None = None) -> str:
    """A score as HTML: mean ± standard error, with as many digits as the error leaves."""
    written = write_score(name, mean, error)
    text = written.mean.replace("-", "−") + written.unit
    return text + (f" <small>± {written.error}{written.unit}</small>" if written.error else "")


def methods_table(table: list[Row], recommended: str | None, is_single: bool) -> str:
    """All methods, the one of the highest log-likelihood first, those without scores last."""
    columns: list[str] = []
    for row in table:
        columns += [name for name in row["metrics"] if name not in columns]
    columns += ["seconds"]
    if any(row.get("memory_mb") is not None for row in table):
        columns += ["memory_mb"]
    lead = "log_likelihood" if "log_likelihood" in columns else columns[0]
    finished = [row for row in table if row["status"] == OK]
    ranks = {
        name: [rank for row in finished if (rank := _rank(name, row)) is not None]
        for name in columns
    }
    best = {name: min(found) if len(set(found)) > 1 else None for name, found in ranks.items()}

    def place(row: Row) -> tuple[bool, float]:
        rank = _rank(lead, row)
        return row["status"] != OK, math.inf if rank is None else rank

    head = "".join(_head(name, is_sorted=name == lead) for name in columns)
    body = "".join(_row(row, columns, best, recommended) for row in sorted(table, key=place))
    means = "Scores of one split" if is_single else "Means over the splits ± standard errors"
    return (
        f"<h2>All methods</h2><p>{means}, the best of each column in bold. Click a heading to sort,"
        " best first, or a method to see it in detail below.</p>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Table of methods">'
        f'<table id="methods" role="table"><thead role="rowgroup"><tr role="row">{_head("method")}'
        f'{head}</tr></thead><tbody role="rowgroup">{body}</tbody></table></div>'
        f"{_meanings(columns)}"
    )


def _estimate(name: str, row: Row) -> tuple[float | None, float | None]:
    if name == "memory_mb":
        return row.get("memory_mb"), None
    pair = row["seconds"] if name == "seconds" else row["metrics"].get(name)
    return (None, None) if pair is None else (pair[0], pair[1])


def _rank(name: str, row: Row) -> float | None:
    """What a column is sorted by: lower is better."""
    mean = _estimate(name, row)[0]
    if mean is None:
        return None
    better = metric(name).better
    return -mean if better == "higher" else abs(mean - 0.9) if better == "near 90 %" else mean


def _head(name: str, is_sorted: bool = False) -> str:
    """A heading that says in which order its numbers are, the best or the worst coming first."""
    orders = ("ascending", "descending")
    best, worst = {"higher": orders[::-1], "near 90 %": ("other", "other")}.get(
        metric(name).better, orders
    )
    return (
        f'<th role="columnheader" scope="col" aria-sort="{best if is_sorted else "none"}"'
        f' data-best="{best}" data-worst="{worst}"><button type="button">'
        f"{escape(metric(name).label)}</button></th>"
    )


def _row(
    row: Row, columns: list[str], best: dict[str, float | None], recommended: str | None
) -> str:
    name = escape(str(row["method"]))
    if row["status"] != OK:
        why = escape(str(row.get("reason") or "no reason given"))
        return (
            f'<tr role="row" class="failed" data-method="{name}"><th role="rowheader" scope="row">'
            f'{name}</th><td role="cell" colspan="{len(columns)}">'
            f"<b>{escape(row['status'])}</b>: {why}</td></tr>"
        )
    marks = ""
    if row["method"] == recommended:
        marks += ' <span class="badge">recommended</span>'
    elif row.get("pareto"):
        marks += ' <span class="badge front" title="No method is both better and cheaper">'
        marks += "front</span>"
    if cut := row.get("cut_short"):
        title = "The budget ended its fits before they had converged"
        marks += f' <span class="badge front" title="{title}">cut at {escape(str(cut))}</span>'
    cells = []
    for column in columns:
        rank = _rank(column, row)
        text = number(column, *_estimate(column, row))
        if rank is not None and rank == best[column]:
            text = f"<b>{text}</b>"
        value = "" if rank is None else repr(float(rank))
        label = escape(metric(column).label)
        cells.append(f'<td role="cell" data-value="{value}" data-label="{label}">{text}</td>')
    return (
        f'<tr role="row" data-method="{name}"><th role="rowheader" scope="row">'
        f'<button type="button" class="pick">{name}</button>{marks}</th>{"".join(cells)}</tr>'
    )


def _meanings(columns: list[str]) -> str:
    items = []
    for known in map(metric, columns):
        if known.meaning:
            better = f"{known.better} is better" if known.better in ("lower", "higher") else ""
            better = escape(better or known.better)
            items.append(
                f"<li><b>{escape(known.label)}</b>: {escape(known.meaning)} ({better})</li>"
            )
    return (
        f"<details><summary>What the columns mean</summary><ul>{''.join(items)}"
        "<li><b>front</b>: the Pareto front, no other method is both better and cheaper</li>"
        "</ul></details>"
    )
