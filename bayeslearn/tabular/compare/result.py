"""The result of a comparison."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bayeslearn.tabular.compare.plan import METRICS
from bayeslearn.tabular.compare.run import _error_of, _Run

WIDTH = 130  # of the table as text


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """What `compare` found.

    Attributes:
        task: "regression" or "classification".
        recommended: name of the method to use.
        recommendation: why, in two sentences.
        rows: one dict for each method; see `to_dict`.
        fitted: the estimators of the first split, by name.
        first_split: X_train, y_train, X_test, y_test; the last two are the test rows.
        settings, versions: what is needed to repeat it.
    """

    task: str
    recommended: str
    recommendation: str
    rows: list[dict[str, Any]]
    fitted: dict[str, Any]
    first_split: tuple[Any, Any, Any, Any]
    settings: dict[str, Any]
    versions: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """All but data and estimators, ready for JSON.

        `table` has for each method its `status` and the `reason` of a failure, `metrics` on the
        test rows and `seconds` of a fit, compiling included, as [mean, standard error] over
        splits, `validation` on the folds left out with standard errors over rows, by which the
        choice was made, `memory_mb` (arrays of the posterior and of the last state), `chosen`
        (what the budget made of its length), and whether it is on the `pareto` front: no other
        method has a higher log-likelihood in less time. What is not finite is None, as is the
        standard error of a single split.
        """
        return {
            "kind": "comparison",
            "task": self.task,
            "recommended": self.recommended,
            "recommendation": self.recommendation,
            "table": [dict(row) for row in self.rows],
            "settings": dict(self.settings),
            "versions": dict(self.versions),
        }

    def __rich__(self) -> Any:
        from rich.box import SIMPLE_HEAD
        from rich.console import Group
        from rich.table import Table

        names = METRICS[self.task]
        title = f"{self.task}, {self.settings['test_rows']} test rows, mean ± standard error"
        table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("method", no_wrap=True)
        for name in (*names, "seconds", "MB", "Pareto"):
            table.add_column(name.replace("_", " "), justify="right", no_wrap=True)
        for row in self.rows:
            is_chosen = row["method"] == self.recommended
            label = f"{row['method']} *" if is_chosen else row["method"]
            if row["status"] == "ok":
                told = [_shown(row["metrics"][name]) for name in names]
                memory = f"{row['memory_mb']:.2f}"
                told += [_shown(row["seconds"]), memory, "yes" if row["pareto"] else ""]
                table.add_row(label, *told, style="bold" if is_chosen else None)
            else:
                table.add_row(label, "failed")
        failed = [f"{row['method']}: {row['reason']}" for row in self.rows if row["reason"]]
        return Group(table, "", self.recommendation, *([""] if failed else []), *failed)

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=WIDTH, color_system=None)
        with console.capture() as capture:
            console.print(self, markup=False, highlight=False)
        return capture.get()

    __repr__ = __str__


def _row(label: str, run: _Run) -> dict[str, Any]:
    row: dict[str, Any] = {
        "method": label,
        "status": "failed" if run.reason else "ok",
        "reason": run.reason or None,
        "metrics": {},
        "validation": {},
        "seconds": _mean_and_error(run.seconds) if run.seconds else [None, None],
        "compile_seconds": run.compiling,
        "memory_mb": None,
        "chosen": run.chosen,
        "notes": run.notes,
        "pareto": False,
    }
    if run.reason:
        return row
    held_out = run.held_out
    is_regression = held_out.confidence is None
    coverage_error = _error_of(held_out.is_right) if is_regression else None
    row["metrics"] = {
        name: _mean_and_error([score[name] for score in run.scores]) for name in run.scores[0]
    }
    row["validation"] = {
        "log_likelihood": list(held_out.log_likelihood),
        "coverage90" if is_regression else "ece": [held_out.calibration, coverage_error],
    }
    row["memory_mb"] = run.megabytes
    return row


def _mark_front(rows: list[dict[str, Any]]) -> None:
    good = [row for row in rows if row["status"] == "ok"]
    place = {}
    for row in good:
        quality = row["metrics"]["log_likelihood"][0]
        place[id(row)] = (-math.inf if quality is None else quality, -row["seconds"][0])
    for row in good:
        mine = place[id(row)]
        row["pareto"] = not any(
            other != mine and other[0] >= mine[0] and other[1] >= mine[1]
            for other in place.values()
        )


def _mean_and_error(values: Sequence[float]) -> list[float | None]:
    """None where there is no number: an error of one split, a score that is not finite."""
    if not np.all(np.isfinite(values)):
        return [None, None]
    return [float(np.mean(values)), _error_of(np.asarray(values)) if len(values) > 1 else None]


def _shown(pair: Sequence[float | None]) -> str:
    mean, error = pair
    if mean is None:
        return "not finite"
    if error is None:
        return f"{mean:.4g}"
    return f"{mean:.4g} ± {error if error > 1e-9 * abs(mean) else 0:.1g}"
