"""The table of a comparison on a terminal: columns are dropped where it is narrow, never digits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bayeslearn import markup
from bayeslearn.tabular.score_table import OK, Estimate, Row, metric, write_score

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

COLUMNS = (  # in their order; of those that a task has
    *("rmse", "accuracy", "log_likelihood", "coverage90", "ece", "crps", "brier", "ood_auroc"),
    *("seconds", "memory_mb", "pareto"),
)
DROPPED = (  # the first one first
    *("memory_mb", "pareto", "ood_auroc", "brier", "crps", "seconds"),
    *("ece", "coverage90", "rmse", "accuracy"),
)
STATUS = "status"
HEADINGS = {"pareto": "Pareto", "memory_mb": "MB", STATUS: ""}


def render(
    rows: list[Row],
    recommended: str | None,
    title: str,
    console: Console,
    options: ConsoleOptions,
) -> RenderResult:
    """The table, as many of its columns as fit, and a line on those that do not."""
    known = {name for row in rows for name in row["metrics"]} | {"seconds", "memory_mb", "pareto"}
    columns = [name for name in COLUMNS if name in known]
    if any(status(row) for row in rows):
        columns.append(STATUS)
    dropped = []
    for name in (None, *DROPPED):
        if name in columns:
            columns.remove(name)
            dropped.append(name)
        table = _table(rows, recommended, title, columns)
        wide = options.update(max_width=10_000)
        if console.measure(table, options=wide).maximum <= options.max_width:
            break
    yield table
    if dropped:
        names = ", ".join(HEADINGS.get(name, metric(name).label) for name in reversed(dropped))
        yield f"Not shown for want of width: {names}."


def status(row: Row) -> str:
    """What is to be said of a row beside its numbers."""
    if row["status"] != OK:
        return row["status"]
    return f"cut at {row['cut_short'].split(' of ')[0]}" if row["cut_short"] else ""


def _table(rows: list[Row], recommended: str | None, title: str, columns: list[str]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("method", no_wrap=True)
    for name in columns:
        heading = HEADINGS.get(name, metric(name).label)
        justify = "left" if name == STATUS else "right"
        table.add_column(heading, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for row in rows:
        is_chosen = row["method"] == recommended
        label = f"{row['method']} *" if is_chosen else row["method"]
        cells = [_cell(name, row) for name in columns]
        table.add_row(label, *cells, style="bold" if is_chosen else None)
    return table


def _cell(name: str, row: Row) -> str:
    if name == STATUS:
        return status(row)
    if row["status"] != OK:
        return ""
    if name == "pareto":
        return "yes" if row["pareto"] else ""
    estimate: Estimate = row["metrics"].get(name, [None, None])
    if name == "seconds":
        estimate = row["seconds"]
    if name == "memory_mb":
        estimate = [row["memory_mb"], None]
    mean, error = estimate
    if mean is None:
        return "not finite"
    return str(write_score(name, mean, error))


def table_html(rows: list[Row], recommended: str | None, why: str) -> str:
    """The same table for a notebook, the highest log-likelihood first."""
    found = [name for name in COLUMNS if any(name in row["metrics"] for row in rows)] + ["seconds"]

    def entry(row: Row, name: str) -> Estimate:
        missing: Estimate = [None, None]
        return row["seconds"] if name == "seconds" else row["metrics"].get(name, missing)

    def worth(row: Row) -> float:
        value = entry(row, "log_likelihood")[0]
        return math.inf if value is None else -value

    body = [
        [row["method"], *(write_score(name, *entry(row, name)) for name in found)]
        if row["status"] == OK
        else [row["method"], f"{row['status']}. {row['reason'] or ''}"]
        for row in sorted(rows, key=lambda row: (row["status"] != OK, worth(row)))
    ]
    title = "No recommendation" if recommended is None else f"Recommended: {recommended}"
    head = ["method", *(metric(name).label for name in found)]
    return markup.block(title, why, markup.table(head, body))
