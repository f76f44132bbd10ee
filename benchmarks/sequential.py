"""What each kind of posterior loses when data come in pieces.

    python benchmarks/sequential.py [--rows 500] [--updates 5] [--seeds 3] [--methods ...]
    python benchmarks/sequential.py --data FILE.csv.gz

A 1 x 10 tanh network with learned noise is fitted to all training rows at once, and to the same
rows in pieces with `posterior.update`. "kept" is the share of the batch fit's gain in mean test
log-likelihood over the prior predictive that the sequence keeps. Without --data the rows are a
noisy sine (--rows to train, 1000 to test); with it, a table with the target in its last column, a
tenth of it held out.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import gzip
import re
import time
import warnings

import numpy as np

STEPS = 1500
METHODS = {
    "diagonal (emgvb)": ("emgvb", {"covariance": "diagonal"}),
    "diagonal (vogn)": ("vogn", {}),
    "block (emgvb)": ("emgvb", {"covariance": "block"}),
    "full (emgvb)": ("emgvb", {"covariance": "full"}),
    "full (laplace)": ("laplace", {}),
    "draws (nuts)": ("nuts", {"num_warmup": 300, "num_samples": 500}),
    "draws, history": ("nuts", {"num_warmup": 300, "num_samples": 500}),
    "dropout": ("mc-dropout", {}),
}


def load(path: str | None, num: int, seed: int):
    """Training and test rows, both scaled by the training rows, in random order."""
    rng = np.random.default_rng(seed)
    if path is None:
        x = rng.uniform(-2.0, 2.0, size=(num + 1000, 1))
        y = np.sin(2 * x[:, 0]) + 0.2 * rng.normal(size=num + 1000)
    else:
        opened = gzip.open if path.endswith(".gz") else open
        with opened(path, "rt") as file:
            table = np.array(list(csv.reader(file))[1:], float)
        table = rng.permutation(table)
        x, y, num = table[:, :-1], table[:, -1], int(0.9 * len(table))
    mean, std = x[:num].mean(0), x[:num].std(0)
    x = (x - mean) / np.where(std > 0, std, 1.0)
    y = (y - y[:num].mean()) / y[:num].std()
    return (x[:num], y[:num]), (x[num:], y[num:])


def prior_predictive(posterior, test) -> float:
    import jax

    import bayeslearn as bl
    from bayeslearn.families import Draws

    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(0), 1000)
        mean = posterior.family.mean
        draws = jax.vmap(lambda key: posterior.target.prior.sample(key, mean))(keys)
    family = Draws(jax.tree.map(lambda w: w[None], draws))
    before = dataclasses.replace(posterior, family=family, algorithm=bl.HMC())
    return score(before, test)


def score(posterior, test) -> float:
    return float(np.mean(posterior.predict(test[0]).log_prob(test[1])))


def run(label: str, updates: int, seed: int, path: str | None, rows: int) -> tuple[dict, set]:
    import bayeslearn as bl

    name, options = METHODS[label]
    algorithm = bl.ALGORITHMS[name](**options)
    fit_options = {"num_chains": 2} if algorithm.capabilities.is_sampler else {}
    if not algorithm.capabilities.is_sampler and algorithm.auto_steps > 1:
        fit_options["num_steps"] = STEPS
    train, test = load(path, rows, seed)
    model = bl.Model(bl.networks.MLP([10]), bl.likelihoods.Gaussian())
    batch = bl.fit(model, algorithm, train, seed=seed, **fit_options)
    parts = [tuple(np.array_split(a, updates)[i] for a in train) for i in range(updates)]
    posterior = bl.fit(model, algorithm, parts[0], seed=seed, **fit_options)
    notes = set()
    for i in range(1, updates):
        extra = {}
        if "history" in label:
            extra["history"] = tuple(np.concatenate(a) for a in zip(*parts[:i], strict=True))
        posterior = posterior.update(parts[i], **extra, **fit_options)
        notes.add(re.sub(r"[:,] .*| [0-9.]+$", "", posterior.notes[0]))
    found = {"prior": prior_predictive(batch, test)}
    found |= {"batch": score(batch, test), "pieces": score(posterior, test)}
    return found, notes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--data")
    given = parser.parse_args()

    import bayeslearn as bl

    print("| q | prior | one batch | in pieces | kept, % (worst) | seconds | how |")
    print("|---|---|---|---|---|---|---|")
    for label in given.methods:
        if METHODS[label][0] not in bl.ALGORITHMS:
            continue
        began, found, how = time.perf_counter(), [], set()
        for seed in range(given.seeds):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", bl.MixingWarning)
                scores, notes = run(label, given.updates, seed, given.data, given.rows)
            found.append(scores)
            how |= notes
        columns = {name: np.mean([f[name] for f in found]) for name in found[0]}
        kept = [100 * (f["pieces"] - f["prior"]) / (f["batch"] - f["prior"]) for f in found]
        print(
            f"| {label} | {columns['prior']:.3f} | {columns['batch']:.3f} |"
            f" {columns['pieces']:.3f} | {np.mean(kept):.1f} ({min(kept):.1f}) |"
            f" {time.perf_counter() - began:.0f} | {'; '.join(sorted(how))} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
