"""Deep networks: networks for images on MNIST or Fashion-MNIST, ours beside a plain Adam loop.

    python benchmarks/images.py --data DIR [--fashion DIR] [--name mnist] [--methods NAME ...]
    python benchmarks/images.py --data DIR --network resnet --once --time-limit 240    or vit
    python benchmarks/images.py --table
    python benchmarks/images_report.py --data DIR --fashion DIR      the pictures

DIR holds NAME.npz (x_train, y_train, x_test, y_test); Fashion-MNIST may also be what Debian's
package dataset-fashion-mnist holds (`apt-get download`, `dpkg -x`, no root). Every method runs in a
process of its own, with its defaults, the same network, batches and steps. `--network cnn` has 32
and 64 filters and 128 units, `resnet` the four stages of ResNet-18 from 64 channels on (with groups
normalised, not batches), `vit` six blocks of attention of width 192 on patches of 4 x 4; their
default methods are `FEW`. `--width small` is for a CPU. The plain loop is `optax.adamw` with a
cosine from 1e-3 to 0. A cell is a JSON file in benchmarks/results/images. Each run is done twice:
seconds to run are those of the second (data moved to the device included), seconds to compile what
the first took longer. Predictions are averaged over 64 draws of q. `std ratio` is the median over
weights of q's standard deviation divided by the prior's: a q of no width has none. AUROC is how
well the entropy of the predicted classes tells images of the other data set, or of this one rotated
by 90 degrees, from test images; `at 80 %` is the accuracy on the 80 % of test images of least
entropy.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from faithfulness import write_cell
from images_data import auroc, load, most_uncertain, scaled, scores
from images_networks import NETWORKS, SMALL_NETWORKS, Functions, cnn, network
from images_report import row, table

import bayeslearn as bl

RESULTS = Path(__file__).parent / "results" / "images"
DRAWS, PIECE = 64, 1000
NAMES = ("mnist", "fashion_mnist")
PLAIN = "adamw"
LAST = {"bayesian": "last.*"}
KRONECKER = {"covariance": "kronecker"}  # the default covariance is for few weights
METHODS: dict[str, tuple[str, dict, dict]] = {  # the algorithm, its options, the model's
    PLAIN: ("", {}, {}),
    "map": ("map", {}, {}),
    "ensemble": ("ensemble", {"num_members": 5}, {}),
    "laplace": ("laplace", KRONECKER, {}),
    "laplace-last": ("laplace", {}, LAST),
    "ivon": ("ivon", {}, {}),
    "ensemble-ivon": ("ensemble", {"num_members": 5, "member": lambda: bl.IVON()}, {}),
    "mc-dropout": ("mc-dropout", {}, {}),
    "swag": ("swag", {}, {}),
    "vogn": ("vogn", {}, {}),
    "bayes-by-backprop": ("bayes-by-backprop", {}, {}),
    "vadam": ("vadam", {}, {}),
    "sghmc": ("sghmc", {}, {}),
    "noisy-kfac": ("noisy-kfac", {}, {}),
}
FEW = (PLAIN, "ivon", "vogn", "laplace")  # of the larger networks
SMALL = {"filters": (4, 8), "units": 32, "rows": 6000, "test_rows": 2000, "draws": 32}


def data(arguments: argparse.Namespace) -> dict[str, np.ndarray]:
    """Rows to train on and to test with, images of the other set, and rotated ones."""
    sets = {n: load(arguments.data, arguments.fashion, n) for n in NAMES if arguments.has(n)}
    x, y, x_test, y_test = sets[arguments.name]
    rows, test_rows = arguments.rows, arguments.test_rows
    found = {"x": scaled(x[:rows]), "y": y[:rows], "x_test": scaled(x_test[:test_rows])}
    found |= {"y_test": y_test[:test_rows].astype(np.int32)}
    found["y"] = found["y"].astype(np.int32)
    found["rotated"] = np.rot90(found["x_test"], axes=(2, 3)).copy()
    for name, others in sets.items():
        if name != arguments.name:
            found["other"] = scaled(others[2][:test_rows])
    return found


def plain_adam(network: Functions, x, y, batch_size: int, steps: int) -> Callable[[int], Any]:
    """A run of the plain loop, by its seed."""
    optimizer = optax.adamw(optax.cosine_decay_schedule(1e-3, steps))
    batches = len(y) // batch_size

    def loss(params, x, y):
        logits = jax.vmap(network.apply, (None, 0))(params, x)
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

    def run(seed: int) -> Any:
        key = jax.random.key(seed)
        found = train(network.init(key), jnp.asarray(x), jnp.asarray(y), key)
        return jax.block_until_ready(found)

    return run


def predict(network: Functions, params: Any, x: np.ndarray) -> np.ndarray:
    """Class probabilities of the plain network, a piece of the rows at a time."""
    logits = jax.vmap(partial(network.apply, params))
    probabilities = jax.jit(lambda rows: jax.nn.softmax(logits(rows)))
    return np.concatenate([probabilities(x[i : i + PIECE]) for i in range(0, len(x), PIECE)])


def std_ratio(posterior: bl.Posterior) -> float | None:
    """Median over weights of q's std divided by the prior's; None of part of the weights."""
    q = posterior.family
    if isinstance(q, bl.families.Point):
        return 0.0
    if posterior.target.frozen is not None or isinstance(q, bl.families.Dropout):
        return None
    with jax.enable_x64(True):
        _, prec = posterior.target.prior.broadcast(q.mean)
        ratios = jax.tree.map(lambda s, p: s * jnp.sqrt(p), q.std, prec)
    return float(np.median(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(ratios)])))


def timed(run: Callable, seed: int, once: bool) -> tuple[Any, float, float, float]:
    """The result, seconds to run, seconds to compile (0 if it runs only once), all CPU seconds."""
    cpu = time.process_time()
    began = time.perf_counter()
    if not once:
        run(seed + 1)
    middle = time.perf_counter()
    result = run(seed)
    end = time.perf_counter()
    compiling = max(0.0, (middle - began) - (end - middle))
    return result, end - middle, compiling, time.process_time() - cpu


def measure(arguments: argparse.Namespace, method: str, seed: int, variant: dict) -> dict:
    rows = data(arguments)
    steps, batch_size = arguments.steps, arguments.batch_size
    options = {k: v for k, v in variant.items() if k != "gain"}
    more: dict = {"std_ratio": 0.0}
    functions = network(arguments.network, arguments.filters, arguments.units, *arguments.shape)
    if method == PLAIN:
        run = plain_adam(functions, rows["x"], rows["y"], batch_size, steps)
        trained, seconds, compiling, cpu = timed(run, seed, arguments.once)
        peak = peak_memory()

        def probabilities(x: np.ndarray) -> np.ndarray:
            return predict(functions, trained, x)

    else:
        prior = bl.priors.Normal.fan_in(variant["gain"]) if variant.get("gain") else None
        kind, settings, parts = METHODS[method]
        own = {k: f() if callable(f) else f for k, f in settings.items()}
        likelihood = bl.likelihoods.Categorical(10)
        module: object = tuple(functions)
        if kind == "mc-dropout":  # whose masks are put into the layers of a module
            module = cnn(jax.random.key(seed), arguments.filters, arguments.units)
        model = bl.Model(module, likelihood, prior, **parts)
        algorithm = bl.ALGORITHMS[kind](**own, **options)
        fitting = {"num_steps": steps, "batch_size": batch_size, "progress": False}

        def run(seed: int) -> bl.Posterior:
            return bl.fit(model, algorithm, (rows["x"], rows["y"]), seed=seed, **fitting)

        posterior, seconds, compiling, cpu = timed(run, seed, arguments.once)
        peak = peak_memory()

        def probabilities(x: np.ndarray) -> np.ndarray:
            return posterior.predict(x, num_samples=arguments.draws).probs

        phases = [phase._asdict() for phase in posterior.phases]
        more = {"std_ratio": std_ratio(posterior), "phases": phases, "elbo": posterior.elbo}
        more["notes"] = list(posterior.notes)
    began, found = time.process_time(), probabilities(rows["x_test"])
    more["predict_cpu_seconds"] = time.process_time() - began
    for name in ("other", "rotated"):
        if name in rows:
            more[f"auroc_{name}"] = auroc(found, probabilities(rows[name]))
    return {
        "method": method,
        "variant": variant,
        "data": arguments.name,
        "network": arguments.network,
        "weights": num_weights(functions),
        "seed": seed,
        "steps": steps,
        "batch_size": batch_size,
        "rows": len(rows["y"]),
        "test_rows": len(found),
        **scores(found, rows["y_test"]),
        "most_uncertain": most_uncertain(found, rows["y_test"]),
        "seconds": seconds,
        "compile_seconds": compiling,
        "cpu_seconds": cpu,
        "peak_bytes": peak,
        **more,
    }


def num_weights(network: Functions) -> int:
    """Of the network."""
    shapes = jax.eval_shape(network.init, jax.random.key(0))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def peak_memory() -> int:
    """Bytes at most so far, on the device; of the process where the device does not say."""
    stats = jax.local_devices()[0].memory_stats()
    if stats is None:
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(stats["peak_bytes_in_use"])


def has(arguments: argparse.Namespace, name: str) -> bool:
    """Whether a data set is there."""
    is_fashion = name == "fashion_mnist" and arguments.fashion is not None
    return is_fashion or (arguments.data / f"{name}.npz").exists()


def run_all(arguments: argparse.Namespace) -> None:
    """Every method in a process of its own, so that memory and compiling are its own."""
    began = time.monotonic()
    for method in arguments.methods:
        child = [sys.executable, __file__, *sys.argv[1:], "--only", method]
        left = None
        if arguments.time_limit is not None:
            left = max(1.0, arguments.time_limit - (time.monotonic() - began))
        try:
            subprocess.run(child, check=False, timeout=left)
        except subprocess.TimeoutExpired:
            print(f"time limit: {method} has not ended", file=sys.stderr, flush=True)
            return


def run_one(arguments: argparse.Namespace) -> None:
    method = arguments.only
    variants = json.loads(arguments.grid).get(method, [{}]) if arguments.grid else [{}]
    for variant in variants:
        for seed in range(1 if variant else arguments.seeds):
            cell = measure(arguments, method, seed, variant)
            label = "".join(f"-{k}={v}" for k, v in variant.items())
            infix = "" if arguments.network == "cnn" else f"-{arguments.network}"
            name = f"{arguments.name}{infix}-{method}{label}-{seed}.json"
            write_cell(arguments.results / name, cell)
            print(row(cell), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of NAME.npz")
    parser.add_argument("--name", default="mnist", help="mnist or fashion_mnist")
    parser.add_argument("--fashion", type=Path, help="folder with Debian's dataset-fashion-mnist")
    parser.add_argument("--network", choices=NETWORKS, default="cnn")
    parser.add_argument("--shape", type=int, nargs=2, help=f"width and depth; else {NETWORKS}")
    parser.add_argument("--methods", nargs="*", help="default: all; of other networks FEW")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2343)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--filters", type=int, nargs=2, default=(32, 64))
    parser.add_argument("--units", type=int, default=128)
    parser.add_argument("--width", choices=("small",), help=f"for a CPU: {SMALL}")
    parser.add_argument("--rows", type=int, help="first rows only")
    parser.add_argument("--test-rows", type=int, help="first test rows only")
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument(
        "--grid",
        help='JSON of variants: {"vogn": [{"learning_rate": 0.01, "gain": 3}, ...], ...}; gain is'
        " that of a fan-in prior in place of the model's own",
    )
    parser.add_argument("--time-limit", type=float, help="seconds for all methods together")
    parser.add_argument("--once", action="store_true", help="no second run for the time of one")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--table", action="store_true", help="print the table of stored cells")
    first = parser.parse_args()
    if first.width == "small":
        parser.set_defaults(**SMALL)
    arguments = parser.parse_args()
    sizes = SMALL_NETWORKS if arguments.width == "small" else NETWORKS
    arguments.shape = arguments.shape or sizes[arguments.network]
    arguments.methods = arguments.methods or (METHODS if arguments.network == "cnn" else FEW)
    arguments.has = partial(has, arguments)
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
