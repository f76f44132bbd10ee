"""Does uncertainty grow where there are no data? Epistemic uncertainty inside and outside a gap.

    python benchmarks/gaps.py run --data DIR [--methods ngvi ...] [--sets yacht ...]
        [--noise learned] [--splits 0 ...]
    python benchmarks/gaps.py table

On a gap split the middle third of one column's values is held out (Foong et al. 2019). A tenth of
the other rows is held out too, at random. Epistemic uncertainty (standard deviation, mean over
rows) in the gap is compared with that on rows of the kind the network has seen, and with what the
same rows get from a network that has seen the gap: the middle of a column may be easier than
its ends. 1 x 50 tanh network, noise that is learned or depends on the input, x and y standardised
on the training rows, defaults throughout. One JSON file per cell in benchmarks/results/gaps; one
that is there is not run again.
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
    std = x[train].std(axis=0)
    x = (x - x[train].mean(axis=0)) / np.where(std > 0, std, 1.0)
    y = (y - y[train].mean()) / y[train].std()
    return tuple((x[rows], y[rows]) for rows in (train, gap, outside))


NOISES = ("learned", "input")


def run_cell(data: Path, name: str, method: str, noise: str, split: int) -> None:
    path = RESULTS / f"{name}__{method}__{noise}__{split}.json"
    if path.exists():
        return
    import bayeslearn as bl

    train, gap, outside = gap_problem(data, name, split)
    known = bl.likelihoods
    model = bl.Model(
        bl.networks.MLP([50]),
        known.Gaussian() if noise == "learned" else known.HeteroscedasticGaussian(),
    )
    began = time.perf_counter()

    def fit(rows):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return bl.fit(model, method, rows, seed=split, progress=False)

    def epistemic_std(predictive) -> float:
        return float(np.mean(np.sqrt(predictive.epistemic)))

    posterior = fit(train)
    found = {}
    for part, (x, y) in (("gap", gap), ("outside", outside)):
        predictive = posterior.predict(x)
        found[f"epistemic_{part}"] = epistemic_std(predictive)
        found[f"coverage_{part}"] = bl.metrics.coverage(predictive, y, 0.9)
        found[f"log_likelihood_{part}"] = bl.metrics.log_likelihood(predictive, y)
    # Every other row of the gap is added; the uncertainty of the rest, before and after.
    shown = tuple(np.concatenate([a, b[1::2]]) for a, b in zip(train, gap, strict=True))
    found["epistemic_unseen"] = epistemic_std(posterior.predict(gap[0][::2]))
    found["epistemic_seen"] = epistemic_std(fit(shown).predict(gap[0][::2]))
    found |= {
        "set": name,
        "method": method,
        "noise": noise,
        "split": split,
        "seconds": time.perf_counter() - began,
    }
    write_cell(path, found)
    inside, seen = ratios(found)
    print(
        f"{name} {method} {noise} {split}: to outside {inside:.2f}, to seen {seen:.2f}", flush=True
    )


def ratios(cell: dict) -> tuple[float, float]:
    """Uncertainty in the gap over that outside, and over that once the gap has been seen."""
    return (
        cell["epistemic_gap"] / cell["epistemic_outside"],
        cell["epistemic_unseen"] / cell["epistemic_seen"],
    )


def table() -> str:
    cells = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    lines = [
        "| set | noise | method | more uncertain inside than outside; ratio, median (smallest) |"
        " more uncertain than once seen; ratio | 90 % coverage, gap and outside |",
        "|---|---|---|---|---|---|",
    ]
    for names in sorted({(cell["set"], cell["noise"], cell["method"]) for cell in cells}):
        group = [cell for cell in cells if (cell["set"], cell["noise"], cell["method"]) == names]
        columns = [
            f"{np.sum(found > 1)} of {len(group)}; {np.median(found):.2f} ({np.min(found):.2f})"
            for found in np.array([ratios(cell) for cell in group]).T
        ]
        gap, outside = (np.mean([c[f"coverage_{p}"] for c in group]) for p in ("gap", "outside"))
        lines.append(f"| {' | '.join(names)} | {' | '.join(columns)} | {gap:.2f}, {outside:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--data", type=Path, help="folder with the data sets and splits/")
    parser.add_argument("--methods", nargs="*", default=["bayes-by-backprop", "ngvi"])
    parser.add_argument("--sets", nargs="*", default=["yacht", "concrete"])
    parser.add_argument("--noise", choices=NOISES, default="learned")
    parser.add_argument("--splits", nargs="*", type=int, help="(default: all)")
    arguments = parser.parse_args()
    if arguments.what == "run":
        if arguments.data is None:
            parser.error("--data is needed")
        for name in arguments.sets:
            splits = len(np.load(arguments.data / "splits" / f"{name}_gap.npz").files) - 1
            for method in arguments.methods:
                for split in arguments.splits or range(splits):
                    run_cell(arguments.data, name, method, arguments.noise, split)
    print(table())


if __name__ == "__main__":
    main()
