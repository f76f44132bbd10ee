"""The tables of `faithfulness.py`, from its cells."""

from __future__ import annotations

import math

import numpy as np


def _grouped(rows: list[dict]) -> dict[str, list[dict]]:
    groups: dict[str, list[dict]] = {}
    for row in rows:
        groups.setdefault(row["method"], []).append(row)
    return groups


def exact_rows(rows: list[dict]) -> list[str]:
    lines = [
        "| method | family | gap to its optimum, nats (worst seed) | mean error, sd | sd ratio |"
        " guards | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for method, group in _grouped(rows).items():
        good = [cell for cell in group if "failed" not in cell]
        if not good:
            lines.append(f"| {method} | failed: {group[0]['failed'][:90]} | | | | | |")
            continue
        gaps = [cell["gap"] for cell in good if cell["gap"] is not None]
        low = min(cell["sd_ratio"][0] for cell in good)
        high = max(cell["sd_ratio"][1] for cell in good)
        guards = [cell["guards"] for cell in good if cell["guards"] is not None]
        lines.append(
            f"| {method} | {good[0]['family']} | {f'{max(gaps):.4f}' if gaps else '-'}"
            f" | {max(cell['mean_error'] for cell in good):.4f} | {low:.3f} to {high:.3f}"
            f" | {f'{max(guards):.3f}' if guards else '-'}"
            f" | {np.median([cell['seconds'] for cell in good]):.1f} |"
        )
    return lines


def network_rows(rows: list[dict]) -> list[str]:
    lines = [
        "| method | family | elbo | below the family's best | test log-likelihood"
        " | gain kept | RMSE | 90 % coverage | guards | seconds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    best: dict[tuple[str, int], float] = {}
    for cell in rows:
        if cell.get("elbo") is not None:
            group = cell["family"], cell["split"]
            best[group] = max(best.get(group, -math.inf), cell["elbo"])
    ends = {
        name: {c["split"]: c["log_likelihood"] for c in rows if c["method"] == name and "rmse" in c}
        for name in ("map", "nuts")
    }

    def shortfall(group: list[dict]) -> str:
        """Worst over splits, beside 1 % of the number of weights."""
        gaps = [best[c["family"], c["split"]] - c["elbo"] for c in group if c["elbo"] is not None]
        return f"{max(gaps):.1f} of {group[0]['weights'] / 100:.1f}" if gaps else "-"

    def kept(group: list[dict]) -> str:
        """Smallest share of NUTS's gain over MAP, where there is one."""
        shares = [
            (c["log_likelihood"] - ends["map"][c["split"]])
            / (ends["nuts"][c["split"]] - ends["map"][c["split"]])
            for c in group
            if c["split"] in ends["map"]
            and ends["nuts"].get(c["split"], -math.inf) > ends["map"][c["split"]] + 0.1
        ]
        return f"{min(shares):.2f}" if shares else "-"

    for method, group in _grouped(rows).items():
        good = [cell for cell in group if "failed" not in cell]
        if len(good) < len(group):
            reason = next(cell["failed"] for cell in group if "failed" in cell)
            failed = f"failed {len(group) - len(good)} of {len(group)}: {reason[:80]}"
            lines.append(f"| {method} | {failed} | | | | | | | | |")
        if not good:
            continue

        def mean(field: str, digits: int, good: list[dict] = good) -> str:
            values = [cell[field] for cell in good if cell[field] is not None]
            return f"{np.mean(values):.{digits}f}" if values else "-"

        lines.append(
            f"| {method} | {good[0]['family']} | {mean('elbo', 1)} | {shortfall(good)}"
            f" | {mean('log_likelihood', 3)} | {kept(good)} | {mean('rmse', 3)}"
            f" | {mean('coverage', 2)} | {mean('guards', 3)} | {mean('seconds', 0)} |"
        )
    return lines
