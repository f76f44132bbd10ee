"""How faithful each algorithm is: to the exact answer of its own family, and to NUTS on networks.

    python benchmarks/faithfulness.py regression
    python benchmarks/faithfulness.py labour   --data DIR
    python benchmarks/faithfulness.py networks --data DIR [--jobs 16] [--splits 3] [--methods ...]
    python benchmarks/faithfulness.py table

A method's name with `-long` behind it runs ten times the steps, or LONG_SECONDS if they end
before: the reference of its family. The cell says how many steps there were.

Every cell (problem, method, split or seed) is a JSON file in benchmarks/results/faithfulness; a
cell that is there is not run again. "With defaults" means `bl.fit(model, Method(), data, seed)`.

regression  the conjugate linear regression; exact posterior and exact optimum of every family
labour      logistic regression on 564 rows; optima of the full and diagonal Gaussian families,
            and the posterior's moments by a long NUTS run
networks    1 x 50 tanh network, learned noise, standard splits of four UCI sets
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import platform
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from faithfulness_tables import exact_rows, network_rows

RESULTS = Path(__file__).parent / "results" / "faithfulness"
UCI = ("yacht", "boston", "concrete", "wine_red")
SEEDS = (0, 1, 2)
BOUND_DRAWS, BOUND_CHUNK = 200_000, 20_000

# Longer than the defaults, so that NUTS can serve as the reference.
SETTINGS = {"networks": {"nuts": {"num_warmup": 1000, "num_samples": 1000, "max_doublings": 8}}}

# Variants beside the default: name in the table -> (method, options).
VARIANTS = {
    "ngvi-diagonal": ("ngvi", {"covariance": "diagonal"}),
    "von-diagonal": ("von", {"covariance": "diagonal"}),
    "qbvi-diagonal": ("qbvi", {"covariance": "diagonal"}),
    "mgvb-diagonal": ("mgvb", {"covariance": "diagonal"}),
    "emgvb-diagonal": ("emgvb", {"covariance": "diagonal"}),
    "emgvb-block": ("emgvb", {"covariance": "block"}),
    "ngvi-block": ("ngvi", {"covariance": "block"}),
    "mgvb-block": ("mgvb", {"covariance": "block"}),
    "emgvb-momentum": ("emgvb", {"momentum": 0.4}),
    "qbvi-score": ("qbvi", {"gradient": "score"}),
    "emgvb-score": ("emgvb", {"gradient": "score"}),
    "laplace-diagonal": ("laplace", {"covariance": "diagonal"}),
}

# On networks a thousand weights make a step of these take seconds or draw on luck alone.
NOT_ON_NETWORKS = {
    "conjugate": "needs a linear model",
    "emgvb-momentum": "an eigendecomposition of all weights per step",
    "qbvi-score": "score function in 400 to 750 dimensions",
    "emgvb-score": "score function in 400 to 750 dimensions",
}


LONG, TIMES = "-long", 10
LONG_SECONDS = 420.0


def make(label: str, problem: str):
    import bayeslearn as bl

    label = label.removesuffix(LONG)
    name, options = VARIANTS.get(label, (label, {}))
    return bl.ALGORITHMS[name](**options, **SETTINGS.get(problem, {}).get(label, {}))


def labels() -> list[str]:
    import bayeslearn as bl

    return [*bl.ALGORITHMS, *(v for v, (name, _) in VARIANTS.items() if name in bl.ALGORITHMS)]


def regression_problem():
    """60 x 4, noise 0.7, prior precision 0.5 (the tests use the same)."""
    import bayeslearn as bl

    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4)) @ (np.eye(4) + 0.4 * rng.normal(size=(4, 4)))
    y = x @ rng.normal(size=4) + 0.7 * rng.normal(size=60)
    prec = 0.5 * np.eye(4) + x.T @ x / 0.49
    mean = np.linalg.solve(prec, x.T @ y / 0.49)
    model = bl.Model(
        bl.networks.MLP([], use_bias=False),
        bl.likelihoods.Gaussian(noise_scale=0.7),
        bl.priors.Normal(scale=0.5**-0.5),
        dtype="float64",
    )
    evidence = (
        -30 * math.log(2 * math.pi * 0.49)
        + 0.5 * (4 * math.log(0.5) - np.linalg.slogdet(prec)[1])
        - 0.5 * (y @ y / 0.49 - mean @ prec @ mean)
    )
    # KL(best diagonal q, posterior) = sum(log diag P) / 2 - log|P| / 2
    loss = 0.5 * (np.log(np.diag(prec)).sum() - np.linalg.slogdet(prec)[1])
    std = np.sqrt(np.diag(np.linalg.inv(prec)))
    return model, (x, y), mean, std, {"full": evidence, "diagonal": evidence - loss}


def read_table(path: Path) -> tuple[list[str], np.ndarray, np.ndarray]:
    with gzip.open(path, "rt") as file:
        names = file.readline().strip().split(",")
        table = np.loadtxt(file, delimiter=",")
    return names, table[:, :-1], table[:, -1]


def labour_problem(data: Path):
    from peers.problems import labour_rows

    import bayeslearn as bl

    model = bl.Model(
        bl.networks.MLP([], use_bias=False),
        bl.likelihoods.Bernoulli(),
        bl.priors.Normal(scale=5**0.5),
        dtype="float64",
    )
    mean = [0.67786, -1.48723, -0.08392, -0.57414, 0.49298, -0.63783, 0.60872, 0.04816]
    std = [0.20233, 0.23299, 0.07696, 0.12029, 0.11377, 0.14268, 0.14078, 0.21059]
    optima = {"full": -356.6385, "diagonal": -358.3027}
    return model, labour_rows(data), np.array(mean), np.array(std), optima


def uci_problem(data: Path, name: str, split: int):
    import bayeslearn as bl

    _, x, y = read_table(data / f"{name}.csv.gz")
    splits = np.load(data / "splits" / f"{name}.npz")
    if "train" in splits:
        train, test = splits["train"][split], splits["test"][split]
    else:
        test = splits[f"test_{split}"]
        train = np.setdiff1d(np.arange(len(y)), test)
    std = x[train].std(axis=0)
    x = (x - x[train].mean(axis=0)) / np.where(std > 0, std, 1.0)
    scale = y[train].std()
    y = (y - y[train].mean()) / scale
    model = bl.Model(bl.networks.MLP([50]), bl.likelihoods.Gaussian())
    return model, (x[train], y[train]), (x[test], y[test]), scale


def structure(posterior) -> str:
    kind = type(posterior.family).__name__
    return {"FullGaussian": "full", "BlockGaussian": "block", "DiagonalGaussian": "diagonal"}.get(
        kind, kind.lower()
    )


def measured_bound(posterior) -> float | None:
    """The lower bound with 200,000 fresh draws."""
    import jax

    from bayeslearn.inference.evaluate import lower_bound

    if not hasattr(posterior.family, "entropy"):
        return None
    with jax.enable_x64(True):
        bound = jax.jit(lambda q, k: lower_bound(posterior.target, q, k, BOUND_CHUNK)["elbo"])
        keys = jax.random.split(jax.random.key(2026), BOUND_DRAWS // BOUND_CHUNK)
        return float(np.mean([bound(posterior.family, key) for key in keys]))


def run_fit(model, label: str, problem: str, data, seed: int) -> tuple:
    import bayeslearn as bl

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = time.perf_counter()
        algorithm = make(label, problem)
        options = {}
        if label.endswith(LONG):
            options = {
                "num_steps": TIMES * algorithm.auto_steps,
                "callback": lambda _: time.perf_counter() - began > LONG_SECONDS,
            }
        posterior = bl.fit(model, algorithm, data, seed=seed, progress=False, **options)
        return posterior, time.perf_counter() - began


def guards_after_warm_up(trace: dict) -> float | None:
    clipped = trace.get("clipped")
    return None if clipped is None else float(np.mean(clipped[len(clipped) // 5 :]))


def exact_cell(problem: str, label: str, seed: int, data: Path | None) -> dict:
    model, rows, mean, std, optima = (
        regression_problem() if problem == "regression" else labour_problem(data)
    )
    posterior, seconds = run_fit(model, label, problem, rows, seed)
    family = posterior.family
    kind = structure(posterior)
    bound = measured_bound(posterior)
    stds = np.concatenate([np.ravel(row["std"]) for row in posterior.summary()])
    return {
        "family": kind,
        "elbo": bound,
        "gap": None if bound is None else optima.get(kind, optima["full"]) - bound,
        "mean_error": float(np.max(np.abs(np.asarray(family.mean_vector()) - mean) / std)),
        "sd_ratio": [float(np.min(stds / std)), float(np.max(stds / std))],
        "guards": guards_after_warm_up(posterior.trace),
        "seconds": seconds,
    }


def network_cell(name: str, label: str, split: int, data: Path) -> dict:
    from bayeslearn.results import metrics

    model, train, (x, y), scale = uci_problem(data, name, split)
    posterior, seconds = run_fit(model, label, "networks", train, seed=split)
    predictive = posterior.predict(x)
    found = {
        "family": structure(posterior),
        "elbo": posterior.elbo,
        "rmse": metrics.rmse(predictive, y) * float(scale),
        "log_likelihood": metrics.log_likelihood(predictive, y) - math.log(scale),
        "coverage": metrics.coverage(predictive, y, 0.9),
        "guards": guards_after_warm_up(posterior.trace),
        "steps": int(posterior.trace["eval_step"][-1]) if "eval_step" in posterior.trace else None,
        "notes": list(posterior.notes),
        "seconds": seconds,
        "compile_seconds": posterior.compile_time,
        "weights": int(posterior.family.mean_vector().size),
    }
    if posterior.draws is not None:
        found["rhat_predictions"] = split_rhat(posterior, x)
    return found


def split_rhat(posterior, x: np.ndarray) -> float:
    """Largest split R-hat of the network's outputs at the test rows."""
    import jax

    with jax.enable_x64(True):
        outputs = jax.jit(
            lambda draws: jax.lax.map(
                lambda chain: jax.lax.map(lambda w: posterior.target.outputs(w, x)[:, 0], chain),
                draws,
            )
        )(jax.tree.map(np.asarray, posterior.draws))
    values = np.asarray(outputs, np.float64)
    half = values.shape[1] // 2
    parts = np.concatenate([values[:, :half], values[:, half : 2 * half]])
    within = parts.var(axis=1, ddof=1).mean(axis=0)
    between = half * parts.mean(axis=1).var(axis=0, ddof=1)
    return float(np.sqrt(((half - 1) / half * within + between / half) / within).max())


def write_cell(path: Path, result: dict) -> None:
    """A result with versions and device, whole or not at all."""
    import jax

    where = {
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        "python": platform.python_version(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.part")
    partial.write_text(json.dumps(result | where, indent=1))
    partial.replace(path)


def run_cell(problem: str, label: str, split: int, data: Path | None) -> None:
    path = RESULTS / f"{problem}__{label}__{split}.json"
    if path.exists():
        return
    import bayeslearn as bl

    try:
        if problem in UCI:
            result = network_cell(problem, label, split, data)
        else:
            result = exact_cell(problem, label, split, data)
    except (bl.BayesLearnError, ArithmeticError) as error:
        result = {"failed": f"{type(error).__name__}: {error}"}
    write_cell(path, result | {"problem": problem, "method": label, "split": split})
    print(f"{problem:10s} {label:18s} {split} {json.dumps(result)[:150]}", flush=True)


def run_all(problem: str, splits: list[int], methods: list[str], data: Path | None, jobs: int):
    """One process per problem and method, so that its splits share what was compiled."""
    problems = list(UCI) if problem == "networks" else [problem]
    # Slow ones first, so that the last process to end is a short one.
    slow = ("von", "nuts", "mgvb", "emgvb", "ngvi", "qbvi", "hmc")
    ordered = sorted(methods, key=lambda m: slow.index(m) if m in slow else len(slow))
    waiting = [(p, m) for m in ordered for p in reversed(problems)]
    if problem == "networks":
        waiting = [(p, m) for p, m in waiting if m not in NOT_ON_NETWORKS]
    running: list[subprocess.Popen] = []
    while waiting or running:
        running = [process for process in running if process.poll() is None]
        while waiting and len(running) < jobs:
            p, m = waiting.pop(0)
            command = [sys.executable, __file__, "cell", p, m, ",".join(map(str, splits))]
            if data is not None:
                command += ["--data", str(data)]
            running.append(subprocess.Popen(command))
        time.sleep(0.2)


def table() -> str:
    cells = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    lines: list[str] = []
    for problem in ("regression", "labour", *UCI):
        rows = [cell for cell in cells if cell["problem"] == problem]
        if rows:
            lines += [
                f"### {problem}",
                "",
                *(exact_rows(rows) if problem not in UCI else network_rows(rows)),
                "",
            ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("regression", "labour", "networks", "table", "cell"))
    parser.add_argument("cell", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help="folder with the data sets and splits/")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--splits", type=int, default=3, help="splits or seeds per method")
    parser.add_argument("--methods", nargs="*", help="names (default: all)")
    arguments = parser.parse_args()
    if arguments.what == "cell":
        problem, label, splits = arguments.cell
        for split in splits.split(","):
            run_cell(problem, label, int(split), arguments.data)
    elif arguments.what == "table":
        print(table())
    else:
        if arguments.what != "regression" and arguments.data is None:
            parser.error("--data is needed for this problem")
        methods = arguments.methods or labels()
        splits = list(range(arguments.splits))
        run_all(arguments.what, splits, methods, arguments.data, arguments.jobs)
        print(table())


if __name__ == "__main__":
    main()
