"""The command line: parse, call, print. See docs/command_line.md, or `bayeslearn --help`.

Exit codes: 0 done, 1 the run failed, 2 the input was refused, 130 interrupted (143 by SIGTERM, if a
checkpoint was asked for). What is written is written beside its place and moved there when it is
whole, so that nothing is ever half there.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import stat
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np

import bayeslearn as bl
from bayeslearn import flags, runs, tables
from bayeslearn.errors import (
    ArgumentError,
    BayesLearnError,
    Interrupted,
    Shown,
    StorageError,
    refuse,
)

if TYPE_CHECKING:
    import pandas as pd

    from bayeslearn.checkpoints import Keeper

GOES_ON = "Interrupted; the same command with --resume goes on from the last checkpoint."
WIDE = 120  # columns of a page that is no terminal
METRICS = {
    "rmse": "RMSE",
    "accuracy": "accuracy",
    "log_likelihood": "log-likelihood",
    "coverage90": "90 % coverage",
    "ece": "ECE",
    "crps": "CRPS",
    "brier": "Brier",
}


# Speaking


class Speaker:
    """What a command says: sentences to a person, or one JSON object to a machine."""

    def __init__(self, as_json: bool, quiet: bool):
        self.as_json, self.quiet = as_json, quiet
        self.notes: list[str] = []

    @property
    def progress(self) -> bool | None:
        return False if self.quiet else None

    @property
    def width(self) -> int:
        return shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDE

    def note(self, text: str) -> None:
        """What a person should know; kept for the JSON object too."""
        if text in self.notes:
            return
        self.notes.append(text)
        if not self.as_json and not self.quiet:
            click.secho(f"Note: {text}", fg="yellow", err=True)

    def say(self, text: str) -> None:
        if not self.as_json and not self.quiet:
            click.echo(text)

    def show(self, renderable: Any) -> None:
        if not self.as_json and not self.quiet:
            from rich.console import Console

            Console(width=self.width).print(renderable, markup=False, highlight=False)

    def end(self, **result: Any) -> None:
        if self.as_json:
            click.echo(json.dumps({**result, "notes": self.notes}, indent=1))

    @contextlib.contextmanager
    def warnings_as_notes(self) -> Iterator[None]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            yield
        for warning in caught:
            if issubclass(warning.category, UserWarning):
                self.note(str(warning.message))


class Group(click.Group):
    """The commands, with one format of errors and the exit codes above."""

    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        args = list(sys.argv[1:] if args is None else args)
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        told = ""
        try:
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra) or 0
        except Interrupted as error:
            code, told = error.code, GOES_ON
        except Exception as error:
            if "--debug" in args and not isinstance(error, click.Abort):
                raise
            code, told = _explained(error)
        if told and "--json" in args:
            click.echo(json.dumps({"error": told, "exit_code": code}, indent=1))
        elif told:
            click.secho(f"Error: {told}", fg="red", err=True)
        sys.exit(code)


def _explained(error: Exception) -> tuple[int, str]:
    """Exit code and sentence of whatever ended a command."""
    if isinstance(error, click.Abort):
        if str(error.__cause__ or ""):  # the loop has told where its checkpoint is
            return 130, GOES_ON
        return 130, "Interrupted; nothing was written."
    if isinstance(error, click.UsageError):
        where = f" See `{error.ctx.command_path} --help`." if error.ctx else ""
        return 2, error.format_message() + where
    if isinstance(error, ArgumentError | StorageError | ImportError):
        return 2, str(error)
    if isinstance(error, click.ClickException):
        return error.exit_code, error.format_message()
    if isinstance(error, BrokenPipeError):  # whoever read the output has gone
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return 1, ""
    if isinstance(error, BayesLearnError | OSError):
        return 1, str(error)
    first = (str(error).splitlines() or [""])[0]
    return 1, f"{type(error).__name__}: {first} (--debug shows where)"


# The commands


@click.group(
    cls=Group,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(bl.__version__, prog_name="bayeslearn")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Predictions with honest error bars: Bayesian neural networks on a table.

    \b
    bayeslearn fit data.csv --target price --out run
    bayeslearn predict run new.csv --out predictions.csv
    bayeslearn compare data.csv --target price --budget 2m --out comparison

    CSV, TSV (also gzipped) and Parquet. Every command takes --json.
    Exit codes: 0 done, 1 the run failed, 2 the input was refused, 130 interrupted.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@main.command(cls=flags.WithSettings)
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
    from bayeslearn.checkpoints import FIT, Keeper

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


@main.command()
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
    from bayeslearn import estimators

    made = runs.predicted(estimators.load(Path(run) / runs.MODEL), x, level)
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


@main.command()
@click.argument("data", type=click.Path())
@flags.of_table
@click.option(
    "--methods",
    default="default",
    show_default=True,
    help="default (a quick choice), all, or names with commas between them.",
)
@click.option("--budget", help="Time for everything, such as 90s, 2m or 1h.  [default: no limit]")
@click.option("--out", type=click.Path(), help="Folder for the report and the recommended fit.")
@click.option("--splits", type=click.IntRange(min=1), default=3, show_default=True)
@click.option(
    "--test-fraction", type=float, default=0.2, show_default=True, help="Share of rows kept back."
)
@flags.seeded
@flags.of_network
@flags.overwriting
@flags.cached
@flags.common
def compare(
    data: str,
    target: str,
    methods: str,
    budget: str | None,
    out: str | None,
    splits: int,
    test_fraction: float,
    seed: int,
    overwrite: bool,
    no_cache: bool,
    as_json: bool,
    quiet: bool,
    encoding: str,
    **options: Any,
) -> None:
    """Try several methods on the same rows and recommend one.

    \b
    bayeslearn compare data.csv --target price
    bayeslearn compare data.csv --target price --methods all --budget 5m --out comparison
    bayeslearn compare data.csv --target price --methods map,vogn,hmc --json
    bayeslearn predict comparison new.csv

    The folder holds the page report.html and the recommended method's fit of the first split.
    """
    speaker = Speaker(as_json, quiet)
    asked = methods if methods in ("default", "all") else methods.split(",")
    result = _compare(
        speaker,
        data,
        target=target,
        encoding=encoding,
        out=out,
        overwrite=overwrite,
        no_cache=no_cache,
        options=options,
        methods=asked,
        budget=budget,
        splits=splits,
        test_fraction=test_fraction,
        seed=seed,
    )
    speaker.end(command="compare", **result)


def _compare(
    speaker: Speaker,
    data: str,
    *,
    target: str,
    encoding: str,
    out: str | None,
    overwrite: bool,
    no_cache: bool,
    options: dict[str, Any],
    **asked: Any,
) -> dict[str, Any]:
    place = None if out is None else runs.check_place(out, overwrite)
    raw, learned = _read_table(speaker, data, target, encoding, options)
    table = learned.table.filled_from(raw, learned.rows)
    x = table.encode(raw, speaker.note).iloc[learned.rows].reset_index(drop=True)
    if not no_cache:
        use_compilation_cache()
    from bayeslearn import comparison as comparing

    with speaker.warnings_as_notes():
        comparison = comparing.compare(
            x,
            learned.y,
            task=table.task,
            progress=speaker.progress,
            **asked,
            **_network_options(table.task, options),
        )
        result = comparison.to_dict()
        if place is not None:
            from bayeslearn import report

            contents = report.from_comparison(comparison)
            contents["settings"] |= {"file": data, "target": target, "command": _command()}
            best = comparison.fitted[comparison.recommended]
            runs.write(place, best, table, contents, None)
    speaker.show(comparison)
    if place is not None:
        speaker.say(f"Written: {place}/, with the page {place / runs.PAGE}")
        speaker.say(
            f"Next: bayeslearn predict {_typed(str(place))} NEW.csv --out {runs.PREDICTIONS}"
        )
    return {**result, "out": None if place is None else str(place)}


@main.command()
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


@main.command()
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


@main.command()
@click.option("--out", type=click.Path(), default="demo", show_default=True, help="The folder.")
@click.option("--methods", default="all", show_default=True)
@flags.cached
@flags.common
def demo(out: str, methods: str, no_cache: bool, as_json: bool, quiet: bool) -> None:
    """Compare all methods, briefly, on two tables that scikit-learn carries: a score, a diagnosis.

    \b
    bayeslearn demo
    bayeslearn demo --methods default
    """
    from bayeslearn.demo import BRIEF, brief, write_tables

    place = Path(out)
    if not place.parent.is_dir():
        refuse("out", out, f"be in a folder that exists; {place.parent} does not")
    results = []
    for data, target in write_tables(place):
        speaker = Speaker(as_json, quiet)
        run = data.with_suffix("")
        speaker.say(f"{data}, of which {target} is to be predicted:")
        results.append(
            _compare(
                speaker,
                str(data),
                target=target,
                encoding="utf-8",
                out=str(run),
                overwrite=True,
                no_cache=no_cache,
                options={},
                methods=brief(methods),
                **BRIEF,
            )
        )
    Speaker(as_json, quiet).end(command="demo", comparisons=results)


# Tables in


def _read_table(
    speaker: Speaker, data: str, target: str, encoding: str, options: dict[str, Any]
) -> tuple[tables.Raw, tables.Learned]:
    raw = tables.read(data, encoding=encoding)
    names = ("task", "drop", "categorical", "impute")
    learned = tables.learn(
        raw,
        target,
        **{name: options[name] for name in names if name in options},
        encoding=options.get("categories", "one-hot"),
    )
    for note in learned.notes:
        speaker.note(note)
    return raw, learned


class New(NamedTuple):
    raw: tables.Raw
    x: pd.DataFrame


def _read_new(
    speaker: Speaker, table: tables.Table, path: str, argument: str, encoding: str
) -> New:
    raw = tables.read(path, argument=argument, encoding=encoding)
    x = table.encode(raw, speaker.note)
    if not len(x):
        raw.bad("it has no rows below its header", "have rows to predict")
    for note in raw.notes:
        speaker.note(note)
    known = {column.name for column in table.columns}
    extra = [name for name in raw.cells.columns if name not in known]
    if extra:
        shown = ", ".join(map(repr, extra[:5])) + (", ..." if len(extra) > 5 else "")
        speaker.note(f"Not used: the column{'s' if len(extra) > 1 else ''} {shown}.")
    return New(raw, x)


class Rows(NamedTuple):
    train: np.ndarray
    test: np.ndarray


def _split(learned: tables.Learned, fraction: float, seed: int) -> Rows:
    """Rows to learn from and rows kept back, with the classes in the same shares in both."""
    order = np.random.default_rng(seed).permutation(len(learned.y))
    groups = [order]
    if learned.table.task == "classification":
        labels = learned.y[order]
        groups = [order[labels == label] for label in np.unique(labels)]
    kept = [min(round(fraction * len(group)), len(group) - 1) for group in groups]
    if fraction and not any(kept):
        kept[int(np.argmax([len(group) for group in groups]))] = 1
    test = [group[:number] for group, number in zip(groups, kept, strict=True)]
    train = [group[number:] for group, number in zip(groups, kept, strict=True)]
    return Rows(np.sort(np.concatenate(train)), np.sort(np.concatenate(test)))


# Estimators


def _network_options(task: str, options: dict[str, Any]) -> dict[str, Any]:
    """Those of the estimator that were given."""
    names = {
        "hidden": "hidden",
        "activation": "activation",
        "prior_scale": "prior_scale",
        "observation_noise": "noise",
        "num_steps": "num_steps",
        "batch_size": "batch_size",
        "validation_fraction": "validation_fraction",
    }
    given = {own: options[name] for name, own in names.items() if options.get(name) is not None}
    if task == "classification" and "noise" in given:
        refuse("observation-noise", given["noise"], "be left out: classes have none")
    return given


def _estimator(
    speaker: Speaker, task: str, method: str, settings: dict[str, Any], options: dict[str, Any]
) -> Any:
    cls = flags.class_of(method)
    given = _network_options(task, options)
    if cls.needs_linear_model and "hidden" not in given:
        given["hidden"] = ()
        speaker.note(f"{method} fits a linear model: there is no hidden layer.")
    kind = bl.BayesianNNRegressor if task == "regression" else bl.BayesianNNClassifier
    return kind(method=cls(**settings) if settings else method, **given)


def _scores(contents: dict[str, Any]) -> dict[str, float]:
    (row,) = contents["table"]
    return {name: value for name, (value, _) in row["metrics"].items()}


def _told_scores(scores: dict[str, float]) -> str:
    is_share = ("coverage90", "accuracy")
    told = {k: f"{v:.0%}" if k in is_share else _number(v) for k, v in scores.items()}
    return ", ".join(f"{METRICS.get(name, name)} {value}" for name, value in told.items())


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def _guess(task: str, y_train: np.ndarray, y_test: np.ndarray) -> str:
    """What can be had without looking at the columns."""
    if task == "regression":
        error = np.sqrt(np.mean((y_test - np.mean(y_train)) ** 2))
        return f"(Always saying the mean: RMSE {_number(float(error))}.)"
    labels, counts = np.unique(y_train, return_counts=True)
    share = np.mean(y_test == labels[np.argmax(counts)])
    return f"(Always saying {str(labels[np.argmax(counts)])!r}: accuracy {share:.0%}.)"


def _command() -> str:
    """What was typed, for the report."""
    return shlex.join(["bayeslearn", *sys.argv[1:]])


def _typed(path: str) -> str:
    return shlex.quote(path)


# Compiled programs


def use_compilation_cache() -> Path | None:
    """Keep compiled programs in the user's cache folder, so that the next run starts fast.

    Nobody else may write there, for what is in it is run. A cache that the user has set up for JAX
    is left as it is.
    """
    import jax

    if jax.config.values["jax_compilation_cache_dir"]:  # JAX_COMPILATION_CACHE_DIR, too
        return None
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    place = Path(base).expanduser() / "bayeslearn" / "jax"
    try:
        place.mkdir(parents=True, exist_ok=True)
        for folder in (place.parent, place):
            if hasattr(os, "getuid") and folder.stat().st_uid != os.getuid():
                return None
            folder.chmod(stat.S_IRWXU)
    except OSError:
        return None
    jax.config.update("jax_compilation_cache_dir", str(place))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return place
