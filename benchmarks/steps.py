"""What a step of ours costs beside a step of Adam, and exact squares beside a gradient.

    python benchmarks/steps.py [--device cpu | gpu] [--repeats 15] [--cases NAME ...]
    python benchmarks/steps.py --table

A case is a JSON file in benchmarks/results/steps, with versions, device and seed. Ours are the
algorithms' own steps in the loop that `fit` compiles, with its minibatches, guards and traces. The
peer is `optax.adam` in a `lax.scan` on the same network, loss and rows, in single precision. All
contenders of a case take turns within one run, `steps` at a time; what is reported is the median
over repeats of the ratios within a turn, and the ratio of the fastest turns. Compiling is apart.
CPU seconds of the process are beside wall seconds: other work on the machine disturbs them less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from faithfulness import write_cell
from hmc_gradients import environment
from peers import problems

import bayeslearn as bl
from bayeslearn.gradients import draws, per_example
from bayeslearn.inference import kernels
from bayeslearn.inference.optimize import CHUNK

RESULTS = Path(__file__).parent / "results" / "steps"
SEED = 0

Turn = Callable[[], None]


def problem(sizes: list[int], rows: int) -> tuple[bl.Model, np.ndarray, np.ndarray]:
    x, y = problems.image_rows(sizes, rows)
    network = bl.networks.MLP(sizes[1:-1], activation="relu")
    # Begun at the prior, without a warm start: wide layers of unit weights would overflow.
    prior = bl.priors.Normal.fan_in(1.0)
    return bl.Model(network, bl.likelihoods.Categorical(sizes[-1]), prior), x, y


def our_steps(algorithm, model, x, y, batch_size: int, steps: int) -> Turn:
    """Turns of the compiled loop of `fit`."""
    target, params = model.bind((x, y), jax.random.key(SEED))
    with jax.enable_x64(True):
        state = kernels.init_state(algorithm, jax.random.key(SEED + 1), target, params)
    done = 0

    def turn() -> None:
        nonlocal state, done
        with jax.enable_x64(True):
            state, _, bad, finite = kernels.run_steps(
                algorithm,
                target=target,
                state=state,
                key_step=jax.random.key(SEED + 2),
                key_data=jax.random.key(SEED + 3),
                begin=done,
                count=steps,
                length=CHUNK,
                batch_size=batch_size,
                stream=None,
            )
            assert bool(finite)
            assert not int(bad)
        done += steps

    return turn


def adam_steps(model, x, y, batch_size: int, steps: int) -> Turn:
    _, params = model.bind((x, y), jax.random.key(SEED))
    weights, optimizer = params["network"], optax.adam(1e-3)
    x, y = jnp.asarray(x), jnp.asarray(y, jnp.int32)
    num_batches = len(x) // batch_size

    def loss(weights, rows):
        outputs = jax.vmap(lambda row: model.network.apply(weights, row))(x[rows])
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(outputs, y[rows]))

    @jax.jit
    def run(weights, state, order, begin):
        def one(carry, t):
            weights, state = carry
            start = (t % num_batches) * batch_size
            rows = jax.lax.dynamic_slice(order, (start,), (batch_size,))
            value, gradient = jax.value_and_grad(loss)(weights, rows)
            updates, state = optimizer.update(gradient, state, weights)
            return (optax.apply_updates(weights, updates), state), value

        return jax.lax.scan(one, (weights, state), begin + jnp.arange(steps))

    state, done = optimizer.init(weights), 0
    order = jax.random.permutation(jax.random.key(SEED + 3), len(x))

    def turn() -> None:
        nonlocal weights, state, done
        (weights, state), values = run(weights, state, order, done)
        jax.block_until_ready((weights, values))
        done += steps

    return turn


def step_case(sizes: list[int], rows: int, batch_size: int, steps: int, **algorithms) -> dict:
    model, x, y = problem(sizes, rows)
    contenders = {"adam": lambda: adam_steps(model, x, y, batch_size, steps)}
    for name, algorithm in algorithms.items():
        contenders[name] = lambda a=algorithm: our_steps(a, model, x, y, batch_size, steps)
    shape = {"sizes": sizes, "batch_size": batch_size, "steps": steps}
    return {"contenders": contenders, "floor": "adam", "steps": steps, "shape": shape}


def draws_case(sizes: list[int], batch_size: int, steps: int, method: str = "VOGN") -> dict:
    """The draws of a step at once and one after the other: what `gradients.draws` decides."""
    model, x, y = problem(sizes, batch_size)
    algorithm = bl.BayesByBackprop() if method == "BayesByBackprop" else bl.VOGN(num_draws=4)
    target, params = model.bind((x, y), jax.random.key(SEED))

    def turns(limit: float) -> Turn:
        with jax.enable_x64(True):
            state = kernels.init_state(algorithm, jax.random.key(SEED + 1), target, params)

        @jax.jit
        def run(state, key):
            def one(t, state):
                return algorithm.step(jax.random.fold_in(key, t), target, state, target.data)[0]

            return jax.lax.fori_loop(0, steps, one, state)

        def turn() -> None:
            known = dict(draws.MAX_BATCHED)
            draws.MAX_BATCHED[jax.default_backend()] = limit
            try:
                with jax.enable_x64(True):
                    jax.block_until_ready(run(state, jax.random.key(SEED + 2)))
            finally:
                draws.MAX_BATCHED.clear()
                draws.MAX_BATCHED.update(known)

        return turn

    contenders = {"looped": lambda: turns(0.0), "at-once": lambda: turns(float("inf"))}
    work = sum(leaf.size for leaf in jax.tree.leaves(params)) * batch_size
    shape = {"sizes": sizes, "batch_size": batch_size, "steps": steps, "weights_times_rows": work}
    return {"contenders": contenders, "floor": "looped", "steps": steps, "shape": shape}


class Convolutions(eqx.Module):
    """ResNet-18's shape for small images: 11 million weights, group norm, no bias."""

    stem: eqx.nn.Conv2d
    blocks: list[dict]
    readout: eqx.nn.Linear

    def __init__(self, widths=(64, 128, 256, 512), key=None):
        keys = iter(jax.random.split(jax.random.key(SEED) if key is None else key, 64))

        def conv(n_in, n_out, size, stride=1):
            return eqx.nn.Conv2d(
                n_in, n_out, size, stride, padding="SAME", use_bias=False, key=next(keys)
            )

        self.stem, self.blocks, width = conv(3, widths[0], 3), [], widths[0]
        for stage, wider in enumerate(widths):
            for i in range(2):
                stride = 2 if stage and not i else 1
                block = {
                    "first": conv(width, wider, 3, stride),
                    "norm1": eqx.nn.GroupNorm(32, wider),
                    "second": conv(wider, wider, 3),
                    "norm2": eqx.nn.GroupNorm(32, wider),
                }
                if stride != 1 or width != wider:
                    block["shortcut"] = conv(width, wider, 1, stride)
                self.blocks.append(block)
                width = wider
        self.readout = eqx.nn.Linear(width, 10, key=next(keys))

    def __call__(self, x):
        x = jax.nn.relu(self.stem(x))
        for block in self.blocks:
            inner = jax.nn.relu(block["norm1"](block["first"](x)))
            inner = block["norm2"](block["second"](inner))
            x = jax.nn.relu(inner + (block["shortcut"](x) if "shortcut" in block else x))
        return self.readout(jnp.mean(x, axis=(1, 2)))


def curvature_case(module: eqx.Module, shape: tuple[int, ...], batch_size: int, steps: int) -> dict:
    """Gradient plus squares beside the gradient alone, and beside one gradient per example."""
    params, static = eqx.partition(module, eqx.is_inexact_array)
    rng = np.random.default_rng(SEED)
    x = jnp.asarray(rng.normal(size=(batch_size, *shape)), jnp.float32)
    y = jnp.asarray(rng.integers(0, 10, batch_size), jnp.int32)

    def apply(params, row):
        return eqx.combine(params, static)(row)

    def log_prob(outputs, label):
        return -optax.softmax_cross_entropy_with_integer_labels(outputs, label)

    def gradient(params, x, y):
        return jax.grad(lambda p: jnp.sum(jax.vmap(log_prob)(jax.vmap(apply, (None, 0))(p, x), y)))(
            params
        )

    def exact(params, x, y):
        outputs, pull = per_example.outputs_and_pull(apply, params, x)
        first, second = pull(jax.vmap(jax.grad(log_prob))(outputs, y))
        return jax.tree.map(lambda a, b: a + 1e-3 * b, first, second)

    def one_by_one(params, x, y):
        def of_row(row, label):
            found = jax.grad(lambda p: log_prob(apply(p, row), label))(params)
            return found, jax.tree.map(jnp.square, found)

        def of_chunk(sums, chunk):
            found = jax.tree.map(lambda g: jnp.sum(g, 0), jax.vmap(of_row)(*chunk))
            return jax.tree.map(jnp.add, sums, found), None

        zeros = jax.tree.map(jnp.zeros_like, (params, params))
        size = min(64, batch_size)
        chunks = (x.reshape(-1, size, *shape), y.reshape(-1, size))
        (first, second), _ = jax.lax.scan(of_chunk, zeros, chunks)
        return jax.tree.map(lambda a, b: a + 1e-3 * b, first, second)

    def turns(function) -> Callable[[], Turn]:
        @jax.jit
        def run(params, x, y):
            def one(_, params):
                return jax.tree.map(lambda w, g: w + 1e-9 * g, params, function(params, x, y))

            return jax.lax.fori_loop(0, steps, one, params)

        return lambda: lambda: jax.block_until_ready(run(params, x, y)) and None

    contenders = {
        "gradient": turns(gradient),
        "squares": turns(exact),
        "vmap(grad)": turns(one_by_one),
    }
    weights = sum(leaf.size for leaf in jax.tree.leaves(params))
    details = {"weights": weights, "input": list(shape), "batch_size": batch_size, "steps": steps}
    return {"contenders": contenders, "floor": "gradient", "steps": steps, "shape": details}


def cases(device: str) -> dict[str, Callable[[], dict]]:
    small, wide = [784, 400, 400, 10], [3072, 4096, 4096, 4096, 10]
    ours = {
        "map": bl.MAP(),
        "vadam": bl.Vadam(num_draws=1, squares="mean"),
        "vadam-signs": bl.Vadam(num_draws=1),
        "vadam-jax-noise": bl.Vadam(num_draws=1, squares="mean", noise="jax"),
        "vogn": bl.VOGN(num_draws=1),
        "bayes-by-backprop": bl.BayesByBackprop(num_draws=1, kl="closed-form"),
        "bayes-by-backprop-local": bl.BayesByBackprop(num_draws=1, perturb="local"),
        "bayes-by-backprop-flipout": bl.BayesByBackprop(num_draws=1, perturb="flipout"),
    }
    if device == "cpu":
        return {
            "mlp": lambda: step_case(small, 4096, 128, CHUNK, **ours),
            "draws-tiny": lambda: draws_case([13, 20, 2], 32, 100),
            "draws-table": lambda: draws_case([13, 50, 2], 455, 50),
            "draws-table-bbb": lambda: draws_case([13, 50, 2], 455, 50, "BayesByBackprop"),
            "draws-small": lambda: draws_case([64, 100, 10], 512, 20),
            "draws-mlp": lambda: draws_case(small, 128, 10),
            "draws-mlp-bbb": lambda: draws_case(small, 128, 3, "BayesByBackprop"),
            "mlp-curvature": lambda: curvature_case(
                eqx.nn.MLP(784, 10, 400, 2, key=jax.random.key(SEED)), (784,), 128, 5
            ),
        }
    some = {name: ours[name] for name in ours if name in ("vogn", "vadam") or "back" in name}
    return {
        "wide-mlp": lambda: step_case(wide, 8192, 1024, 20, **some),
        "draws-mlp-gpu": lambda: draws_case(small, 1024, 50),
        "draws-wide": lambda: draws_case(wide, 1024, 5),
        "wide-mlp-curvature": lambda: curvature_case(
            eqx.nn.MLP(3072, 10, 4096, 3, key=jax.random.key(SEED)), (3072,), 1024, 3
        ),
        "resnet18": lambda: curvature_case(Convolutions(), (3, 32, 32), 256, 3),
    }


def measure(case: dict, repeats: int) -> dict:
    turns, compile_seconds = {}, {}
    for name, make in case["contenders"].items():
        began = time.perf_counter()
        turns[name] = make()
        turns[name]()
        compile_seconds[name] = round(time.perf_counter() - began, 2)
    wall: dict[str, list[float]] = {name: [] for name in turns}
    cpu: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(repeats):
        for name, turn in turns.items():
            began, began_cpu = time.perf_counter(), time.process_time()
            turn()
            wall[name].append((time.perf_counter() - began) / case["steps"])
            cpu[name].append((time.process_time() - began_cpu) / case["steps"])
    floor = case["floor"]
    found = {}
    for name in turns:
        ratios = [a / b for a, b in zip(wall[name], wall[floor], strict=True)]
        cpu_ratios = [a / b for a, b in zip(cpu[name], cpu[floor], strict=True)]
        found[name] = {
            "milliseconds": round(1e3 * statistics.median(wall[name]), 3),
            "ratio": round(statistics.median(ratios), 3),
            "ratio_quartiles": [round(q, 3) for q in statistics.quantiles(ratios, n=4)[::2]],
            "ratio_of_fastest": round(min(wall[name]) / min(wall[floor]), 3),
            "cpu_ratio": round(statistics.median(cpu_ratios), 3),
            "compile_seconds": compile_seconds[name],
        }
    return {"floor": floor, "shape": case["shape"], "repeats": repeats, "found": found}


def table() -> str:
    lines = [
        "| case | contender | ms | times the floor | quartiles | fastest | CPU time | device |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for path in sorted(RESULTS.glob("*.json")):
        cell = json.loads(path.read_text())
        for name, f in cell["found"].items():
            low, high = f["ratio_quartiles"]
            lines.append(
                f"| {cell['case']} | {name} | {f['milliseconds']} | {f['ratio']:.2f}"
                f" | {low:.2f} to {high:.2f} | {f['ratio_of_fastest']:.2f} | {f['cpu_ratio']:.2f}"
                f" | {cell['device']} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--cases", nargs="*", help="some of the device's cases (default: all)")
    parser.add_argument("--table", action="store_true", help="print what was measured and stop")
    arguments = parser.parse_args()
    if arguments.repeats < 2:
        parser.error("--repeats must be at least 2")
    if not arguments.table:
        if arguments.device == "gpu" and jax.default_backend() != "gpu":
            parser.error("JAX sees no GPU")
        for name, make in cases(arguments.device).items():
            if arguments.cases and name not in arguments.cases:
                continue
            details = environment() | {"case": name, "seed": SEED}
            write_cell(RESULTS / f"{name}.json", measure(make(), arguments.repeats) | details)
    print(table())


if __name__ == "__main__":
    main()
