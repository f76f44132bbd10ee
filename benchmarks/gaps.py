"""Does doubt grow where there are no data? Epistemic uncertainty inside and outside a gap.

    python benchmarks/gaps.py run --data DIR [--methods ngvi ...] [--sets yacht ...]
        [--splits 0 ...]
    python benchmarks/gaps.py table

On a gap split the middle third of one column's values is held out (Foong et al. 2019). A tenth of
the other rows is held out too, at random: epistemic uncertainty (standard deviation, mean over
rows) in the gap is compared with that on rows of the kind the network has seen. 1 x 50 tanh
network with noise that follows the input, x and y standardised on the training rows, defaults
throughout. One JSON file per cell in benchmarks/results/gaps; one that is there is not run again.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
from faithfulness import read_table, write_cell

RESULTS = Path(__file__).parent / "results" / "gaps"


def gap_problem(data: Path, name: str, split: int):
    """Training rows, rows in the gap, and held-out rows outside it."""
    _, x, y = read_table(data / f"{name}.csv.gz")
    gap = np.load(data / "splits" / f"{name}_gap.npz")[f"test_{split}"]
    rest = np.random.default_rng(split).permutation(np.setdiff1d(np.arange(len(y)), gap))
    outside, train = np.split(rest, [len(rest) // 10])
    spread = x[train].std(axis=0)
    x = (x - x[train].mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    y = (y - y[train].mean()) / y[train].std()
    return tuple((x[rows], y[rows]) for rows in (train, gap, outside))


def run_cell(data: Path, name: str, method: str, split: int) -> None:
    path = RESULTS / f"{name}__{method}__{split}.json"
    if path.exists():
        return
    import bayeslearn as bl

    train, gap, outside = gap_problem(data, name, split)
    model = bl.Model(bl.networks.MLP([50]), bl.likelihoods.HeteroscedasticGaussian())
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = bl.fit(model, method, train, seed=split, progress=False)
    found = {}
    for place, (x, y) in (("gap", gap), ("outside", outside)):
        predictive = posterior.predict(x)
        found[f"epistemic_{place}"] = float(np.mean(np.sqrt(predictive.epistemic)))
        found[f"aleatoric_{place}"] = float(np.mean(np.sqrt(predictive.aleatoric)))
        found[f"coverage_{place}"] = bl.metrics.coverage(predictive, y, 0.9)
        found[f"log_likelihood_{place}"] = bl.metrics.log_likelihood(predictive, y)
    found |= {
        "set": name,
        "method": method,
        "split": split,
        "seconds": time.perf_counter() - began,
    }
    write_cell(path, found)
    ratio = found["epistemic_gap"] / found["epistemic_outside"]
    print(f"{name:9s} {method:18s} {split} ratio {ratio:.2f} {found['seconds']:.0f} s", flush=True)


def table() -> str:
    cells = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    lines = [
        "| set | method | gaps with more doubt inside | ratio, median (smallest) |"
        " 90 % coverage, gap and outside |",
        "|---|---|---|---|---|",
    ]
    for name, method in sorted({(cell["set"], cell["method"]) for cell in cells}):
        group = [cell for cell in cells if (cell["set"], cell["method"]) == (name, method)]
        ratios = [cell["epistemic_gap"] / cell["epistemic_outside"] for cell in group]
        gap, outside = (np.mean([c[f"coverage_{p}"] for c in group]) for p in ("gap", "outside"))
        lines.append(
            f"| {name} | {method} | {sum(r > 1 for r in ratios)} of {len(ratios)}"
            f" | {np.median(ratios):.2f} ({min(ratios):.2f}) | {gap:.2f}, {outside:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--data", type=Path, help="folder with the data sets and splits/")
    parser.add_argument("--methods", nargs="*", default=["bayes-by-backprop", "ngvi"])
    parser.add_argument("--sets", nargs="*", default=["yacht", "concrete"])
    parser.add_argument("--splits", nargs="*", type=int, help="all unless said")
    arguments = parser.parse_args()
    if arguments.what == "run":
        if arguments.data is None:
            parser.error("--data is needed")
        for name in arguments.sets:
            splits = len(np.load(arguments.data / "splits" / f"{name}_gap.npz").files) - 1
            for method in arguments.methods:
                for split in arguments.splits or range(splits):
                    run_cell(arguments.data, name, method, split)
    print(table())


if __name__ == "__main__":
    main()
