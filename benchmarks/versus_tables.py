"""The rows of `versus.py`'s table, from its cells."""

from __future__ import annotations

import statistics


def per_unit(turn: dict, unit: str, part: str = "all") -> float:
    if unit == "effective sample":
        seconds = turn["seconds"] - (turn["warmup_seconds"] if part == "draws" else 0.0)
        return seconds / turn["ess"]
    return turn["seconds"] / turn["units"]


def quartiles(values: list[float]) -> str:
    low, _, high = statistics.quantiles(values, n=4)
    return f"{statistics.median(values):.2f} ({low:.2f} to {high:.2f})"


def ratios(cell: dict, pair: tuple[str, str], unit: str, part: str = "all") -> list[float] | None:
    above, below = (cell["contenders"].get(label) for label in pair)
    if above is None or below is None:
        return None
    return [
        per_unit(a, unit, part) / per_unit(b, unit, part)
        for a, b in zip(above["turns"], below["turns"], strict=True)
    ]


def rows_of(cell: dict, unit: str, pairs: dict[str, tuple[str, str]]) -> list[str]:
    parts = ("all", "draws") if unit == "effective sample" else ("all",)
    lines = []
    if cell["case"] == "memory":
        (found,) = cell["contenders"].values()
        peak = max(turn["megabytes"] for turn in [found["setup"], *found["turns"]])
        return [f"| memory | {cell['peer']} | peak beyond draws and rows | {peak:.0f} MB | | |"]
    for part in parts:
        for name, pair in pairs.items():
            found = ratios(cell, pair, unit, part)
            if found is None:
                continue
            words = [
                f"{1e3 * statistics.median(per_unit(t, unit, part) for t in c['turns']):.4g}"
                for c in (cell["contenders"][label] for label in pair)
            ]
            what = name if part == "all" else f"{name}, without warm-up"
            compiled = " / ".join(
                f"{cell['contenders'][label]['setup']['seconds']:.1f}" for label in pair
            )
            lines.append(
                f"| {cell['case']} | {cell['peer']} | {what} | {quartiles(found)}"
                f" | {' / '.join(words)} | {compiled} |"
            )
    return lines
