"""`bayeslearn fit`."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click
import numpy as np

from bayeslearn.cache import use_compilation_cache
from bayeslearn.cli import flag_types, flags, inputs, runs
from bayeslearn.cli.output import Output, number, typed_command, write_scores
from bayeslearn.cli.settings import WithSettings
from bayeslearn.errors import Shown, refuse
from bayeslearn.progress import Progress, run_label
from bayeslearn.tabular.json_values import JSON
from bayeslearn.tabular.score_table import Row

if TYPE_CHECKING:
    import pandas as pd

    import bayeslearn as bl


@click.command(cls=WithSettings)
@click.argument("data", type=click.Path())
@flags.table_options
@click.option(
    "--method",
    type=flag_types.Method(),
    default=flags.DEFAULT_METHOD,
    show_default=True,
    help="Inference algorithm; `bayeslearn algorithms` lists them. auto: chosen on held-out rows.",
)
@click.option("--budget", help="About how long --method auto may take, such as 1m or 30s.")
@click.option("--out", type=click.Path(), required=True, help="The folder to write.")
@click.option("--predict", "new", type=click.Path(), help="Also predict the rows of this file.")
@flags.raw_option
@click.option(
    "--test-fraction",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.2,
    show_default=True,
    help="Fraction of rows held out to score the fit; 0: no scores and no report.",
)
@flags.order_options
@flags.calibration_options
@flags.checkpoint_options
@flags.cluster_options
@flags.seed_option
@flags.network_options
@flags.overwrite_option
@flags.no_cache_option
@flags.common_options
@click.pass_context
def fit(
    ctx: click.Context,
    data: str,
    method: str,
    budget: str | None,
    out: str,
    new: str | None,
    raw: bool,
    test_fraction: float,
    seed: int,
    overwrite: bool,
    no_cache: bool,
    **options: Any,
) -> None:
    """Fit a network to a table, score it on held-out rows, and write it to a folder.

    \b
    bayeslearn fit data.csv --target price --out run
    bayeslearn fit data.csv --target price --out run --predict new.csv
    bayeslearn fit data.csv.gz --target species --method vogn --learning-rate 0.1 --out run
    bayeslearn fit data.parquet --target y --impute --drop id --hidden 50,50 --out run
    bayeslearn fit data.csv --target price --calibrate conformal --out run
    bayeslearn fit data.csv --target price --groups house --out run
    bayeslearn fit data.csv --target price --time-order sold --out run
    bayeslearn fit data.csv --target price --method hmc --out run --checkpoint
    bayeslearn fit data.csv --target price --method hmc --out run --resume

    The settings of a method are options too: `bayeslearn algorithms vogn` lists vogn's.
    """
    cluster = flags.pick(flags.ClusterOptions, options)
    is_first = flags.join_cluster(cluster)
    output = Output(options["as_json"] and is_first, options["quiet"] or not is_first)
    network = flags.pick(flags.NetworkOptions, options)
    table_options = flags.pick(flags.TableOptions, options)
    table_options = inputs.for_likelihood(table_options, network.likelihood)
    folder = runs.check_folder(out, overwrite)
    checkpoint = make_checkpoint(folder, flags.pick(flags.CheckpointOptions, options))
    file_options = flags.pick(flags.FileOptions, options)
    order = flags.pick(flags.OrderOptions, options)
    table, learned = inputs.read_table(output, data, table_options, file_options, order)
    row_order = inputs.read_order(table, learned.rows, order)
    rows = inputs.split_rows(learned, test_fraction, seed, row_order)
    schema = learned.schema.with_fill_values(table, learned.rows[rows.train])
    x = schema.encode(table, output.note).iloc[learned.rows]
    x_new = None
    if new is not None:
        x_new = inputs.read_new_rows(output, schema, new, "predict", file_options).x
    estimator = inputs.make_estimator(output, schema.task, method, ctx.meta["settings"], network)
    estimator.set_params(random_state=seed, progress=False, budget=budget)
    estimator.set_params(**flags.pick(flags.CalibrationOptions, options).for_estimator())
    estimator.check_parameters()
    if not no_cache:
        use_compilation_cache()
    parts = Parts(
        *(x.iloc[rows.train], learned.y[rows.train]),
        *(x.iloc[rows.test], learned.y[rows.test]),
    )
    train_order = row_order.take(rows.train)
    contents = None
    with output.warnings_as_notes():
        fit_estimator(output, estimator, parts, train_order, checkpoint, cluster)
        if not is_first:
            return
        for note in estimator.posterior_.notes:
            output.note(note)
        if len(rows.test):
            settings: dict[str, JSON] = {"file": data, "target": table_options.target}
            settings |= {name: v for name, v in dataclasses.asdict(order).items() if v}
            contents = describe_fit(output, estimator, parts, settings)
        predictions = None
        if x_new is not None:
            with output.progress(f"predicting {new}"):
                predictions = runs.predict_table(estimator, x_new)
    with output.progress(f"writing {folder}"):
        runs.write_run(folder, estimator, schema, contents, predictions, raw)
    if checkpoint is not None:
        shutil.rmtree(checkpoint.folder, ignore_errors=True)
    summarize(output, estimator, parts, contents, method)
    page = f" (report: {folder / runs.PAGE})" if contents else ""
    output.say(f"Wrote {folder}/{page}")
    if predictions is None:
        output.say(f"Next: bayeslearn predict {shlex.quote(out)} NEW.csv --out {runs.PREDICTIONS}")
    else:
        output.say(f"Predictions of {len(predictions)} rows: {folder / runs.PREDICTIONS}")
    results = json_results(estimator, parts, contents)
    output.finish(command="fit", out=str(folder), task=schema.task, method=method, **results)


class Parts(NamedTuple):
    """Training and held-out rows."""

    x_train: pd.DataFrame
    y_train: np.ndarray
    x_test: pd.DataFrame
    y_test: np.ndarray


def make_checkpoint(folder: Path, options: flags.CheckpointOptions) -> bl.Checkpoint | None:
    """Where the run is saved on its way: beside its folder."""
    if not (options.checkpoint or options.resume):
        return None
    from bayeslearn.inference.options import Checkpoint
    from bayeslearn.storage.run_folder import RunFolder
    from bayeslearn.tabular.selection import FILE as SELECTION

    place = Path(f"{os.path.abspath(folder)}{runs.CHECKPOINT}")
    has_run = RunFolder(place, "").has_run() or (place / SELECTION).is_dir()
    if has_run and not options.resume:
        shown = Shown(f"{place}: it holds a run")
        refuse("checkpoint", shown, "be a new folder", "Continue it with --resume, or remove it.")
    if not has_run and not options.checkpoint:
        shown = Shown(f"--resume where no run was started ({place})")
        refuse("resume", shown, "continue a run", "Start one with --checkpoint.")
    return Checkpoint(place, every=options.every, resume=options.resume)


def fit_estimator(
    output: Output,
    estimator: bl.BayesianNNRegressor | bl.BayesianNNClassifier,
    parts: Parts,
    order: inputs.RowOrder,
    checkpoint: bl.Checkpoint | None,
    cluster: flags.ClusterOptions,
) -> None:
    """Fit with a progress bar that names the phase."""
    with output.progress("fit", total=1) as bar:
        estimator.fit(
            parts.x_train,
            parts.y_train,
            callback=lambda event: show_event(bar, event),
            checkpoint=checkpoint,
            devices="all" if cluster.distributed else None,
            **order._asdict(),
        )


def show_event(bar: Progress, event: bl.FitEvent) -> None:
    """Show an event of `bl.fit`."""
    label = run_label(event.algorithm, event.phase, event.num_members)
    bar.update(event.step, event.metrics, name=label, total=event.num_steps)


def describe_fit(
    output: Output,
    estimator: bl.BayesianNNRegressor | bl.BayesianNNClassifier,
    parts: Parts,
    settings: dict[str, JSON],
) -> dict[str, JSON]:
    """The contents of the report."""
    from bayeslearn import report

    settings["command"] = typed_command()
    with output.progress("computing the report"):
        return report.from_fit(estimator, *parts, settings=settings)


def json_results(
    estimator: bl.BayesianNNRegressor | bl.BayesianNNClassifier,
    parts: Parts,
    contents: dict[str, JSON] | None,
) -> dict[str, JSON]:
    """The results in the output of `--json`."""
    posterior = estimator.posterior_
    return {
        "train_rows": len(parts.y_train),
        "test_rows": len(parts.y_test),
        "columns": [str(name) for name in parts.x_train.columns],
        "metrics": dict(fit_scores(contents)),
        "seconds": posterior.wall_time,
        "compile_seconds": posterior.compile_time,
        "stopped": posterior.stopped,
    }


def summarize(
    output: Output,
    estimator: bl.BayesianNNRegressor | bl.BayesianNNClassifier,
    parts: Parts,
    contents: dict[str, JSON] | None,
    method: str,
) -> None:
    """Say how it went."""
    posterior = estimator.posterior_
    output.say(
        f"Fitted {method} to {len(parts.y_train)} rows and {parts.x_train.shape[1]} columns in"
        f" {posterior.wall_time:.1f} s ({posterior.compile_time:.1f} s compilation)."
    )
    scores = fit_scores(contents)
    if scores:
        output.say(f"On {len(parts.y_test)} held-out rows: {write_scores(scores)}.")
        is_regression = not hasattr(estimator, "classes_")
        output.say(baseline_score(is_regression, parts.y_train, parts.y_test))


def fit_scores(contents: dict[str, JSON] | None) -> dict[str, float]:
    """The scores in a report of one fit."""
    if contents is None:
        return {}
    (row,) = cast(list[Row], contents["table"])
    return {name: pair[0] for name, pair in row["metrics"].items() if pair[0] is not None}


def baseline_score(is_regression: bool, y_train: np.ndarray, y_test: np.ndarray) -> str:
    """The score of a prediction that ignores all columns."""
    if is_regression:
        error = np.sqrt(np.mean((y_test - np.mean(y_train)) ** 2))
        return f"Baseline (predicting the mean): RMSE {number(float(error))}"
    labels, counts = np.unique(y_train, return_counts=True)
    label = labels[np.argmax(counts)]
    accuracy = np.mean(y_test == label)
    return f"Baseline (predicting {str(label)!r}): accuracy {accuracy:.0%}"
