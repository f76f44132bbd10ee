"""The result of a comparison."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bayeslearn.tabular.compare.held_out import LOG_LIKELIHOOD, standard_error
from bayeslearn.tabular.compare.run import Estimator, MethodRun
from bayeslearn.tabular.compare.table import render, table_html
from bayeslearn.tabular.frames import Inputs
from bayeslearn.tabular.json_values import JSON, json_value
from bayeslearn.tabular.score_table import OK, Estimate, Row

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

WIDTH = 130  # of the table as text


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """What `compare` found.

    Attributes:
        task: "regression" or "classification".
        recommended: name of the method to use; None where there is no recommendation.
        recommendation: why, in a few sentences.
        rows: one dict for each method; see `to_dict`.
        fitted: the estimators of the first split, by name.
        first_split: X_train, y_train, X_test, y_test; the last two are the test rows.
        settings, versions: what is needed to repeat it.
    """

    task: str
    recommended: str | None
    recommendation: str
    rows: list[Row]
    fitted: dict[str, Estimator]
    first_split: tuple[Inputs, np.ndarray, Inputs, np.ndarray]
    settings: dict[str, JSON]
    versions: dict[str, JSON]

    def to_dict(self) -> dict[str, JSON]:
        """All but data and estimators, ready for JSON.

        `table` has for each method its `status` ("ok", "failed", "not finished" and "not tried",
        both for want of time) with a `reason`, `metrics` on the test rows and `seconds` of a fit,
        compilation included, as [mean, standard error] over splits, `validation` on the validation
        folds with standard errors over rows, by which the choice was made, `memory_mb` (arrays of
        the posterior and of the last state), `cut_short` (where the budget ended it), `chosen`
        (what the budget made of its length), `rhat` (of a sampler whose chains have not mixed),
        and whether it is on the `pareto` front: no other method has a higher log-likelihood in
        less time. What is not finite is None, as is the standard error of a single split.
        """
        contents = json_value(
            {
                "kind": "comparison",
                "task": self.task,
                "recommended": self.recommended,
                "recommendation": self.recommendation,
                "table": self.rows,
                "settings": self.settings,
                "versions": self.versions,
            }
        )
        assert isinstance(contents, dict)
        return contents

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        test_rows = self.settings["test_rows"]
        title = f"{self.task}, {test_rows} test rows, mean ± standard error"
        yield from render(self.rows, self.recommended, title, console, options)
        yield ""
        if self.recommended is not None:
            yield f"Recommended: {self.recommended}"
        yield self.recommendation
        reasons = [f"{r['method']}: {r['status']}. {r['reason']}" for r in self.rows if r["reason"]]
        yield from (["", *reasons] if reasons else [])

    def __str__(self) -> str:
        from rich.console import Console

        # In a notebook Rich would display the text instead of returning it.
        console = Console(width=WIDTH, color_system=None, force_jupyter=False)
        with console.capture() as capture:
            console.print(self, markup=False, highlight=False)
        return capture.get()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return table_html(self.rows, self.recommended, self.recommendation)


def make_row(label: str, run: MethodRun) -> Row:
    """One method in the table."""
    row = Row(
        method=label,
        status=run.status,
        reason=run.reason or None,
        metrics={},
        validation={},
        seconds=mean_and_error(run.seconds) if run.seconds else [None, None],
        compile_seconds=run.compiling,
        memory_mb=None,
        cut_short=run.cut_short,
        rhat=run.rhat,
        chosen=run.chosen,
        notes=run.notes,
        pareto=False,
    )
    if run.status != OK:
        return row
    held_out = run.held_out
    covered = held_out.is_covered_or_correct
    log_prob = held_out.utility(LOG_LIKELIHOOD)
    row["metrics"] = {
        name: mean_and_error([score[name] for score in run.scores]) for name in run.scores[0]
    }
    row["validation"] = {"log_likelihood": [float(np.mean(log_prob)), standard_error(log_prob)]}
    if held_out.is_regression:
        row["validation"]["coverage90"] = [held_out.calibration, standard_error(covered)]
    else:
        row["validation"]["ece"] = [held_out.calibration, None]
    if held_out.crps is not None:
        row["validation"]["crps"] = [
            float(np.mean(held_out.crps)),
            standard_error(held_out.crps),
        ]
    row["memory_mb"] = run.megabytes
    return row


def mark_front(rows: list[Row]) -> None:
    """Mark the rows that no other beats in log-likelihood and in time."""
    points = {}
    for i, row in enumerate(rows):
        if row["status"] == OK:
            quality, seconds = row["metrics"]["log_likelihood"][0], row["seconds"][0]
            assert seconds is not None
            points[i] = (-math.inf if quality is None else quality, -seconds)
    for i, own in points.items():
        rows[i]["pareto"] = not any(
            other != own and other[0] >= own[0] and other[1] >= own[1] for other in points.values()
        )


def mean_and_error(values: Sequence[float]) -> Estimate:
    """None where there is no number: an error of one split, a score that is not finite."""
    if not np.all(np.isfinite(values)):
        return [None, None]
    return [float(np.mean(values)), standard_error(np.asarray(values)) if len(values) > 1 else None]
