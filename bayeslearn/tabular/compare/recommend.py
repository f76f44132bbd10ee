"""Which method to recommend, and why."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bayeslearn.tabular.compare.run import LEVEL, TOLERANCE, _error_of, _HeldOut

RESAMPLES, SURE = 200, 0.84  # of rows, and the share of them that makes one standard error


class _Choice(NamedTuple):
    name: str
    held_out: _HeldOut
    calibrated: list[str]
    ties: list[str]  # of those, within one standard error of the best; the chosen one among them


def _is_less(part: _HeldOut, other: _HeldOut) -> bool:
    """Whether its calibration error is smaller by one standard error, over the same rows."""
    rng = np.random.default_rng(0)
    less = 0
    for _ in range(RESAMPLES):
        rows = rng.integers(0, len(part.is_right), len(part.is_right))
        less += part.at(rows).calibration < other.at(rows).calibration
    return less > SURE * RESAMPLES


def _choose(task: str, told: dict[str, _HeldOut], baseline: str) -> _Choice:
    """The rule at the head of this file; it sees the folds left out and nothing else."""
    if task == "regression":
        gap = {label: abs(part.calibration - LEVEL) for label, part in told.items()}
        most = max(TOLERANCE, min(gap.values()))
        calibrated = [label for label in told if gap[label] <= most]
    else:
        gap = {label: part.calibration for label, part in told.items()}
        plain = told.get(baseline)
        calibrated = [
            label
            for label, part in told.items()
            if plain is None or part is plain or _is_less(part, plain)
        ]
    best = max(calibrated, key=lambda label: told[label].log_likelihood[0])

    def is_tied(label: str) -> bool:
        difference = told[best].log_prob - told[label].log_prob
        return float(np.mean(difference)) <= _error_of(difference)

    ties = [label for label in calibrated if label == best or is_tied(label)]
    name = min(ties, key=lambda label: gap[label])
    return _Choice(name, told[name], calibrated, ties)


def _recommendation(
    task: str, choice: _Choice, rows: list[dict[str, Any]], baseline: str, test_rows: int
) -> str:
    by_name = {row["method"]: row for row in rows}
    mine, plain = by_name[choice.name], by_name[baseline]
    mean, error = choice.held_out.log_likelihood
    found = choice.held_out.calibration
    if task == "regression":
        calibrated, metric = f"90 % intervals that cover {100 * found:.0f} %", "coverage90"
    else:
        calibrated, metric = f"a calibration error of {found:.3f}", "ece"
    others = [label for label in choice.ties if label != choice.name]
    if others:
        rank = f"as high as any within one standard error ({', '.join(others)})"
        rank += ", and the best calibration of these"
    elif len(choice.calibrated) > 1:
        rank = f"the highest of the {len(choice.calibrated)} methods that are calibrated there"
    else:
        rank = "and no other method is calibrated as well there"
    first = (
        f"Use {choice.name}: on training rows left out it has {calibrated} and a log-likelihood of"
        f" {mean:.3f} ± {error:.3f} per row, {rank}."
    )

    def against(name: str, words: str, digits: int = 3, scale: float = 1.0) -> str:
        def value(row: dict[str, Any]) -> str:
            found = row["metrics"][name][0]
            return "not finite" if found is None else f"{scale * found:.{digits}f}"

        has_other = plain is not mine and plain["status"] == "ok"
        return f"{words} {value(mine)}" + (f" ({baseline}: {value(plain)})" if has_other else "")

    calibration = (
        against(metric, "coverage in %", 1, 100.0)
        if task == "regression"
        else against(metric, "calibration error")
    )
    second = (
        f"On the {test_rows} test rows, which had no part in this choice, the same fits have"
        f" {against('log_likelihood', 'log-likelihood')} and {calibration}, at"
        f" {mine['seconds'][0]:.2g} s a fit, compiling included."
    )
    return f"{first} {second}"
