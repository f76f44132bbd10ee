"""How a step's time grows with the size of the problem, beside what theory says.

    python benchmarks/growth.py run [--repeats 7] [--what width k ...]
    python benchmarks/growth.py table [--plot docs/growth.png]

width, batch, draws  Bayes by Backprop on an MLP with two hidden layers: weights grow with the
                     square of the width, work with the product of all three
chains               HMC on the 13-50-1 network: time of a draw of all chains, over two cores or
                     as many as there are
k                    EMGVB with a full covariance of k weights, 100 draws: products of k x k with
                     k x 100 matrices, since a step has no higher rank than its draws

Sizes take turns within a repeat. The slope is that of log time against log size over the larger
half of the sizes, where the part that grows has the say. Compiling is apart. A kind of growth is a
JSON file in benchmarks/results/growth; one that is there is not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np
import steps as stepping
from faithfulness import write_cell
from hmc_gradients import environment, make_target
from peers import problems

import bayeslearn as bl
from bayeslearn.inference import kernels
from bayeslearn.inference.chains import ChainPlacement, draw

RESULTS = Path(__file__).parent / "results" / "growth"
PLOT = Path(__file__).parent.parent / "docs" / "growth.png"
INPUTS, WIDTH, BATCH, CLASSES = 128, 256, 128, 10

Turn = Callable[[], None]


def backprop(width: int = WIDTH, batch: int = BATCH, draws: int = 1, steps: int = 5) -> Turn:
    sizes = [width, width, width, CLASSES]
    algorithm = bl.BayesByBackprop(num_draws=draws, kl="closed-form")
    model, x, y = stepping.problem(sizes, 4 * batch)
    return stepping.our_steps(algorithm, model, x, y, batch, steps)


def full(k: int) -> Turn:
    rng = np.random.default_rng(problems.SEED)
    x = rng.normal(size=(256, k)) / k**0.5
    model = bl.Model(bl.networks.MLP([], use_bias=False), bl.likelihoods.Gaussian(noise_scale=1.0))
    algorithm = bl.EMGVB(num_draws=100)
    return stepping.our_steps(algorithm, model, x, x[:, 0], 256, 1)


def chains(count: int) -> Turn:
    """A turn is a chunk of 50 draws of every chain, through `fit`."""
    stream = _chunks(count)
    next(stream)
    return lambda: next(stream)


def _chunks(count: int) -> Iterator[None]:
    """The chains of `fit`: threads that call one compiled chain."""
    target, params = make_target()
    algorithm = bl.HMC(num_leapfrog=problems.LEAPFROG, num_warmup=0, step_size=problems.STEP_SIZE)
    placement = ChainPlacement(count)
    keys = list(jax.random.split(jax.random.key(problems.SEED), count))
    with jax.enable_x64(True), placement:
        states = placement.stack_states(
            [kernels.init_state(algorithm, key, target, params) for key in keys]
        )

        def advance(group, state, begin):
            return draw(
                algorithm,
                target=target,
                state=state,
                key=placement.keys(keys)[group],
                begin=begin,
                count=50,
                inner=1,
                length=50,
                is_batched=placement.is_batched,
            )

        begin = 0
        while True:
            states = [result[0] for result in placement.run(advance, states, begin)]
            begin += 50
            yield


GROWTHS: dict[str, tuple[str, list[int], Callable[[int], Turn], float]] = {
    "width": ("width of the layers", [128, 256, 512, 1024], lambda n: backprop(width=n), 2.0),
    "batch": ("rows in a batch", [128, 512, 1024, 2048], lambda n: backprop(batch=n), 1.0),
    "draws": ("draws in a step", [1, 4, 8, 16], lambda n: backprop(draws=n), 1.0),
    "chains": ("chains", [2, 4, 8], chains, 1.0),
    "k": ("weights with a full covariance", [100, 200, 400, 800], full, 2.0),
}


def measure(what: str, repeats: int) -> dict:
    words, sizes, make, theory = GROWTHS[what]
    turns = {size: make(size) for size in sizes}
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    for turn in turns.values():
        turn()
    for _ in range(repeats):
        for size, turn in turns.items():
            began = time.perf_counter()
            turn()
            seconds[size].append(time.perf_counter() - began)
    return {
        "what": what,
        "words": words,
        "theory": theory,
        "sizes": sizes,
        "seconds": [statistics.median(seconds[size]) for size in sizes],
        "repeats": repeats,
        "seed": problems.SEED,
    }


def slope(cell: dict) -> float:
    """Over the larger half of the sizes, at least two."""
    upper = len(cell["sizes"]) // 2
    logs = np.log(cell["sizes"][-max(upper, 2) :]), np.log(cell["seconds"][-max(upper, 2) :])
    return float(np.polyfit(*logs, 1)[0])


def cells() -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]


def table() -> str:
    lines = [
        "| grows | sizes | ms | slope of the larger half | theory |",
        "|---|---|---|---|---|",
    ]
    for cell in cells():
        lines.append(
            f"| {cell['words']} | {', '.join(map(str, cell['sizes']))}"
            f" | {', '.join(f'{1e3 * s:.3g}' for s in cell['seconds'])}"
            f" | {slope(cell):.2f} | {cell['theory']:g} |"
        )
    return "\n".join(lines)


def plot(path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    found = cells()
    figure, axes = pyplot.subplots(1, len(found), figsize=(3 * len(found), 3), squeeze=False)
    for axis, cell in zip(axes[0], found, strict=True):
        sizes, times = np.array(cell["sizes"]), 1e3 * np.array(cell["seconds"])
        axis.loglog(sizes, times, "o-", label=f"measured, slope {slope(cell):.2f}")
        law = times[-1] * (sizes / sizes[-1]) ** cell["theory"]
        axis.loglog(sizes, law, "--", color="grey", label=f"theory, slope {cell['theory']:g}")
        axis.set_xlabel(cell["words"])
        axis.set_xticks(sizes, map(str, sizes))
        axis.minorticks_off()
        axis.legend(fontsize=7)
    axes[0][0].set_ylabel("milliseconds")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("run", "table"))
    parser.add_argument("--what", nargs="*", choices=[*GROWTHS], default=[*GROWTHS])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--plot", type=Path, help=f"write the picture here ({PLOT.name})")
    arguments = parser.parse_args()
    if arguments.command == "run":
        for what in arguments.what:
            path = RESULTS / f"{what}.json"
            if not path.exists():
                details = environment()
                write_cell(path, measure(what, arguments.repeats) | details)
    print(table())
    if arguments.plot is not None:
        plot(arguments.plot)


if __name__ == "__main__":
    main()
