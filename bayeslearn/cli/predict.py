"""`bayeslearn predict`."""

from __future__ import annotations

import json
from typing import Any

import click

from bayeslearn.cache import use_compilation_cache
from bayeslearn.cli import flags, inputs, runs
from bayeslearn.cli.output import Output
from bayeslearn.cli.safe_text import without_formulas
from bayeslearn.errors import refuse
from bayeslearn.tabular.json_values import JSON


@click.command()
@click.argument("run", type=click.Path())
@click.argument("new", type=click.Path())
@click.option("--out", type=click.Path(), help="CSV, TSV or Parquet file to write; else printed.")
@click.option(
    "--level", type=float, default=0.9, show_default=True, help="Probability of the interval."
)
@click.option("--with-input", is_flag=True, help="Write the columns of NEW beside the predictions.")
@flags.file_options
@flags.raw_option
@flags.overwrite_option
@flags.no_cache_option
@flags.common_options
def predict(
    run: str,
    new: str,
    out: str | None,
    level: float,
    with_input: bool,
    raw: bool,
    overwrite: bool,
    no_cache: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
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
    output = Output(as_json, quiet)
    path = None if out is None else runs.check_file(out, new, overwrite)
    if not 0 < level < 1:
        refuse("level", level, "be between 0 and 1, such as 0.9")
    schema = runs.read_schema(run)
    table, x = inputs.read_new_rows(
        output, schema, new, "new", flags.pick(flags.FileOptions, options)
    )
    if not no_cache:
        use_compilation_cache()
    with output.warnings_as_notes(), output.progress(f"predicting {new}"):
        predictions = runs.predict_table(runs.load_model(run), x, level)
    if with_input:
        given = table.cells.reset_index(drop=True)
        for name in predictions.columns.intersection(given.columns):
            given = given.rename(columns={name: f"{name} (input)"})
        predictions = given.join(predictions)
    if path is not None:
        with runs.atomic_file(path) as temporary:
            runs.write_table(predictions, temporary, path.name, is_raw=raw)
        output.say(f"Predictions of {len(predictions)} rows: {path}")
    elif not as_json:
        shown = predictions if raw else without_formulas(predictions)
        output.data(shown.to_csv(index=False))
    result: dict[str, JSON] = {"out": str(path)}
    if as_json and path is None:
        rows = predictions.to_json(orient="records", double_precision=15)
        result = {"predictions": json.loads(rows)}
    output.finish(
        command="predict",
        task=schema.task,
        level=level,
        rows=len(predictions),
        columns=[str(name) for name in predictions.columns],
        **result,
    )
