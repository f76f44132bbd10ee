"""`bayeslearn algorithms`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import bayeslearn as bl
from bayeslearn.cli import flag_types, flags
from bayeslearn.cli.output import WIDE, Output
from bayeslearn.cli.settings import algorithm_class, allowed_values
from bayeslearn.tabular.json_values import json_value

if TYPE_CHECKING:
    from rich.table import Table

HEADINGS = {
    "name": "method",
    "posterior": "posterior",
    "needs": "needs",
    "cost": "cost per step",
    "memory": "memory",
    "when": "when to use it",
}
CAPTION = (
    "k: number of weights. By default `bayeslearn fit` chooses for you (--method auto); `bayeslearn"
    " compare` compares methods on your data."
)


@click.command()
@click.argument("method", required=False, type=flag_types.Method())
@flags.common_options
def algorithms(method: str | None, as_json: bool, quiet: bool) -> None:
    """List the methods, or the settings of one.

    \b
    bayeslearn algorithms
    bayeslearn algorithms vogn
    """
    output = Output(as_json, quiet)
    if method is None:
        found = {name: facts_of(name) for name in bl.ALGORITHMS}
        output.show(methods_table(found, is_narrow=output.width < WIDE))
        output.finish(command="algorithms", algorithms=json_value(list(found.values())))
        return
    fields = {
        name: {
            "default": field["default"],
            "doc": field["doc"],
            "allowed": allowed_values(field),
        }
        for name, field in bl.algorithms.hyper_parameters(algorithm_class(method)).items()
    }
    output.show(settings_table(method, fields))
    output.finish(command="algorithms", **facts_of(method), settings=json_value(fields))


def facts_of(name: str) -> dict[str, str]:
    """What is known of a method."""
    from bayeslearn.algorithms.facts import FACTS, needs

    cls = algorithm_class(name)
    return {"name": name, "title": cls.title, **FACTS[name]._asdict(), "needs": needs(cls)}


def methods_table(found: dict[str, dict[str, str]], is_narrow: bool) -> Table:
    """All methods; on a narrow terminal three columns become one."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    headings = dict(HEADINGS)
    rows = [{name: facts[name] for name in headings} for facts in found.values()]
    if is_narrow:  # six columns would be a word wide
        headings["needs"] = "needs; cost per step; memory"
        for row in rows:
            row["needs"] = f"{row['needs']}; {row.pop('cost')}; {row.pop('memory')}"
        del headings["cost"], headings["memory"]
    table = Table(caption=CAPTION, box=SIMPLE_HEAD)
    for name, heading in headings.items():
        words = [word for row in rows for word in row[name].split()]
        longest = None if is_narrow else max(map(len, words))  # so that no word is broken
        table.add_column(heading, no_wrap=name == "name", overflow="fold", min_width=longest)
    for row in rows:
        table.add_row(*(row[name] for name in headings))
    return table


def settings_table(method: str, fields: dict[str, dict[str, object]]) -> Table:
    """The settings of one method."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    title = f"{method}: {algorithm_class(method).title}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for heading in ("option", "default", "allowed", "what it does"):
        table.add_column(heading, no_wrap=heading == "option")
    for name, field in fields.items():
        default = "none" if field["default"] in (None, ()) else str(field["default"])
        flag = "--" + name.replace("_", "-")
        table.add_row(flag, default.lower(), str(field["allowed"]), str(field["doc"]))
    return table
