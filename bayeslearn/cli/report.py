"""`bayeslearn report`."""

from __future__ import annotations

from pathlib import Path

import click

from bayeslearn.cli import flags, runs
from bayeslearn.cli.output import Output


@click.command()
@click.argument("run", type=click.Path())
@click.option("--out", type=click.Path(), help="Where to write it.  [default: RUN/report.html]")
@click.option("--open", "is_opened", is_flag=True, help="Open it in the browser.")
@flags.common_options
def report(run: str, out: str | None, is_opened: bool, as_json: bool, quiet: bool) -> None:
    """Write report.html of a run again, from its report.json.

    \b
    bayeslearn report run
    bayeslearn report comparison --open
    """
    output = Output(as_json, quiet)
    must = "be a folder with a report: of `fit` or `compare`"
    contents = runs.read_json(run, runs.CONTENTS, must)
    path = Path(run) / runs.PAGE if out is None else Path(out)
    runs.check_parent(str(path), path)
    from bayeslearn import report as pages

    with runs.atomic_file(path) as temporary:
        pages.write(contents, temporary)
    output.say(f"Wrote {path}")
    output.finish(command="report", page=str(path))
    if is_opened:
        click.launch(path.resolve().as_uri())
