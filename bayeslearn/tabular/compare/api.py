"""Compare methods on one table and recommend one."""

from __future__ import annotations

import numbers
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from bayeslearn.algorithms import MAP
from bayeslearn.distributed import mesh
from bayeslearn.errors import BayesLearnError, check_whole, refuse
from bayeslearn.progress import Progress
from bayeslearn.storage import fingerprints
from bayeslearn.tabular.compare.budget import (
    FOR_BASELINE,
    LEAST_FOR_FITS,
    _Deadline,
    _pace,
    _seconds,
)
from bayeslearn.tabular.compare.plan import _methods, _plain, _plan, _read
from bayeslearn.tabular.compare.recommend import _choose, _recommendation
from bayeslearn.tabular.compare.result import Comparison, _mark_front, _row
from bayeslearn.tabular.compare.run import ESTIMATORS, _Run, _run


def compare(
    X: Any,
    y: Any,
    *,
    task: str = "auto",
    methods: str | Sequence[Any] = "default",
    budget: float | str | None = None,
    splits: int = 3,
    test_fraction: float = 0.2,
    seed: int = 0,
    progress: bool | None = None,
    devices: str | None = None,
    **options: Any,
) -> Comparison:
    """Try several methods on one table and recommend one.

    Args:
        X, y: rows of numbers and one target, arrays or data frames.
        task: "regression", "classification", or "auto": text, two numbers, or a count from 0 or 1
            in which nothing is missing or alone (up to 20) are classes.
        methods: "default" (a quick choice), "all", or a list of names and algorithms. "map", the
            plain network, is always among them.
        budget: seconds, or "90s", "2m", "1h", for everything, compiling included, shared out
            evenly among the methods in the order given; what one leaves goes to those after it.
            Each method's length is found in the first split and used in all. None: the methods'
            defaults.
        splits: how many fits of each method, each leaving out another fold of training rows.
        test_fraction: share of the rows kept for the table (256 rows at most).
        seed: a whole number; without a budget the same seed gives the same result.
        progress: show a progress bar; None: only on a terminal.
        devices: "all": every fit runs over all devices, see `fit`; of several processes each then
            compares alike, without a budget, and finds the same.
        options: of the estimators, such as `hidden` or `prior_scale`. `num_steps`, `batch_size`
            and `validation_fraction` reach the methods that know them.
    """
    began = time.perf_counter()
    check_whole("splits", splits, least=1)
    check_whole("seed", seed, least=0)
    if not isinstance(test_fraction, numbers.Real) or not 0 < test_fraction < 1:
        refuse("test_fraction", test_fraction, "be between 0 and 1")
    seconds = _seconds(budget)
    layout = mesh.layout(None, devices)
    if layout is not None and layout.is_shared and seconds is not None:
        refuse("budget", budget, "be left out over several processes, whose clocks differ")
    chosen = _methods(methods)
    table, told = _read(X, y, task)
    kind = ESTIMATORS[table.task]
    for name, value in options.items():
        if name in ("method", "random_state"):
            refuse(name, value, "be left out", "Use `methods` and `seed`.")
        if name not in kind._get_param_names():
            refuse(name, value, f"be left out: {kind.__name__} has no such option")
    plan = _plan(table, int(splits), float(test_fraction), int(seed))._replace(devices=devices)
    deadline = None if seconds is None else _Deadline(began, seconds)
    runs: dict[str, _Run] = {}
    pace = None
    with Progress("compare", len(chosen) * int(splits), progress) as bar:
        for place, (label, algorithm) in enumerate(chosen.items()):

            def told_of(split: int, label: str = label, place: int = place) -> None:
                bar.update(place * int(splits) + split, {}, name=f"compare: {label}")

            left = len(chosen) - place
            share, until = None, deadline
            if deadline is not None:
                scoring = int(splits) * max((run.scoring for run in runs.values()), default=0.0)
                even = deadline.left / left
                share = max(even - scoring, LEAST_FOR_FITS * even)
                if isinstance(algorithm, MAP):  # all others are measured by it, and it costs little
                    share, until = max(share, FOR_BASELINE * deadline.seconds), None
            run = _run(table, plan, algorithm, options, int(seed), share, until, pace, told_of)
            runs[label] = run
            if isinstance(algorithm, MAP) and pace is None and not run.reason:
                pace = _pace(run.seconds, run.compiling, run.steps, len(plan.splits[0].train))
    good = {label: run for label, run in runs.items() if not run.reason}
    if not good:
        reasons = {run.reason for run in runs.values()}
        raise BayesLearnError(f"No method could be fitted: {' '.join(sorted(reasons))}")
    baseline = next(label for label, method in chosen.items() if isinstance(method, MAP))
    eligible = {label: run for label, run in good.items() if run.has_mixed} or good
    held_out = {label: run.held_out for label, run in eligible.items()}
    choice = _choose(table.task, held_out, baseline)
    rows = [_row(label, run) for label, run in runs.items()]
    _mark_front(rows)
    train = plan.splits[0].train
    return Comparison(
        task=table.task,
        recommended=choice.name,
        recommendation=_recommendation(table.task, choice, rows, baseline, len(plan.test)),
        rows=rows,
        fitted={label: run.estimator for label, run in good.items()},
        first_split=(*table.at(train), *table.at(plan.test)),
        settings=told
        | {
            "methods": list(chosen),
            "budget": seconds,
            "splits": int(splits),
            "test_fraction": float(test_fraction),
            "test_rows": len(plan.test),
            "train_rows": len(train),
            "validation_rows": len(plan.splits[0].left_out),
            "seed": int(seed),
            "options": {name: _plain(value) for name, value in options.items()},
            "seconds": time.perf_counter() - began,
        },
        versions=versions(),
    )


def versions() -> dict[str, Any]:
    """What ran it."""
    import sklearn

    return fingerprints.versions() | {"numpy": np.__version__, "scikit-learn": sklearn.__version__}
