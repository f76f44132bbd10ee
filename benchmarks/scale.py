"""What many devices and large networks cost: overhead of processes, speed and memory beside Adam.

    python benchmarks/scale.py overhead [--repeats 7]   1, 2 and 4 processes on this machine
    python benchmarks/scale.py gpu [--repeats 9]        more than 100 million weights on one GPU
    python benchmarks/scale.py model [--weights 1e8]    the cost model of docs/scale.md in numbers
    python benchmarks/scale.py project                  1 to 1,000 devices, from the `gpu` result
    python benchmarks/scale.py --table

A result is a JSON file in benchmarks/results/scale, with versions, device and seed. Speed is that
of the loop that `fit` compiles and of `optax.adam` in a `lax.scan`, in turns within one process, as
in steps.py. Memory is the peak that the device reports of a process that does nothing but bind the
model, make a state and take steps, one process per contender. `overhead` is no scaling: there are
as many cores as before. Its share of communication is what a step takes longer than one on the
process's own share of the rows without a mesh, which all processes take at the same time; beside it
is the bare all-reduce of as many bytes as a step's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

RESULTS = Path(__file__).parent / "results" / "scale"
SEED = 0
LARGE = [3072, 6144, 6144, 6144, 6144, 10]  # 132 million weights
LARGE_ROWS, LARGE_BATCH, LARGE_STEPS = 8192, 1024, 10
SMALL, BATCH = [784, 400, 400, 10], 128
PROCESSES = (1, 2, 4)
MACHINE = 8  # devices that share fast links
FAST, SLOW, LATENCY = 450e9, 50e9, 5e-6  # bytes a second and device, each way; seconds a hop


class Cost(NamedTuple):
    """In units of the number of weights (or of weights times rows), for S draws."""

    passes: float  # forward is 1, backward 2, squares 1: times 2 operations
    state: float
    temporary: float
    summed: float  # over devices


def costs(draws: int = 1) -> dict[str, Cost]:
    return {
        "adam": Cost(3, 3, 1, 1),
        "vadam": Cost(3 * draws, 3, 2 * draws, draws),
        "vadam-signs": Cost(5 * draws, 3, 3 * draws, 2 * draws),
        "vogn": Cost(4 * draws, 3, 3 * draws, 2 * draws),
        "bayes-by-backprop": Cost(3 * draws, 8, 2 + 2 * draws, draws),
    }


def num_weights(sizes: list[int]) -> int:
    return sum((a + 1) * b for a, b in itertools.pairwise(sizes))


def peak_bytes(name: str, sizes: list[int], rows: int, batch: int) -> float:
    """The model: a step's input and output, what it makes, rows, inputs of all layers twice."""
    cost = costs()[name]
    weights = num_weights(sizes) * (2 * cost.state + cost.temporary)
    return 4.0 * (weights + rows * sizes[0] + 2 * batch * sum(sizes))


def contenders() -> dict:
    import bayeslearn as bl

    short = {"num_draws": 1, "learning_rate": 1e-4}  # there is no warm start here
    return {
        "vogn": bl.VOGN(**short),
        "vadam": bl.Vadam(squares="mean", **short),
        "vadam-signs": bl.Vadam(**short),
        "bayes-by-backprop": bl.BayesByBackprop(kl="closed-form", **short),
    }


# One GPU


def peak(name: str) -> dict:
    """Of a process of its own: bytes in use at most, and what XLA says of the loop alone."""
    import jax
    import jax.numpy as jnp
    from steps import adam_steps, problem

    from bayeslearn.inference import kernels
    from bayeslearn.inference.optimize import CHUNK

    sizes, batch = LARGE, LARGE_BATCH
    model, x, y = problem(sizes, LARGE_ROWS)
    if name == "adam":
        turn = adam_steps(model, x, y, batch, LARGE_STEPS)
        turn()
    else:
        algorithm = contenders()[name]
        target, params = model.bind((x, y), jax.random.key(SEED))
        with jax.enable_x64(True):
            like = jax.eval_shape(
                lambda p: kernels.init_state(algorithm, jax.random.key(SEED), target, p), params
            )
            del params
            # Any state will do, and `init` would need more memory than a step.
            state = jax.tree.map(lambda s: jnp.full(s.shape, 1e-3, s.dtype), like)
            results = kernels.run_steps(
                algorithm,
                target=target,
                state=state,
                key_step=jax.random.key(SEED + 2),
                key_data=jax.random.key(SEED + 3),
                begin=0,
                count=LARGE_STEPS,
                length=CHUNK,
                batch_size=batch,
                stream=None,
            )
            jax.block_until_ready(results)
    stats = jax.local_devices()[0].memory_stats() or {}
    return {"peak": stats.get("peak_bytes_in_use")}


def gpu(repeats: int) -> dict:
    quiet = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    memory = {}
    for name in costs():  # before this process takes the device
        command = [sys.executable, __file__, "peak", "--contender", name]
        ended = subprocess.run(command, env=quiet, capture_output=True, text=True)
        if ended.returncode:
            raise SystemExit(ended.stderr)
        found = json.loads(ended.stdout.splitlines()[-1])["peak"]
        model = peak_bytes(name, LARGE, LARGE_ROWS, LARGE_BATCH)
        memory[name] = {"peak": found, "model": model, "ratio": found and round(found / model, 3)}
    from steps import measure, step_case

    case = step_case(LARGE, LARGE_ROWS, LARGE_BATCH, LARGE_STEPS, **contenders())
    measured = measure(case, repeats)
    for found in measured["found"].values():
        found["rows_per_second"] = round(1e3 * LARGE_BATCH / found["milliseconds"])
    return {"weights": num_weights(LARGE), "memory": memory} | measured


# Processes on this machine


def overhead_worker(repeats: int) -> None:
    """A process of some: times of a step over all of them, and of a bare all-reduce."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec
    from steps import problem

    import bayeslearn as bl
    from bayeslearn.distributed import mesh, processes
    from bayeslearn.inference import kernels
    from bayeslearn.inference.optimize import CHUNK

    bl.distributed.initialize(timeout=300, heartbeat=300)
    layout = mesh.layout(None, "all")
    assert layout is not None
    model, x, y = problem(SMALL, 4096)
    algorithm, steps = bl.VOGN(num_draws=1), 20

    def timed(function) -> list[float]:
        function()
        found = []
        for _ in range(repeats):
            began = time.perf_counter()
            function()
            found.append((time.perf_counter() - began) / steps)
        return found

    local, params = model.bind((x, y), jax.random.key(SEED))
    with jax.enable_x64(True):
        target = layout.put(local.with_data(None)).with_data(layout.put_rows(local.data))

        def run(target, layout, batch_size):
            key = jax.random.key(SEED)
            state = kernels.init_state(algorithm, key, target, params, layout=layout)

            def turn() -> None:
                results = kernels.run_steps(
                    algorithm,
                    target=target,
                    state=state,
                    key_step=key,
                    key_data=key,
                    begin=0,
                    count=steps,
                    length=CHUNK,
                    batch_size=batch_size,
                    stream=None,
                    layout=layout,
                )
                assert not int(results[2])

            return timed(turn)

        together = run(target, layout, BATCH)
        size = int(costs()["vogn"].summed * num_weights(SMALL))
        shards = layout.num_shards
        processes.any_process(True)  # begin together
        apart = run(local, None, BATCH // shards)
        spec = NamedSharding(layout.mesh, PartitionSpec("data"))
        rows = jax.make_array_from_callback(
            (shards, size), spec, lambda index: np.ones((1, size), np.float32)
        )

        @jax.jit
        def reduce(rows):
            def one(_, total):
                return jnp.sum(rows * (1 + total[0]), axis=0) * 1e-3

            whole = NamedSharding(layout.mesh, PartitionSpec())
            start = jax.lax.with_sharding_constraint(jnp.zeros(size, jnp.float32), whole)
            return jax.lax.fori_loop(0, steps, one, start)

        summing = timed(lambda: jax.block_until_ready(reduce(rows)))
    if processes.is_first():
        times = {"together": together, "summing": summing, "apart": apart}
        print(json.dumps(times), flush=True)


def overhead(repeats: int) -> dict:
    found = {}
    for num in PROCESSES:
        command = [sys.executable, "-m", "bayeslearn.distributed", "-n", str(num), "--"]
        command += [sys.executable, __file__, "overhead-worker", "--repeats", str(repeats)]
        ended = subprocess.run(command, capture_output=True, text=True)
        if ended.returncode:
            raise SystemExit(ended.stderr)
        line = next(line for line in ended.stdout.splitlines() if line.startswith("{"))
        times = {name: statistics.median(v) for name, v in json.loads(line).items()}
        if num == 1:
            alone = times["apart"]
        found[str(num)] = {
            "milliseconds": round(1e3 * times["together"], 3),
            "times_one_without_a_mesh": round(times["together"] / alone, 3),
            "share_of_communication": round(1 - times["apart"] / times["together"], 3),
            "bare_all_reduce": round(1e3 * times["summing"], 3),
        }
    shape = {"sizes": SMALL, "batch_size": BATCH, "algorithm": "vogn"}
    return {"found": found, "repeats": repeats, "shape": shape, "alone": round(1e3 * alone, 3)}


# On paper


def reduced(num_bytes: float, devices: int) -> float:
    """Seconds of an all-reduce in two levels of rings."""

    def ring(num_bytes: float, n: int, bandwidth: float) -> float:
        return 2 * (n - 1) / n * num_bytes / bandwidth + 2 * (n - 1) * LATENCY

    inside = min(devices, MACHINE)
    between = math.ceil(devices / MACHINE)
    return ring(num_bytes, inside, FAST) + ring(num_bytes / inside, between, SLOW)


def model_table(weights: float, batch: int) -> str:
    lines = [
        "| method | operations a step | state, GB | made in a step, GB | summed, GB | of Adam's |",
        "|---|---|---|---|---|---|",
    ]
    adam = costs()["adam"]
    for name, cost in costs().items():
        lines.append(
            f"| {name} | {2 * cost.passes * weights * batch:.3g}"
            f" | {4e-9 * cost.state * weights:.3g} | {4e-9 * cost.temporary * weights:.3g}"
            f" | {4e-9 * cost.summed * weights:.3g}"
            f" | {cost.passes / adam.passes:.2f} |"
        )
    return "\n".join(lines)


def projection() -> str:
    path = RESULTS / "gpu.json"
    if not path.exists():
        return "There is no result of `python benchmarks/scale.py gpu` to project from."
    cell = json.loads(path.read_text())
    counts = (1, 8, 64, 512, 1000)
    lines = [
        "| method | " + " | ".join(f"{n} devices, ms" for n in counts) + " | efficiency at 1000 |",
        "|---" * (len(counts) + 2) + "|",
    ]
    for name, found in cell["found"].items():
        alone = found["milliseconds"]
        num_bytes = 4 * costs()[name].summed * cell["weights"]
        times = [alone + 1e3 * reduced(num_bytes, n) * (n > 1) for n in counts]
        shown = " | ".join(f"{t:.1f}" for t in times)
        lines.append(f"| {name} | {shown} | {alone / times[-1]:.2f} |")
    return "\n".join(lines)


def table() -> str:
    lines = []
    if (path := RESULTS / "gpu.json").exists():
        cell = json.loads(path.read_text())
        lines += [
            f"{cell['weights'] / 1e6:.0f} million weights, batches of"
            f" {cell['shape']['batch_size']} rows, float32, {cell['device']}:",
            "",
            "| method | ms a step | times Adam | rows a second | peak, GB | of the model |",
            "|---|---|---|---|---|---|",
        ]
        for name, f in cell["found"].items():
            m = cell["memory"][name]
            peak = "" if m["peak"] is None else f"{m['peak'] / 1e9:.2f}"
            lines.append(
                f"| {name} | {f['milliseconds']} | {f['ratio']:.2f} | {f['rows_per_second']}"
                f" | {peak} | {m['ratio'] or ''} |"
            )
        lines.append("")
    if (path := RESULTS / "overhead.json").exists():
        cell = json.loads(path.read_text())
        lines += [
            f"VOGN on an MLP {cell['shape']['sizes']}, {cell['cores']} cores, one process without"
            f" a mesh {cell['alone']} ms a step:",
            "",
            "| processes | ms a step | times one without a mesh | share of communication"
            " | bare all-reduce, ms |",
            "|---|---|---|---|---|",
        ]
        for num, f in cell["found"].items():
            lines.append(
                f"| {num} | {f['milliseconds']} | {f['times_one_without_a_mesh']:.2f}"
                f" | {f['share_of_communication']:.2f} | {f['bare_all_reduce']} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    modes = ("overhead", "overhead-worker", "gpu", "peak", "model", "project")
    parser.add_argument("mode", nargs="?", choices=modes)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--contender", choices=tuple(costs()))
    parser.add_argument("--weights", type=float, default=float(num_weights(LARGE)))
    parser.add_argument("--table", action="store_true", help="print what was measured and stop")
    given = parser.parse_args()
    if given.mode == "overhead-worker":
        overhead_worker(given.repeats)
    elif given.mode == "peak":
        print(json.dumps(peak(given.contender)))
    elif given.mode == "model":
        print(model_table(given.weights, LARGE_BATCH))
    elif given.mode == "project":
        print(projection())
    elif given.mode is not None:
        result = gpu(given.repeats) if given.mode == "gpu" else overhead(given.repeats)
        from faithfulness import write_cell
        from hmc_gradients import environment

        details = environment() | {"case": given.mode, "seed": SEED}
        write_cell(RESULTS / f"{given.mode}.json", result | details)
    if given.table or given.mode in ("gpu", "overhead"):
        print(table())


if __name__ == "__main__":
    main()
