"""One start or several: held-out log-likelihood of variational methods on small tables.

    python benchmarks/starts.py --data DIR [--sets yacht boston] [--steps 10000] > starts.jsonl

One hidden layer of 50 tanh units, learned noise, defaults of both methods; x and y are standardised
by the training rows, scores are in the units of the table. With `--steps` both take as many steps
in all; by default several starts come on top.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from pathlib import Path

from faithfulness import uci_problem

import bayeslearn as bl
from bayeslearn.results import metrics

SETS = ("yacht", "boston", "concrete")
METHODS = ("bayes-by-backprop", "ngvi")
STARTS = {"one": 1, "several": bl.MultiStart()}


def run_cell(
    name: str, split: int, method: str, starts: str, data: Path, steps: int | str
) -> dict[str, object]:
    """Scores, steps and seconds of one fit."""
    model, rows, (x, y), std = uci_problem(data, name, split)
    began, worked = time.perf_counter(), time.process_time()
    posterior = bl.fit(model, method, rows, seed=split, num_steps=steps, starts=STARTS[starts])
    seconds, cpu = time.perf_counter() - began, time.process_time() - worked
    predictive = posterior.predict(x)
    return {
        "set": name,
        "split": split,
        "method": method,
        "starts": starts,
        "log_likelihood": metrics.log_likelihood(predictive, y) - math.log(std),
        "rmse": metrics.rmse(predictive, y) * float(std),
        "elbo": posterior.elbo,
        "steps": sum(phase.num_steps for phase in posterior.phases),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu, 1),
    }


def main() -> None:
    """One line of JSON for each fit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with tables and splits/")
    parser.add_argument("--sets", nargs="*", default=SETS, choices=SETS)
    parser.add_argument("--splits", type=int, default=1, help="the first splits of each set")
    parser.add_argument("--methods", nargs="*", default=METHODS, choices=METHODS)
    parser.add_argument("--steps", type=int, help="steps of each fit in all; default: its own")
    args = parser.parse_args()
    for cell in itertools.product(args.methods, range(args.splits), args.sets, STARTS):
        method, split, name, starts = cell
        found = run_cell(name, split, method, starts, args.data, args.steps or "auto")
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
