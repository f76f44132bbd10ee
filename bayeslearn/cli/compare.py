"""`bayeslearn compare` and `bayeslearn demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bayeslearn.cli import flags, runs
from bayeslearn.cli.cache import use_compilation_cache
from bayeslearn.cli.inputs import _network_options, _read_table
from bayeslearn.cli.output import Speaker, _command, _typed
from bayeslearn.errors import refuse


@click.command()
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
    from bayeslearn.tabular.compare import api

    with speaker.warnings_as_notes():
        comparison = api.compare(
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


@click.command()
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
    from bayeslearn.cli.demo import BRIEF, brief, write_tables

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
