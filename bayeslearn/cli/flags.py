"""Options that several commands share, and the small objects they are gathered in."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

import bayeslearn as bl
from bayeslearn.cli.flag_types import AUTO, Every, NumberOr, Sizes
from bayeslearn.errors import refuse
from bayeslearn.tabular import encoding, files
from bayeslearn.tabular.task import TASKS

DEFAULT_METHOD = AUTO  # of the estimators
T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])


def pick(cls: type[T], options: dict[str, Any]) -> T:
    """The fields of a dataclass out of a command's options."""
    names = (field.name for field in dataclasses.fields(cls))  # type: ignore[arg-type]
    return cls(**{name: options[name] for name in names})


def chain(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator."""

    def decorate(function: Command) -> Command:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


# Options


@dataclasses.dataclass(frozen=True)
class TableOptions:
    """How a file is read."""

    target: str
    task: str = "auto"
    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    categories: str = "one-hot"
    impute: bool = False
    indicators: bool = False


@dataclasses.dataclass(frozen=True)
class FileOptions:
    """How the text of a file is read."""

    encoding: str = "utf-8"
    decimal: str | None = None
    thousands: str | None = None
    dates: str | None = None
    max_bytes: int = files.MAX_BYTES

    def for_file(self) -> dict[str, Any]:
        """By the names of `files.read`."""
        found = dataclasses.asdict(self)
        dates = found.pop("dates")
        return found | {"day_first": None if dates is None else dates == DAY_FIRST}


DAY_FIRST, MONTH_FIRST = "day-first", "month-first"
file_options = chain(
    click.option(
        "--encoding",
        default="utf-8",
        show_default=True,
        help="Encoding of a text file, such as latin-1 or utf-16.",
    ),
    click.option("--decimal", type=click.Choice([".", ","]), help="The decimal separator."),
    click.option("--thousands", type=click.Choice([".", ","]), help="The thousands separator."),
    click.option(
        "--dates", type=click.Choice([DAY_FIRST, MONTH_FIRST]), help="The order in 03/04/2024."
    ),
    click.option(
        "--max-bytes",
        type=click.IntRange(min=1),
        default=files.MAX_BYTES,
        show_default=True,
        help="Largest size of a decompressed file.",
    ),
)
table_options = chain(
    click.option("--target", required=True, metavar="COLUMN", help="The column to predict."),
    click.option(
        "--task",
        type=click.Choice(["auto", *TASKS]),
        default="auto",
        show_default=True,
        help="Kind of the target; auto: detected from its values.",
    ),
    click.option("--drop", multiple=True, metavar="COLUMN", help="Drop a column; repeatable."),
    click.option(
        "--categorical",
        multiple=True,
        metavar="COLUMN",
        help="Treat a column as categorical, also if it holds numbers; repeatable.",
    ),
    click.option(
        "--categories",
        type=click.Choice(encoding.ENCODINGS),
        default="one-hot",
        show_default=True,
        help="How categories become numbers.",
    ),
    click.option(
        "--impute",
        is_flag=True,
        help="Impute missing values: the median, or the most frequent category.",
    ),
    click.option(
        "--indicators",
        is_flag=True,
        help="Impute, and add columns that say where values were missing.",
    ),
    file_options,
)


@dataclasses.dataclass(frozen=True)
class OrderOptions:
    """Columns that say which rows belong together, or come later; they are no inputs."""

    groups: str | None = None
    time_order: str | None = None


order_options = chain(
    click.option(
        "--groups",
        metavar="COLUMN",
        help="Hold out whole groups: rows with equal values here, such as a patient. Not an input.",
    ),
    click.option(
        "--time-order",
        metavar="COLUMN",
        help="Hold out the latest rows, by this date or number. Not an input.",
    ),
)


@dataclasses.dataclass(frozen=True)
class NetworkOptions:
    """Settings of the estimator; None: its default."""

    hidden: str | tuple[int, ...] | None = None
    activation: str | None = None
    prior_scale: float | None = None
    observation_noise: str | float | None = None
    num_steps: str | int | None = None
    batch_size: str | int | None = None
    validation_fraction: float | None = None
    likelihood: str | None = None
    class_weight: str | None = None

    def for_estimator(self, task: str) -> dict[str, Any]:
        """Those that were given, by the estimator's names."""
        given = {name: v for name, v in dataclasses.asdict(self).items() if v is not None}
        if "observation_noise" in given:
            noise = given.pop("observation_noise")
            if task == "classification":
                refuse("observation-noise", noise, "be left out for classification")
            given["noise"] = noise
        if self.class_weight is not None and task == "regression":
            refuse("class-weight", self.class_weight, "be left out for regression")
        return given


network_options = chain(
    click.option("--hidden", type=Sizes(), help="Sizes of the hidden layers.  [default: auto]"),
    click.option("--activation", help="A name from jax.nn.  [default: tanh]"),
    click.option("--prior-scale", type=float, help="Prior standard deviation of the weights."),
    click.option(
        "--observation-noise",
        type=NumberOr(float, AUTO, "learned", "heteroscedastic", "student-t"),
        help="Regression: learned, heteroscedastic, student-t, or its standard deviation."
        "  [default: auto]",
    ),
    click.option(
        "--num-steps", type=NumberOr(int, "auto"), help="Training steps.  [default: auto]"
    ),
    click.option(
        "--batch-size", type=NumberOr(int, "auto"), help="Mini-batch size.  [default: auto]"
    ),
    click.option(
        "--validation-fraction",
        type=float,
        help="Fraction held out for early stopping.",
    ),
    click.option(
        "--likelihood",
        metavar="NAME",
        help="Distribution of the target: gaussian, log-normal, gamma, beta, poisson,"
        " negative-binomial, zero-inflated-poisson, or auto (by its values); for classes ordinal"
        " (ratings) or categorical.  [default: gaussian, categorical]",
    ),
    click.option(
        "--class-weight",
        type=click.Choice(["balanced"]),
        help="Classification: rare classes get the same total weight as frequent ones.",
    ),
)


@dataclasses.dataclass(frozen=True)
class CalibrationOptions:
    """Whether and how predictions are calibrated."""

    calibrate: str | None
    calibration_fraction: float | None

    def for_estimator(self) -> dict[str, Any]:
        """Those that were given, by the estimator's names."""
        if self.calibrate is None and self.calibration_fraction is not None:
            refuse("calibration-fraction", self.calibration_fraction, "be used with --calibrate")
        given = {"calibration": self.calibrate, "calibration_fraction": self.calibration_fraction}
        return {name: value for name, value in given.items() if value is not None}


calibration_options = chain(
    click.option(
        "--calibrate",
        metavar="METHOD",
        help="Calibrate on rows set aside: conformal (guaranteed coverage), scale (regression),"
        " temperature (classification) or isotonic; regression without rows set aside: cv+, or"
        " jackknife+ (up to 100 rows). auto: temperature for classes, else cv+ below 500 rows and"
        " conformal from there on.",
    ),
    click.option(
        "--calibration-fraction", type=float, help="Fraction of training rows.  [default: 0.2]"
    ),
)


@dataclasses.dataclass(frozen=True)
class CheckpointOptions:
    """Whether and how a run is saved on its way."""

    checkpoint: bool
    every: str | int
    resume: bool


checkpoint_options = chain(
    click.option(
        "--checkpoint",
        is_flag=True,
        help="Save the state of the run in OUT.checkpoint/, so that --resume can continue it.",
    ),
    click.option(
        "--every",
        type=Every(),
        default="1m",
        show_default=True,
        help="Time between checkpoints, such as 30s or 5m, or number of steps.",
    ),
    click.option(
        "--resume",
        is_flag=True,
        help="Continue an interrupted run; with --checkpoint, start one if there is none.",
    ),
)


@dataclasses.dataclass(frozen=True)
class ClusterOptions:
    """The processes of a distributed run."""

    distributed: bool
    processes: int | None
    process_id: int | None
    coordinator: str | None


cluster_options = chain(
    click.option(
        "--distributed",
        is_flag=True,
        help="Run as one of several processes, found through Slurm, Kubernetes, MPI or as below.",
    ),
    click.option("--processes", type=click.IntRange(min=1), help="Number of processes."),
    click.option("--process-id", type=click.IntRange(min=0), help="Index of this process, from 0."),
    click.option("--coordinator", metavar="HOST:PORT", help="Address of the first process."),
)


@dataclasses.dataclass(frozen=True)
class JobsOptions:
    """How the fits of a comparison are divided."""

    jobs: int
    results: str | None
    array_task: str | None
    gather: bool

    def arguments(self) -> dict[str, Any]:
        """Those of `bl.compare`."""
        task = None
        if self.array_task is not None:
            part = re.fullmatch(r"(\d+)/(\d+)", self.array_task)
            if not part:
                refuse("array-task", self.array_task, "be I/N, such as 0/4")
            task = (int(part[1]), int(part[2]))
        found = {"n_jobs": self.jobs, "results": self.results, "gather": self.gather}
        return found | {"array_task": task}


jobs_options = chain(
    click.option(
        "--jobs",
        type=int,
        default=1,
        show_default=True,
        help="Number of methods fitted at the same time, each in a process; -1: one per core.",
    ),
    click.option(
        "--results",
        type=click.Path(),
        help="Folder for each method's result; a second call fits only what is missing.",
    ),
    click.option("--array-task", metavar="I/N", help="Fit the methods of job I (from 0) of N."),
    click.option("--gather", is_flag=True, help="Collect all results without fitting."),
)


def join_cluster(options: ClusterOptions) -> bool:
    """Join the other processes, before JAX is used; whether this one is the first."""
    if not options.distributed:
        for name, value in (("processes", options.processes), ("process-id", options.process_id)):
            if value is not None:
                refuse(name, value, "be used with --distributed")
        return True
    bl.distributed.initialize(options.coordinator, options.processes, options.process_id)
    return bl.distributed.is_first()


common_options = chain(
    click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output."),
    click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors."),
    click.option(
        "--debug", is_flag=True, expose_value=False, help="Show the traceback of an error."
    ),
)
no_cache_option = click.option("--no-cache", is_flag=True, help="Do not use the compilation cache.")
raw_option = click.option(
    "--raw",
    is_flag=True,
    help="Keep text that a spreadsheet would execute as a formula unchanged.",
)
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace an earlier result.")
seed_option = click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True
)
