"""A held-out task for every network: is a posterior as good as the plain network, and more honest?

    python benchmarks/network_tasks.py run [--rows 40 300] [--seeds 0 1 2] [--networks CNN ...]
    python benchmarks/network_tasks.py table

The tasks of tests/tasks.py, 1000 test rows. For each network, number of training rows and
seed: mean test log-likelihood and calibration error (expected calibration error for classes; the
mean over levels 0.1 to 0.9 of |coverage - level| for numbers) of MAP, VOGN, Bayes by Backprop, HMC
and MC dropout, whose keep is chosen on three folds of the training rows. Defaults otherwise. One
JSON file per cell in benchmarks/results/network_tasks; one that is there is not run again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
from faithfulness import write_cell

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import tasks

RESULTS = Path(__file__).parent / "results" / "network_tasks"
LEVELS = np.arange(1, 10) / 10


def calibration_error(predictive, y) -> float:
    from bayeslearn.results import metrics

    if predictive.kind == "classification":
        return metrics.ece(predictive, y)
    return float(np.mean([abs(metrics.coverage(predictive, y, level) - level) for level in LEVELS]))


def run_cell(name: str, rows: int, seed: int) -> None:
    path = RESULTS / f"{name}__{rows}__{seed}.json"
    if path.exists():
        return
    from models.test_tasks import ALGORITHMS, fitted

    found = {"network": name, "rows": rows, "seed": seed, "methods": {}}
    began = time.perf_counter()
    for algorithm in ("map", *ALGORITHMS):
        posterior, (x, y) = fitted(name, algorithm, rows, seed)
        predictive = posterior.predict(x)
        found["methods"][algorithm] = {
            "log_likelihood": float(np.mean(predictive.log_prob(y))),
            "calibration_error": calibration_error(predictive, y),
        }
    found["seconds"] = time.perf_counter() - began
    write_cell(path, found)
    scores = {m: round(row["log_likelihood"], 3) for m, row in found["methods"].items()}
    print(f"{name:13s} {rows:4d} {seed} {scores} {found['seconds']:.0f} s", flush=True)


def table() -> str:
    cells = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    if not cells:
        return "nothing measured yet"
    methods = list(cells[0]["methods"])
    lines = []
    for score, title in (
        ("log_likelihood", "test log-likelihood per row"),
        ("calibration_error", "calibration error"),
    ):
        lines += [
            f"#### {title}: MAP's, and each method's minus it (worst seed)",
            "",
            "| network | rows | seeds | " + " | ".join(methods) + " |",
            "|---" * (3 + len(methods)) + "|",
        ]
        for name, rows in sorted({(cell["network"], cell["rows"]) for cell in cells}):
            group = [c["methods"] for c in cells if (c["network"], c["rows"]) == (name, rows)]
            columns = [f"{np.mean([c['map'][score] for c in group]):.3f}"]
            for method in methods[1:]:
                gains = [c[method][score] - c["map"][score] for c in group]
                worst = min(gains) if score == "log_likelihood" else max(gains)
                columns.append(f"{np.mean(gains):+.3f} ({worst:+.3f})")
            lines.append(f"| {name} | {rows} | {len(group)} | " + " | ".join(columns) + " |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--rows", nargs="*", type=int, default=[40, 300])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--networks", nargs="*", default=list(tasks.TASKS), choices=tasks.TASKS)
    arguments = parser.parse_args()
    if arguments.what == "run":
        for name in arguments.networks:
            for rows in arguments.rows:
                for seed in arguments.seeds:
                    run_cell(name, rows, seed)
    print(table())


if __name__ == "__main__":
    main()
