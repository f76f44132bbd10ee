"""`bayeslearn calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from bayeslearn.cache import use_compilation_cache
from bayeslearn.cli import flags, inputs, runs
from bayeslearn.cli.output import Output

if TYPE_CHECKING:
    from bayeslearn.predictive_base import PredictiveBase


@click.command()
@click.argument("run", type=click.Path())
@click.argument("new", type=click.Path())
@click.option(
    "--method",
    default="conformal",
    show_default=True,
    help="conformal (guaranteed coverage), scale (regression), temperature (classification) or"
    " isotonic.",
)
@flags.file_options
@flags.no_cache_option
@flags.common_options
def calibrate(
    run: str, new: str, method: str, no_cache: bool, as_json: bool, quiet: bool, **options: Any
) -> None:
    """Calibrate a fit on rows that it has not seen, with their target; RUN is changed.

    \b
    bayeslearn calibrate run measured.csv
    bayeslearn calibrate run measured.csv --method isotonic

    The rows must not be those of the fit. The page report.html stays that of the fit.
    """
    output = Output(as_json, quiet)
    schema = runs.read_schema(run)
    file_options = flags.pick(flags.FileOptions, options)
    table, x = inputs.read_new_rows(output, schema, new, "new", file_options, True)
    estimator = runs.load_model(run)
    y = schema.read_target(table, getattr(estimator, "classes_", None))
    if not no_cache:
        use_compilation_cache()
    with output.warnings_as_notes(), output.progress(f"calibrating on {new}"):
        before = inside(estimator.predictive(x), estimator.observed(x, y))
        estimator.calibrate(x, y, method)
    estimator.save(Path(run) / runs.MODEL, overwrite=True)
    what = "90 % intervals" if schema.task == "regression" else "sets of level 90 %"
    output.say(f"Before, {what} held {before:.0%} of these {len(y)} rows.")
    output.say(f"Calibrated {run} ({method}).")
    output.finish(command="calibrate", run=run, method=method, rows=len(y), inside_before=before)


def inside(predictive: PredictiveBase, y: np.ndarray) -> float:
    """The fraction of observations in intervals, or sets, of level 0.9."""
    from bayeslearn.results.metrics import coverage

    if predictive.kind == "regression":
        return coverage(predictive, y)
    return float(np.mean(predictive.prediction_set(0.9)[np.arange(len(y)), y]))
