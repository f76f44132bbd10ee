"""Compare methods on one table and recommend one."""

from __future__ import annotations

import dataclasses
import numbers
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bayeslearn.algorithms import MAP, Algorithm
from bayeslearn.distributed import mesh
from bayeslearn.errors import check_whole, refuse
from bayeslearn.jobs import num_workers
from bayeslearn.progress import Progress
from bayeslearn.sizes import check_seed
from bayeslearn.storage import fingerprints
from bayeslearn.tabular.compare.budget import (
    Budget,
    parse_budget,
    write_duration,
)
from bayeslearn.tabular.compare.held_out import CRITERIA, CRPS, LOG_LIKELIHOOD
from bayeslearn.tabular.compare.plan import Method, make_plan, read_table, resolve_methods
from bayeslearn.tabular.compare.recommend import Candidate, Report, choose, explain
from bayeslearn.tabular.compare.result import Comparison, make_row, mark_front
from bayeslearn.tabular.compare.run import ESTIMATORS, Experiment, MethodRun
from bayeslearn.tabular.compare.tasks import Results, own_part, run_all
from bayeslearn.tabular.json_values import JSON, json_value
from bayeslearn.tabular.score_table import NOT_TRIED, OK


def compare(
    X: ArrayLike,
    y: ArrayLike,
    *,
    task: str = "auto",
    methods: str | Sequence[str | Algorithm] = "default",
    budget: float | str | None = None,
    by: str = LOG_LIKELIHOOD,
    splits: int = 3,
    test_fraction: float = 0.2,
    seed: int = 0,
    progress: bool | None = None,
    devices: str | None = None,
    n_jobs: int | None = None,
    results: str | os.PathLike[str] | None = None,
    array_task: tuple[int, int] | None = None,
    gather: bool = False,
    **options: Any,
) -> Comparison:
    """Try several methods on one table and recommend one.

    Args:
        X, y: rows of numbers and one target, arrays or data frames.
        task: "regression", "classification", or "auto": text, two numbers, or all whole numbers
            from 0 or 1 on (up to 20), each at least twice, are classes.
        methods: "default" (a quick choice), "all", or a list of names and algorithms; "auto" in it
            is `method="auto"` of the estimators, which chooses anew for every split. "map", the
            plain network, is always among them.
        budget: seconds, or "90s", "2m", "1h", for everything, compilation included. It is shared
            among the methods in the order given; what one leaves goes to those after it. A fit may
            be cut short by it, and a method that would find no time is not tried. None: the
            methods' defaults.
        by: what methods are ranked by on the validation folds: "log-likelihood", or "crps" for
            regression.
        splits: how many fits of each method, each with another validation fold.
        test_fraction: fraction of the rows kept for the table (256 rows at most).
        seed: a whole number; without a budget the same seed gives the same result.
        progress: True: a progress bar, or lines where there is neither a terminal nor a notebook;
            None: a bar there alone; False: nothing.
        devices: "all": every fit runs over all devices, see `fit`; of several processes each then
            compares alike, without a budget, and finds the same.
        n_jobs: how many methods are fitted at a time, in processes of joblib; -1: as many as cores;
            None: one, or what `joblib.parallel_config` says, whose backend ("loky", "dask", "ray")
            is used. Without a budget the result is the same.
        results: a folder for each method's result, so that the comparison can be continued:
            methods whose result is there are not fitted again.
        array_task: (i, n): fit every n-th method from the i-th on (from 0), as job i of n of a
            Slurm array; the others are "not tried" in the result. Needs `results`.
        gather: read the results of all methods from their folder, and fit nothing.
        options: of the estimators, such as `hidden` or `prior_scale`. `num_steps`, `batch_size`
            and `validation_fraction` reach the methods that know them.

    >>> comparison = bl.compare(x, y, methods=["map", "laplace"], hidden=(), splits=1, seed=0)
    >>> [row["method"] for row in comparison.rows]
    ['map', 'laplace']
    >>> comparison.recommended in ("map", "laplace")
    True
    """
    began = time.perf_counter()
    _check_numbers(splits, test_fraction, seed)
    seconds = parse_budget(budget)
    layout = mesh.layout(None, devices)
    if layout is not None and layout.is_shared and seconds is not None:
        refuse("budget", budget, "be left out over several processes, whose clocks differ")
    _check_tasks(n_jobs, results, array_task, gather, budget, devices)
    algorithms = resolve_methods(methods)
    table, about = read_table(X, y, task)
    _check_criterion(by, table.task)
    _check_options(table.task, options)
    plan = make_plan(table, int(splits), float(test_fraction), int(seed))
    experiment = Experiment(table, plan, options, int(seed), by, float(test_fraction), devices)
    shared = None if seconds is None else Budget(seconds, int(splits), began)
    settings = about | _settings(experiment, algorithms) | {"budget": seconds}
    files = None if results is None else Results(results, experiment, algorithms, settings)
    if gather and files is not None:
        runs = files.read_all(algorithms)
    else:
        own = algorithms if array_task is None else own_part(algorithms, array_task)
        with Progress("compare", len(own) * int(splits), progress, unit="fit") as bar:
            runs = run_all(experiment, own, shared, bar, n_jobs, files)
            bar.update(len(own) * int(splits))
    others = MethodRun(status=NOT_TRIED, reason="It belongs to another job of the array.")
    runs = {label: runs.get(label, others) for label in algorithms}
    settings["seconds"] = time.perf_counter() - began
    first_split = (*table.rows(plan.splits[0].train), *table.rows(plan.test))
    found = summarize(runs, algorithms, shared, settings, first_split, table.task)
    return found if array_task is None else _without_choice(found, array_task)


def _without_choice(found: Comparison, part: tuple[int, int]) -> Comparison:
    """A part of the methods is no ground for a choice."""
    reason = f"This is job {part[0]} of {part[1]}: gather all of them to choose."
    return dataclasses.replace(found, recommended=None, recommendation=reason)


def _settings(experiment: Experiment, algorithms: dict[str, Method]) -> dict[str, JSON]:
    """What is needed to repeat it, beside the data."""
    plan = experiment.plan
    return {
        "methods": list(algorithms),
        "by": experiment.by,
        "splits": len(plan.splits),
        "test_fraction": experiment.test_fraction,
        "test_rows": len(plan.test),
        "train_rows": len(plan.splits[0].train),
        "validation_rows": len(plan.splits[0].validation),
        "seed": experiment.seed,
        "options": json_value(experiment.options),
    }


def summarize(
    runs: dict[str, MethodRun],
    algorithms: dict[str, Method],
    budget: Budget | None,
    settings: dict[str, JSON],
    first_split: tuple[Any, np.ndarray, Any, np.ndarray],
    task: str,
) -> Comparison:
    """The table and the recommendation."""
    finished = {label: run for label, run in runs.items() if run.status == OK}
    candidates = {
        label: Candidate(run.held_out, run.cut_short, run.rhat) for label, run in finished.items()
    }
    by = str(settings["by"])
    choice = choose(candidates, by)
    rows = [make_row(label, run) for label, run in runs.items()]
    mark_front(rows)
    sufficient = None if budget is None else budget.sufficient(len(runs))
    report = Report(
        choice,
        candidates,
        {row["method"]: row for row in rows},
        baseline=next(label for label, method in algorithms.items() if isinstance(method, MAP)),
        by=by,
        test_rows=len(first_split[3]),
        budget=None if budget is None else budget.seconds,
        sufficient=None if sufficient is None else write_duration(sufficient),
    )
    return Comparison(
        task=task,
        recommended=choice.name,
        recommendation=explain(report),
        rows=rows,
        fitted={label: run.estimator for label, run in finished.items() if run.estimator},
        first_split=first_split,
        settings=settings,
        versions=versions(),
    )


def versions() -> dict[str, JSON]:
    """What it ran with."""
    import sklearn

    others = {"numpy": np.__version__, "scikit-learn": sklearn.__version__}
    return {**fingerprints.versions(), **others}


def _check_numbers(splits: int, test_fraction: float, seed: int) -> None:
    check_whole("splits", splits, least=1)
    check_seed(seed)
    if not isinstance(test_fraction, numbers.Real) or not 0 < test_fraction < 1:
        refuse("test_fraction", test_fraction, "be between 0 and 1")


def _check_tasks(
    n_jobs: int | None,
    results: str | os.PathLike[str] | None,
    array_task: tuple[int, int] | None,
    gather: bool,
    budget: float | str | None,
    devices: str | None,
) -> None:
    if num_workers(n_jobs) > 1 and devices is not None:
        refuse("devices", devices, "be left out with several jobs, each with the cores it has")
    for name, value in (("array_task", array_task), ("gather", gather or None)):
        if value is not None and results is None:
            refuse("results", None, f"be given with `{name}`")
    if array_task is not None and gather:
        refuse("gather", gather, "be left out with `array_task`")
    if array_task is not None and budget is not None:
        refuse("budget", budget, "be left out with `array_task`", "Limit the job's time instead.")


def _check_criterion(by: str, task: str) -> None:
    if by not in CRITERIA:
        refuse("by", by, 'be "log-likelihood" or "crps"')
    if by == CRPS and task == "classification":
        refuse("by", by, 'be "log-likelihood" for classification')


def _check_options(task: str, options: dict[str, Any]) -> None:
    kind = ESTIMATORS[task]
    known = kind().get_params(deep=False)
    for name, value in options.items():
        if name in ("method", "random_state"):
            refuse(name, value, "be left out", "Use `methods` and `seed`.")
        if name not in known:
            refuse(name, value, f"be left out: {kind.__name__} has no such option")
