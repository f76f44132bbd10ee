"""Which methods are uncertain where there are no data? A curve with a gap, and two moons.

    python benchmarks/away_from_data.py run [--methods map vogn ...] [--seeds 0 1 2]
    python benchmarks/away_from_data.py table

The curve: 80 rows of sin(2 x) with noise 0.2 at x in [-2, -0.6] and [0.6, 2]; the mean standard
deviation of the function among the data, in the middle of the gap and at |x| in [3, 4], and how
much of the true curve in the gap is inside 90 % intervals for it (the function's).
Two moons: 200 rows with noise 0.15; accuracy and log-likelihood on 1,000 more, the mean confidence
there and on points at least 2 away from all rows, and the AUROC with which mutual information
tells those from the new rows. One hidden layer of 30 tanh units, N(0, 1) priors, learned noise,
defaults throughout. One JSON file per cell in benchmarks/results/away_from_data; one that is there
is not run again. `gaps.py` has real tables.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
from faithfulness import write_cell
from scipy.stats import rankdata

RESULTS = Path(__file__).parent / "results" / "away_from_data"
LAST = {"bayesian": "layers.1.*"}


def methods() -> dict:
    """By name: the algorithm, and options of the model."""
    import bayeslearn as bl

    kronecker = bl.Laplace(covariance="kronecker")
    return {
        "map": (bl.MAP(), {}),
        "bayes-by-backprop": (bl.BayesByBackprop(), {}),
        "vogn": (bl.VOGN(), {}),
        "noisy-kfac": (bl.NoisyKFAC(), {}),
        "emgvb": (bl.EMGVB(), {}),
        "laplace, sampled": (bl.Laplace(predictive="sampled"), {}),
        "laplace": (bl.Laplace(), {}),
        "laplace, kronecker": (kronecker, {}),
        "laplace, diagonal": (bl.Laplace(covariance="diagonal"), {}),
        "laplace, last layer": (bl.Laplace(), LAST),
        "ensemble of map": (bl.Ensemble(), {}),
        "ensemble of laplace, kronecker": (bl.Ensemble(member=kronecker, num_members=5), {}),
        "ensemble of vogn": (bl.Ensemble(member=bl.VOGN(), num_members=5), {}),
        "mile": (bl.MILE(), {}),
        "nuts": (bl.NUTS(num_warmup=500, num_samples=500), {}),
    }


def curve(seed: int):
    rng = np.random.default_rng(seed)
    x = rng.uniform(0.6, 2.0, size=(80, 1)) * np.where(rng.random((80, 1)) < 0.5, -1.0, 1.0)
    return x, np.sin(2 * x[:, 0]) + 0.2 * rng.normal(size=80)


def moons(seed: int, rows: int):
    rng = np.random.default_rng(seed)
    angle, y = np.pi * rng.random(rows), rng.integers(0, 2, rows)
    upper = np.column_stack([np.cos(angle), np.sin(angle)])
    x = np.where(y[:, None] == 0, upper, [1.0, 0.5] - upper)
    return x + 0.15 * rng.normal(size=(rows, 2)), y


def fit(likelihood, method: str, data, seed: int):
    import bayeslearn as bl

    algorithm, options = methods()[method]
    model = bl.Model(bl.networks.MLP([30]), likelihood, bl.priors.Normal(), **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bl.fit(model, algorithm, data, seed=seed, progress=False)


def on_curve(method: str, seed: int) -> dict:
    import bayeslearn as bl

    posterior = fit(bl.likelihoods.Gaussian(), method, curve(seed), seed)
    parts = {
        "among": np.concatenate([np.linspace(-2, -0.6, 50), np.linspace(0.6, 2, 50)]),
        "gap": np.linspace(-0.3, 0.3, 50),
        "beyond": np.concatenate([np.linspace(-4, -3, 50), np.linspace(3, 4, 50)]),
    }
    found = {}
    for name, x in parts.items():
        predictive = posterior.predict(x[:, None])
        std = np.sqrt(np.maximum(predictive.epistemic, 0.0))
        found[name] = float(np.mean(std))
        error = np.abs(predictive.mean - np.sin(2 * x))
        found[f"inside {name}"] = float(np.mean(error < 1.645 * std))
    return found


def on_moons(method: str, seed: int) -> dict:
    import bayeslearn as bl

    data = moons(seed, 200)
    posterior = fit(bl.likelihoods.Bernoulli(), method, data, seed)
    x, y = moons(1000 + seed, 1000)
    rng = np.random.default_rng(seed)
    far = rng.uniform([-4.5, -4.5], [5.5, 5.0], size=(4000, 2))
    nearest = np.min(np.linalg.norm(far[:, None] - data[0][None], axis=2), axis=1)
    far = far[nearest > 2.0][:1000]
    here, there = posterior.predict(x), posterior.predict(far)
    scores = np.concatenate([there.epistemic, here.epistemic])
    rank = rankdata(scores)[: len(far)] - 1.0  # equal scores share their ranks
    return {
        "accuracy": float(np.mean(np.argmax(here.probs, axis=1) == y)),
        "log_likelihood": float(np.mean(here.log_prob(y))),
        "confidence": float(np.mean(np.max(here.probs, axis=1))),
        "confidence far": float(np.mean(np.max(there.probs, axis=1))),
        "auroc": float((np.mean(rank) - (len(far) - 1) / 2) / len(x)),
    }


TASKS = {"curve": on_curve, "moons": on_moons}


def run_cell(task: str, method: str, seed: int) -> None:
    path = RESULTS / f"{task}__{method.replace(', ', '-').replace(' ', '-')}__{seed}.json"
    if path.exists():
        return
    began = time.perf_counter()
    found = TASKS[task](method, seed)
    found |= {"task": task, "method": method, "seed": seed}
    write_cell(path, found | {"seconds": time.perf_counter() - began})
    shown = {key: round(value, 2) for key, value in found.items() if isinstance(value, float)}
    print(task, method, seed, shown, flush=True)


COLUMNS = {
    "curve": ("among", "gap", "beyond", "inside gap"),
    "moons": ("accuracy", "log_likelihood", "confidence", "confidence far", "auroc"),
}


def table(task: str) -> str:
    cells = [json.loads(path.read_text()) for path in sorted(RESULTS.glob(f"{task}__*.json"))]
    columns = COLUMNS[task]
    lines = [f"| method | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for method in methods():
        group = [cell for cell in cells if cell["method"] == method]
        if group:
            means = [f"{np.mean([cell[column] for cell in group]):.2f}" for column in columns]
            lines.append(f"| {method} ({len(group)}) | {' | '.join(means)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--methods", nargs="*", help="(default: all)")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    arguments = parser.parse_args()
    if arguments.what == "run":
        for method in arguments.methods or methods():
            for task in TASKS:
                for seed in arguments.seeds:
                    run_cell(task, method, seed)
    for task in TASKS:
        print(table(task), end="\n\n")


if __name__ == "__main__":
    main()
