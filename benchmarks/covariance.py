"""What a step of a full-covariance method costs beside one eigendecomposition and three products.

    python benchmarks/covariance.py [--device cpu | gpu] [--repeats 9] [--cases NAME ...]
    python benchmarks/covariance.py --table

The floor is one symmetric eigendecomposition and three matrix products, all k x k. The target is a
Gaussian of k weights, whose gradients cost next to nothing, so that what is timed is the methods'
own work: their steps, 100 draws each, in the loop that `fit` compiles, from the independent weights
where its warm start would leave them. Everything is float64, as in `fit`. Contenders take turns as
in `steps.py`; a case is a JSON file in benchmarks/results/covariance.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from faithfulness import write_cell
from hmc_gradients import environment
from steps import Turn, measure

import bayeslearn as bl
from bayeslearn.families import DiagonalGaussian
from bayeslearn.inference import kernels
from bayeslearn.inference.optimize import CHUNK

RESULTS = Path(__file__).parent / "results" / "covariance"
SEED, DRAWS = 0, 100


def algorithms() -> dict[str, bl.Algorithm]:
    draws = {"num_draws": DRAWS}
    return {
        "emgvb": bl.EMGVB(**draws),
        "emgvb-momentum": bl.EMGVB(momentum=0.4, **draws),
        "emgvb-score": bl.EMGVB(gradient="score", **draws),
        "mgvb": bl.MGVB(**draws),
        "qbvi": bl.QBVI(**draws),
        "ngvi": bl.NGVI(**draws),
        "von-8-draws": bl.VON(num_draws=8),
    }


def make_target(size: int) -> bl.Target:
    """Weights of unequal scale, all correlated with each other."""
    rng = np.random.default_rng(SEED)
    prec, common = rng.uniform(0.5, 2.0, size), rng.normal(size=size) / np.sqrt(size)

    def log_density(w: jax.Array) -> jax.Array:
        return -0.5 * (jnp.sum(prec * w**2) + jnp.dot(common, w) ** 2)

    return bl.Target.from_log_density(log_density, np.zeros(size))


def our_steps(algorithm: bl.Algorithm, size: int, steps: int) -> Turn:
    """Turns of the compiled loop of `fit`."""
    target = make_target(size)
    with jax.enable_x64(True):
        mean = jnp.zeros(size, jnp.float64)
        q = DiagonalGaussian(mean, 0.8 * jnp.ones(size, jnp.float64))
        state = kernels.init_state_from(algorithm, jax.random.key(SEED), target, q)
    done = 0

    def turn() -> None:
        nonlocal state, done
        with jax.enable_x64(True):
            state, _, bad, finite = kernels.run_steps(
                algorithm,
                target=target,
                state=state,
                key_step=jax.random.key(SEED + 1),
                key_data=jax.random.key(SEED + 2),
                begin=done,
                count=steps,
                length=CHUNK,
                batch_size=None,
                stream=None,
            )
            assert bool(finite)
            assert not int(bad)
        done += steps

    return turn


def floor_turn(size: int, steps: int) -> Turn:
    with jax.enable_x64(True):
        root = jax.random.normal(jax.random.key(SEED), (size, size), jnp.float64)
        matrix = (root + root.T) / (2.0 * np.sqrt(size))

    @jax.jit
    def run(matrix: jax.Array) -> jax.Array:
        def one(_: int, m: jax.Array) -> jax.Array:
            values, vectors = jnp.linalg.eigh(m)
            product = ((m @ vectors) @ vectors.T) @ m
            # so small that the next matrix is the same, and nothing can be left out
            return m + 1e-300 * (product + product.T + values)

        return jax.lax.fori_loop(0, steps, one, matrix)

    def turn() -> None:
        with jax.enable_x64(True):
            jax.block_until_ready(run(matrix))

    return turn


def make_case(size: int, steps: int, names: list[str] | None) -> dict:
    chosen = {n: a for n, a in algorithms().items() if not names or n in names}
    contenders = {"eigh and 3 products": lambda: floor_turn(size, steps)}
    for name, algorithm in chosen.items():
        contenders[name] = lambda a=algorithm: our_steps(a, size, steps)
    shape = {"weights": size, "draws": DRAWS, "steps": steps, "dtype": "float64"}
    return {
        "contenders": contenders,
        "floor": "eigh and 3 products",
        "steps": steps,
        "shape": shape,
    }


def table() -> str:
    lines = [
        "| weights | contender | ms per step | times the floor | quartiles | device |",
        "|---|---|---|---|---|---|",
    ]
    for path in sorted(RESULTS.glob("*.json")):
        cell = json.loads(path.read_text())
        for name, f in cell["found"].items():
            low, high = f["ratio_quartiles"]
            lines.append(
                f"| {cell['shape']['weights']} | {name} | {f['milliseconds']:.1f}"
                f" | {f['ratio']:.3f} | {low:.3f} to {high:.3f} | {cell['device']} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--weights", type=int, nargs="*", help="k (default: 1000; gpu: 10000 too)")
    parser.add_argument("--only", nargs="*", help="some of the methods (default: all)")
    parser.add_argument("--table", action="store_true", help="print what was measured and stop")
    arguments = parser.parse_args()
    if arguments.repeats < 2:
        parser.error("--repeats must be at least 2")
    if not arguments.table:
        is_gpu = arguments.device == "gpu"
        if is_gpu and jax.default_backend() != "gpu":
            parser.error("JAX sees no GPU")
        for size in arguments.weights or ([1000, 10000] if is_gpu else [1000]):
            case = make_case(size, 3 if size <= 1000 else 1, arguments.only)
            repeats = arguments.repeats if size <= 1000 else min(arguments.repeats, 3)
            details = environment() | {"case": f"k={size}", "seed": SEED}
            path = RESULTS / f"{arguments.device}-{size}.json"
            write_cell(path, measure(case, repeats) | details)
    print(table())


if __name__ == "__main__":
    main()
