"""`bayeslearn calibrate`."""

from __future__ import annotations

import copy
import os
import secrets
import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from bayeslearn.cache import use_compilation_cache
from bayeslearn.cli import flags, inputs, runs
from bayeslearn.cli.output import Output

if TYPE_CHECKING:
    from bayeslearn.predictive_base import PredictiveBase
    from bayeslearn.tabular.base import BayesianNN

LEVEL = 0.9
FOLDS = 5
SUSPICIOUS = 0.1  # coverage at the level, below which rows are in other units


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
@click.option("--out", type=click.Path(), help="Folder for the calibrated run; RUN is not changed.")
@flags.overwrite_option
@flags.file_options
@flags.no_cache_option
@flags.common_options
def calibrate(
    run: str,
    new: str,
    method: str,
    out: str | None,
    overwrite: bool,
    no_cache: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Calibrate a fit on rows that it has not seen, with their target; RUN is changed.

    \b
    bayeslearn calibrate run measured.csv
    bayeslearn calibrate run measured.csv --out calibrated
    bayeslearn calibrate run measured.csv --method isotonic

    The rows must not be those of the fit. The page report.html stays that of the fit.
    """
    output = Output(as_json, quiet)
    schema = runs.read_schema(run)
    place = None if out is None else runs.check_folder(out, overwrite)
    file_options = flags.pick(flags.FileOptions, options)
    table, x = inputs.read_new_rows(output, schema, new, "new", file_options, True)
    estimator = runs.load_model(run)
    y = schema.read_target(table, getattr(estimator, "classes_", None))
    if not no_cache:
        use_compilation_cache()
    with output.warnings_as_notes(), output.progress(f"calibrating on {new}"):
        plain = uncalibrated(estimator)
        before = inside(plain.predictive(x), estimator.observed(x, y))
        after = cross_validated(plain, x, y, method)
        estimator.calibrate(x, y, method)
    if place is None:
        estimator.save(Path(run) / runs.MODEL, overwrite=True)
    else:
        write_copy(run, place, estimator)
    what = "90 % intervals" if schema.task == "regression" else "sets of level 90 %"
    output.say(f"Before any calibration, {what} held {before:.0%} of these {len(y)} rows.")
    if before < SUSPICIOUS:
        output.note(
            f"Only {before:.0%} of these rows were in {what}: check that their target has the unit"
            " of the training table, and that they are of the same kind."
        )
    output.say(f"Calibrated {run if out is None else out} ({method}).")
    if after is not None:
        output.say(f"After it: {after:.0%} of the rows of each fifth, calibrated on the others.")
    output.finish(
        command="calibrate",
        run=run,
        out=run if out is None else out,
        method=method,
        rows=len(y),
        inside_before=before,
        inside_after=after,
    )


def uncalibrated(estimator: BayesianNN) -> BayesianNN:
    """The estimator without any calibration."""
    plain = copy.copy(estimator)
    plain.posterior_ = estimator.posterior_.uncalibrated()
    plain.__dict__.pop("cross_calibration_", None)
    return plain


def cross_validated(plain: BayesianNN, x: Any, y: np.ndarray, method: str) -> float | None:
    """The fraction inside for rows that were not calibrated on; None where they are too few."""
    if len(y) < 2 * FOLDS:
        return None
    fold = np.random.default_rng(0).permutation(len(y)) % FOLDS
    covered = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the calibration itself says what there is to say
        for k in range(FOLDS):
            chosen, rest = fold == k, fold != k
            one = copy.copy(plain).calibrate(x[rest], y[rest], method)
            observed = plain.observed(x[chosen], y[chosen])
            covered.append(inside(one.predictive(x[chosen]), observed) * np.sum(chosen))
    return float(np.sum(covered) / len(y))


def write_copy(run: str, place: Path, estimator: BayesianNN) -> None:
    """The run's folder under another name, with this estimator."""
    from bayeslearn.storage import folders

    path = Path(os.path.abspath(place))
    temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}"
    try:
        shutil.copytree(run, temporary, ignore=shutil.ignore_patterns(runs.PREDICTIONS))
        estimator.save(temporary / runs.MODEL, overwrite=True)
        folders.swap(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def inside(predictive: PredictiveBase, y: np.ndarray) -> float:
    """The fraction of observations in intervals, or sets, of the level."""
    from bayeslearn.results.metrics import coverage

    if predictive.kind == "regression":
        return coverage(predictive, y, LEVEL)
    return float(np.mean(predictive.prediction_set(LEVEL)[np.arange(len(y)), y]))
