"""`bayeslearn fit`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from bayeslearn.cli import flags, runs
from bayeslearn.cli.cache import use_compilation_cache
from bayeslearn.cli.inputs import _estimator, _read_new, _read_table, _split
from bayeslearn.cli.output import Speaker, _command, _number, _told_scores, _typed
from bayeslearn.errors import Shown, refuse

if TYPE_CHECKING:
    from bayeslearn.storage.checkpoints import Keeper


@click.command(cls=flags.WithSettings)
@click.argument("data", type=click.Path())
@flags.of_table
@click.option(
    "--method",
    type=flags.Method(),
    default=flags.DEFAULT_METHOD,
    show_default=True,
    help="How the posterior is found; `bayeslearn algorithms` lists them.",
)
@click.option("--out", type=click.Path(), required=True, help="The folder to write.")
@click.option("--predict", "new", type=click.Path(), help="Also predict the rows of this file.")
@click.option(
    "--test-fraction",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.2,
    show_default=True,
    help="Share of the rows kept back to judge the fit; 0: none, and no report.",
)
@click.option(
    "--checkpoint",
    is_flag=True,
    help="Keep the run in OUT.checkpoint/ on its way, so that --resume can go on with it.",
)
@click.option(
    "--every",
    type=flags.Every(),
    default="1m",
    show_default=True,
    help="Between checkpoints: a time such as 30s or 5m, or a number of steps.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with a run that was killed; beside --checkpoint, begin one if there is none.",
)
@flags.over_processes
@flags.seeded
@flags.of_network
@flags.overwriting
@flags.cached
@flags.common
@click.pass_context
def fit(
    ctx: click.Context,
    data: str,
    target: str,
    method: str,
    out: str,
    new: str | None,
    test_fraction: float,
    checkpoint: bool,
    every: int | str,
    resume: bool,
    distributed: bool,
    processes: int | None,
    process_id: int | None,
    coordinator: str | None,
    seed: int,
    overwrite: bool,
    no_cache: bool,
    as_json: bool,
    quiet: bool,
    encoding: str,
    **options: Any,
) -> None:
    """Fit a network to a table, judge it on rows kept back, and write it to a folder.

    \b
    bayeslearn fit data.csv --target price --out run
    bayeslearn fit data.csv --target price --out run --predict new.csv
    bayeslearn fit data.csv.gz --target species --method vogn --learning-rate 0.1 --out run
    bayeslearn fit data.parquet --target y --impute --drop id --hidden 50,50 --out run
    bayeslearn fit data.csv --target price --method hmc --out run --checkpoint
    bayeslearn fit data.csv --target price --method hmc --out run --resume

    The settings of a method are options too: `bayeslearn algorithms vogn` lists vogn's.
    """
    is_first = flags.joined(distributed, coordinator, processes, process_id)
    speaker = Speaker(as_json and is_first, quiet or not is_first)
    place = runs.check_place(out, overwrite)
    keeper = _keeper(place, checkpoint, every, resume, is_shared=distributed)
    raw, learned = _read_table(speaker, data, target, encoding, options)
    rows = _split(learned, test_fraction, seed)
    table = learned.table.filled_from(raw, learned.rows[rows.train])
    x = table.encode(raw, speaker.note).iloc[learned.rows]
    x_new = None if new is None else _read_new(speaker, table, new, "predict", encoding).x
    estimator = _estimator(speaker, table.task, method, ctx.meta["settings"], options)
    estimator.set_params(random_state=seed, progress=speaker.progress)
    if not no_cache:
        use_compilation_cache()
    x_train, x_test = x.iloc[rows.train], x.iloc[rows.test]
    y_train, y_test = learned.y[rows.train], learned.y[rows.test]
    with speaker.warnings_as_notes():
        devices = "all" if distributed else None
        estimator._fit(x_train, y_train, None, checkpoint=keeper, devices=devices)
        if not is_first:
            return
        for note in estimator.posterior_.notes:
            speaker.note(note)
        contents = None
        if len(rows.test):
            from bayeslearn import report

            settings = {"file": data, "target": target, "command": _command()}
            contents = report.from_fit(
                estimator, x_train, y_train, x_test, y_test, settings=settings
            )
        predictions = None if x_new is None else runs.predicted(estimator, x_new)
    runs.write(place, estimator, table, contents, predictions)
    if keeper is not None:
        shutil.rmtree(keeper.folder, ignore_errors=True)
    posterior = estimator.posterior_
    scores = {} if contents is None else _scores(contents)
    speaker.say(
        f"Fitted {method} to {len(x_train)} rows and {x.shape[1]} columns in"
        f" {posterior.wall_time:.1f} s ({posterior.compile_time:.1f} s compiling)."
    )
    if scores:
        guess = _guess(table.task, y_train, y_test)
        speaker.say(f"On {len(x_test)} rows kept back: {_told_scores(scores)}. {guess}")
    speaker.say(f"Written: {place}/" + (f", with the page {place / runs.PAGE}" if contents else ""))
    if predictions is None:
        speaker.say(f"Next: bayeslearn predict {_typed(out)} NEW.csv --out {runs.PREDICTIONS}")
    else:
        speaker.say(f"Predictions of {len(predictions)} rows: {place / runs.PREDICTIONS}")
    speaker.end(
        command="fit",
        out=str(place),
        task=table.task,
        method=method,
        train_rows=len(x_train),
        test_rows=len(x_test),
        columns=list(x.columns),
        metrics=scores,
        seconds=posterior.wall_time,
        compile_seconds=posterior.compile_time,
        stopped=posterior.stopped,
    )


def _keeper(
    place: Path, is_asked: bool, every: int | str, is_resumed: bool, is_shared: bool
) -> Keeper | None:
    """Of the run in its folder beside `place`, new or begun by an earlier process."""
    if not (is_asked or is_resumed):
        return None
    from bayeslearn.storage.checkpoints import FIT, Keeper

    folder = Path(f"{os.path.abspath(place)}{runs.CHECKPOINT}")
    is_begun = os.path.lexists(folder / FIT)
    if is_resumed and (is_begun or not is_asked):
        if not is_begun:
            shown = Shown(f"--resume where no run has begun ({folder})")
            refuse("resume", shown, "go on with a run", "Begin one with --checkpoint.")
        return Keeper.reopen(folder, is_shared=is_shared)
    if is_begun:
        shown = Shown(f"{folder}: it holds a run")
        refuse("checkpoint", shown, "be a new folder", "Go on with --resume, or remove it.")
    return Keeper(folder, every, is_shared=is_shared)


def _scores(contents: dict[str, Any]) -> dict[str, float]:
    (row,) = contents["table"]
    return {name: value for name, (value, _) in row["metrics"].items()}


def _guess(task: str, y_train: np.ndarray, y_test: np.ndarray) -> str:
    """What can be had without looking at the columns."""
    if task == "regression":
        error = np.sqrt(np.mean((y_test - np.mean(y_train)) ** 2))
        return f"(Always saying the mean: RMSE {_number(float(error))}.)"
    labels, counts = np.unique(y_train, return_counts=True)
    share = np.mean(y_test == labels[np.argmax(counts)])
    return f"(Always saying {str(labels[np.argmax(counts)])!r}: accuracy {share:.0%}.)"
