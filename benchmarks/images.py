"""Deep networks: a convolutional network on MNIST or Fashion-MNIST, ours beside a plain Adam loop.

    python benchmarks/images.py --data DIR [--name mnist] [--methods NAME ...] [--seeds 1]
    python benchmarks/images.py --table

DIR holds NAME.npz (x_train, y_train, x_test, y_test). Every method runs in a process of its own,
with its defaults, the same network (32 and 64 filters, 128 units, Equinox), batches and steps; the
plain loop is `optax.adamw` with a cosine from 1e-3 to 0. A cell is a JSON file in
benchmarks/results/images. Each run is done twice: seconds to run are those of the second (data
moved to the device included), seconds to compile what the first took longer. Predictions are
averaged over 64 draws of q. `std ratio` is the median over weights of q's standard deviation
divided by the prior's: a q of no width has none.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from faithfulness import write_cell

import bayeslearn as bl

RESULTS = Path(__file__).parent / "results" / "images"
DRAWS, PIECE, BINS = 64, 1000, 15
PLAIN = "adamw"
METHODS = (
    *(PLAIN, "map", "ivon", "vogn", "vadam", "bayes-by-backprop", "sghmc", "swag", "noisy-kfac"),
    *("laplace",),
)
VARIANTS = {"laplace": {"covariance": "kronecker"}}  # of methods whose defaults are for few weights


class CNN(eqx.Module):
    """Two convolutions with pooling, one hidden layer."""

    first: eqx.nn.Conv2d
    second: eqx.nn.Conv2d
    hidden: eqx.nn.Linear
    last: eqx.nn.Linear

    def __init__(self, filters: tuple[int, int], units: int, key: jax.Array):
        keys = jax.random.split(key, 4)
        self.first = eqx.nn.Conv2d(1, filters[0], 3, padding=1, key=keys[0])
        self.second = eqx.nn.Conv2d(filters[0], filters[1], 3, padding=1, key=keys[1])
        self.hidden = eqx.nn.Linear(filters[1] * 49, units, key=keys[2])
        self.last = eqx.nn.Linear(units, 10, key=keys[3])

    def __call__(self, x: jax.Array) -> jax.Array:
        pool = eqx.nn.MaxPool2d(2, 2)
        x = pool(jax.nn.relu(self.first(x)))
        x = pool(jax.nn.relu(self.second(x)))
        return self.last(jax.nn.relu(self.hidden(x.reshape(-1))))


class PlainLogits(eqx.Module):
    """Logits of the plain network as a function of its weights."""

    static: CNN

    def __call__(self, params: CNN, rows: jax.Array) -> jax.Array:
        return jax.vmap(eqx.combine(params, self.static))(rows)


def load(folder: Path, name: str, rows: int | None) -> tuple[np.ndarray, ...]:
    found = np.load(folder / f"{name}.npz")
    x, y, x_test, y_test = (found[k] for k in ("x_train", "y_train", "x_test", "y_test"))

    def scaled(images: np.ndarray) -> np.ndarray:
        return (images[:, None].astype(np.float32) / 255 - 0.13) / 0.31

    x, y = x[:rows], y[:rows]
    return scaled(x), y.astype(np.int32), scaled(x_test[:rows]), y_test[:rows].astype(np.int32)


def plain_adam(network: CNN, x, y, batch_size: int, steps: int) -> Callable[[int], CNN]:
    """A run of the plain loop, by its seed."""
    optimizer = optax.adamw(optax.cosine_decay_schedule(1e-3, steps))
    params, static = eqx.partition(network, eqx.is_inexact_array)
    batches = len(y) // batch_size

    def loss(params, x, y):
        logits = jax.vmap(eqx.combine(params, static))(x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    @jax.jit
    def train(params, x, y, key):
        def one(t, carry):
            params, state, order = carry
            order = jax.lax.cond(
                t % batches == 0,
                lambda: jax.random.permutation(jax.random.fold_in(key, t), len(y)),
                lambda: order,
            )
            rows = jax.lax.dynamic_slice(order, (t % batches * batch_size,), (batch_size,))
            gradient = jax.grad(loss)(params, x[rows], y[rows])
            updates, state = optimizer.update(gradient, state, params)
            return optax.apply_updates(params, updates), state, order

        first = (params, optimizer.init(params), jnp.arange(len(y)))
        return jax.lax.fori_loop(0, steps, one, first)[0]

    def run(seed: int) -> CNN:
        found = train(params, jnp.asarray(x), jnp.asarray(y), jax.random.key(seed))
        return eqx.combine(jax.block_until_ready(found), static)

    return run


def predict(logits: Callable, params: CNN, x: np.ndarray) -> np.ndarray:
    """Class probabilities of the plain network, a piece of the rows at a time."""
    probabilities = eqx.filter_jit(lambda rows: jax.nn.softmax(logits(params, rows)))
    return np.concatenate([probabilities(x[i : i + PIECE]) for i in range(0, len(x), PIECE)])


def scores(probabilities: np.ndarray, y: np.ndarray) -> dict[str, float]:
    chosen, surest = probabilities.argmax(1), probabilities.max(1)
    right = (chosen == y).astype(float)
    bins = np.minimum((surest * BINS).astype(int), BINS - 1)
    gaps = [abs(np.sum((right - surest)[bins == b])) for b in range(BINS)]
    picked = probabilities[np.arange(len(y)), y].astype(np.float64)
    return {
        "accuracy": 100 * float(right.mean()),
        "nll": float(-np.log(np.maximum(picked, 1e-30)).mean()),
        "ece": float(np.sum(gaps) / len(y)),
    }


def std_ratio(posterior: bl.Posterior) -> float:
    """Median over weights of q's std divided by the prior's."""
    q = posterior.family
    if isinstance(q, bl.families.Point):
        return 0.0
    with jax.enable_x64(True):
        _, prec = posterior.target.prior.broadcast(q.mean)
        ratios = jax.tree.map(lambda s, p: s * jnp.sqrt(p), q.std, prec)
    return float(np.median(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(ratios)])))


def timed(run: Callable[[int], object], seed: int, once: bool) -> tuple[object, float, float]:
    """The result, seconds to run, and seconds to compile (0 if it runs only once)."""
    began = time.perf_counter()
    if not once:
        run(seed + 1)
    middle = time.perf_counter()
    result = run(seed)
    end = time.perf_counter()
    return result, end - middle, max(0.0, (middle - began) - (end - middle))


def measure(arguments: argparse.Namespace, method: str, seed: int, variant: dict) -> dict:
    x, y, x_test, y_test = load(arguments.data, arguments.name, arguments.rows)
    network = CNN(tuple(arguments.filters), arguments.units, jax.random.key(seed))
    steps, batch_size = arguments.steps, arguments.batch_size
    options = {k: v for k, v in variant.items() if k != "gain"}
    more: dict = {"std_ratio": 0.0}
    if method == PLAIN:
        run = plain_adam(network, x, y, batch_size, steps)
        trained, seconds, compiling = timed(run, seed, arguments.once)
        peak = peak_memory()
        params, static = eqx.partition(trained, eqx.is_inexact_array)
        logits = PlainLogits(static)
        found = predict(logits, params, x_test)
    else:
        prior = bl.priors.Normal.fan_in(variant["gain"]) if variant.get("gain") else None
        model = bl.Model(network, bl.likelihoods.Categorical(10), prior)
        algorithm = bl.ALGORITHMS[method](**VARIANTS.get(method, {}), **options)
        settings = {"num_steps": steps, "batch_size": batch_size, "progress": False}

        def run(seed: int) -> bl.Posterior:
            return bl.fit(model, algorithm, (x, y), seed=seed, **settings)

        posterior, seconds, compiling = timed(run, seed, arguments.once)
        peak = peak_memory()
        found = posterior.predict(x_test, num_samples=DRAWS).probs
        phases = [phase._asdict() for phase in posterior.phases]
        more = {"std_ratio": std_ratio(posterior), "phases": phases, "elbo": posterior.elbo}
        more["notes"] = list(posterior.notes)
    return {
        "method": method,
        "variant": variant,
        "data": arguments.name,
        "seed": seed,
        "steps": steps,
        "batch_size": batch_size,
        **scores(found, y_test),
        "seconds": seconds,
        "compile_seconds": compiling,
        "peak_bytes": peak,
        **more,
    }


def peak_memory() -> int | None:
    """Bytes on the device at most, so far; None where the device does not say."""
    stats = jax.local_devices()[0].memory_stats()
    return None if stats is None else int(stats["peak_bytes_in_use"])


def run_all(arguments: argparse.Namespace) -> None:
    """Every method in a process of its own, so that memory and compiling are its own."""
    for method in arguments.methods:
        child = [sys.executable, __file__, *sys.argv[1:], "--only", method]
        subprocess.run(child, check=False)


def run_one(arguments: argparse.Namespace) -> None:
    method = arguments.only
    variants = json.loads(arguments.grid).get(method, [{}]) if arguments.grid else [{}]
    for variant in variants:
        for seed in range(1 if variant else arguments.seeds):
            cell = measure(arguments, method, seed, variant)
            label = "".join(f"-{k}={v}" for k, v in variant.items())
            name = f"{arguments.name}-{method}{label}-{seed}.json"
            write_cell(arguments.results / name, cell)
            print(row(cell), flush=True)


def row(cell: dict, plain: float | None = None) -> str:
    ratio = "" if plain is None else f" {cell['seconds'] / plain:.2f} |"
    memory = "-" if cell["peak_bytes"] is None else f"{cell['peak_bytes'] / 2**30:.2f}"
    options = " ".join(f"{k}={v}" for k, v in cell["variant"].items())
    return (
        f"| {cell['method']} {options} | {cell['accuracy']:.2f} | {cell['nll']:.4f} |"
        f" {cell['ece']:.4f} | {cell['std_ratio']:.3f} | {cell['seconds']:.2f} |{ratio}"
        f" {cell['compile_seconds']:.1f} | {memory} |"
    )


def table(folder: Path) -> str:
    """Means over seeds, for each data set and method."""
    groups: dict[tuple, list[dict]] = {}
    for path in sorted(folder.glob("*.json")):
        cell = json.loads(path.read_text())
        key = (cell["data"], METHODS.index(cell["method"]), str(cell["variant"]))
        groups.setdefault(key, []).append(cell)
    numbers = ("accuracy", "nll", "ece", "std_ratio", "seconds")
    lines, name, plain = [], None, None
    for key, cells in sorted(groups.items(), key=lambda item: tuple(map(str, item[0]))):
        mean = cells[0] | {k: statistics.fmean(cell[k] for cell in cells) for k in numbers}
        # Later seeds of a process find the programs compiled.
        mean["compile_seconds"] = max(cell["compile_seconds"] for cell in cells)
        if key[0] != name:
            name, plain = key[0], None
            lines += [
                f"\n{name}, {cells[0]['device']}, {cells[0]['steps']} steps,"
                f" {len(cells)} seed(s)\n",
                "| method | accuracy | NLL | ECE | std ratio | s to run | beside Adam"
                " | s to compile | peak GB |",
                "|---|---|---|---|---|---|---|---|---|",
            ]
        plain = mean["seconds"] if mean["method"] == PLAIN else plain
        lines.append(row(mean, plain or float("nan")))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of NAME.npz")
    parser.add_argument("--name", default="mnist", help="mnist or fashion_mnist")
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2343)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--filters", type=int, nargs=2, default=(32, 64))
    parser.add_argument("--units", type=int, default=128)
    parser.add_argument("--rows", type=int, help="first rows only, for a trial")
    parser.add_argument(
        "--grid",
        help='JSON of variants: {"vogn": [{"learning_rate": 0.01, "gain": 3}, ...], ...}; gain is'
        " that of a fan-in prior in place of the model's own",
    )
    parser.add_argument("--once", action="store_true", help="no second run for the time of one")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--table", action="store_true", help="print the table of stored cells")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(arguments.results))
    elif arguments.data is None:
        parser.error("--data is needed")
    elif arguments.only:
        run_one(arguments)
    else:
        run_all(arguments)


if __name__ == "__main__":
    main()
