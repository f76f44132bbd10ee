"""The tables of `rivals.py` and its critical-difference picture (Demšar 2006)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Cell = dict[str, Any]
# Score -> (heading, digits (negative: significant ones), 1 if more is better, -1 if less, else 0).
SCORES = {
    "regression": {
        "log_likelihood": ("Log-likelihood of the own density", 3, 1),
        "gaussian_log_likelihood": ("Log-likelihood of a Gaussian of the same mean and sd", 3, 1),
        "crps": ("CRPS", -3, -1),
        "rmse": ("RMSE", -3, -1),
        "coverage90": ("Coverage of 90 % intervals", 2, 0),
        "width90": ("Width of 90 % intervals", -3, 0),
        "core_seconds": ("Core-seconds", 0, 0),
        "seconds": ("Seconds", 0, 0),
    },
    "classification": {
        "log_loss": ("Log loss", 3, -1),
        "accuracy": ("Accuracy", 3, 1),
        "brier": ("Brier score, summed over classes", 3, -1),
        "ece": ("ECE, ten bins", 3, -1),
        "core_seconds": ("Core-seconds", 0, 0),
        "seconds": ("Seconds", 0, 0),
    },
}
# Log-likelihood of a Gaussian with the method's mean and sd on the same split of airfoil and
# bikesharing: paper/scripts of scikit-learn-contrib/bde, means of five seeds; core-seconds are its
# seconds on ten cores.
PUBLISHED = {
    "bde, 10 members, 4 x 16": ("0.913 (2,410 core-seconds)", "0.732 (25,550 core-seconds)"),
    "TabPFN v2": ("0.934", "0.686"),
    "deep ensemble": ("-0.176", "0.455"),
    "CatBoost": ("-0.148", "0.374"),
}
RANKED_BY = {"regression": "log_likelihood", "classification": "log_loss"}
MIN_SHARE = 0.7  # of the tables that a method must have to be ranked
LEVEL = 0.05  # of the Nemenyi test


class Ranking(NamedTuple):
    """Mean ranks over tables (1 is best), those of all methods that have enough tables."""

    ranks: dict[str, float]
    by_table: dict[str, dict[str, float]]
    left_out: list[str]

    @property
    def critical_difference(self) -> float:
        """Of the Nemenyi test: mean ranks that differ by less cannot be distinguished."""
        from scipy.stats import studentized_range

        methods, tables = len(self.ranks), len(self.by_table)
        quantile = studentized_range.ppf(1 - LEVEL, methods, np.inf) / math.sqrt(2)
        return float(quantile * math.sqrt(methods * (methods + 1) / (6 * tables)))


def kind_of(cell: Cell) -> str:
    from rivals_data import TABLES

    return TABLES[cell["table"]].kind


def value_of(cell: Cell, score: str) -> float | None:
    """None where the method failed."""
    if "failed" in cell:
        return None
    value = cell[score] if score in ("seconds", "core_seconds") else cell["scores"][score]
    return value if math.isfinite(value) else None


def by_place(cells: list[Cell], kind: str) -> dict[tuple[str, str], dict[int, Cell]]:
    """(table, method) -> split -> cell."""
    found: dict[tuple[str, str], dict[int, Cell]] = {}
    for cell in cells:
        if kind_of(cell) == kind:
            found.setdefault((cell["table"], cell["method"]), {})[cell["split"]] = cell
    return found


def ranking(cells: list[Cell], kind: str) -> Ranking | None:
    """Ranks of the mean score on the splits that all ranked methods share.

    A method that failed on one of them is last on that table.
    """
    places = by_place(cells, kind)
    tables = sorted({table for table, _ in places})
    methods = sorted({method for _, method in places})
    ranked = [
        method
        for method in methods
        if sum((table, method) in places for table in tables) >= MIN_SHARE * len(tables)
    ]
    score = RANKED_BY[kind]
    sign = SCORES[kind][score][2]
    by_table = {}
    for table in tables:
        found = [places.get((table, method), {}) for method in ranked]
        splits = set.intersection(*(set(one) for one in found)) if found else set()
        if not splits:
            continue
        values = []
        for one in found:
            scores = [value_of(one[split], score) for split in sorted(splits)]
            is_whole = all(value is not None for value in scores)
            values.append(sign * float(np.mean(scores)) if is_whole else -math.inf)
        by_table[table] = dict(zip(ranked, ranks_of(values), strict=True))
    if len(ranked) < 2 or not by_table:
        return None
    means = {m: float(np.mean([row[m] for row in by_table.values()])) for m in ranked}
    left_out = [method for method in methods if method not in ranked]
    return Ranking(dict(sorted(means.items(), key=lambda item: item[1])), by_table, left_out)


def ranks_of(values: Sequence[float]) -> list[float]:
    """1 for the largest; ties share their mean rank."""
    return [
        1 + sum(other > value for other in values) + 0.5 * (values.count(value) - 1)
        for value in values
    ]


def number_text(value: float, digits: int) -> str:
    """Fixed digits, or significant ones where digits is negative: units differ between tables."""
    return f"{value:.{digits}f}" if digits >= 0 else f"{value:.{-digits}g}"


def entry(cells: dict[int, Cell] | None, score: str, digits: int, most: int) -> str:
    """Mean and standard error over splits; their number where others have more."""
    if not cells:
        return "-"
    values = [value_of(cell, score) for cell in cells.values()]
    finite = [value for value in values if value is not None]
    if len(finite) < len(values):
        return f"failed {len(values) - len(finite)} of {len(values)}"
    text = number_text(float(np.mean(finite)), digits)
    if len(finite) > 1:
        error = float(np.std(finite, ddof=1)) / math.sqrt(len(finite))
        text += f" ± {number_text(error, digits if digits >= 0 else -1)}"
    return text if len(finite) == most else f"{text} ({len(finite)})"


def best_on_shared_splits(found: dict[str, dict[int, Cell]], score: str, sign: int) -> set[str]:
    """The methods with the best mean on the splits that all methods of the table have."""
    splits = set.intersection(*(set(one) for one in found.values()))
    means = {}
    for method, one in found.items():
        values = [value_of(one[split], score) for split in sorted(splits)]
        if values and all(value is not None for value in values):
            means[method] = sign * float(np.mean(values))
    return {method for method, mean in means.items() if mean == max(means.values())}


def score_rows(
    places: dict[tuple[str, str], dict[int, Cell]],
    tables: list[str],
    methods: list[str],
    score: str,
    digits: int,
    sign: int,
) -> list[str]:
    """A row for each table; bold is the best on the splits that all have."""
    lines = []
    for table in tables:
        found = {m: places[table, m] for m in methods if (table, m) in places}
        most = max(len(one) for one in found.values())
        best = best_on_shared_splits(found, score, sign) if sign else set()
        texts = [entry(found.get(m), score, digits, most) for m in methods]
        texts = [f"**{t}**" if m in best else t for m, t in zip(methods, texts, strict=True)]
        lines.append(f"| {table} | {most} | " + " | ".join(texts) + " |")
    return lines


def report(cells: list[Cell], table_names: list[str], method_names: list[str]) -> str:
    """All tables as Markdown."""
    lines: list[str] = []
    for kind, scores in SCORES.items():
        places = by_place(cells, kind)
        tables = [name for name in table_names if any(table == name for table, _ in places)]
        methods = [name for name in method_names if any(method == name for _, method in places)]
        if not tables:
            continue
        lines += [f"## {kind.capitalize()}", ""]
        found = ranking(cells, kind)
        if found is not None:
            lines += rank_lines(found, RANKED_BY[kind])
        for score, (heading, digits, sign) in scores.items():
            lines += [f"### {heading}", "", "| table | splits | " + " | ".join(methods) + " |"]
            lines.append("|---" * (len(methods) + 2) + "|")
            lines += [*score_rows(places, tables, methods, score, digits, sign), ""]
            if score == "gaussian_log_likelihood":
                lines += published_lines()
    return "\n".join(lines)


def published_lines() -> list[str]:
    rows = [f"| {name} | {one} | {two} |" for name, (one, two) in PUBLISHED.items()]
    heading = "| published (scikit-learn-contrib/bde) | airfoil | bikesharing |"
    return [heading, "|---|---|---|", *rows, ""]


def rank_lines(found: Ranking, score: str) -> list[str]:
    lines = [
        f"Mean ranks by {score} on {len(found.by_table)} tables (1 is best); critical difference"
        f" {found.critical_difference:.2f}:",
        "",
        "| method | mean rank | first on |",
        "|---|---|---|",
    ]
    for method, rank in found.ranks.items():
        firsts = sum(row[method] == 1 for row in found.by_table.values())
        lines.append(f"| {method} | {rank:.2f} | {firsts} |")
    if found.left_out:
        lines += ["", f"Too few tables to be ranked: {', '.join(found.left_out)}."]
    return [*lines, ""]


def groups(ranks: list[float], difference: float) -> list[tuple[float, float]]:
    """Ends of the longest runs of ranks that differ by less than the critical difference."""
    found = [(low, high) for low, high in combinations(sorted(ranks), 2) if high - low < difference]
    return [
        one
        for one in sorted(set(found))
        if not any(other != one and other[0] <= one[0] and one[1] <= other[1] for other in found)
    ]


def draw(cells: list[Cell], path: Path) -> None:
    """Mean ranks on a line for each kind; methods joined by a bar cannot be distinguished."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = {kind: ranking(cells, kind) for kind in SCORES}
    rankings = {kind: one for kind, one in found.items() if one is not None}
    if not rankings:
        raise SystemExit("no table has two ranked methods")
    figure, axes = pyplot.subplots(
        len(rankings), 1, figsize=(8, 3.2 * len(rankings)), squeeze=False
    )
    for axis, (kind, one) in zip(axes[:, 0], rankings.items(), strict=True):
        draw_ranking(axis, kind, one)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def draw_ranking(axis: Any, kind: str, found: Ranking) -> None:
    names, ranks = [*found.ranks], [*found.ranks.values()]
    number, difference = len(names), found.critical_difference
    half = (number + 1) // 2
    bars = groups(ranks, difference)
    top = 0.35 * (len(bars) + 1)  # the labels begin below the bars
    axis.set_xlim(1 - 0.35 * number, number * 1.35)
    axis.set_ylim(-(top + 0.45 * half), 1.6)
    axis.axis("off")
    axis.hlines(0, 1, number, color="black", linewidth=1)
    for rank in range(1, number + 1):
        axis.vlines(rank, 0, 0.12, color="black", linewidth=1)
        axis.text(rank, 0.2, str(rank), ha="center", va="bottom", fontsize=8)
    for index, (name, rank) in enumerate(zip(names, ranks, strict=True)):
        is_left = index < half
        row = index if is_left else number - 1 - index
        height = -(top + 0.45 * row)
        end = 1 - 0.05 * number if is_left else number * 1.05
        axis.plot([rank, rank, end], [0, height, height], color="0.3", linewidth=0.8)
        words = f"{name} ({rank:.2f})"
        shift = -0.05 if is_left else 0.05
        axis.text(
            end + shift, height, words, ha="right" if is_left else "left", va="center", fontsize=9
        )
    for index, (low, high) in enumerate(bars):
        axis.hlines(-0.3 * (index + 1), low - 0.04, high + 0.04, color="black", linewidth=3)
    axis.hlines(1.0, 1, 1 + difference, color="black", linewidth=1.5)
    axis.text(1 + difference / 2, 1.08, f"CD {difference:.2f}", ha="center", fontsize=8)
    axis.set_title(f"{kind}: mean ranks on {len(found.by_table)} tables", fontsize=10)
