"""`bayeslearn predict`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from bayeslearn.cli import flags, runs
from bayeslearn.cli.cache import use_compilation_cache
from bayeslearn.cli.inputs import _read_new
from bayeslearn.cli.output import Speaker
from bayeslearn.errors import refuse


@click.command()
@click.argument("run", type=click.Path())
@click.argument("new", type=click.Path())
@click.option("--out", type=click.Path(), help="CSV, TSV or Parquet file to write; else printed.")
@click.option(
    "--level", type=float, default=0.9, show_default=True, help="Probability of the interval."
)
@click.option("--with-input", is_flag=True, help="Write the columns of NEW beside the predictions.")
@click.option("--encoding", default="utf-8", show_default=True, help="Of a text file.")
@flags.overwriting
@flags.cached
@flags.common
def predict(
    run: str,
    new: str,
    out: str | None,
    level: float,
    with_input: bool,
    encoding: str,
    overwrite: bool,
    no_cache: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Predict the rows of a new file with a fit (or with the method a comparison recommends).

    \b
    bayeslearn predict run new.csv --out predictions.csv
    bayeslearn predict run new.csv --level 0.5 | head
    bayeslearn predict run new.csv --json --quiet

    Regression: mean, std, epistemic, aleatoric (standard deviations, in units of the target), and
    the lower and upper end of the interval. Classification: the predicted class, a column p_CLASS
    for each probability, epistemic and aleatoric (nats).
    """
    speaker = Speaker(as_json, quiet)
    place = None if out is None else runs.check_file(out, new, overwrite)
    if not 0 < level < 1:
        refuse("level", level, "be between 0 and 1, such as 0.9")
    table = runs.read_table(run)
    raw, x = _read_new(speaker, table, new, "new", encoding)
    if not no_cache:
        use_compilation_cache()
    from bayeslearn.tabular import persistence

    made = runs.predicted(persistence.load(Path(run) / runs.MODEL), x, level)
    if with_input:
        given = raw.cells.reset_index(drop=True)
        for name in made.columns.intersection(given.columns):
            given = given.rename(columns={name: f"{name} (input)"})
        made = given.join(made)
    if place is not None:
        with runs.whole(place) as waiting:
            runs.write_table(made, waiting, place)
        speaker.say(f"Predictions of {len(made)} rows: {place}")
    elif not as_json:
        click.echo(made.to_csv(index=False), nl=False)
    told: dict[str, Any] = {"out": str(place)}
    if as_json and place is None:
        told = {"predictions": json.loads(made.to_json(orient="records", double_precision=15))}
    speaker.end(
        command="predict",
        task=table.task,
        level=level,
        rows=len(made),
        columns=list(made.columns),
        **told,
    )
