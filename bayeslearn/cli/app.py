"""The command-line program: its commands, one format of errors, exit codes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

import bayeslearn as bl
from bayeslearn.cli.algorithms import algorithms
from bayeslearn.cli.calibrate import calibrate
from bayeslearn.cli.compare import compare, demo
from bayeslearn.cli.fit import fit
from bayeslearn.cli.predict import predict
from bayeslearn.cli.report import report
from bayeslearn.cli.safe_text import visible
from bayeslearn.cli.wording import in_flags
from bayeslearn.errors import ArgumentError, BayesLearnError, Interrupted, StorageError

RESUME = "Interrupted. Run the same command with --resume to continue from the last checkpoint."
INTERRUPTED = 130  # the exit code of a program ended by Ctrl-C


class Group(click.Group):
    """The commands, with one format of errors and the exit codes of the help text."""

    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command; its errors become one line and an exit code."""
        args = list(sys.argv[1:] if args is None else args)
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        message = ""
        try:
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra) or 0
        except Interrupted as error:
            code, message = error.code, RESUME
        except Exception as error:
            if "--debug" in args and not isinstance(error, click.Abort):
                raise
            name = next((part for part in args if not part.startswith("-")), "")
            code, message = _explain(error, self.commands.get(name))
        if message and "--json" in args:
            click.echo(json.dumps({"error": message, "exit_code": code}, indent=1))
        elif message:
            click.secho(visible(f"Error: {message}"), fg="red", err=True)
        sys.exit(code)


def _explain(error: Exception, command: click.Command | None) -> tuple[int, str]:
    """Exit code and message of whatever ended a command."""
    if isinstance(error, click.Abort):
        has_checkpoint = bool(str(error.__cause__ or ""))  # `fit` says where it is
        return INTERRUPTED, RESUME if has_checkpoint else "Interrupted; nothing was written."
    if isinstance(error, click.UsageError):
        where = f" See `{error.ctx.command_path} --help`." if error.ctx else ""
        return 2, error.format_message() + where
    if isinstance(error, ArgumentError | StorageError | ImportError):
        return 2, in_flags(str(error), command)
    if isinstance(error, click.ClickException):
        return error.exit_code, error.format_message()
    if isinstance(error, BrokenPipeError):  # whoever read the output has gone
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return 1, ""
    if isinstance(error, BayesLearnError | OSError):
        return 1, str(error)
    first = (str(error).splitlines() or [""])[0]
    return 1, f"{type(error).__name__}: {first} (--debug shows the traceback)"


@click.group(
    cls=Group,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(bl.__version__, prog_name="bayeslearn")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Bayesian neural networks on a table: predictions with calibrated uncertainty.

    \b
    bayeslearn fit data.csv --target price --out run
    bayeslearn predict run new.csv --out predictions.csv
    bayeslearn compare data.csv --target price --budget 2m --out comparison

    CSV, TSV (also gzipped) and Parquet. Every command takes --json.
    Exit codes: 0 done, 1 the run failed, 2 the input was refused, 130 interrupted.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


for command in (fit, predict, calibrate, compare, report, algorithms, demo):
    main.add_command(command)
