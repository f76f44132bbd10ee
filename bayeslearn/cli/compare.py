"""`bayeslearn compare` and `bayeslearn demo`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from bayeslearn.cache import use_compilation_cache
from bayeslearn.cli import flags, inputs, runs
from bayeslearn.cli.output import Output, typed_command
from bayeslearn.tabular.json_values import JSON

if TYPE_CHECKING:
    from bayeslearn.tabular.compare.result import Comparison
    from bayeslearn.tabular.schema import Schema


@click.command()
@click.argument("data", type=click.Path())
@flags.table_options
@click.option(
    "--methods",
    default="default",
    show_default=True,
    help="default (a quick choice), all, or names separated by commas.",
)
@click.option("--budget", help="Total time, such as 90s, 2m or 1h.  [default: no limit]")
@click.option(
    "--by",
    type=click.Choice(["log-likelihood", "crps"]),
    default="log-likelihood",
    show_default=True,
    help="Score by which methods are ranked on the validation folds.",
)
@click.option("--out", type=click.Path(), help="Folder for the report and the recommended fit.")
@click.option("--splits", type=click.IntRange(min=1), default=3, show_default=True)
@click.option(
    "--test-fraction",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.2,
    show_default=True,
    help="Fraction of test rows.",
)
@flags.seed_option
@flags.jobs_options
@flags.network_options
@flags.overwrite_option
@flags.no_cache_option
@flags.common_options
def compare(
    data: str,
    methods: str,
    budget: str | None,
    by: str,
    out: str | None,
    splits: int,
    test_fraction: float,
    seed: int,
    overwrite: bool,
    no_cache: bool,
    **options: Any,
) -> None:
    """Try several methods on the same rows and recommend one.

    \b
    bayeslearn compare data.csv --target price
    bayeslearn compare data.csv --target price --methods all --budget 5m --out comparison
    bayeslearn compare data.csv --target price --methods map,auto,hmc --jobs 4 --json
    bayeslearn compare data.csv --target price --results shared --array-task 0/7
    bayeslearn compare data.csv --target price --results shared --gather --out comparison
    bayeslearn predict comparison new.csv

    The folder holds the page report.html and the recommended method's fit of the first split.
    """
    output = Output(options["as_json"], options["quiet"])
    result = run_comparison(
        output,
        data,
        flags.pick(flags.TableOptions, options),
        flags.pick(flags.FileOptions, options),
        flags.pick(flags.NetworkOptions, options),
        None if out is None else runs.check_folder(out, overwrite),
        uses_cache=not no_cache,
        methods=methods if methods in ("default", "all") else methods.split(","),
        budget=budget,
        by=by,
        splits=splits,
        test_fraction=test_fraction,
        seed=seed,
        **flags.pick(flags.JobsOptions, options).arguments(),
    )
    output.finish(command="compare", **result)


def run_comparison(
    output: Output,
    data: str,
    table_options: flags.TableOptions,
    file_options: flags.FileOptions,
    network: flags.NetworkOptions,
    folder: Path | None,
    *,
    uses_cache: bool,
    test_fraction: float = 0.2,
    seed: int = 0,
    **arguments: Any,
) -> dict[str, JSON]:
    """Compare, show the table, write the folder; what JSON says of it.

    `arguments` are those of `bl.compare`.
    """
    table_options = inputs.for_likelihood(table_options, network.likelihood)
    raw, learned = inputs.read_table(output, data, table_options, file_options)
    if uses_cache:
        use_compilation_cache()
    from bayeslearn.tabular.compare import api, plan

    task = learned.schema.task
    _, others = plan.separate_test_rows(learned.y, task, test_fraction, seed)
    schema = learned.schema.with_fill_values(raw, learned.rows[others])
    x = schema.encode(raw, output.note).iloc[learned.rows].reset_index(drop=True)
    with output.warnings_as_notes():
        comparison = api.compare(
            x,
            learned.y,
            task=task,
            test_fraction=test_fraction,
            seed=seed,
            progress=output.shows_progress,
            **arguments,
            **network.for_estimator(task),
        )
        if folder is not None:
            settings: dict[str, JSON] = {"file": data, "target": table_options.target}
            write_comparison(output, comparison, schema, folder, settings)
    output.show(comparison)
    if folder is not None:
        output.say(f"Wrote {folder}/ (report: {folder / runs.PAGE})")
        if comparison.recommended is not None:
            place = shlex.quote(str(folder))
            output.say(f"Next: bayeslearn predict {place} NEW.csv --out {runs.PREDICTIONS}")
    return comparison.to_dict() | {"out": None if folder is None else str(folder)}


def write_comparison(
    output: Output,
    comparison: Comparison,
    schema: Schema,
    folder: Path,
    settings: dict[str, JSON],
) -> None:
    """The report, and the recommended fit if there is one."""
    from bayeslearn import report

    with output.progress("computing the report"):
        contents = report.from_comparison(comparison)
        settings["command"] = typed_command()
        contents["settings"] = cast(dict[str, JSON], contents["settings"]) | settings
        best = None
        if comparison.recommended is not None:
            best = comparison.fitted[comparison.recommended]
        runs.write_run(folder, best, schema, contents)


@click.command()
@click.option(
    "--out", type=click.Path(), default="demo", show_default=True, help="The folder to write."
)
@click.option("--methods", default="all", show_default=True)
@flags.no_cache_option
@flags.common_options
def demo(out: str, methods: str, no_cache: bool, as_json: bool, quiet: bool) -> None:
    """Compare all methods, briefly, on two tables of scikit-learn: regression, classification.

    \b
    bayeslearn demo
    bayeslearn demo --methods default
    """
    from bayeslearn.cli.demo import NETWORK, SPLITS, short_methods, write_tables

    runs.check_parent(out, Path(out))
    results: list[JSON] = []
    for data, target in write_tables(Path(out)):
        output = Output(as_json, quiet)
        output.say(f"{data}, predicting {target}:")
        results.append(
            run_comparison(
                output,
                str(data),
                flags.TableOptions(target),
                flags.FileOptions(),
                NETWORK,
                runs.check_folder(str(data.with_suffix("")), overwrite=True),
                uses_cache=not no_cache,
                methods=short_methods(methods),
                splits=SPLITS,
            )
        )
    Output(as_json, quiet).finish(command="demo", comparisons=results)
