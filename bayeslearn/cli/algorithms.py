"""`bayeslearn algorithms`."""

from __future__ import annotations

import click

import bayeslearn as bl
from bayeslearn.cli import flags
from bayeslearn.cli.output import WIDE, Speaker


@click.command()
@click.argument("method", required=False, type=flags.Method())
@flags.common
def algorithms(method: str | None, as_json: bool, quiet: bool) -> None:
    """The methods there are, or the settings of one.

    \b
    bayeslearn algorithms
    bayeslearn algorithms vogn
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from bayeslearn.algorithms.facts import FACTS, needs

    speaker = Speaker(as_json, quiet)
    if method is None:
        found = [
            {"name": name, "title": cls.title, **FACTS[name]._asdict(), "needs": needs(cls)}
            for name, cls in bl.ALGORITHMS.items()
        ]
        shown = Table(
            caption="k: number of weights. A first answer: bayes-by-backprop; a choice made on your"
            " own data: bayeslearn compare.",
            box=SIMPLE_HEAD,
        )
        titles = {
            "name": "method",
            "posterior": "posterior",
            "needs": "needs",
            "cost": "cost per step",
            "memory": "memory",
            "when": "when to use it",
        }
        rows = [{name: str(row[name]) for name in titles} for row in found]
        if speaker.width < WIDE:  # six columns would be a word wide
            titles["needs"] = "needs; cost per step; memory"
            for row in rows:
                row["needs"] = f"{row['needs']}; {row.pop('cost')}; {row.pop('memory')}"
            del titles["cost"], titles["memory"]
        for name, title in titles.items():
            shown.add_column(title, no_wrap=name == "name", overflow="fold")
        for row in rows:
            shown.add_row(*(row[name] for name in titles))
        speaker.show(shown)
        speaker.end(command="algorithms", algorithms=found)
        return
    cls = flags.class_of(method)
    fields = {
        name: {"default": field["default"], "doc": field["doc"], "allowed": flags.allowed(field)}
        for name, field in bl.algorithms.hyper_parameters(cls).items()
    }
    shown = Table(title=f"{method}: {cls.title}", title_justify="left", box=SIMPLE_HEAD)
    for title in ("option", "default", "allowed", "what it does"):
        shown.add_column(title, no_wrap=title == "option")
    for name, field in fields.items():
        default = "none" if field["default"] in (None, ()) else str(field["default"])
        flag = "--" + name.replace("_", "-")
        shown.add_row(flag, default.lower(), field["allowed"], field["doc"])
    speaker.show(shown)
    about = {"name": method, "title": cls.title, **FACTS[method]._asdict(), "needs": needs(cls)}
    speaker.end(command="algorithms", **about, settings=fields)
