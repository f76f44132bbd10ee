"""What `test_distributed.py` runs in processes of its own: `python mesh_worker.py WHAT FOLDER`."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

import bayeslearn as bl

STEPS = {"float64": 200, "float32": 20}
BOUND = {"float64": 1e-10, "float32": 1e-5}
KILLED_AT = 120  # of the float64 run, which has a checkpoint every 50 steps
RARE = ("eval_every", "microbatch", "remat", "num_data")
CHAINS = bl.HMC(num_warmup=10, num_samples=10, max_leapfrog=4)


def rows(number: int = 96) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(number, 3))
    return x, np.sin(x[:, 0]) + 0.1 * rng.normal(size=number)


def model(dtype: str) -> bl.Model:
    return bl.Model(bl.networks.MLP([8]), bl.likelihoods.Gaussian(), dtype=dtype)


def first_q(dtype: str) -> Any:
    """Where runs begin, so that none needs a warm start."""
    _, start = model(dtype).bind(rows(), jax.random.key(7))
    return bl.families.DiagonalGaussian(start, jax.tree.map(lambda w: 0 * w + 0.05, start))


def fitted(dtype: str = "float64", algorithm: Any = None, **options: Any) -> bl.Posterior:
    """A run from `first_q`; fields of `FitOptions` may be given beside the arguments of `fit`."""
    given = {"seed": 1, "num_steps": STEPS[dtype], "batch_size": 32, "init": first_q(dtype)}
    algorithm = bl.VOGN(num_draws=2) if algorithm is None else algorithm
    data = options.pop("data", rows())
    rare = {name: options.pop(name) for name in RARE if name in options}
    return bl.fit(model(dtype), algorithm, data, **given | options, options=bl.FitOptions(**rare))


def resumed(folder: Path, **options: Any) -> bl.Posterior:
    params = first_q("float64")
    return bl.resume(folder, rows(), init=params, callback=False, **options)


def chains(**options: Any) -> bl.Posterior:
    return bl.fit(
        model("float64"), CHAINS, rows(), seed=2, num_chains=3, init=first_q("float64"), **options
    )


def compared(**options: Any) -> dict[str, np.ndarray]:
    """The scores of methods without a warm start, whose thousands of steps part by rounding."""
    methods = ["map", "mc-dropout"]
    found = bl.compare(*rows(), methods=methods, num_steps=20, splits=2, hidden=(4,), **options)
    metrics = {row["method"]: row["metrics"] for row in found.to_dict()["table"]}
    smooth = ("log_likelihood", "rmse", "crps")  # and not counts of rows
    return {f"{m} {name}": np.asarray(metrics[m][name][0]) for m in methods for name in smooth}


def numbers(posterior: bl.Posterior) -> dict[str, np.ndarray]:
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(posterior.family)]
    return {f"leaf{i}": leaf for i, leaf in enumerate(leaves)}


def furthest(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    assert a.keys() == b.keys()
    return max(float(np.max(np.abs(a[name] - b[name]))) for name in a)


def die(event: bl.FitEvent) -> None:
    """A callback by which the last process kills itself."""
    if event.step >= KILLED_AT and jax.process_index() == jax.process_count() - 1:
        Path(sys.argv[2], "died").write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)


class Parts:
    """Batches of which each process reads its own rows."""

    def __init__(self, process: int, num_processes: int):
        self.own = slice(process * 32 // num_processes, (process + 1) * 32 // num_processes)

    def __iter__(self):
        x, y = rows()
        for begin in (0, 32, 64):
            yield x[begin : begin + 32][self.own], y[begin : begin + 32][self.own]


def streamed(process: int, num_processes: int, **options: Any) -> bl.Posterior:
    data = Parts(process, num_processes)
    return fitted(data=data, batch_size="auto", num_data=96, num_steps=20, **options)


def mesh_of(count: int) -> Mesh:
    return Mesh(np.asarray(jax.devices()[:count]), ("data",))


def few_devices(folder: Path) -> None:
    """1, 2 and 4 devices of one process."""
    alone, narrow = fitted(), fitted("float32")
    sharded = fitted(devices=bl.Devices(shard="weights"))
    pieces = fitted("float32", devices="all", microbatch=8)
    x = rows(21)[0]
    one, four = alone.predict(x), alone.predict(x, devices="all")
    write(
        folder,
        {
            "float64 on 2": furthest(numbers(alone), numbers(fitted(devices=mesh_of(2)))),
            "float64 sharded on 4": furthest(numbers(alone), numbers(sharded)),
            "float32 in pieces on 4": furthest(numbers(narrow), numbers(pieces)),
            "float64 mean on 4": float(np.max(np.abs(one.mean - four.mean))),
        },
    )
    assert all(len(w.sharding.device_set) == 1 for w in jax.tree.leaves(sharded.state.mean))


def more_devices(folder: Path) -> None:
    """Other algorithms and layouts."""
    differences, x = {}, rows(21)[0]
    grid = Mesh(np.asarray(jax.devices()).reshape(2, 2), ("data", "model"))
    layouts = {
        "on 4": {"devices": "all"},
        "on 2 x 2": {"devices": bl.Devices(grid, shard="weights")},
        "in pieces on 2": {"devices": mesh_of(2), "microbatch": 8},
        "rematerialised on 2": {"devices": mesh_of(2), "remat": True},
        "with rows that do not divide": {"devices": mesh_of(4), "data": rows(93), "batch_size": 30},
    }
    algorithms = {
        "vogn": bl.VOGN(num_draws=2),
        "vogn-shares": bl.VOGN(num_draws=2, draw_rows="share"),
        "vadam": bl.Vadam(num_draws=2),
        "ivon": bl.IVON(num_draws=2),
        "bayes-by-backprop": bl.BayesByBackprop(num_draws=2),
    }
    for name, algorithm in algorithms.items():
        for dtype in STEPS:
            alone = fitted(dtype, algorithm)
            for how, layout in layouts.items():
                single = {key: layout[key] for key in ("data", "batch_size") if key in layout}
                expected = fitted(dtype, algorithm, **single) if single else alone
                found = fitted(dtype, algorithm, **layout)
                differences[f"{dtype} {name} {how}"] = furthest(numbers(expected), numbers(found))
    one, four = alone.predict(x), alone.predict(x, devices="all")
    found = np.abs(one.quantile(0.1) - four.quantile(0.1))
    differences["float64 quantile"] = float(np.max(found))
    sampled = np.abs(one.sample(3, 5) - four.sample(3, 5))
    differences["float64 sample"] = float(np.max(sampled))
    write(folder, differences)


def write(folder: Path, differences: dict[str, float]) -> None:
    (folder / "differences.json").write_text(json.dumps(differences))


def killed(folder: Path) -> None:
    bl.distributed.initialize(timeout=300, heartbeat=300)  # a loaded machine is silent for long
    checkpoint = bl.Checkpoint(folder / "run", every=50)
    fitted(devices="all", checkpoint=checkpoint, eval_every=10, callback=die)


def processes(folder: Path) -> None:
    """All that several processes do together; each writes what it has found."""
    bl.distributed.initialize(timeout=300, heartbeat=300)  # a loaded machine is silent for long
    process, num = jax.process_index(), jax.process_count()
    x = rows(21)[0]
    for dtype in STEPS:
        found = fitted(
            dtype, devices="all", checkpoint=bl.Checkpoint(folder / f"run-{dtype}", every=50)
        )
        values = numbers(found)
        if dtype == "float64":
            values["mean"] = found.predict(x, devices="all").mean
            values["local mean"] = found.predict(x).mean
        np.savez(folder / f"{dtype}-{process}.npz", **values)
    np.savez(folder / f"stream-{process}.npz", **numbers(streamed(process, num, devices="all")))
    found = chains(devices="all", checkpoint=bl.Checkpoint(folder / "run-chains", every=10_000))
    np.savez(
        folder / f"chains-{process}.npz", **numbers(found), acceptance=found.trace["acceptance"]
    )
    np.savez(folder / f"compared-{process}.npz", **compared(devices="all"))
    again = resumed(folder / "begun", devices="all")
    np.savez(folder / f"resumed-{process}.npz", **numbers(again))


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
