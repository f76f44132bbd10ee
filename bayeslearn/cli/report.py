"""`bayeslearn report`."""

from __future__ import annotations

from pathlib import Path

import click

from bayeslearn.cli import flags, runs
from bayeslearn.cli.output import Speaker
from bayeslearn.errors import refuse


@click.command()
@click.argument("run", type=click.Path())
@click.option("--out", type=click.Path(), help="Where to write it.  [default: RUN/report.html]")
@click.option("--open", "is_opened", is_flag=True, help="Open it in the browser.")
@flags.common
def report(run: str, out: str | None, is_opened: bool, as_json: bool, quiet: bool) -> None:
    """Write the page of a run again, from its report.json.

    \b
    bayeslearn report run
    bayeslearn report comparison --open
    """
    speaker = Speaker(as_json, quiet)
    contents = runs.read_json(
        run, runs.CONTENTS, "be a folder with a report: of `fit` or `compare`"
    )
    place = Path(run) / runs.PAGE if out is None else Path(out)
    if not place.parent.is_dir():
        refuse("out", str(place), f"be in a folder that exists; {place.parent} does not")
    from bayeslearn import report as pages

    with runs.whole(place) as waiting:
        pages.write(contents, waiting)
    speaker.say(f"Written: {place}")
    speaker.end(command="report", page=str(place))
    if is_opened:
        click.launch(place.resolve().as_uri())
